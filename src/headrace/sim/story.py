"""Story: what crossed between the parts of a fleet, in words, the latest last. Passes everything on to another watch, which
may fail; what it fails by is the story's last line then.

Knows how to tell one event in a line; does not know what must hold.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from headrace.base.clock import Clock, ManualClock
from headrace.base.ids import BlockId, RequestId
from headrace.base.units import seconds
from headrace.engine.mind.decode_run import DecodeRun
from headrace.engine.mind.request import Request
from headrace.engine.mind.step import StepPlan
from headrace.router.mind.disaggregation import Leg
from headrace.sim.fleet_log import FleetEvent
from headrace.sim.watch import Watch

_MOST_ENTRIES = 4
"""Of one step that are told."""


class Story(Watch):
    """Keeps the last `num_lines` of what happened."""

    def __init__(self, watch: Watch, *, num_lines: int = 24) -> None:
        self.clock: Clock = ManualClock()
        """The fleet's, once there is one."""
        self._watch = watch
        self._lines: deque[tuple[float, str]] = deque(maxlen=num_lines)

    def lines(self, events: Iterable[FleetEvent] = ()) -> list[str]:
        """With what the fleet's log says of faults, in order of time."""
        first = self._lines[0][0] if len(self._lines) == self._lines.maxlen else 0.0
        faults = [(event.at_ms / 1e3, f"{event.replica or 'clients'}: {event.kind}") for event in events]
        told = [*(one for one in faults if one[0] >= first), *self._lines]
        return [f"{moment:10.4f} s  {text}" for moment, text in sorted(told, key=lambda one: one[0])]

    def joined(self, replica: str, epoch: int) -> None:
        self._tell(f"{replica} joins the router in epoch {epoch}")
        self._watch.joined(replica, epoch)

    def draining(self, replica: str) -> None:
        self._watch.draining(replica)

    def left(self, replica: str) -> None:
        self._tell(f"{replica} is gone, for the router")
        self._watch.left(replica)

    def dispatched(self, replica: str, epoch: int, request_id: RequestId, generation: int, leg: Leg) -> None:
        what = "" if leg is Leg.WHOLE else f", its {leg} leg"
        self._tell(f"the router sends {request_id}, generation {generation}{what}, to {replica} in epoch {epoch}")
        self._watch.dispatched(replica, epoch, request_id, generation, leg)

    def admitted(self, replica: str, epoch: int, present_epoch: int, request: Request, generation: int) -> None:
        num_tokens = len(request.prompt_token_ids)
        self._tell(
            f"{replica} takes {request.request_id}, generation {generation}: {num_tokens} prompt tokens, "
            f"{request.sampling.max_tokens} to answer"
        )
        self._watch.admitted(replica, epoch, present_epoch, request, generation)

    def planned(self, replica: str, plan: StepPlan) -> None:
        entries = [f"#{one.sequence_id} {one.num_tokens} at {one.num_computed_tokens}" for one in plan.scheduled]
        more = len(entries) - _MOST_ENTRIES
        if more > 0:
            entries[_MOST_ENTRIES:] = [f"{more} more"]
        released = ", ".join(f"#{sequence_id}" for sequence_id in plan.released_sequence_ids)
        forgets = f"; forgets {released}" if released else ""
        self._tell(f"{replica} plans step {plan.step_id}: {', '.join(entries)}{forgets}")
        self._watch.planned(replica, plan)

    def ran(self, replica: str, run: DecodeRun) -> None:
        sequences = ", ".join(f"#{one.sequence_id}" for one in run.sequences)
        self._tell(f"{replica} has taken {run.num_steps} steps together: one token each of {sequences}")
        self._watch.ran(replica, run)

    def loaded(self, replica: str, block_ids: Sequence[BlockId], source: str, source_block_ids: Sequence[BlockId]) -> None:
        self._tell(f"{replica} has {len(block_ids)} blocks of KV from {source}")
        self._watch.loaded(replica, block_ids, source, source_block_ids)

    def forwarded(self, request_id: RequestId, generation: int) -> None:
        self._tell(f"output of {request_id}, generation {generation}, goes to its client")
        self._watch.forwarded(request_id, generation)

    def lost_cache(self, replica: str) -> None:
        self._tell(f"{replica} has lost its cache")
        self._watch.lost_cache(replica)

    def _tell(self, text: str) -> None:
        self._lines.append((seconds(self.clock.now()), text))

"""Replay: a real engine's recording through the simulator, to see whether the mind decides the same again.

The simulator is given what the engine's loop was told and how long its steps took, and runs the mind under its own event
queue. Plans must come out byte for byte as recorded; the first that does not is reported.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.base.clock import ManualClock, Nanos
from headrace.base.errors import CheckpointError
from headrace.base.ids import StepId
from headrace.engine.host.recording import Aborted, Added, Event, Finished, Opening, Planned, PrefixCacheReset
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import SimExecutor
from headrace.sim.replica import Observer, SimReplica
from headrace.sim.step_cost import RecordedStepCost


@dataclass(frozen=True, slots=True)
class Replay:
    num_steps: int
    num_requests: int
    difference: str | None
    """Where the simulated plans part from the recorded ones; None where they are equal."""


class _RecordedWorker:
    """Answers each plan with what the real engine's worker answered."""

    def __init__(self, results: dict[StepId, StepResult]) -> None:
        self._results = results

    def execute(self, plan: StepPlan) -> StepResult:
        return self._results[plan.step_id]


class _Comparer(Observer):
    """Holds each simulated plan, with its time, against the recorded one."""

    def __init__(self, recorded: list[Planned]) -> None:
        self._recorded = iter(recorded)
        self._encode = msgspec.msgpack.Encoder().encode
        self.num_steps = 0

    def planned(self, now: Nanos, plan: StepPlan) -> None:
        expected = next(self._recorded, None)
        if expected is None:
            raise _Different(f"step {plan.step_id} was planned at {now}, but the recording has no more steps")
        if self._encode(Planned(now, plan)) != self._encode(expected):
            raise _Different(f"step {expected.step_id}: recorded {expected}, simulated {Planned(now, plan)}")
        self.num_steps += 1

    def missing(self) -> str | None:
        expected = next(self._recorded, None)
        return None if expected is None else f"step {expected.step_id} was recorded, but never planned in the simulation"


class _Different(Exception):
    pass


def replay(events: Iterable[Event]) -> Replay:
    """Raises CheckpointError where the recording does not begin with its opening."""
    recording = list(events)
    if not recording or not isinstance(recording[0], Opening):
        raise CheckpointError("a recording begins with its opening, and this one does not")
    opening = recording[0]
    planned = [event for event in recording if isinstance(event, Planned)]
    finished = {event.result.step_id: event for event in recording if isinstance(event, Finished)}
    # Steps that were still running when the recording ended never finish in the replay either.
    comparer = _Comparer(planned)
    clock = ManualClock(opening.now)
    queue = EventQueue(clock)
    executor = SimExecutor(
        worker=_RecordedWorker({step_id: event.result for step_id, event in finished.items()}),
        cost=RecordedStepCost(step_durations(planned, finished)),
        clock=clock,
        events=queue,
    )
    core = EngineCore(opening.scheduler, eos_token_ids=opening.eos_token_ids, identity_digest=opening.identity_digest)
    replica = SimReplica(core=core, executor=executor, clock=clock, events=queue, observer=comparer)
    num_requests = _schedule_messages(recording, replica, queue)
    last_moment = max((event.now for event in recording), default=opening.now)
    difference: str | None = None
    try:
        while queue and queue.next_moment <= last_moment:
            queue.run_next()
            core.check_integrity()
        difference = comparer.missing()
    except _Different as found:
        difference = str(found)
    return Replay(num_steps=comparer.num_steps, num_requests=num_requests, difference=difference)


def _schedule_messages(recording: list[Event], replica: SimReplica, queue: EventQueue) -> int:
    num_requests = 0
    for event in recording:
        action: Callable[[], None] | None = None
        match event:
            case Added(_, request):
                num_requests += 1
                action = partial(replica.receive, request)
            case Aborted(_, request_id, sample_index):
                action = partial(replica.abort, request_id, sample_index=sample_index)
            case PrefixCacheReset(_):
                action = replica.reset_prefix_cache
        if action is not None:
            queue.schedule(event.now, Rank.MESSAGE, action)
    return num_requests


def step_durations(planned: list[Planned], finished: dict[StepId, Finished]) -> dict[StepId, Nanos]:
    """How long each step ran: from its submission, or from the end of the step before it, to its own end."""
    durations: dict[StepId, Nanos] = {}
    free_at = 0
    for event in planned:
        end = finished.get(event.step_id)
        if end is None:
            durations[event.step_id] = Nanos(2**62)  # beyond the recording's end
            continue
        durations[event.step_id] = Nanos(end.now - max(event.now, free_at))
        free_at = end.now
    return durations

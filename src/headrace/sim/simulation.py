"""Simulation: one replica, a list of arrivals and aborts, virtual time, and invariants checked after every event.

The outcome is a log whose digest is a function of the inputs: equal in every process and on every machine.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from headrace.base.clock import ManualClock, Nanos
from headrace.base.ids import RequestId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.stats import EngineStats
from headrace.engine.mind.step import StepPlan
from headrace.engine.mind.update import RequestUpdate
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import SimExecutor
from headrace.sim.invariants import check_step
from headrace.sim.replica import Observer, SimReplica
from headrace.sim.step_cost import StepCost
from headrace.sim.worker import SimulatedWorker, TokenChooser


@dataclass(frozen=True, slots=True)
class Arrival:
    at: Nanos
    request: Request


@dataclass(frozen=True, slots=True)
class Disconnect:
    at: Nanos
    request_id: RequestId


class EventLog(Observer):
    """Keeps answers and counts, and a digest of everything that was decided and when."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._hasher = hashlib.blake2b(digest_size=16)
        self._encoder = msgspec.msgpack.Encoder()
        self.answers: dict[tuple[RequestId, int], list[int]] = {}
        self.finish_reasons: dict[tuple[RequestId, int], str] = {}
        self.refused_requests: dict[RequestId, str] = {}
        self.finish_counts: Counter[str] = Counter()

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()

    def planned(self, now: Nanos, plan: StepPlan) -> None:
        check_step(plan, self._config)
        self._note(("plan", now, plan))

    def updated(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        self._note(("updates", now, updates))
        for update in updates:
            key = (update.request_id, update.sample_index)
            assert key not in self.finish_reasons, f"{key} was heard of after its end"
            self.answers.setdefault(key, []).extend(update.new_token_ids)
            if update.finish_reason is not None:
                self.finish_reasons[key] = update.finish_reason
                self.finish_counts[update.finish_reason] += 1

    def refused(self, now: Nanos, request: Request, error: Exception) -> None:
        self._note(("refused", now, request.request_id, type(error).__name__))
        self.refused_requests[request.request_id] = str(error)

    def _note(self, event: object) -> None:
        self._hasher.update(self._encoder.encode(event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    digest: str
    """Of every plan and every update with its time."""
    finished_at: Nanos
    stats: EngineStats
    answers: dict[tuple[RequestId, int], list[int]] = field(repr=False)
    finish_reasons: dict[tuple[RequestId, int], str] = field(repr=False)
    finish_counts: dict[str, int]
    refused_requests: dict[RequestId, str] = field(repr=False)


def simulate(
    *,
    config: SchedulerConfig,
    cost: StepCost,
    choose: TokenChooser,
    arrivals: Sequence[Arrival],
    disconnects: Sequence[Disconnect] = (),
    eos_token_ids: tuple[int, ...] = (),
) -> Outcome:
    """Runs until nothing is left to happen. Fails by an AssertionError if the mind breaks a rule or loses a request."""
    clock = ManualClock()
    events = EventQueue(clock)
    core = EngineCore(config, eos_token_ids=eos_token_ids, identity_digest=b"rehearsal")
    log = EventLog(config)
    worker = SimulatedWorker(num_blocks=config.num_blocks, block_size=config.block_size, choose=choose)
    executor = SimExecutor(worker=worker, cost=cost, clock=clock, events=events)
    replica = SimReplica(core=core, executor=executor, clock=clock, events=events, observer=log)
    for arrival in arrivals:
        events.schedule(arrival.at, Rank.MESSAGE, partial(replica.receive, arrival.request))
    for disconnect in disconnects:
        events.schedule(disconnect.at, Rank.MESSAGE, partial(replica.abort, disconnect.request_id))
    while events:
        events.run_next()
        core.check_integrity()
    assert core.is_idle, "nothing is left to happen, but requests have not ended"
    stats = core.stats()
    assert stats.num_blocks_in_use == 0, "blocks are held for nobody"
    return Outcome(
        digest=log.digest,
        finished_at=clock.now(),
        stats=stats,
        answers=log.answers,
        finish_reasons=log.finish_reasons,
        finish_counts=dict(sorted(log.finish_counts.items())),
        refused_requests=log.refused_requests,
    )

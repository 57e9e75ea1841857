"""SimReplica: one engine in rehearsal: the real `EngineCore` and the order of a real engine's turn.

Knows when the mind is asked. The mind does not know that it is being rehearsed. Where nothing happens but decode steps that
are alike, and the worker can tell the tokens beforehand, the replica takes them together: at the next message, or when
somebody looks, the mind catches up. It comes to the same as taking them one by one (`tests/property/test_decode_run.py`).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.base.clock import Clock, Nanos
from headrace.base.errors import InvalidRequestError, OverloadedError
from headrace.base.ids import RequestId, SequenceId
from headrace.engine.mind.decode_run import DecodeRun
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sequence import SequenceState
from headrace.engine.mind.stats import EngineStats
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.engine.mind.update import RequestUpdate
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import RunningStep, SimExecutor
from headrace.sim.step_cost import decode_run_durations

_SHORTEST_RUN = 3
"""Fewer steps are not worth it."""
_LONGEST_RUN = 512
_SHORTEST_REACH = 32
"""How far a run is planned: most are broken off by somebody's arrival, and what was planned beyond was in vain. Where each
step's duration is work, it is twice as far as the last one came, between these."""


class Observer:
    """Told everything that a replica's mind decides. This one does not care; others override what they need."""

    def planned(self, now: Nanos, plan: StepPlan) -> None: ...
    def updated(self, now: Nanos, updates: list[RequestUpdate]) -> None: ...
    def refused(self, now: Nanos, request: Request, error: Exception) -> None: ...

    def submitted(self, plan: StepPlan, begins: Nanos, ends: Nanos) -> None:
        """When what was planned is computed."""

    def ran(self, run: DecodeRun, ends: Sequence[int]) -> None:
        """Many steps at once. `ends`: when each of those that ended did, and the next of those planned was planned."""


@runtime_checkable
class ForetellingWorker(Protocol):
    """A worker whose answers are known before they are computed."""

    def foretell(self, sequence: SequenceState, count: int) -> Sequence[int]:
        """The next so many tokens of a running sequence."""
        ...


class _Run(NamedTuple):
    ends: list[int]
    """Of the steps in flight when it began, then of those planned in it."""
    num_steps: int
    """Steps that the mind may take together."""
    is_cheap: bool
    """Whether the durations came from a formula for all of them."""


class SimReplica:
    def __init__(
        self,
        *,
        core: EngineCore,
        executor: SimExecutor,
        clock: Clock,
        events: EventQueue,
        observer: Observer,
        source: int = 0,
        takes_runs: bool = True,
    ) -> None:
        self.core = core
        self._executor = executor
        self._clock = clock
        self._events = events
        self._observer = observer
        self._source = source
        self._worker = executor.worker if takes_runs and isinstance(executor.worker, ForetellingWorker) else None
        self._turn_at: Nanos | None = None
        self._run: _Run | None = None
        self._num_taken = 0  # of the run's steps
        self._reach = _LONGEST_RUN

    def receive(self, request: Request) -> None:
        self._leave_run()
        now = self._clock.now()
        try:
            self.core.add_request(request, now)
        except (InvalidRequestError, OverloadedError) as error:
            self._observer.refused(now, request, error)
        self._ask_for_turn()

    def abort(self, request_id: RequestId, *, sample_index: int | None = None) -> None:
        self._leave_run()
        now = self._clock.now()
        self._tell(now, self.core.abort(request_id, now, sample_index=sample_index))
        self._ask_for_turn()

    def end_load(self, sequence_id: SequenceId, num_tokens: int, *, error: str) -> None:
        self._leave_run()
        now = self._clock.now()
        self._tell(now, self.core.end_load(sequence_id, num_tokens, now, error=error))
        self._ask_for_turn()

    def end_lease(self, request_id: RequestId) -> None:
        self._leave_run()
        self.core.end_lease(request_id)
        self._ask_for_turn()

    def end_leases_over(self) -> None:
        self._leave_run()
        self.core.end_leases_over(self._clock.now())
        self._ask_for_turn()

    def reset_prefix_cache(self) -> None:
        self._leave_run()
        self.core.reset_prefix_cache()
        self._ask_for_turn()

    def catch_up(self) -> None:
        """The mind knows all that has happened before this moment."""
        if self._run is not None:
            self._take(self._num_ended())

    def stats(self) -> EngineStats:
        """As of this moment. Whoever only looks does not break the run in two."""
        return self.core.stats(num_repeats=self._num_ended() - self._num_taken if self._run is not None else 0)

    def change_cost(self, change: Callable[[], None]) -> None:
        """Steps that are planned from now on cost what they do after `change`."""
        self._leave_run()
        change()

    def stop(self) -> None:
        """The process is gone: what was in flight never ends."""
        self.catch_up()
        self._run = None
        self._executor.drop_all()

    def _ask_for_turn(self) -> None:
        """One turn for all that happens at this moment, after it."""
        now = self._clock.now()
        if self._turn_at != now:
            self._turn_at = now
            self._events.schedule(now, Rank.TURN, self._turn, source=self._source)

    def _turn(self) -> None:
        self._turn_at = None
        now = self._clock.now()
        while (plan := self.core.begin_step(now)) is not None:
            self._observer.planned(now, plan)
            self._executor.submit(plan, self._completion(plan))
            self._observer.submitted(plan, self._executor.last_begins, self._executor.last_ends)
        if self._worker is not None:
            num_steps = self.core.num_repeats()
            if num_steps >= _SHORTEST_RUN:
                self._begin_run(min(num_steps, self._reach))

    def _completion(self, plan: StepPlan) -> Callable[[StepResult], None]:
        def done(result: StepResult) -> None:
            now = self._clock.now()
            self._tell(now, self.core.finish_step(plan, result, now))
            self._ask_for_turn()

        return done

    def _tell(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        if updates:
            self._observer.updated(now, updates)

    # Steps taken together

    def _begin_run(self, num_steps: int) -> None:
        """The step after the last that can be taken together ends as any other does."""
        ends: list[int] = list(self._executor.ends)
        starts = [sequence.num_computed_tokens for sequence in self.core.running]
        durations = decode_run_durations(self._executor.cost, starts, num_steps)
        last = ends.pop()
        ends += accumulate(durations, initial=last)
        self._run, self._num_taken = _Run(ends, num_steps, isinstance(durations, range)), 0
        self._executor.pause(Nanos(ends[num_steps]), self._finish_run)

    def _finish_run(self) -> None:
        assert self._run is not None
        self._take(self._run.num_steps)
        self._leave_run()

    def _leave_run(self) -> None:
        """Back to step by step, from this moment on."""
        if self._run is None:
            return
        self.catch_up()
        if not self._run.is_cheap:
            self._reach = min(_LONGEST_RUN, max(_SHORTEST_REACH, 2 * self._num_taken))
        in_flight = self.core.steps_in_flight
        ends = self._run.ends[self._num_taken : self._num_taken + len(in_flight)]
        self._run = None
        self._executor.resume(
            RunningStep(Nanos(end), plan, self._completion(plan)) for end, plan in zip(ends, in_flight, strict=True)
        )

    def _num_ended(self) -> int:
        """The run's steps that have ended before this moment."""
        assert self._run is not None
        return bisect_left(self._run.ends, self._clock.now(), 0, self._run.num_steps)

    def _take(self, num_taken: int) -> None:
        """Takes the steps of the run up to this number, those that were taken before included."""
        assert self._run is not None and self._worker is not None
        count = num_taken - self._num_taken
        if count > 0:
            foretell = self._worker.foretell
            run = self.core.repeat_steps([foretell(sequence, count) for sequence in self.core.running])
            ends = self._run.ends[self._num_taken : num_taken]
            self._num_taken = num_taken
            self._observer.ran(run, ends)

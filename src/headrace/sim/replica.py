"""SimReplica: one engine in rehearsal: the real `EngineCore` and the order of a real engine's turn.

Knows when the mind is asked. The mind does not know that it is being rehearsed.
"""

from collections.abc import Callable

from headrace.base.clock import Clock, Nanos
from headrace.base.errors import InvalidRequestError, OverloadedError
from headrace.base.ids import RequestId
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.ports import Executor
from headrace.engine.mind.request import Request
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.engine.mind.update import RequestUpdate
from headrace.sim.events import EventQueue, Rank


class Observer:
    """Told everything that a replica's mind decides. This one does not care; others override what they need."""

    def planned(self, now: Nanos, plan: StepPlan) -> None: ...
    def updated(self, now: Nanos, updates: list[RequestUpdate]) -> None: ...
    def refused(self, now: Nanos, request: Request, error: Exception) -> None: ...


class SimReplica:
    def __init__(
        self, *, core: EngineCore, executor: Executor, clock: Clock, events: EventQueue, observer: Observer
    ) -> None:
        self.core = core
        self._executor = executor
        self._clock = clock
        self._events = events
        self._observer = observer
        self._turn_at: Nanos | None = None

    def receive(self, request: Request) -> None:
        now = self._clock.now()
        try:
            self.core.add_request(request, now)
        except (InvalidRequestError, OverloadedError) as error:
            self._observer.refused(now, request, error)
        self._ask_for_turn()

    def abort(self, request_id: RequestId, *, sample_index: int | None = None) -> None:
        now = self._clock.now()
        self._tell(now, self.core.abort(request_id, now, sample_index=sample_index))
        self._ask_for_turn()

    def reset_prefix_cache(self) -> None:
        self.core.reset_prefix_cache()
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        """One turn for all that happens at this moment, after it."""
        now = self._clock.now()
        if self._turn_at != now:
            self._turn_at = now
            self._events.schedule(now, Rank.TURN, self._turn)

    def _turn(self) -> None:
        self._turn_at = None
        now = self._clock.now()
        while (plan := self.core.begin_step(now)) is not None:
            self._observer.planned(now, plan)
            self._executor.submit(plan, self._completion(plan))

    def _completion(self, plan: StepPlan) -> Callable[[StepResult], None]:
        def done(result: StepResult) -> None:
            now = self._clock.now()
            self._tell(now, self.core.finish_step(plan, result, now))
            self._ask_for_turn()

        return done

    def _tell(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        if updates:
            self._observer.updated(now, updates)

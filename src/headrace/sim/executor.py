"""SimExecutor: an Executor whose steps take virtual time. Knows one worker and a stated cost."""

from collections.abc import Callable
from typing import Protocol

from headrace.base.clock import Clock, Nanos
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.sim.events import EventQueue, Rank
from headrace.sim.step_cost import StepCost


class Worker(Protocol):
    """What carries out a plan at once."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class SimExecutor:
    """Steps run one after another: a step starts when it is submitted or when the one before it ends, if that is later.

    Plans are carried out at the moment they end, so that a block which the mind gave away too early is seen.
    """

    def __init__(self, *, worker: Worker, cost: StepCost, clock: Clock, events: EventQueue) -> None:
        self._worker = worker
        self._cost = cost
        self._clock = clock
        self._events = events
        self._busy_until = Nanos(0)

    def submit(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        start = max(self._clock.now(), self._busy_until)
        self._busy_until = Nanos(start + self._cost(plan))
        self._events.schedule(self._busy_until, Rank.RESULT, lambda: done(self._worker.execute(plan)))

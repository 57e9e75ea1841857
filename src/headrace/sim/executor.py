"""SimExecutor: an Executor whose steps take virtual time. Knows one worker and a stated cost.

A run of steps that are known beforehand can be taken out of its hands (`pause`) and given back (`resume`).
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec

from headrace.base.clock import Clock, Nanos
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.sim.events import EventQueue, Rank
from headrace.sim.step_cost import StepCost


class Worker(Protocol):
    """What carries out a plan at once."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class RunningStep(msgspec.Struct, frozen=True):
    ends: Nanos
    plan: StepPlan
    done: Callable[[StepResult], None]


class SimExecutor:
    """Steps run one after another: a step starts when it is submitted or when the one before it ends, if that is later.

    Plans are carried out at the moment they end, so that a block which the mind gave away too early is seen.
    """

    def __init__(self, *, worker: Worker, cost: StepCost, clock: Clock, events: EventQueue, source: int = 0) -> None:
        self.worker = worker
        self.cost = cost
        self._clock = clock
        self._events = events
        self._source = source
        self._steps: deque[RunningStep] = deque()
        self._busy_until = Nanos(0)
        self.last_begins = Nanos(0)
        """When the step that was submitted last begins, or began."""
        self._appointment = 0  # which of the events that were scheduled is still meant

    @property
    def last_ends(self) -> Nanos:
        """When that step ends."""
        return self._busy_until

    @property
    def ends(self) -> list[Nanos]:
        """When the submitted steps end, in order."""
        return [step.ends for step in self._steps]

    def submit(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        self.last_begins = start = max(self._clock.now(), self._busy_until)
        self._busy_until = Nanos(start + self.cost(plan))
        self._steps.append(RunningStep(self._busy_until, plan, done))
        if len(self._steps) == 1:
            self._meet(self._busy_until, self._finish_first)

    def pause(self, until: Nanos, then: Callable[[], None]) -> None:
        """No step ends before `then` is called, unless `resume` is called first."""
        self._meet(until, then)

    def resume(self, steps: Iterable[RunningStep]) -> None:
        """Goes on with these, in the place of those that it had."""
        self._steps = deque(steps)
        self._busy_until = self._steps[-1].ends
        self._meet(self._steps[0].ends, self._finish_first)

    def drop_all(self) -> None:
        """What runs will never end: the process is gone."""
        self._steps.clear()
        self._appointment += 1
        self._busy_until = Nanos(0)

    def _finish_first(self) -> None:
        step = self._steps.popleft()
        if self._steps:
            self._meet(self._steps[0].ends, self._finish_first)
        step.done(self.worker.execute(step.plan))

    def _meet(self, moment: Nanos, action: Callable[[], None]) -> None:
        self._appointment += 1
        self._events.schedule(moment, Rank.RESULT, partial(self._keep, self._appointment, action), source=self._source)

    def _keep(self, appointment: int, action: Callable[[], None]) -> None:
        if appointment == self._appointment:
            action()

"""InProcessExecutor: carries plans to a worker in this process, on one thread of its own.

Knows order, and that a bug must not vanish with its thread. Does not know what a plan means.
"""

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from headrace.engine.mind.step import StepPlan, StepResult


class PlanExecutor(Protocol):
    """What it asks of a worker."""

    def execute(self, plan: StepPlan) -> StepResult: ...


Done = Callable[[StepResult], None]


class InProcessExecutor:
    """Implements `mind.ports.Executor`. `done` is called from the thread that computed."""

    def __init__(
        self,
        worker: PlanExecutor,
        on_failure: Callable[[BaseException], None],
        *,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_failure` hears, once, of whatever ended the thread; no plan is executed or answered after it. `after_step` is
        called when a result has been told: what it does delays nobody who waits for that."""
        self._worker = worker
        self._after_step = after_step
        self._on_failure = on_failure
        self._plans: queue.SimpleQueue[tuple[StepPlan, Done] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="headrace-executor", daemon=True)
        self._thread.start()

    def submit(self, plan: StepPlan, done: Done) -> None:
        assert not self._is_closed, "a closed executor takes no plans"
        self._plans.put((plan, done))

    def close(self) -> None:
        """Waits until the plans already submitted are carried out, then ends the thread. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._plans.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._plans.get()) is not None:
                plan, done = item
                done(self._worker.execute(plan))
                self._after_step()
        except BaseException as failure:
            self._on_failure(failure)

"""What the mind calls without knowing who answers."""

from collections.abc import Callable
from typing import Protocol

from headrace.engine.mind.step import StepPlan, StepResult


class Executor(Protocol):
    """Carries plans to whatever computes them, in order."""

    def submit(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        """Calls `done` exactly once, never before `submit` returns, possibly from another thread.

        Several plans may be submitted before the first is done; they are executed and answered in order.
        """
        ...

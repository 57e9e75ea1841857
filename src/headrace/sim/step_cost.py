"""How long a step takes in rehearsal: a stated cost. Knows numbers of tokens; does not know why they are computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.base.clock import Nanos
from headrace.base.ids import StepId
from headrace.engine.mind.step import StepPlan

StepCost = Callable[[StepPlan], Nanos]
"""The duration of a plan's execution, once it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepCost:
    """A fixed part, a part per computed token and a part per token of context that is attended to."""

    fixed_ns: int = 2_000_000
    per_token_ns: int = 1_000_000
    per_context_token_ns: int = 200

    def __call__(self, plan: StepPlan) -> Nanos:
        num_context_tokens = sum(entry.num_computed_tokens + entry.num_tokens for entry in plan.scheduled)
        return Nanos(self.fixed_ns + self.per_token_ns * plan.num_tokens + self.per_context_token_ns * num_context_tokens)


@dataclass(frozen=True, slots=True)
class RecordedStepCost:
    """The durations that a real engine's steps had."""

    durations: Mapping[StepId, Nanos]

    def __call__(self, plan: StepPlan) -> Nanos:
        return self.durations[plan.step_id]

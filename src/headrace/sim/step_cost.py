"""How long a step takes in rehearsal: a stated cost. Knows numbers of tokens; does not know why they are computed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.ids import SequenceId, StepId
from headrace.engine.mind.step import ScheduledSequence, StepPlan

StepCost = Callable[[StepPlan], Nanos]
"""The duration of a plan's execution, once it starts. A function of the plan's entries, but not of which blocks they
have."""


class DecodeRunCost(Protocol):
    """A cost that knows the durations of many decode steps at once: the same numbers, sooner."""

    def __call__(self, plan: StepPlan) -> Nanos: ...

    def decode_run(self, starts: Sequence[int], num_steps: int) -> Sequence[int]:
        """The durations of so many successive steps that each compute one token of each sequence and sample the next.
        `starts`: the positions that the first of the steps computes, in the order of the plans' entries."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepCost:
    """A fixed part, a part per computed token and a part per token of context that is attended to."""

    fixed_ns: int = 2_000_000
    per_token_ns: int = 1_000_000
    per_context_token_ns: int = 200

    def __post_init__(self) -> None:
        for name, least in (("fixed_ns", 1), ("per_token_ns", 0), ("per_context_token_ns", 0)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"a step's cost needs {name} of at least {least}, not {getattr(self, name)}")

    def at_speed(self, speed: float) -> "LinearStepCost":
        """On a machine so many times as fast."""
        return LinearStepCost(
            fixed_ns=max(1, round(self.fixed_ns / speed)),
            per_token_ns=round(self.per_token_ns / speed),
            per_context_token_ns=round(self.per_context_token_ns / speed),
        )

    def __call__(self, plan: StepPlan) -> Nanos:
        num_tokens = num_context_tokens = 0
        for entry in plan.scheduled:
            num_tokens += entry.num_tokens
            num_context_tokens += entry.num_computed_tokens + entry.num_tokens
        return Nanos(self.fixed_ns + self.per_token_ns * num_tokens + self.per_context_token_ns * num_context_tokens)

    def decode_run(self, starts: Sequence[int], num_steps: int) -> Sequence[int]:
        each = self.per_context_token_ns * len(starts)
        first = self.fixed_ns + self.per_token_ns * len(starts) + self.per_context_token_ns * (sum(starts) + len(starts))
        return range(first, first + each * num_steps, each) if each else [first] * num_steps


@dataclass(frozen=True, slots=True)
class RecordedStepCost:
    """The durations that a real engine's steps had."""

    durations: Mapping[StepId, Nanos]

    def __call__(self, plan: StepPlan) -> Nanos:
        return self.durations[plan.step_id]


class SlowedStepCost:
    """Another cost, times a factor that can be changed: a node that is throttled, or shares its device."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self.slowdown_percent = 100

    def __call__(self, plan: StepPlan) -> Nanos:
        return Nanos(self._cost(plan) * self.slowdown_percent // 100)

    def decode_run(self, starts: Sequence[int], num_steps: int) -> Sequence[int]:
        durations = decode_run_durations(self._cost, starts, num_steps)
        percent = self.slowdown_percent
        return durations if percent == 100 else [duration * percent // 100 for duration in durations]


def decode_run_durations(cost: StepCost, starts: Sequence[int], num_steps: int) -> Sequence[int]:
    """See `DecodeRunCost.decode_run`; of a cost that does not know it, by asking for each step."""
    if hasattr(cost, "decode_run"):  # a check against the protocol would cost more than the durations
        return cast(DecodeRunCost, cost).decode_run(starts, num_steps)
    return [cost(_decode_plan(starts, index)) for index in range(num_steps)]


def _decode_plan(starts: Sequence[int], index: int) -> StepPlan:
    entries = [ScheduledSequence(SequenceId(i), start + index, 1, True, 0, ()) for i, start in enumerate(starts)]
    return StepPlan(step_id=StepId(0), scheduled=tuple(entries))

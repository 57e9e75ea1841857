"""What every Executor must do, whatever carries the plans: a suite to inherit.

Knows the protocol of `mind/ports.py`. Does not know threads, clocks or models: a subclass says how an executor is made, how
to let it work until nothing is left, and how to end it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.ids import BlockId, SequenceId, StepId
from headrace.engine.mind.ports import Executor
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NewSequence, ScheduledSequence, StepPlan, StepResult

PROMPT = (5, 6, 7)


@dataclass
class Bench:
    """One executor under test."""

    executor: Executor
    settle: Callable[[], None]
    """Returns when every plan submitted so far has been answered."""
    close: Callable[[], None]


def first_plan(num_sequences: int = 2) -> StepPlan:
    """Prompts of three tokens, each sequence in a block of its own."""
    new = tuple(
        NewSequence(SequenceId(i), 0, len(PROMPT), PROMPT, SamplingParams(max_tokens=50, temperature=0.0), ())
        for i in range(num_sequences)
    )
    scheduled = tuple(ScheduledSequence(SequenceId(i), 0, len(PROMPT), True, 0, (BlockId(i),)) for i in range(num_sequences))
    return StepPlan(StepId(0), scheduled, new_sequences=new)


def later_plan(step: int, num_sequences: int = 2) -> StepPlan:
    """One more token of every sequence: the one that the step before samples."""
    scheduled = tuple(ScheduledSequence(SequenceId(i), len(PROMPT) + step - 1, 1, True, 0, ()) for i in range(num_sequences))
    return StepPlan(StepId(step), scheduled)


class ExecutorConformance:
    """Subclass as `Test...` and implement `bench`."""

    def bench(self) -> Bench:
        raise AssertionError("the subclass makes the executor")

    def test_every_plan_is_answered_exactly_once_and_in_order(self) -> None:
        bench, results = self.bench(), list[StepResult]()
        for step in range(6):
            bench.executor.submit(first_plan() if step == 0 else later_plan(step), results.append)
        bench.settle()
        bench.settle()
        assert [result.step_id for result in results] == list(range(6))
        bench.close()

    def test_plans_may_be_submitted_before_earlier_ones_are_done(self) -> None:
        eager, patient = self.bench(), self.bench()
        at_once, one_by_one = list[StepResult](), list[StepResult]()
        plans = [first_plan(), *(later_plan(step) for step in range(1, 5))]
        for plan in plans:
            eager.executor.submit(plan, at_once.append)
        eager.settle()
        for plan in plans:
            patient.executor.submit(plan, one_by_one.append)
            patient.settle()
        assert at_once == one_by_one
        eager.close()
        patient.close()

    def test_a_result_has_one_token_for_every_entry_that_samples(self) -> None:
        bench, results = self.bench(), list[StepResult]()
        plan = first_plan(3)
        quiet = ScheduledSequence(SequenceId(1), 0, 2, False, 0, (BlockId(1),))
        plan = StepPlan(plan.step_id, (plan.scheduled[0], quiet, plan.scheduled[2]), new_sequences=plan.new_sequences)
        bench.executor.submit(plan, results.append)
        bench.settle()
        (result,) = results
        assert [token is not None for token in result.sampled] == [True, False, True]
        assert result.failures == ()
        bench.close()

    def test_done_is_never_called_from_within_submit(self) -> None:
        bench = self.bench()
        submitting_thread: int | None = None
        calls_from_within: list[bool] = []

        def done(result: StepResult) -> None:
            calls_from_within.append(threading.get_ident() == submitting_thread)

        for step in range(4):
            submitting_thread = threading.get_ident()
            bench.executor.submit(first_plan() if step == 0 else later_plan(step), done)
            submitting_thread = None
            bench.settle()
        assert calls_from_within == [False] * 4
        bench.close()

    def test_done_may_submit_the_next_plan(self) -> None:
        bench = self.bench()
        results: list[StepResult] = []

        def done(result: StepResult) -> None:
            results.append(result)
            if len(results) < 4:
                bench.executor.submit(later_plan(len(results)), done)

        bench.executor.submit(first_plan(), done)
        while len(results) < 4:
            bench.settle()
        assert [result.step_id for result in results] == [0, 1, 2, 3]
        bench.close()

    def test_a_step_that_computes_nothing_is_answered_too(self) -> None:
        bench, results = self.bench(), list[StepResult]()
        bench.executor.submit(first_plan(), results.append)
        release = StepPlan(StepId(1), (), released_sequence_ids=(SequenceId(0), SequenceId(1)))
        bench.executor.submit(release, results.append)
        bench.settle()
        assert results[1] == StepResult(StepId(1), ())
        bench.close()

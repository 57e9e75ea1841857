"""When an answer counts as stuck, and that it ends there."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.clock import Nanos
from headrace.base.ids import RequestId, SequenceId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.repetition import is_stuck
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import RepetitionDetection, SamplingParams
from headrace.engine.mind.sequence import SequenceState
from headrace.engine.mind.step import SampledToken, StepResult
from headrace.engine.mind.update import FinishReason


def sequence_of(answer: list[int], watched: RepetitionDetection | None, prompt: tuple[int, ...] = (1,)) -> SequenceState:
    sampling = SamplingParams(max_tokens=1000, repetition_detection=watched)
    request = Request(request_id=RequestId("r"), prompt_token_ids=prompt, sampling=sampling)
    sequence = SequenceState(sequence_id=SequenceId(0), request=request, sample_index=0, arrived=Nanos(0))
    sequence.append_tokens(answer)
    return sequence


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=16),
    st.integers(1, 4), st.integers(0, 3), st.integers(2, 4),
)  # fmt: skip
def test_an_answer_is_stuck_where_its_end_is_one_pattern_several_times(
    answer: list[int], shortest: int, more: int, count: int
) -> None:
    watched = RepetitionDetection(max_pattern_size=shortest + more, min_pattern_size=shortest, min_count=count)
    expected = any(
        size * count <= len(answer)
        and all(
            a == b for a, b in pairwise(answer[len(answer) - (i + 1) * size : len(answer) - i * size] for i in range(count))
        )
        for size in range(shortest, shortest + more + 1)
    )
    assert is_stuck(sequence_of(answer, watched)) is expected


def test_the_prompt_does_not_count() -> None:
    watched = RepetitionDetection(max_pattern_size=1, min_count=3)
    assert not is_stuck(sequence_of([5, 5], watched, prompt=(5, 5, 5)))
    assert is_stuck(sequence_of([5, 5, 5], watched, prompt=(5, 5, 5)))


def test_who_does_not_ask_is_not_watched() -> None:
    assert not is_stuck(sequence_of([5] * 100, None))


def test_a_stuck_answer_ends_with_its_own_reason() -> None:
    core = EngineCore(SchedulerConfig(max_model_len=64, num_blocks=8))
    watched = RepetitionDetection(max_pattern_size=2, min_pattern_size=2, min_count=3)
    sampling = SamplingParams(max_tokens=50, repetition_detection=watched)
    core.add_request(Request(request_id=RequestId("r"), prompt_token_ids=(1, 2), sampling=sampling), Nanos(0))
    tokens: list[int] = []
    reason = None
    while reason is None:
        plan = core.begin_step(Nanos(0))
        assert plan is not None
        sampled = SampledToken(7 + len(tokens) % 2)
        for update in core.finish_step(plan, StepResult(plan.step_id, (sampled,)), Nanos(0)):
            tokens += update.new_token_ids
            reason = update.finish_reason
    assert reason is FinishReason.REPETITION
    assert tokens == [7, 8] * 3

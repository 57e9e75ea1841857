"""A thinking budget is kept: the closing mark comes when it is used up, in every way in which an answer is generated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cpu.test_sampler import sequence
from tests.cpu.tiny_engine import TinyEngine, write_model

from headrace.engine.mind.sampling_params import BeamSearch, ThinkingBudget
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput
from headrace.engine.worker.sampler import Sampler
from headrace.engine.worker.thinking import ThinkingWatch

OPEN, CLOSE = (50, 51), (60, 61, 62)


def forced(answer: Sequence[int], *, prompt: Sequence[int] = (1,), spent: int = -1, most: int = 3) -> int | None:
    asked = ThinkingBudget(max_tokens=most, closing_token_ids=CLOSE, opening_token_ids=(OPEN, (70,)), num_spent=spent)
    at_once = ThinkingWatch(asked, len(prompt)).forced_token([*prompt, *answer])
    step_by_step = ThinkingWatch(asked, len(prompt))
    for length in range(len(answer) + 1):
        told = step_by_step.forced_token([*prompt, *answer[:length]])
    assert told == at_once, "what it says depends on the tokens alone"
    return at_once


@pytest.mark.parametrize(
    ("answer", "token"),
    [
        ([], None),
        ([1, 2], None),
        ([1, 2, 3], 60),
        ([1, 2, 3, 60], 61),
        ([1, 2, 3, 60, 61], 62),
        ([1, 2, 3, 60, 61, 62], None),
        ([1, 2, 3, 60, 61, 62, 9, 9, 9, 9], None),
        ([1, 60, 61, 62, 9, 9, 9], None),
        ([1, 60, 61], 62),
        ([1, 2, 60], 61),
    ],
)
def test_the_closing_mark_is_forced_token_by_token(answer: list[int], token: int | None) -> None:
    assert forced(answer, spent=0) == token


def test_reasoning_that_the_answer_begins_is_counted_from_its_mark() -> None:
    assert forced([50, 51, 1, 2]) is None
    assert forced([50, 51, 1, 2, 3]) == 60
    assert forced([8, 8, 50, 51, 1, 2, 3]) == 60, "white space may come first"
    assert forced([70, 1, 2, 3]) == 60
    assert forced([8, 8, 8, 50, 51, 1, 2, 3]) is None, "further on a mark is text"
    assert forced([1, 2, 3, 4, 5, 6]) is None


def test_a_mark_may_be_spelt_in_several_ways_by_the_model() -> None:
    asked = ThinkingBudget(max_tokens=3, closing_token_ids=CLOSE, other_closing_token_ids=((80, 61, 90),), num_spent=0)
    assert ThinkingWatch(asked, 1).forced_token([1, 5, 80, 61, 90, 5, 5, 5, 5]) is None
    assert ThinkingWatch(asked, 1).forced_token([1, 5, 80, 61, 5]) == 60


def test_what_the_prompt_has_spent_counts() -> None:
    assert forced([1], prompt=(50, 51, 5, 5), spent=2) == 60
    assert forced([], prompt=(50, 51, 5, 5), spent=2) is None
    assert forced([], most=0, spent=0) == 60
    assert forced([], prompt=(50, 51, 60), most=1, spent=1) == 61, "a closing mark that the prompt has begun goes on"


@pytest.mark.parametrize("conditions", [{}, {"allowed_token_ids": (3, 4)}, {"bad_words_token_ids": ((60,),)}])
def test_both_samplers_take_the_forced_token_whatever_else_is_asked(conditions: dict[str, Any]) -> None:
    from tests.cpu.test_host_sampler import host_sampler  # skips where the native kernels were not built

    asked = ThinkingBudget(max_tokens=0, closing_token_ids=CLOSE, num_spent=0)
    row = np.random.default_rng(0).normal(size=(1, 100)).astype(np.float32)
    for temperature in (0.0, 1.0):
        fields: dict[str, Any] = {"temperature": temperature, "thinking_budget": asked, "logprobs": 0, **conditions}
        (ours,) = host_sampler().sample(row.copy(), [sequence(**fields)])
        (theirs,) = Sampler().sample(torch.from_numpy(row.copy()), [sequence(**fields)])
        assert ours.token_id == theirs.token_id == 60  # type: ignore[union-attr]
        assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-4)  # type: ignore[union-attr]


# In an engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    folder: Path = tmp_path_factory.mktemp("thinking")
    return TinyEngine(write_model(folder))


MARK = tuple(b"</t>")
BUDGET = ThinkingBudget(max_tokens=10, closing_token_ids=MARK, num_spent=0)
FORM = StructuredOutput(kind=OutputKind.REGEX, text="[0-9]{5}", begins_after=MARK)


def place_of_mark(tokens: Sequence[int]) -> int:
    return bytes(token if token < 256 else 0 for token in tokens).find(bytes(MARK))


@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 4, "max_num_seqs": 4}, {"num_blocks": 64}])
def test_every_answer_ends_its_reasoning_in_time(engine: TinyEngine, limits: dict[str, int]) -> None:
    """With several answers, prompts in pieces, and preemption; the same answers each time."""
    engine.restart(**limits)
    asked = [engine.request(seed=5, n=3, max_tokens=40, ignore_eos=True, thinking_budget=BUDGET) for _ in range(2)]
    first, second = engine.run(*asked)
    for outcome in (*first, *second):
        assert place_of_mark(outcome.tokens) == 10
    assert [one.tokens for one in first] == [two.tokens for two in second]


def test_a_form_begins_where_the_budget_ends_the_reasoning(engine: TinyEngine) -> None:
    engine.restart()
    (outcomes,) = engine.run(engine.request(form=FORM, n=2, thinking_budget=BUDGET))
    for outcome in outcomes:
        assert outcome.error == ""
        place = place_of_mark(outcome.tokens)
        assert place <= 10
        said = bytes(outcome.tokens[place + len(MARK) : -1])
        assert said.isdigit() and len(said) == 5


def test_beams_keep_the_budget_too(engine: TinyEngine) -> None:
    engine.restart()
    search = BeamSearch(width=3)
    (outcomes,) = engine.run(engine.request(n=3, max_tokens=20, ignore_eos=True, thinking_budget=BUDGET, beam_search=search))
    assert [place_of_mark(outcome.tokens) for outcome in outcomes] == [10, 10, 10]

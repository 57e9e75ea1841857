"""Beam search finds what `transformers` finds (`num_beams`), with the same scores, whatever else the engine does."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cpu.engine_driver import EngineDriver, make_worker, random_llama

from headrace.engine.mind.sampling_params import BeamSearch, EarlyStopping, SamplingParams
from headrace.engine.mind.update import FinishReason, RequestUpdate
from headrace.engine.worker.worker import Worker

ENDS = (7, 30)
PROMPT = [5, 9, 2, 11, 40, 3, 17, 8, 21, 33, 4, 50, 1, 19, 28, 6, 44, 12]
"""Longer than a block, and not a multiple of its size."""
_EARLY_STOPPING: dict[EarlyStopping, Any] = {
    EarlyStopping.WHEN_FULL: True,
    EarlyStopping.WHEN_BEHIND: False,
    EarlyStopping.WHEN_HOPELESS: "never",
}


@pytest.fixture(scope="module")
def model() -> Any:
    return random_llama(3, num_layers=2)


@pytest.fixture(scope="module", params=["torch", "native"])
def worker(request: pytest.FixtureRequest, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder: Path = tmp_path_factory.mktemp("beams")
    model.save_pretrained(folder)
    return make_worker(folder, dtype="float32", num_blocks=64, num_threads=1, ops=request.param)


def by_transformers(model: Any, search: BeamSearch, max_tokens: int) -> list[tuple[list[int], float]]:
    """Answers with their scores, best first."""
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            num_beams=search.width,
            num_return_sequences=search.width,
            max_new_tokens=max_tokens,
            length_penalty=search.length_penalty,
            early_stopping=_EARLY_STOPPING[search.early_stopping],
            do_sample=False,
            eos_token_id=list(ENDS),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    answers = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        answer = row[len(PROMPT) :]
        end = next((i + 1 for i, token in enumerate(answer) if token in ENDS), len(answer))
        answers.append((answer[:end], score))
    return answers


def sampling(search: BeamSearch, max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, logprobs=2, stop_token_ids=ENDS, beam_search=search)


def answers_of(updates: list[RequestUpdate], search: BeamSearch) -> list[tuple[list[int], float]]:
    answers = []
    for update in sorted(updates, key=lambda update: update.sample_index):
        assert [entry.token_id for entry in update.logprobs] == list(update.new_token_ids)
        total = sum(entry.logprob for entry in update.logprobs)
        answers.append((list(update.new_token_ids), total / len(update.new_token_ids) ** search.length_penalty))
    return answers


def assert_same(ours: list[tuple[list[int], float]], theirs: list[tuple[list[int], float]]) -> None:
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)


@pytest.mark.parametrize(
    ("width", "length_penalty", "early_stopping"),
    list(itertools.product([1, 2, 5], [-0.5, 0.0, 1.0, 2.5], EarlyStopping)),
)
def test_answers_and_scores_are_those_of_transformers(
    model: Any, worker: Worker, width: int, length_penalty: float, early_stopping: EarlyStopping
) -> None:
    search = BeamSearch(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
    theirs = by_transformers(model, search, 12) if width > 1 else None
    driver = EngineDriver(worker, num_blocks=64)
    driver.add("beams", PROMPT, sampling(search, 12), num_sequences=width)
    driver.run()
    driver.close()
    if theirs is not None:
        assert_same(answers_of(driver.updates, search), theirs)
    else:  # one beam is the greedy answer
        (update,) = driver.updates
        assert all(entry.rank == 1 for entry in update.logprobs)


def test_answers_end_at_their_length_or_at_an_end_token_and_say_which(worker: Worker) -> None:
    search = BeamSearch(width=5, length_penalty=0.0)
    driver = EngineDriver(worker, num_blocks=64)
    driver.add("beams", PROMPT, sampling(search, 12), num_sequences=5)
    driver.run()
    driver.close()
    for update in driver.updates:
        ended = update.new_token_ids[-1] in ENDS
        assert update.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert update.stop_token_id == (update.new_token_ids[-1] if ended else None)
        assert ended or len(update.new_token_ids) == 12
    assert {update.finish_reason for update in driver.updates} == {FinishReason.STOP, FinishReason.LENGTH}


def test_beams_share_the_prompts_blocks_and_copy_what_they_write(worker: Worker) -> None:
    search = BeamSearch(width=4)
    driver = EngineDriver(worker, num_blocks=64)
    driver.add("beams", PROMPT * 3, SamplingParams(max_tokens=10, beam_search=search), num_sequences=4)
    driver.run()
    driver.close()
    computed = sum(plan.num_tokens for plan in driver.plans)
    assert computed == len(PROMPT) * 3 + 4 * 9, "the prompt was computed once, and each beam's tokens"
    assert any(plan.block_copies for plan in driver.plans)


@pytest.mark.parametrize("limits", [{"max_num_batched_tokens": 4, "max_num_seqs": 4}, {"num_blocks": 9}])
def test_little_room_and_other_requests_change_nothing(model: Any, worker: Worker, limits: dict[str, int]) -> None:
    """Chunked prompts, beams that fall behind, beams that are preempted and computed again."""
    search = BeamSearch(width=3)
    driver = EngineDriver(worker, **({"num_blocks": 64, "max_model_len": 48, "enable_prefix_caching": False} | limits))
    driver.add("before", PROMPT[::-1], SamplingParams(max_tokens=25, temperature=0.0))
    driver.add("beams", PROMPT, sampling(search, 20), num_sequences=3)
    driver.add("after", PROMPT[3:], SamplingParams(max_tokens=25, temperature=0.0))
    driver.add("more beams", PROMPT, sampling(search, 20), num_sequences=2)
    driver.run()
    driver.close()
    theirs = by_transformers(model, search, 20)
    assert_same(answers_of([u for u in driver.updates if u.request_id == "beams"], search), theirs)
    assert_same(answers_of([u for u in driver.updates if u.request_id == "more beams"], search), theirs[:2])


def test_conditions_hold_for_beams_too(worker: Worker) -> None:
    allowed = tuple(range(0, 64, 3))
    driver = EngineDriver(worker, num_blocks=64)
    asked = SamplingParams(
        max_tokens=6, min_tokens=6, stop_token_ids=(9,), allowed_token_ids=allowed, logit_bias={3: -100.0},
        bad_words_token_ids=((6,),), beam_search=BeamSearch(width=3),
    )  # fmt: skip
    driver.add("beams", PROMPT, asked, num_sequences=3)
    answers = driver.run()
    driver.close()
    assert len({tuple(tokens) for tokens in answers.values()}) == 3
    for tokens in answers.values():
        assert len(tokens) == 6
        assert set(tokens) <= set(allowed) - {3, 6, 9}


def test_conditions_that_leave_fewer_answers_than_asked_for_are_told(worker: Worker) -> None:
    driver = EngineDriver(worker, num_blocks=64)
    asked = SamplingParams(
        max_tokens=4, allowed_token_ids=(3, 4), bad_words_token_ids=((4,),), beam_search=BeamSearch(width=2)
    )
    driver.add("beams", PROMPT, asked, num_sequences=2)
    driver.run()
    driver.close()
    assert [update.finish_reason for update in driver.updates] == [FinishReason.ERROR, FinishReason.ERROR]
    assert "leave 1 answers, and 2 are asked for" in driver.updates[0].error

"""How the next token is chosen: parameters one by one, all against a naive reading, and what a draw may depend on."""

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from headrace.base.ids import SequenceId
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NewSequence, SampledToken
from headrace.engine.worker.random_draw import uniform
from headrace.engine.worker.running_sequence import RunningSequence
from headrace.engine.worker.sampler import Sampler

Floats = npt.NDArray[np.float64]


def sequence(
    prompt: tuple[int, ...] = (1,), answer: tuple[int, ...] = (), eos: tuple[int, ...] = (), index: int = 0, **sampling: Any
) -> RunningSequence:
    params = SamplingParams(**({"max_tokens": 100} | sampling))
    return RunningSequence(NewSequence(SequenceId(0), index, len(prompt), prompt + answer, params, eos))


def choose(logits: list[float] | torch.Tensor, **kwargs: Any) -> int:
    return chosen(logits, **kwargs).token_id


def chosen(logits: list[float] | torch.Tensor, **kwargs: Any) -> SampledToken:
    row = torch.as_tensor(logits, dtype=torch.float32)
    (token,) = Sampler().sample(row[None].clone(), [sequence(**kwargs)])
    assert isinstance(token, SampledToken)
    return token


def tokens_over_seeds(logits: list[float] | torch.Tensor, num_seeds: int = 200, **kwargs: Any) -> Counter[int]:
    row = torch.as_tensor(logits, dtype=torch.float32)
    sequences = [sequence(seed=seed, **kwargs) for seed in range(num_seeds)]
    sampled = Sampler().sample(row.repeat(num_seeds, 1), sequences)
    return Counter(token.token_id for token in sampled if isinstance(token, SampledToken))


# One parameter at a time


def test_greedy_takes_the_most_probable_token_and_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(49152)
    logits[[40000, 700, 701]] = 5.0
    assert choose(logits, temperature=0.0) == 700
    assert choose([3.0, 1.0, 3.0], temperature=0.0) == 0


def test_logit_bias_can_force_and_forbid_a_token() -> None:
    assert choose([5.0, 1.0, 0.0], temperature=0.0, logit_bias={2: 100.0}) == 2
    assert choose([5.0, 1.0, 0.0], temperature=0.0, logit_bias={0: -100.0}) == 1


def test_repetition_penalty_is_that_of_transformers_over_prompt_and_answer() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 50)
    ids = (3, 3, 7, 20)
    processor: Any = RepetitionPenaltyLogitsProcessor(1.7)
    expected = processor(torch.tensor([ids]), logits.clone())[0]
    token = chosen(logits[0], prompt=ids[:2], answer=ids[2:], temperature=0.0, repetition_penalty=1.7)
    assert token.token_id == int(expected.argmax())
    flat = torch.ones(50)
    flat[0] = -1.0
    kept = tokens_over_seeds(flat, prompt=tuple(range(1, 49)), temperature=0.01, repetition_penalty=2.0)
    assert set(kept) == {49}, "every token of the prompt is half as strong"


def test_presence_and_frequency_penalties_count_the_answer_and_not_the_prompt() -> None:
    logits = [2.0, 1.6, 1.0]
    assert choose(logits, prompt=(0, 0, 0), temperature=0.0, presence_penalty=0.5, frequency_penalty=0.5) == 0
    assert choose(logits, answer=(0,), temperature=0.0, presence_penalty=0.5) == 1
    assert choose(logits, answer=(0, 0), temperature=0.0, frequency_penalty=0.15) == 0
    assert choose(logits, answer=(0, 0, 0), temperature=0.0, frequency_penalty=0.15) == 1


def test_penalties_follow_an_answer_that_grows() -> None:
    growing = sequence(temperature=0.0, frequency_penalty=0.3)
    picked = []
    for _ in range(5):
        (token,) = Sampler().sample(torch.tensor([[2.0, 1.5, 0.0]]), [growing])
        assert isinstance(token, SampledToken)
        growing.token_ids.append(token.token_id)
        picked.append(token.token_id)
    assert picked == [0, 0, 1, 0, 1]  # 2.0 1.7 | 1.4 < 1.5 | 1.4 > 1.2 | 1.1 < 1.2


def test_an_answer_cannot_end_before_min_tokens() -> None:
    logits = [9.0, 8.0, 1.0]
    early: dict[str, Any] = {"eos": (0,), "stop_token_ids": (1,), "min_tokens": 2, "temperature": 0.0}
    assert choose(logits, **early) == 2
    assert choose(logits, answer=(2,), **early) == 2
    assert choose(logits, answer=(2, 2), **early) == 0


def test_top_k_keeps_exactly_k_and_the_lowest_ids_among_equals() -> None:
    assert set(tokens_over_seeds([1.0, 2.0, 2.0, 2.0, 0.0], top_k=2)) == {1, 2}
    assert set(tokens_over_seeds([1.0, 1.0, 1.0], top_k=1)) == {0}
    assert set(tokens_over_seeds([1.0, 1.0, 1.0], top_k=5)) == {0, 1, 2}
    assert set(tokens_over_seeds([1.0, 1.0, 1.0], top_k=-1)) == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert set(tokens_over_seeds(logits, top_p=0.45)) == {0}
    assert set(tokens_over_seeds(logits, top_p=0.7)) == {0, 1}
    assert set(tokens_over_seeds(logits, top_p=0.9, num_seeds=400)) == {0, 1, 2}
    assert set(tokens_over_seeds(logits, top_p=1e-9)) == {0}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert set(tokens_over_seeds(logits, top_k=2, top_p=0.56)) == {0}  # 0.4 of 0.7 is 0.571
    assert set(tokens_over_seeds(logits, top_k=2, top_p=0.6)) == {0, 1}


def test_top_p_over_a_flat_vocabulary_sorts_as_much_as_it_needs() -> None:
    drawn = tokens_over_seeds(torch.zeros(5000), num_seeds=500, top_p=0.9)
    assert max(drawn) in range(4400, 4500), "the lowest 4500 ids of 5000 equals"


def test_min_p_drops_what_is_much_less_probable_than_the_best() -> None:
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert set(tokens_over_seeds(logits, min_p=0.55)) == {0, 1}
    assert set(tokens_over_seeds(logits, min_p=0.2, num_seeds=400)) == {0, 1, 2}


def test_temperature_sharpens_and_flattens_without_ever_overflowing() -> None:
    logits = [300.0, 299.0, -300.0]
    assert set(tokens_over_seeds(logits, temperature=1e-30)) == {0}
    assert set(tokens_over_seeds(logits, temperature=0.02)) == {0}
    hot = tokens_over_seeds([1.0, 0.0, -1.0], num_seeds=3000, temperature=100.0)
    assert all(count in range(900, 1100) for count in hot.values())


# Log-probabilities


def test_logprobs_are_of_the_raw_logits_whatever_changed_the_choice() -> None:
    raw = torch.tensor([2.0, 1.0, 0.5, 0.5])
    token = chosen(raw, temperature=0.0, logit_bias={1: 50.0}, answer=(0,), frequency_penalty=1.0, logprobs=3)
    expected = torch.log_softmax(raw, dim=0).tolist()
    assert token.token_id == 1
    assert token.logprobs is not None
    assert token.logprobs.logprob == pytest.approx(expected[1], abs=1e-6)
    assert token.logprobs.rank == 2
    assert token.logprobs.top_token_ids == (0, 1, 2), "the lower id first among equals"
    assert token.logprobs.top_logprobs == pytest.approx(expected[:3], abs=1e-6)


def test_logprobs_zero_reports_the_chosen_token_alone() -> None:
    token = chosen([0.0, 1.0], temperature=0.0, logprobs=0)
    assert token.logprobs is not None
    assert (token.logprobs.rank, token.logprobs.top_token_ids) == (1, ())
    assert chosen([0.0, 1.0], temperature=0.0).logprobs is None


# Everything together


def naive_probabilities(logits: Floats, s: SamplingParams, counts: Counter[int], seen: set[int]) -> tuple[Floats, float]:
    """The distribution as the parameters define it, and how near top_p and min_p came to deciding otherwise."""
    x = logits.copy()
    for token, bias in s.logit_bias.items():
        x[token] += bias
    for token in seen:
        x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
        x[token] -= s.frequency_penalty * counts[token] + s.presence_penalty * (counts[token] > 0)
    p = np.exp((x - x.max()) / s.temperature)
    order = sorted(range(len(p)), key=lambda token: (-p[token], token))
    kept = order[: s.top_k] if s.top_k > 0 else order
    total = p[kept].sum()
    share, smallest, margin = 0.0, [], 1.0
    for token in kept:
        if share >= s.top_p and s.top_p < 1.0:
            break
        smallest.append(token)
        share += p[token] / total
        margin = min(margin, abs(share - s.top_p) if s.top_p < 1.0 else 1.0)
    margin = min([margin] + [abs(p[token] - s.min_p) for token in smallest if s.min_p > 0])
    result = np.zeros_like(p)
    for token in smallest:
        if p[token] >= s.min_p:
            result[token] = p[token]
    return result / result.sum(), margin


@settings(max_examples=300)
@given(data=st.data())
def test_any_mixture_of_parameters_draws_as_a_naive_reading_of_them(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([5, 37, 256, 1000, 2048]))
    grid = st.integers(-12, 12).map(lambda i: i / 4)  # coarse, so that equals occur
    base = data.draw(st.lists(grid, min_size=5, max_size=5))
    logits = np.array([base[i % 5] + (i * 7919 % 23) / 8 for i in range(size)])
    token = st.integers(0, size - 1)
    prompt = tuple(data.draw(st.lists(token, min_size=1, max_size=6)))
    answer = tuple(data.draw(st.lists(token, max_size=6)))
    sampling: dict[str, Any] = {
        "temperature": data.draw(st.sampled_from([0.3, 1.0, 1.7])),
        "top_k": data.draw(st.sampled_from([0, 1, 3, 40, 300])),
        "top_p": data.draw(st.sampled_from([1.0, 0.97, 0.7, 0.2])),
        "min_p": data.draw(st.sampled_from([0.0, 0.05, 0.5])),
        "repetition_penalty": data.draw(st.sampled_from([1.0, 1.3])),
        "presence_penalty": data.draw(st.sampled_from([0.0, 0.6])),
        "frequency_penalty": data.draw(st.sampled_from([0.0, -0.4])),
        "logit_bias": data.draw(st.dictionaries(token, st.sampled_from([-100.0, 1.5]), max_size=2)),
        "seed": data.draw(st.integers(0, 2**64 - 1)),
    }
    one = sequence(prompt, answer, **sampling)
    expected, margin = naive_probabilities(logits, one.sampling, Counter(answer), set(prompt + answer))
    assume(margin > 1e-5)
    neighbours = data.draw(st.integers(0, 2))
    rows = torch.tensor(logits, dtype=torch.float32).repeat(1 + neighbours, 1)
    others = [sequence(seed=i, temperature=0.0 if i else 0.9, top_p=0.5) for i in range(neighbours)]
    sampled = Sampler().sample(rows, [one, *others])[0]
    assert isinstance(sampled, SampledToken)
    draw = uniform(one.sampling.seed, 0, len(prompt) + len(answer))
    below = expected[: sampled.token_id].sum()
    assert expected[sampled.token_id] > 0, "a token that the filters left out"
    assert below - 1e-5 <= draw <= below + expected[sampled.token_id] + 1e-5


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
    drawn = tokens_over_seeds(np.log(probabilities).tolist(), num_seeds=20_000)
    chi_square = sum((drawn[i] - 20_000 * p) ** 2 / (20_000 * p) for i, p in enumerate(probabilities))
    assert chi_square < 18.5, "beyond the 99.9th percentile for 4 degrees of freedom"


# What a draw depends on


def test_a_row_draws_the_same_token_alone_and_among_any_neighbours() -> None:
    torch.manual_seed(3)
    logits = torch.randn(40, 49152) * 3
    settings_of_rows: list[dict[str, Any]] = [
        {}, {"top_p": 0.9}, {"top_k": 50}, {"top_p": 0.99, "temperature": 1.5}, {"min_p": 0.02}, {"temperature": 0.0},
        {"repetition_penalty": 1.2, "top_p": 0.95}, {"temperature": 3.0},
    ]  # fmt: skip
    kwargs = [settings_of_rows[i % 8] | {"seed": i} for i in range(40)]
    together = Sampler().sample(logits.clone(), [sequence(**k) for k in kwargs])
    alone = [chosen(logits[i], **k) for i, k in enumerate(kwargs)]
    assert together == alone


def test_a_draw_depends_on_seed_sample_index_and_position_alone() -> None:
    assert uniform(1, 0, 5) == uniform(1, 0, 5)
    different = {uniform(seed, index, position) for seed in range(10) for index in range(10) for position in range(100)}
    assert len(different) == 10_000
    flat = torch.zeros(1000)
    assert choose(flat, seed=9, answer=(4, 5)) == choose(flat, seed=9, prompt=(7, 8), answer=(1,)), "position, not content"


def test_draws_are_stable_across_releases() -> None:
    assert uniform(0, 0, 0) == 0.5432533136777238
    assert uniform(2**64 - 1, 3, 77) == uniform(-1, 3, 77) == 0.8949756315691957


def test_draws_are_uniform_over_positions_and_over_seeds() -> None:
    for numbers in ([uniform(5, 0, i) for i in range(10_000)], [uniform(i, 0, 5) for i in range(10_000)]):
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((counts - 500) ** 2 / 500).sum() < 43.8, "beyond the 99.9th percentile for 19 degrees of freedom"


# Numbers that are none


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 512)
    healthy = [chosen(logits[i], temperature=temperature, top_p=0.9) for i in (0, 2)]
    logits[1, 100] = bad
    first, failed, last = Sampler().sample(logits, [sequence(temperature=temperature, top_p=0.9) for _ in range(3)])
    assert isinstance(failed, str)
    assert "not finite" in failed
    assert [first, last] == healthy


def test_tokens_that_the_model_itself_rules_out_are_no_failure() -> None:
    logits = torch.full((100,), -math.inf)
    logits[[4, 7]] = 0.0
    assert set(tokens_over_seeds(logits)) == {4, 7}

"""The sampler on numpy arrays against the one on torch tensors: the same tokens from the same logits, whatever is asked."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu.test_ops_native import ISAS
from tests.cpu.test_sampler import sequence

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

from headrace.engine.mind.sampling_params import BeamSearch
from headrace.engine.mind.step import NOTHING_LEFT, BeamCandidates, SampledToken
from headrace.engine.ops.native.ops import NativeOps
from headrace.engine.worker.constraint import AllowedTokens, Constraint, Verdict
from headrace.engine.worker.host_sampler import HostSampler
from headrace.engine.worker.running_sequence import NOT_FINITE, RunningSequence
from headrace.engine.worker.sampler import Sampler


def host_sampler(num_threads: int = 2) -> HostSampler:
    return HostSampler(NativeOps(dtype="float32", num_threads=num_threads))


_PARAMETERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 5, 300, 5000]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3, 0.999]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "logprobs": st.sampled_from([-1, 0, 5]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.4]),
        "min_tokens": st.sampled_from([0, 10]),
        "logit_bias": st.sampled_from([{}, {3: 5.0, 7: -100.0}]),
        "seed": st.integers(0, 2**32),
    }
)


@settings(max_examples=200)
@given(parameters=_PARAMETERS, vocab_size=st.sampled_from([40, 1000, 4096]), seed=st.integers(0, 1000))
def test_both_samplers_choose_and_tell_the_same(parameters: dict[str, Any], vocab_size: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(scale=3, size=(1, vocab_size)).astype(np.float32)
    asked = [sequence(prompt=(1, 2), answer=(3, 3, 5), eos=(0,), **parameters) for _ in range(2)]
    (ours,) = host_sampler().sample(logits.copy(), asked[:1])
    (theirs,) = Sampler().sample(torch.from_numpy(logits.copy()), asked[1:])
    assert isinstance(ours, SampledToken) and isinstance(theirs, SampledToken)
    assert ours.token_id == theirs.token_id
    if ours.logprobs is None or theirs.logprobs is None:
        assert ours.logprobs is theirs.logprobs
        return
    assert ours.logprobs.rank == theirs.logprobs.rank
    assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-4)
    assert ours.logprobs.top_token_ids == theirs.logprobs.top_token_ids
    assert ours.logprobs.top_logprobs == pytest.approx(theirs.logprobs.top_logprobs, abs=1e-4)


class _Form:
    """What may come next, known beforehand."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def verdict(self) -> Verdict:
        return self._verdict


@settings(max_examples=200)
@given(
    asked=st.lists(st.tuples(_PARAMETERS, st.sampled_from([None, 0.0, 0.02, 0.5, 1.0])), min_size=1, max_size=6),
    vocab_size=st.sampled_from([40, 1000, 4097]),
    seed=st.integers(0, 1000),
)
def test_both_samplers_choose_the_same_under_forms_and_nothing_that_a_form_does_not_allow(
    asked: list[tuple[dict[str, Any], float | None]], vocab_size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(len(asked), vocab_size)).astype(np.float32)
    are_allowed = [None if share is None else rng.random(vocab_size) < share for _, share in asked]

    def sequences() -> list[RunningSequence]:
        made = []
        for (parameters, _), is_allowed in zip(asked, are_allowed, strict=True):
            one = sequence(prompt=(1, 2), answer=(3, 3, 5), eos=(0,), **parameters)
            if is_allowed is not None:
                one.constraint = cast(Constraint, _Form(AllowedTokens(_mask(is_allowed), vocab_size)))
            made.append(one)
        return made

    ours = host_sampler().sample(logits.copy(), sequences())
    theirs = Sampler().sample(torch.from_numpy(logits.copy()), sequences())
    for mine, other, is_allowed in zip(ours, theirs, are_allowed, strict=True):
        if not isinstance(mine, SampledToken) or not isinstance(other, SampledToken):
            assert mine == other == NOTHING_LEFT
            continue
        assert mine.token_id == other.token_id
        assert is_allowed is None or is_allowed[mine.token_id]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_form_that_cannot_be_followed_says_why_and_harms_nobody_beside_it(temperature: float) -> None:
    logits = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    broken = sequence(temperature=temperature)
    broken.constraint = cast(Constraint, _Form("it broke"))
    first, reason, last = host_sampler().sample(logits, [sequence(temperature=0.0), broken, sequence(temperature=0.0)])
    assert reason == "it broke"
    assert isinstance(first, SampledToken) and isinstance(last, SampledToken)


@settings(max_examples=100)
@given(parameters=_PARAMETERS, width=st.sampled_from([1, 3, 40]), allowed=st.sampled_from([(), tuple(range(1, 60, 2))]))
def test_both_samplers_give_beams_the_same_candidates(
    parameters: dict[str, Any], width: int, allowed: tuple[int, ...]
) -> None:
    logits = np.random.default_rng(width).normal(scale=3, size=(1, 100)).astype(np.float32)
    width = min(width, len(allowed) or width)
    search = BeamSearch(width=width)
    asked = [
        sequence((1, 2), (3, 3, 5), (0,), allowed_token_ids=allowed, beam_search=search, **parameters) for _ in range(2)
    ]
    (ours,) = host_sampler().sample(logits.copy(), asked[:1])
    (theirs,) = Sampler().sample(torch.from_numpy(logits.copy()), asked[1:])
    assert isinstance(ours, BeamCandidates) and isinstance(theirs, BeamCandidates)
    assert ours.token_ids == theirs.token_ids
    assert len(ours.token_ids) == min(width + 1, len(allowed) or 100)
    assert ours.scores == pytest.approx(theirs.scores, abs=1e-4)
    assert list(ours.scores) == sorted(ours.scores, reverse=True)
    assert [one.token_id for one in ours.logprobs] == [one.token_id for one in theirs.logprobs]


def test_the_lowest_of_equal_ids_is_taken_and_kept() -> None:
    row = np.zeros((1, 100), np.float32)
    row[0, [40, 41, 90]] = 5.0
    assert host_sampler().sample(row.copy(), [sequence(temperature=0.0)]) == [SampledToken(40)]
    drawn = {host_sampler().sample(row.copy(), [sequence(temperature=1.0, top_k=2, seed=seed)])[0] for seed in range(40)}
    assert drawn == {SampledToken(40), SampledToken(41)}


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_fails_alone(poison: float) -> None:
    logits = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    logits[1, 20] = poison
    first, failed, last = host_sampler().sample(logits, [sequence(temperature=0.0) for _ in range(3)])
    assert failed == NOT_FINITE
    assert isinstance(first, SampledToken) and isinstance(last, SampledToken)


@settings(max_examples=100)
@given(
    vocab_size=st.sampled_from([1, 15, 17, 511, 513, 49152]),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.0, 0.01, 1.0, 30.0]),
)
def test_the_greatest_of_a_row_is_numpys(vocab_size: int, seed: int, scale: float) -> None:
    logits = np.random.default_rng(seed).normal(scale=scale, size=(3, vocab_size)).astype(np.float32)
    logits[2] = np.round(logits[2])  # many equals
    ops = NativeOps(dtype="float32", num_threads=2)
    assert ops.greatest(logits, [None] * 3) == logits.argmax(axis=1).tolist()


@settings(max_examples=100)
@given(
    isa=st.sampled_from(ISAS),
    vocab_size=st.sampled_from([1, 31, 32, 33, 600, 49152]),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.001, 0.5, 1.0]),
)
def test_what_a_mask_leaves_of_a_row_is_what_has_a_bit(isa: str, vocab_size: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(scale=3.0, size=(3, vocab_size))).astype(np.float32)  # many equals
    logits[:, rng.random(vocab_size) < 0.1] = -np.inf
    logits[:, 0] = rng.integers(-9, 9)
    is_allowed = rng.random((3, vocab_size)) < share
    is_allowed[2] = True
    masks = [_mask(row) for row in is_allowed[:2]]
    expected = np.where(is_allowed, logits, np.float32(-np.inf))
    ops = NativeOps(dtype="float32", num_threads=2, isa=isa)
    best = [int(row.argmax()) if row.max() > -np.inf else -2 for row in expected]
    assert ops.greatest(logits, [*masks, None]) == best
    ops.restrict(logits, list(enumerate(masks)))
    assert np.array_equal(logits, expected)


def test_a_row_that_is_not_finite_is_found_under_a_mask_that_hides_the_place() -> None:
    logits = np.zeros((2, 100), np.float32)
    logits[:, 70] = np.nan, np.inf
    allows_the_first = _mask(np.arange(100) == 0)
    assert NativeOps(dtype="float32", num_threads=1).greatest(logits, [allows_the_first] * 2) == [-1, -1]


def _mask(is_allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    num_bits = -(-len(is_allowed) // 32) * 32
    return np.packbits(np.concatenate((is_allowed, np.zeros(num_bits - len(is_allowed), bool))), bitorder="little").view(
        np.int32
    )


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1000),
    vocab_size=st.sampled_from([7, 600, 49152]),
    scale=st.sampled_from([0.0, 0.01, 3.0]),
    temperature=st.sampled_from([0.1, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 40, 10_000]),
    top_p=st.sampled_from([1.0, 0.95, 0.1]),
    min_p=st.sampled_from([0.0, 0.1]),
)
def test_a_draw_is_that_of_the_formulas_in_float64(
    seed: int, vocab_size: int, scale: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(scale=scale, size=vocab_size).astype(np.float32)
    row[rng.random(vocab_size) < 0.1] = -np.inf
    row[0] = 0.5
    number = rng.random()
    (token,) = NativeOps(dtype="float32", num_threads=1).draw(
        row[None], [(0, int(row.argmax()), temperature, top_k, top_p, min_p, number)]
    )
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    order = np.argsort(-weights, kind="stable")
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        order = order[: int(np.searchsorted(weights[order].cumsum(), top_p * weights[order].sum())) + 1]
    kept = np.zeros(vocab_size)
    kept[order] = weights[order]
    kept[weights < min_p] = 0
    shares = kept.cumsum() / kept.sum()
    below = shares[token - 1] if token else 0.0
    assert kept[token] > 0 or min(abs(weights[token] - weights[order[-1]]), abs(weights[token] - min_p)) < 1e-5
    slack = 1e-4 if scale == 0.0 or scale == 0.01 else 1e-5  # where the filters' edge may fall on a neighbour
    assert below - slack <= number <= shares[token] + slack


def test_a_vocabulary_is_drawn_from_as_often_as_its_probabilities_say() -> None:
    logits = np.log(np.tile(np.array([[0.5, 0.3, 0.2]], np.float32), (4000, 1)))
    draws = [(row, 0, 1.0, 0, 1.0, 0.0, (row + 0.5) / 4000) for row in range(4000)]
    drawn = NativeOps(dtype="float32", num_threads=2).draw(logits, draws)
    assert [drawn.count(token) for token in range(3)] == pytest.approx([2000, 1200, 800], abs=2)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1000),
    vocab_size=st.sampled_from([7, 600, 49152]),
    scale=st.sampled_from([0.0, 0.01, 3.0, 30.0]),
    count=st.sampled_from([0, 1, 5, 20, 700]),
)
def test_what_is_told_of_given_tokens_is_what_numpy_finds(seed: int, vocab_size: int, scale: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=scale, size=(3, vocab_size)).astype(np.float32)
    logits[1] = np.round(logits[1])  # many equals
    tokens = rng.integers(0, vocab_size, 3).tolist()
    told = host_sampler().given_logprobs(logits, tokens, count)
    for row, token, entry in zip(logits.astype(np.float64), tokens, told, strict=True):
        logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        top = np.argsort(-row, kind="stable")[:count]
        assert entry.token_id == token
        assert entry.rank == 1 + int((row > row[token]).sum())
        assert entry.logprob == pytest.approx(logprobs[token], abs=2e-5)
        assert entry.top_token_ids == tuple(top.tolist())
        assert entry.top_logprobs == pytest.approx(logprobs[top], abs=2e-5)


def test_nothing_finite_is_told_of_a_row_that_is_not() -> None:
    logits = np.zeros((2, 50), np.float32)
    logits[0, 30] = np.nan
    spoilt, sound = host_sampler().given_logprobs(logits, [3, 3], 2)
    assert np.isnan(spoilt.logprob)
    assert sound.logprob == pytest.approx(-np.log(50))

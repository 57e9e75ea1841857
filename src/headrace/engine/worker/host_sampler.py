"""HostSampler: the sampler's formulas on numpy arrays, for logits that are in the machine's memory.

Knows what `sampler.py` knows, and chooses as that does, in the same order and from the same draws; `sampler.py` states the
rules. Does not know torch, so that a worker without it can sample.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import BeamCandidates, SampledToken, TokenLogprobs
from headrace.engine.worker.penalties import TokenCounts, wants_penalties
from headrace.engine.worker.random_draw import uniform
from headrace.engine.worker.running_sequence import NOT_FINITE, NOTHING_LEFT, RunningSequence

Floats = npt.NDArray[np.float32]

_SORTED_AT_FIRST = 256
"""Most probable tokens that are sorted before it is known whether top_p needs more: nearly always enough."""


class HostSampler:
    def sample(self, logits: Floats, sequences: Sequence[RunningSequence]) -> list[SampledToken | BeamCandidates | str]:
        """One per row of `logits` [num_rows, vocab_size]: the token, a beam's candidates, or why there is none. Uses
        `logits` up."""
        return [_sample_row(logits[row], sequence) for row, sequence in enumerate(sequences)]

    def given_logprobs(self, logits: Floats, token_ids: Sequence[int], num_alternatives: int) -> list[TokenLogprobs]:
        """Of tokens that were given, not chosen. logits: [num_tokens, vocab_size], each row before its token."""
        top = min(num_alternatives, logits.shape[-1])
        return [_told(row, token, _top(row, top)) for row, token in zip(logits, token_ids, strict=True)]


def _sample_row(row: Floats, sequence: RunningSequence) -> SampledToken | BeamCandidates | str:
    verdict = sequence.constraint.verdict() if sequence.constraint is not None else None  # once a step, whatever else
    best = int(row.argmax())  # the first NaN if any is NaN
    if not math.isfinite(row[best]):
        return NOT_FINITE
    if isinstance(verdict, str):
        return verdict
    sampling = sequence.sampling
    raw = row.copy() if sampling.logprobs >= 0 else None
    if sequence.changes_logits:
        _change_logits(row, sequence)
    if verdict is not None:
        np.add(row, verdict, out=row)
    if sequence.bans_ending:
        _ban_ending(row, sequence)
    if (forced := sequence.forced_token()) is not None:
        row.fill(-np.inf)
        row[forced] = 0.0
    if sequence.num_candidates:
        return _candidates(row, raw, sequence)
    best = int(row.argmax())
    if sequence.bans_tokens and row[best] == -np.inf:
        return NOTHING_LEFT
    token = best if sampling.is_greedy else _draw(row, row[best], sequence)
    if verdict is not None and verdict[token] != 0:
        return NOTHING_LEFT
    return SampledToken(token) if raw is None else SampledToken(token, _logprobs(raw, token, sampling))


def _change_logits(row: Floats, sequence: RunningSequence) -> None:
    """In place."""
    sampling = sequence.sampling
    if sampling.logit_bias:
        row[list(sampling.logit_bias)] += np.array(list(sampling.logit_bias.values()), np.float32)
    if wants_penalties(sampling):
        if sequence.token_counts is None:
            sequence.token_counts = TokenCounts(sequence.num_prompt_tokens)
        ids, counts = sequence.token_counts.count(sequence.token_ids)
        values, answered = row[ids], np.array(counts, np.float32)
        penalty = np.float32(sampling.repetition_penalty)
        repeated = np.where(values > 0, values / penalty, values * penalty)
        repeated -= sampling.frequency_penalty * answered + sampling.presence_penalty * (answered > 0)
        row[ids] = repeated
    if sampling.allowed_token_ids:
        row[sequence.ban(len(row))] = -np.inf
    row[sequence.ended_bad_words()] = -np.inf


def _ban_ending(row: Floats, sequence: RunningSequence) -> None:
    """In place. A form that allows nothing but the end comes before `min_tokens`."""
    ending = [*sequence.eos_token_ids, *sequence.sampling.stop_token_ids]
    values = row[ending]
    row[ending] = -np.inf
    if sequence.constraint is not None and row.max() == -np.inf:
        row[ending] = values


def _draw(row: Floats, best: np.float32, sequence: RunningSequence) -> int:
    """By inverse transform over what the filters leave, in order of token id. Uses `row` up."""
    sampling = sequence.sampling
    row -= best  # however small the temperature, the best is 0 and nothing is NaN
    row /= np.float32(sampling.temperature)
    probabilities = np.exp(row, out=row)
    probabilities /= probabilities.sum()
    _keep_top(probabilities, sampling)
    if sampling.min_p > 0.0:
        probabilities[probabilities < probabilities.max() * np.float32(sampling.min_p)] = 0.0
    cumulated = probabilities.cumsum(dtype=np.float64)
    target = uniform(sampling.seed, sequence.sample_index, len(sequence.token_ids)) * cumulated[-1]
    return min(int(np.searchsorted(cumulated, target, side="right")), len(row) - 1)


def _keep_top(probabilities: Floats, sampling: SamplingParams) -> None:
    """Sets what top_k and top_p leave out to 0, in place; among equally probable tokens the lowest ids stay."""
    vocab_size = len(probabilities)
    if not 0 < sampling.top_k < vocab_size and sampling.top_p >= 1.0:
        return
    num_sorted = min(vocab_size, _SORTED_AT_FIRST)
    while True:
        # Partitioned first: sorting a whole vocabulary takes ten times as long.
        greatest = np.partition(probabilities, vocab_size - num_sorted)[vocab_size - num_sorted :]
        descending = np.sort(greatest)[::-1]
        num_kept = _num_kept(descending.cumsum(dtype=np.float64), sampling, vocab_size)
        if num_kept is not None:
            break
        num_sorted = min(vocab_size, num_sorted * 8)
    least = descending[num_kept - 1]
    dropped = probabilities < least
    if vocab_size - int(dropped.sum()) > num_kept:
        num_above = int((probabilities > least).sum())
        dropped[np.flatnonzero(probabilities == least)[num_kept - num_above :]] = True
    probabilities[dropped] = 0.0


def _num_kept(cumulated: npt.NDArray[np.float64], sampling: SamplingParams, vocab_size: int) -> int | None:
    """How many of the most probable tokens are kept; None if more of them must be sorted to know."""
    num_sorted = len(cumulated)
    top_k = sampling.top_k if 0 < sampling.top_k < vocab_size else vocab_size
    if sampling.top_p >= 1.0:
        return top_k if top_k <= num_sorted else None
    if num_sorted < top_k < vocab_size:
        return None
    considered = cumulated[:top_k]
    total = float(considered[-1]) if top_k <= num_sorted else 1.0  # top_p's share is of what top_k left
    num_kept = int(np.searchsorted(considered, sampling.top_p * total)) + 1
    if num_kept <= len(considered):
        return num_kept
    return top_k if top_k <= num_sorted else None


def _candidates(row: Floats, raw: Floats | None, sequence: RunningSequence) -> BeamCandidates:
    """row: [vocab_size], changed as the request asked; raw: as the model gave it, if log-probabilities are told."""
    ids = _top(row, min(sequence.num_candidates, len(row)))
    ids = ids[row[ids] > -np.inf]
    if len(ids) == 0:
        return BeamCandidates((), ())
    scores = row[ids] - _normaliser(row)
    told: tuple[TokenLogprobs, ...] = ()
    if raw is not None:
        top = _top(raw, min(sequence.sampling.logprobs, len(raw)))
        told = tuple(_told(raw, token, top) for token in ids.tolist())
    return BeamCandidates(tuple(ids.tolist()), tuple(scores.tolist()), told)


def _logprobs(raw: Floats, token: int, sampling: SamplingParams) -> TokenLogprobs:
    """raw: [vocab_size], as the model gave it."""
    if sampling.logprob_token_ids:
        return _told(raw, token, np.array(sampling.logprob_token_ids, np.int64))
    return _told(raw, token, _top(raw, min(sampling.logprobs, len(raw))))


def _told(raw: Floats, token: int, others: npt.NDArray[np.int64]) -> TokenLogprobs:
    normaliser = _normaliser(raw)
    chosen = raw[token]
    return TokenLogprobs(
        token_id=token,
        logprob=float(chosen - normaliser),
        rank=int((raw > chosen).sum()) + 1,
        top_token_ids=tuple(others.tolist()),
        top_logprobs=tuple((raw[others] - normaliser).tolist()),
    )


def _normaliser(row: Floats) -> float:
    """The logarithm of the sum of its exponentials."""
    highest = row.max()
    return float(highest + np.log(np.exp(row - highest).sum(dtype=np.float64)))


def _top(raw: Floats, count: int) -> npt.NDArray[np.int64]:
    """Ids of the greatest, descending, the lowest first among equals."""
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(raw, len(raw) - count)[len(raw) - count]
    candidates = np.flatnonzero(raw >= least)
    return candidates[np.argsort(-raw[candidates], kind="stable")][:count]

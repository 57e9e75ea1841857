"""HostSampler: the sampler's formulas for logits that are in the machine's memory.

Knows what `sampler.py` knows, and chooses as that does, in the same order and from the same draws; `sampler.py` states the
rules. Rows are searched and drawn from by compiled code, on all threads at once; what few requests ask for, numpy does. Does
not know torch, so that a worker without it can sample.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.engine.grammar.protocol import TokenMask
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NOTHING_LEFT, BeamCandidates, SampledToken, TokenLogprobs
from headrace.engine.worker.constraint import AllowedTokens, Verdict
from headrace.engine.worker.penalties import TokenCounts, wants_penalties
from headrace.engine.worker.random_draw import uniform
from headrace.engine.worker.running_sequence import NOT_FINITE, RunningSequence

Floats = npt.NDArray[np.float32]

Draw = tuple[int, int, float, int, float, float, float]
"""(row, its most probable token, temperature, top_k, top_p, min_p, uniform number)"""


_NOT_FINITE = -1
"""What `RowSampler.greatest` says instead of a token."""


@runtime_checkable
class RowSampler(Protocol):
    """What it asks of ops that leave their logits in the machine's memory. logits: [num_rows, vocab_size]"""

    def greatest(self, logits: Floats, allowed: "Sequence[TokenMask | None]") -> list[int]:
        """Each row's most probable token, the lowest id among equals, of those that its mask allows, where it has one: -1
        where the row is not finite, -2 where nothing is left."""
        ...

    def restrict(self, logits: Floats, restrictions: Sequence[tuple[int, TokenMask]]) -> None:
        """Leaves of some rows what a mask allows, in place."""
        ...

    def draw(self, logits: Floats, draws: list[Draw]) -> list[int]:
        """A token for each, by inverse transform over what the filters leave, in order of token id."""
        ...

    def tell(self, logits: Floats, tokens: list[int], num_top: int) -> list[tuple[float, int, list[int], list[float]]]:
        """Of one token a row: its log-probability (not a number where the row is not finite), its rank, the ids of the most
        probable tokens, the lowest first among equals, and their log-probabilities."""
        ...


class HostSampler:
    def __init__(self, rows: RowSampler) -> None:
        self._rows = rows

    def sample(self, logits: Floats, sequences: Sequence[RunningSequence]) -> list[SampledToken | BeamCandidates | str]:
        """One per row of `logits` [num_rows, vocab_size]: the token, a beam's candidates, or why there is none. Uses
        `logits` up."""
        outcomes: list[SampledToken | BeamCandidates | str] = []
        draws: list[Draw] = []
        restrictions: list[tuple[int, TokenMask]] = []
        told: dict[int, Floats] = {}
        verdicts = [s.constraint.verdict() if s.constraint is not None else None for s in sequences]
        masks = [
            verdict.mask if isinstance(verdict, AllowedTokens) and sequence.is_plain else None
            for verdict, sequence in zip(verdicts, sequences, strict=True)
        ]
        for row, (best, sequence) in enumerate(zip(self._rows.greatest(logits, masks), sequences, strict=True)):
            mask, verdict = masks[row], verdicts[row]
            if best < 0 or not sequence.is_plain or isinstance(verdict, str):
                raw = logits[row].copy() if sequence.sampling.logprobs >= 0 else None
                problem, best = self._prepare(logits, row, best, sequence, verdict)
                if problem or sequence.num_candidates:
                    outcomes.append(problem or _candidates(logits[row], raw, sequence))
                    continue
                if raw is not None:
                    told[row] = raw
            outcomes.append(SampledToken(best))
            if not sequence.sampling.is_greedy:
                draws.append(_draw(row, best, sequence))
                if mask is not None:
                    restrictions.append((row, mask))
        if restrictions:
            self._rows.restrict(logits, restrictions)
        if draws:
            for draw, token in zip(draws, self._rows.draw(logits, draws), strict=True):
                outcomes[draw[0]] = SampledToken(token)
        for row, raw in told.items():
            outcome = outcomes[row]
            if isinstance(outcome, SampledToken):
                logprobs = _logprobs(raw, outcome.token_id, sequences[row].sampling)
                outcomes[row] = SampledToken(outcome.token_id, logprobs)
        return outcomes

    def _prepare(
        self, logits: Floats, index: int, best: int, sequence: RunningSequence, verdict: Verdict
    ) -> tuple[str, int]:
        """Makes of a row of the model's logits those to choose from, in place. Returns what is wrong, and the most probable
        token."""
        if best < 0:
            return NOT_FINITE if best == _NOT_FINITE else NOTHING_LEFT, best
        if isinstance(verdict, str):
            return verdict, best
        row = logits[index]
        if sequence.changes_logits:
            _change_logits(row, sequence)
            best = int(row.argmax())
        if verdict is not None and not (sequence.looks_for_the_best and best in verdict):
            self._rows.restrict(logits, [(index, verdict.mask)])
            best = int(row.argmax())
        if sequence.bans_ending:
            _ban_ending(row, sequence)
            best = int(row.argmax())
        if (forced := sequence.forced_token()) is not None:
            row.fill(-np.inf)
            row[forced] = 0.0
            best = forced
        bans = sequence.bans_tokens or verdict is not None
        if row[best] == -np.inf and bans and not sequence.num_candidates:  # a beam without candidates ends, the others go on
            return NOTHING_LEFT, best
        return "", best

    def given_logprobs(self, logits: Floats, token_ids: Sequence[int], num_alternatives: int) -> list[TokenLogprobs]:
        """Of tokens that were given, not chosen. logits: [num_tokens, vocab_size], each row before its token."""
        tokens = list(token_ids)
        told = self._rows.tell(logits, tokens, num_alternatives)
        return [
            TokenLogprobs(token, logprob, rank, tuple(top_ids), tuple(top_logprobs))
            for token, (logprob, rank, top_ids, top_logprobs) in zip(tokens, told, strict=True)
        ]


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


def _draw(row: int, best: int, sequence: RunningSequence) -> Draw:
    sampling = sequence.sampling
    number = uniform(sampling.seed, sequence.sample_index, len(sequence.token_ids))
    return (row, best, sampling.temperature, max(0, sampling.top_k), sampling.top_p, sampling.min_p, number)


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

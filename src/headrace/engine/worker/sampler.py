"""Sampler: logits to tokens, as each sequence asked.

Knows SamplingParams' formulas. Does not know the model, nor which step it serves. Every row is treated as if it were alone:
its token depends on its logits, its parameters, its tokens and (seed, sample index, position), on nothing else.

Order for one row: log-probabilities are taken from the raw logits; then logit_bias; repetition, frequency and presence
penalties; the form's ban; the ban on ending before min_tokens; then the most probable token (the lowest id among equals) if greedy, else
temperature, top_k, top_p of what top_k left, min_p, and one draw from what remains, in order of token id.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import SampledToken, TokenLogprobs
from headrace.engine.worker.constraint import Banned
from headrace.engine.worker.penalties import TokenCounts, wants_penalties
from headrace.engine.worker.random_draw import uniform
from headrace.engine.worker.running_sequence import RunningSequence

NOT_FINITE = "the model's logits are not finite"
NOTHING_LEFT = "the request's conditions together allow no token of the model here"

_SORTED_AT_FIRST = 256
"""Most probable tokens that are sorted before it is known whether top_p needs more: nearly always enough."""


class Sampler:
    def sample(self, logits: torch.Tensor, sequences: Sequence[RunningSequence]) -> list[SampledToken | str]:
        """One per row of `logits` [num_rows, vocab_size]: the token, or why there is none. Uses `logits` up.

        Waits for the forms' masks, which are usually there by now."""
        best = logits.amax(dim=-1)  # NaN if any is NaN, inf if any is inf
        usable = torch.isfinite(best).tolist()
        raw = {row: logits[row].clone() for row, s in enumerate(sequences) if s.sampling.logprobs >= 0}
        problems = ["" if is_usable else NOT_FINITE for is_usable in usable]
        for row, sequence in enumerate(sequences):
            if _changes_logits(sequence):
                _change_logits(logits[row], sequence)
        _keep_forms(logits, sequences, problems)
        for row, sequence in enumerate(sequences):
            if _bans_ending(sequence):
                _ban_ending(logits[row], sequence)
        if any(sequence.constraint is not None for sequence in sequences):
            for row, is_empty in enumerate(torch.isneginf(logits.amax(dim=-1)).tolist()):
                if is_empty:
                    problems[row] = problems[row] or NOTHING_LEFT
        tokens = _choose(logits, sequences)
        return [
            problems[row]
            or (SampledToken(token, _logprobs(raw[row], token, sequences[row].sampling)) if row in raw else SampledToken(token))
            for row, token in enumerate(tokens)
        ]


# Before the choice


def _changes_logits(sequence: RunningSequence) -> bool:
    sampling = sequence.sampling
    return bool(sampling.logit_bias) or wants_penalties(sampling)


def _change_logits(row: torch.Tensor, sequence: RunningSequence) -> None:
    """In place. row: [vocab_size]."""
    sampling = sequence.sampling
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=row.dtype, device=row.device)
    if wants_penalties(sampling):
        if sequence.token_counts is None:
            sequence.token_counts = TokenCounts(sequence.num_prompt_tokens)
        sequence.token_counts.penalise(row, sequence.token_ids, sampling)


def _keep_forms(logits: torch.Tensor, sequences: Sequence[RunningSequence], problems: list[str]) -> None:
    """Bans what the forms do not allow, in place; notes where a form cannot be followed. logits: [num_rows, vocab_size]."""
    rows: list[int] = []
    banned: list[Banned] = []
    for row, sequence in enumerate(sequences):
        verdict = sequence.constraint.verdict() if sequence.constraint is not None else None
        if isinstance(verdict, str):
            problems[row] = problems[row] or verdict
        elif verdict is not None:
            rows.append(row)
            banned.append(verdict)
    if rows:
        masks = torch.from_numpy(np.stack(banned)).to(logits.device)
        if len(rows) == len(sequences):
            logits.masked_fill_(masks, -math.inf)
        else:
            for row, mask in zip(rows, masks, strict=True):
                logits[row].masked_fill_(mask, -math.inf)


def _bans_ending(sequence: RunningSequence) -> bool:
    return sequence.num_answer_tokens < sequence.sampling.min_tokens


def _ban_ending(row: torch.Tensor, sequence: RunningSequence) -> None:
    """In place. row: [vocab_size]. A form that allows nothing but the end comes before `min_tokens`."""
    ending = [*sequence.eos_token_ids, *sequence.sampling.stop_token_ids]
    if not ending:
        return
    ids = torch.tensor(ending, device=row.device)
    values = row[ids]
    row[ids] = -math.inf
    if sequence.constraint is not None and bool(torch.isneginf(row.amax())):
        row[ids] = values


# The choice


def _choose(logits: torch.Tensor, sequences: Sequence[RunningSequence]) -> list[int]:
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row, sequence in enumerate(sequences) if not sequence.sampling.is_greedy]
    if drawn:
        some = logits if len(drawn) == len(sequences) else logits[torch.tensor(drawn, device=logits.device)]
        for row, token in zip(drawn, _draw(some, [sequences[row] for row in drawn]), strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: torch.Tensor, sequences: Sequence[RunningSequence]) -> list[int]:
    """logits: [num_rows, vocab_size], used up."""
    temperatures = torch.tensor([s.sampling.temperature for s in sequences], dtype=logits.dtype, device=logits.device)
    scaled = logits.div_(temperatures[:, None])
    scaled.sub_(scaled.amax(dim=-1, keepdim=True))  # the best is 0: min_p becomes a plain comparison
    _filter(scaled, [s.sampling for s in sequences])
    weights = scaled.exp_()
    cumulated = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    draws = [uniform(s.sampling.seed, s.sample_index, len(s.token_ids)) for s in sequences]
    targets = torch.tensor(draws, dtype=torch.float64, device=logits.device) * cumulated[:, -1]
    # The first token whose cumulated weight exceeds the target: never one of weight 0.
    chosen: list[int] = torch.searchsorted(cumulated, targets[:, None], right=True).squeeze(1).tolist()
    return [min(token, logits.shape[-1] - 1) for token in chosen]  # rows that are not finite find no place


def _filter(scaled: torch.Tensor, samplings: Sequence[SamplingParams]) -> None:
    """Sets what top_k, top_p and min_p leave out to -inf, in place. scaled: [num_rows, vocab_size], the best at 0."""
    vocab_size = scaled.shape[-1]
    sorting = [row for row, s in enumerate(samplings) if 0 < s.top_k < vocab_size or s.top_p < 1.0]
    kept = _num_kept(scaled, sorting, samplings)
    for row, sampling in enumerate(samplings):
        if row in kept:
            num_kept, least = kept[row]
            _keep(scaled[row], num_kept, least)
        if sampling.min_p > 0.0:
            scaled[row].masked_fill_(scaled[row] < math.log(sampling.min_p), -math.inf)


def _num_kept(
    scaled: torch.Tensor, rows: Sequence[int], samplings: Sequence[SamplingParams]
) -> dict[int, tuple[int, float]]:
    """Row -> how many tokens top_k and top_p keep, and the least of their values."""
    kept: dict[int, tuple[int, float]] = {}
    vocab_size = scaled.shape[-1]
    num_sorted = min(vocab_size, _SORTED_AT_FIRST)
    pending = list(rows)
    while pending:
        values = scaled[torch.tensor(pending, device=scaled.device)].topk(num_sorted, dim=-1).values  # descending
        unsettled = []
        for row, row_values in zip(pending, values, strict=True):
            num_kept = _num_kept_of(scaled[row], row_values, samplings[row])
            if num_kept is None:
                unsettled.append(row)
            else:
                kept[row] = (num_kept, float(row_values[num_kept - 1]))
        pending = unsettled
        num_sorted = min(vocab_size, num_sorted * 8)
    return kept


def _num_kept_of(scaled: torch.Tensor, descending: torch.Tensor, sampling: SamplingParams) -> int | None:
    """How many of the most probable tokens one row keeps; None if more of them must be sorted to know."""
    vocab_size, num_sorted = scaled.shape[0], descending.shape[0]
    top_k = sampling.top_k if 0 < sampling.top_k < vocab_size else vocab_size
    if sampling.top_p >= 1.0:
        return top_k if top_k <= num_sorted else None
    considered = descending[: min(top_k, num_sorted)]
    cumulated = considered.exp().cumsum(0, dtype=torch.float64)
    if top_k <= num_sorted:
        total = cumulated[-1]
    else:
        total = scaled.exp().sum(dtype=torch.float64)
    num_kept = int(torch.searchsorted(cumulated, sampling.top_p * total)) + 1
    if num_kept <= len(considered):
        return num_kept
    return len(considered) if len(considered) in (top_k, vocab_size) else None


def _keep(row: torch.Tensor, num_kept: int, least: float) -> None:
    """Keeps the `num_kept` greatest of a row, in place, the lowest ids among equals; `least` is the smallest kept value."""
    above = row > least
    equal = row == least
    spare = num_kept - int(above.sum())
    if int(equal.sum()) > spare:
        ids = equal.nonzero().squeeze(1)
        equal[ids[spare:]] = False
    row.masked_fill_(~(above | equal), -math.inf)


# What is told of the choice


def _logprobs(raw: torch.Tensor, token: int, sampling: SamplingParams) -> TokenLogprobs:
    """raw: [vocab_size], as the model gave it."""
    normaliser = torch.logsumexp(raw, dim=-1)
    chosen = raw[token]
    top = raw.topk(min(sampling.logprobs, raw.shape[0]))
    return TokenLogprobs(
        token_id=token,
        logprob=float(chosen - normaliser),
        rank=int((raw > chosen).sum()) + 1,
        top_token_ids=tuple(top.indices.tolist()),
        top_logprobs=tuple((top.values - normaliser).tolist()),
    )

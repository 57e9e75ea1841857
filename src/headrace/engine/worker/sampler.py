"""Sampler: logits to tokens, as each sequence asked.

Knows SamplingParams' formulas. Does not know the model, nor which step it serves. Every row is treated as if it were alone:
its token depends on its logits, its parameters, its tokens and (seed, sample index, position), on nothing else.

Order for one row: log-probabilities are taken from the raw logits; then logit_bias; repetition, frequency and presence
penalties; allowed_token_ids and bad_words; the form's ban; the ban on ending before min_tokens; the token that a used-up
thinking budget forces; then the most probable token (the lowest id among equals) if greedy, else temperature, top_k, top_p
of what top_k left, min_p, and one draw from what remains, in order of token id. For a beam nothing is chosen: it gets its
most probable tokens, scored by the log-softmax of what the bans, biases and penalties leave.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NOTHING_LEFT, BeamCandidates, SampledToken, TokenLogprobs
from headrace.engine.worker.constraint import AllowedTokens
from headrace.engine.worker.penalties import TokenCounts, wants_penalties
from headrace.engine.worker.random_draw import uniform
from headrace.engine.worker.running_sequence import NOT_FINITE, RunningSequence

_PLACE_WIDTH = 256
"""Tokens of the vocabulary that are looked at together, as far as it divides the vocabulary's size."""

_SORTED_AT_FIRST = 256
"""Most probable tokens that are sorted before it is known whether top_p needs more: nearly always enough."""


class Sampler:
    def sample(
        self, logits: torch.Tensor, sequences: Sequence[RunningSequence]
    ) -> list[SampledToken | BeamCandidates | str]:
        """One per row of `logits` [num_rows, vocab_size]: the token, a beam's candidates, or why there is none. Uses
        `logits` up.

        Waits for the forms' masks, which are usually there by now."""
        best = logits.amax(dim=-1)  # NaN if any is NaN, inf if any is inf
        usable = torch.isfinite(best).tolist()
        raw = {row: logits[row].clone() for row, s in enumerate(sequences) if s.sampling.logprobs >= 0}
        problems = ["" if is_usable else NOT_FINITE for is_usable in usable]
        for row, sequence in enumerate(sequences):
            if sequence.changes_logits:
                _change_logits(logits[row], sequence)
        forms = _keep_forms(logits, sequences, problems)
        for row, sequence in enumerate(sequences):
            if sequence.bans_ending:
                _ban_ending(logits[row], sequence)
        for row, sequence in enumerate(sequences):
            if (forced := sequence.forced_token()) is not None:
                logits[row].fill_(-math.inf)
                logits[row, forced] = 0.0
        for row, sequence in enumerate(sequences):
            if sequence.bans_tokens and not sequence.num_candidates and bool(torch.isneginf(logits[row].amax())):
                problems[row] = problems[row] or NOTHING_LEFT
        candidates = {
            row: _candidates(logits[row], raw.get(row), sequence)
            for row, sequence in enumerate(sequences)
            if sequence.num_candidates and not problems[row]
        }
        tokens = _choose(logits, sequences)
        for row, allowed in forms.items():
            if row not in candidates and tokens[row] not in allowed:
                problems[row] = problems[row] or NOTHING_LEFT
        return [
            problems[row]
            or candidates.get(row)
            or (
                SampledToken(token, _logprobs(raw[row], token, sequences[row].sampling))
                if row in raw
                else SampledToken(token)
            )
            for row, token in enumerate(tokens)
        ]

    def given_logprobs(self, logits: torch.Tensor, token_ids: Sequence[int], num_alternatives: int) -> list[TokenLogprobs]:
        """Of tokens that were given, not chosen. logits: [num_tokens, vocab_size], each row before its token."""
        return _given_logprobs(logits, token_ids, num_alternatives)


# Before the choice


def _change_logits(row: torch.Tensor, sequence: RunningSequence) -> None:
    """In place. row: [vocab_size]."""
    sampling = sequence.sampling
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=row.dtype, device=row.device)
    if wants_penalties(sampling):
        if sequence.token_counts is None:
            sequence.token_counts = TokenCounts(sequence.num_prompt_tokens)
        _penalise(row, *sequence.token_counts.count(sequence.token_ids), sampling)
    if sampling.allowed_token_ids:
        row.masked_fill_(torch.from_numpy(sequence.ban(row.shape[0])).to(row.device), -math.inf)
    for token in sequence.ended_bad_words():
        row[token] = -math.inf


def _penalise(row: torch.Tensor, token_ids: list[int], answer_counts: list[float], sampling: SamplingParams) -> None:
    """In place. row: [vocab_size] in float32."""
    ids = torch.tensor(token_ids, device=row.device)
    counts = torch.tensor(answer_counts, dtype=row.dtype, device=row.device)
    values = row[ids]
    repeated = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    repeated -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    row[ids] = repeated


def _keep_forms(logits: torch.Tensor, sequences: Sequence[RunningSequence], problems: list[str]) -> dict[int, AllowedTokens]:
    """Bans what the forms do not allow, in place; notes where a form cannot be followed. logits: [num_rows, vocab_size].
    Returns what each row's form allows."""
    forms: dict[int, AllowedTokens] = {}
    for row, sequence in enumerate(sequences):
        verdict = sequence.constraint.verdict() if sequence.constraint is not None else None
        if isinstance(verdict, str):
            problems[row] = problems[row] or verdict
        elif verdict is not None:
            forms[row] = verdict
    if logits.device.type == "cpu":
        for row, allowed in forms.items():
            values = logits[row].numpy()  # the same memory: a row is too short to be worth waking other threads for
            np.add(values, allowed.bias, out=values)
    elif forms:
        rows = torch.tensor(list(forms), device=logits.device)
        biases = np.stack([allowed.bias for allowed in forms.values()])
        logits[rows] += torch.from_numpy(biases).to(logits.device)
    return forms


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
    tokens = [0] * len(sequences)
    drawn = [row for row, s in enumerate(sequences) if not s.sampling.is_greedy and not s.num_candidates]
    if len(drawn) < len(sequences):
        tokens = _most_probable(logits)
    if drawn:
        some = _rows(logits, drawn)
        for row, token in zip(drawn, _draw(some, [sequences[row] for row in drawn]), strict=True):
            tokens[row] = token
    return tokens


def _rows(x: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    return x if len(rows) == x.shape[0] else x[torch.tensor(rows, device=x.device)]


def _most_probable(logits: torch.Tensor) -> list[int]:
    """The first place of each row's maximum."""
    places = _places_of_vocabulary(logits)
    # In two stages: finding a maximum is vectorised, finding its place is not.
    place = places.amax(dim=-1).argmax(dim=-1)  # [num_rows]
    within = _take(places, place).argmax(dim=-1)
    tokens: list[int] = (place * places.shape[-1] + within).tolist()
    return tokens


def _draw(logits: torch.Tensor, sequences: Sequence[RunningSequence]) -> list[int]:
    """One token per row, by inverse transform over what the filters leave, in order of token id. Uses `logits` up."""
    samplings = [sequence.sampling for sequence in sequences]
    temperatures = torch.tensor([s.temperature for s in samplings], dtype=logits.dtype, device=logits.device)
    # The maximum goes first: however small the temperature, the best is 0 and nothing is NaN.
    scaled = logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(temperatures[:, None])
    probabilities = torch.softmax(scaled, dim=-1)
    _keep_top(probabilities, samplings)
    _keep_min_p(probabilities, samplings)
    draws = [uniform(s.sampling.seed, s.sample_index, len(s.token_ids)) for s in sequences]
    return _inverse_transform(probabilities, torch.tensor(draws, dtype=torch.float64, device=logits.device))


def _keep_min_p(probabilities: torch.Tensor, samplings: Sequence[SamplingParams]) -> None:
    """Sets what is less than min_p times as probable as the best to 0, in place."""
    if any(s.min_p > 0.0 for s in samplings):
        min_p = torch.tensor([s.min_p for s in samplings], dtype=probabilities.dtype, device=probabilities.device)
        least = probabilities.amax(dim=-1) * min_p
        probabilities.masked_fill_(probabilities < least[:, None], 0.0)


def _keep_top(probabilities: torch.Tensor, samplings: Sequence[SamplingParams]) -> None:
    """Sets what top_k and top_p leave out to 0, in place; among equally probable tokens the lowest ids stay."""
    vocab_size = probabilities.shape[-1]
    limited = [row for row, s in enumerate(samplings) if 0 < s.top_k < vocab_size or s.top_p < 1.0]
    num_sorted = min(vocab_size, _SORTED_AT_FIRST)
    while limited:
        sorted_ = _rows(probabilities, limited).topk(num_sorted, dim=-1).values  # descending
        cumulated = sorted_.cumsum(dim=-1, dtype=torch.float64)
        unsettled = []
        for i, row in enumerate(limited):
            num_kept = _num_kept(cumulated[i], samplings[row], vocab_size)
            if num_kept is None:
                unsettled.append(row)
            else:
                _keep(probabilities[row], num_kept, sorted_[i, num_kept - 1])
        limited = unsettled
        num_sorted = min(vocab_size, num_sorted * 8)


def _num_kept(cumulated: torch.Tensor, sampling: SamplingParams, vocab_size: int) -> int | None:
    """How many of the most probable tokens one row keeps; None if more of them must be sorted to know.

    cumulated: of the most probable tokens' probabilities, descending.
    """
    num_sorted = cumulated.shape[0]
    top_k = sampling.top_k if 0 < sampling.top_k < vocab_size else vocab_size
    if sampling.top_p >= 1.0:
        return top_k if top_k <= num_sorted else None
    if num_sorted < top_k < vocab_size:
        return None
    considered = cumulated[:top_k]
    total = float(considered[-1]) if top_k <= num_sorted else 1.0  # top_p's share is of what top_k left
    num_kept = int(torch.searchsorted(considered, sampling.top_p * total)) + 1
    if num_kept <= considered.shape[0]:
        return num_kept
    return top_k if top_k <= num_sorted else None


def _keep(row: torch.Tensor, num_kept: int, least: torch.Tensor) -> None:
    """Keeps a row's `num_kept` greatest, in place; `least` is the smallest value among them."""
    dropped = row < least
    if row.shape[0] - int(dropped.sum()) > num_kept:
        equal = (row == least).nonzero().squeeze(1)
        num_above = int((row > least).sum())
        dropped[equal[num_kept - num_above :]] = True
    row.masked_fill_(dropped, 0.0)


def _inverse_transform(probabilities: torch.Tensor, draws: torch.Tensor) -> list[int]:
    """The first token of each row whose cumulated probability exceeds the draw's share of the total.

    In two stages, places of some hundred tokens and then tokens, since cumulating whole rows is slow.
    """
    places = _places_of_vocabulary(probabilities)
    width = places.shape[-1]
    cumulated = places.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # [num_rows, num_places]
    targets = draws * cumulated[:, -1]
    place = _first_above(cumulated, targets)
    before = torch.where(place > 0, _take(cumulated, (place - 1).clamp(min=0)), 0.0)
    within = _take(places, place).cumsum(dim=-1, dtype=torch.float64)  # [num_rows, width]
    # Rounding may leave a target just beyond its place's last token: that token, then, and never one of probability 0.
    residuals = torch.minimum(targets - before, within[:, -1] * (1 - 2.0**-50))
    tokens: list[int] = (place * width + _first_above(within, residuals)).tolist()
    return tokens


def _places_of_vocabulary(x: torch.Tensor) -> torch.Tensor:
    """[num_rows, vocab_size] -> [num_rows, num_places, width]."""
    num_rows, vocab_size = x.shape
    return x.view(num_rows, -1, math.gcd(vocab_size, _PLACE_WIDTH))


def _take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x[row, index[row]] for every row."""
    return x[torch.arange(x.shape[0], device=x.device), index]


def _first_above(cumulated: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[num_rows]; the last place where none is above, as in rows that are not finite."""
    found = torch.searchsorted(cumulated, targets[:, None], right=True).squeeze(1)
    return found.clamp(max=cumulated.shape[-1] - 1)


# A beam's next tokens


def _candidates(row: torch.Tensor, raw: torch.Tensor | None, sequence: RunningSequence) -> BeamCandidates:
    """row: [vocab_size], changed as the request asked; raw: the same as the model gave it, if log-probabilities are told."""
    ids, values = _top(row, min(sequence.num_candidates, row.shape[0]))
    scores = values - torch.logsumexp(row, dim=-1)
    possible = torch.isfinite(scores)
    tokens: list[int] = ids[possible].tolist()
    told: tuple[TokenLogprobs, ...] = ()
    if raw is not None:
        top_ids, top_values = _top(raw, min(sequence.sampling.logprobs, raw.shape[0]))
        told = tuple(_told(raw, token, top_ids, top_values) for token in tokens)
    return BeamCandidates(tuple(tokens), tuple(scores[possible].tolist()), told)


# What is told of the choice


def _logprobs(raw: torch.Tensor, token: int, sampling: SamplingParams) -> TokenLogprobs:
    """raw: [vocab_size], as the model gave it."""
    if sampling.logprob_token_ids:
        top_ids = torch.tensor(sampling.logprob_token_ids, device=raw.device)
        return _told(raw, token, top_ids, raw[top_ids])
    return _told(raw, token, *_top(raw, min(sampling.logprobs, raw.shape[0])))


def _told(raw: torch.Tensor, token: int, top_ids: torch.Tensor, top_values: torch.Tensor) -> TokenLogprobs:
    normaliser = torch.logsumexp(raw, dim=-1)
    chosen = raw[token]
    return TokenLogprobs(
        token_id=token,
        logprob=float(chosen - normaliser),
        rank=int((raw > chosen).sum()) + 1,
        top_token_ids=tuple(top_ids.tolist()),
        top_logprobs=tuple((top_values - normaliser).tolist()),
    )


def _given_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_alternatives: int) -> list[TokenLogprobs]:
    ids = torch.tensor(token_ids, device=logits.device)
    normalisers = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(1, ids[:, None])
    ranks = (logits > chosen).sum(dim=-1) + 1
    logprobs = (chosen.squeeze(1) - normalisers).tolist()
    entries: list[TokenLogprobs] = []
    for row, (token, logprob, rank) in enumerate(zip(token_ids, logprobs, ranks.tolist(), strict=True)):
        top_ids, top_values = _top(logits[row], min(num_alternatives, logits.shape[-1]))
        top_logprobs = tuple((top_values - normalisers[row]).tolist())
        entries.append(TokenLogprobs(token, logprob, rank, tuple(top_ids.tolist()), top_logprobs))
    return entries


def _top(raw: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and values of the greatest, descending, the lowest id first among equals (which topk leaves open)."""
    if count == 0:
        return raw.new_empty(0, dtype=torch.int64), raw.new_empty(0)
    candidates = (raw >= raw.topk(count).values[-1]).nonzero().squeeze(1)
    values, order = raw[candidates].sort(descending=True, stable=True)
    return candidates[order[:count]], values[:count]

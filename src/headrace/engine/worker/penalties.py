"""TokenCounts: which tokens a sequence has seen, and how often its answer has; what penalties are computed from.

Knows token ids. Does not know logits' meaning beyond the three formulas of SamplingParams.
"""

import torch

from headrace.engine.mind.sampling_params import SamplingParams


def wants_penalties(sampling: SamplingParams) -> bool:
    return bool(sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty)


class TokenCounts:
    """Grows with the sequence: each step costs what is new, not what is known."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_counted = 0
        self._place: dict[int, int] = {}  # token id -> index into the two below
        self._ids: list[int] = []
        self._answer_counts: list[float] = []

    def penalise(self, row: torch.Tensor, token_ids: list[int], sampling: SamplingParams) -> None:
        """In place. row: [vocab_size] in float32."""
        self._count(token_ids)
        ids = torch.tensor(self._ids, device=row.device)
        counts = torch.tensor(self._answer_counts, dtype=row.dtype, device=row.device)
        values = row[ids]
        repeated = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
        repeated -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
        row[ids] = repeated

    def _count(self, token_ids: list[int]) -> None:
        for position in range(self._num_counted, len(token_ids)):
            token = token_ids[position]
            place = self._place.get(token)
            if place is None:
                place = self._place[token] = len(self._ids)
                self._ids.append(token)
                self._answer_counts.append(0.0)
            if position >= self._num_prompt_tokens:
                self._answer_counts[place] += 1.0
        self._num_counted = len(token_ids)

"""TokenCounts: which tokens a sequence has seen, and how often its answer has; what penalties are computed from.

Knows token ids. Does not know logits: the samplers have the formulas.
"""

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

    def count(self, token_ids: list[int]) -> tuple[list[int], list[float]]:
        """Each token of the sequence once, and how often its answer has it."""
        self._count(token_ids)
        return self._ids, self._answer_counts

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

"""ThinkingWatch: how much of its reasoning an answer has used up, and which token must come once it has used up all.

Knows token ids. Does not know text, nor how the token is then chosen. What it says depends on the sequence's tokens alone:
chunks, batches and preemption make no difference.
"""

from collections.abc import Sequence

from headrace.engine.mind.sampling_params import ThinkingBudget

_MAX_TOKENS_BEFORE = 2
"""An answer begins with reasoning if so many tokens at most, white space in practice, stand before the opening mark: one
further on is text."""


class ThinkingWatch:
    def __init__(self, budget: ThinkingBudget, num_prompt_tokens: int) -> None:
        self._budget = budget
        self._closings = (budget.closing_token_ids, *budget.other_closing_token_ids)
        self._num_prompt_tokens = num_prompt_tokens
        self._begin = -1 if budget.num_spent < 0 else num_prompt_tokens - budget.num_spent
        """Where in the sequence the reasoning begins, as soon as it has."""
        self._num_seen = num_prompt_tokens
        """Tokens among which the marks have been looked for."""
        self._is_over = False

    def forced_token(self, token_ids: Sequence[int]) -> int | None:
        """The token that must come next, if one must. `token_ids`: the whole sequence, grown since the last call."""
        while not self._is_over and self._num_seen < len(token_ids):
            self._num_seen += 1
            self._look(token_ids, self._num_seen)
        if self._is_over or self._begin < 0 or len(token_ids) - self._begin < self._budget.max_tokens:
            return None
        return self._budget.closing_token_ids[self._num_closed(token_ids)]

    def _look(self, token_ids: Sequence[int], end: int) -> None:
        """For a mark that ends at `end`."""
        if self._begin >= 0:
            self._is_over = any(
                end - len(mark) >= self._begin and tuple(token_ids[end - len(mark) : end]) == mark for mark in self._closings
            )
            return
        latest = self._num_prompt_tokens + _MAX_TOKENS_BEFORE
        for mark in self._budget.opening_token_ids:
            first = end - len(mark)
            if self._num_prompt_tokens <= first <= latest and tuple(token_ids[first:end]) == mark:
                self._begin = end
                return
        self._is_over = end - max(map(len, self._budget.opening_token_ids), default=0) >= latest

    def _num_closed(self, token_ids: Sequence[int]) -> int:
        """How much of the closing mark stands at the end already."""
        closing = self._budget.closing_token_ids
        longest = min(len(closing) - 1, len(token_ids) - self._begin)
        return next((n for n in range(longest, 0, -1) if tuple(token_ids[-n:]) == closing[:n]), 0)

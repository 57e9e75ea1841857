"""RunningSequence: what the worker keeps of one live sequence between steps.

Knows its tokens, its blocks and how its next token is chosen. Does not know its request, nor why it is scheduled.
"""

import numpy as np
import numpy.typing as npt

from headrace.engine.mind.step import NewSequence
from headrace.engine.worker.block_table import BlockTable
from headrace.engine.worker.constraint import Constraint
from headrace.engine.worker.penalties import TokenCounts, wants_penalties
from headrace.engine.worker.thinking import ThinkingWatch

NOT_FINITE = "the model's logits are not finite"


class RunningSequence:
    __slots__ = (
        "banned", "block_table", "constraint", "eos_token_ids", "failure", "is_known_finite", "is_plain", "num_candidates",
        "num_prompt_tokens", "sample_index", "sampling", "thinking", "token_counts", "token_ids",
    )  # fmt: skip

    def __init__(self, new: NewSequence) -> None:
        self.sample_index = new.sample_index
        self.num_prompt_tokens = new.num_prompt_tokens
        self.token_ids = list(new.token_ids)
        self.sampling = new.sampling
        self.eos_token_ids = new.eos_token_ids
        self.num_candidates = 0
        """How many next tokens a beam search wants to choose from: were all its beams' candidates in this one, as many as it
        is wide would still be left beside those that end it. 0: the token is chosen here."""
        if new.sampling.beam_search is not None:
            ending = {*new.eos_token_ids, *new.sampling.stop_token_ids}
            self.num_candidates = new.sampling.beam_search.width + len(ending)
        self.thinking: ThinkingWatch | None = None
        """Where its reasoning is limited."""
        if new.sampling.thinking_budget is not None:
            self.thinking = ThinkingWatch(new.sampling.thinking_budget, new.num_prompt_tokens)
        self.block_table = BlockTable()
        self.constraint: Constraint | None = None
        """Where its answer must have a form."""
        if new.structured_output is not None:
            answer = new.token_ids[new.num_prompt_tokens :]
            self.constraint = Constraint(new.structured_output, answer)
        self.banned: npt.NDArray[np.bool_] | None = None
        """[vocab_size]: true where `allowed_token_ids` leaves a token out; made by the sampler where they are given."""
        self.token_counts: TokenCounts | None = None
        """Made by the sampler where penalties ask for it."""
        self.is_plain = (
            self.thinking is None
            and self.num_candidates == 0
            and self.sampling.logprobs < 0
            and self.sampling.min_tokens == 0
            and not self.changes_logits
        )
        """Its next token is chosen from the model's logits as they are, or from those of them that its form allows, and
        nothing else is told: the common case."""
        self.failure = ""
        """Why its numbers are of no use, once they are not; it then takes part in no computation."""
        self.is_known_finite = False
        """It has sampled, from numbers that depend on all of its keys and values."""

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are told; of a request's continuations the first does it."""
        return self.sampling.prompt_logprobs >= 0 and self.sample_index == 0

    @property
    def num_answer_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def goes_on(self) -> bool:
        """Whether another token may be chosen."""
        return self.num_answer_tokens < self.sampling.max_tokens

    @property
    def changes_logits(self) -> bool:
        """Whether its next token is chosen from other logits than the model's, forms and `min_tokens` left out."""
        return bool(self.sampling.logit_bias) or wants_penalties(self.sampling) or self.bans_tokens

    @property
    def bans_tokens(self) -> bool:
        return bool(self.sampling.allowed_token_ids or self.sampling.bad_words_token_ids)

    @property
    def bans_ending(self) -> bool:
        return self.num_answer_tokens < self.sampling.min_tokens

    @property
    def looks_for_the_best(self) -> bool:
        """Whether it takes the most probable token, if that is allowed, whatever the others are."""
        return self.sampling.is_greedy and not self.num_candidates and not self.bans_ending

    def forced_token(self) -> int | None:
        """The token that comes next whatever the logits say, if one does."""
        return None if self.thinking is None else self.thinking.forced_token(self.token_ids)

    def ban(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """[vocab_size]: true where `allowed_token_ids` leaves a token out; made once."""
        if self.banned is None:
            self.banned = np.ones(vocab_size, np.bool_)
            self.banned[list(self.sampling.allowed_token_ids)] = False
        return self.banned

    def ended_bad_words(self) -> list[int]:
        """The last tokens of bad words whose beginnings the answer ends with."""
        answer = self.token_ids[self.num_prompt_tokens :] if self.sampling.bad_words_token_ids else []
        return [
            last
            for *beginning, last in self.sampling.bad_words_token_ids
            if len(beginning) <= len(answer) and answer[len(answer) - len(beginning) :] == beginning
        ]

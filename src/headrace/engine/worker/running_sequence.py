"""RunningSequence: what the worker keeps of one live sequence between steps.

Knows its tokens, its blocks and how its next token is chosen. Does not know its request, nor why it is scheduled.
"""

import torch

from headrace.engine.mind.step import NewSequence
from headrace.engine.worker.block_table import BlockTable
from headrace.engine.worker.constraint import Constraint
from headrace.engine.worker.penalties import TokenCounts


class RunningSequence:
    __slots__ = (
        "banned", "block_table", "constraint", "eos_token_ids", "failure", "num_prompt_tokens", "sample_index", "sampling",
        "token_counts", "token_ids",
    )  # fmt: skip

    def __init__(self, new: NewSequence) -> None:
        self.sample_index = new.sample_index
        self.num_prompt_tokens = new.num_prompt_tokens
        self.token_ids = list(new.token_ids)
        self.sampling = new.sampling
        self.eos_token_ids = new.eos_token_ids
        self.block_table = BlockTable()
        self.constraint: Constraint | None = None
        """Where its answer must have a form."""
        if new.structured_output is not None:
            self.constraint = Constraint(new.structured_output, new.token_ids[new.num_prompt_tokens :])
        self.banned: torch.Tensor | None = None
        """[vocab_size]: true where `allowed_token_ids` leaves a token out; made by the sampler where they are given."""
        self.token_counts: TokenCounts | None = None
        """Made by the sampler where penalties ask for it."""
        self.failure = ""
        """Why its numbers are of no use, once they are not; it then takes part in no computation."""

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are told; of a request's continuations the first does it."""
        return self.sampling.prompt_logprobs >= 0 and self.sample_index == 0

    @property
    def num_answer_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

"""The mind's configuration: one small frozen struct, each field explained where it is declared."""

from enum import StrEnum

import msgspec

from headrace.base.errors import ConfigurationError


class SchedulingPolicy(StrEnum):
    FCFS = "fcfs"
    """In order of arrival."""
    PRIORITY = "priority"
    """By `priority`, lower first, then in order of arrival."""


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine may do in one step. Raises ConfigurationError where the numbers contradict each other."""

    max_model_len: int
    """Most tokens of one sequence, prompt and answer together."""
    num_blocks: int
    """KV blocks that exist; must hold at least one sequence of `max_model_len`."""
    block_size: int = 16
    """Tokens per KV block."""
    max_num_batched_tokens: int = 2048
    """The token budget: most tokens that one step computes, over all sequences."""
    max_num_seqs: int = 64
    """Most sequences that run at once; at most the token budget, so that each can advance in every step."""
    max_tokens_per_prompt_chunk: int = 512
    """While others want tokens too: most tokens of one step for prompts that have more than this to compute, all of them
    together; the rest of the budget is for shorter ones and for decoding. A sequence alone takes the whole budget."""
    min_prompt_tokens_per_step: int = 0
    """Beside streams, prompts share in each step the budget divided by the number of streams, since each of those waits for
    the step to end; but never fewer tokens than this. 0: they may take all that is left of the budget."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    """Who goes first."""
    max_bypasses: int = 64
    """How many later arrivals may start ahead of one that waits for blocks, before all wait for it."""
    enable_prefix_caching: bool = True
    """Keep full blocks of finished work and reuse them for equal beginnings."""
    max_steps_in_flight: int = 2
    """Steps planned and not yet finished: 1 is synchronous, 2 plans step N+1 while N runs."""
    max_num_queued_requests: int = 10_000
    """Requests that may wait; one more is refused as overload."""

    def __post_init__(self) -> None:
        for name in (
            "max_model_len", "num_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs",
            "max_tokens_per_prompt_chunk", "max_steps_in_flight", "max_num_queued_requests",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_bypasses", "min_prompt_tokens_per_step"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative (got {getattr(self, name)})")
        if self.min_prompt_tokens_per_step > self.max_num_batched_tokens:
            raise ConfigurationError(
                f"min_prompt_tokens_per_step ({self.min_prompt_tokens_per_step}) exceeds max_num_batched_tokens "
                f"({self.max_num_batched_tokens}), of which it is a part: lower it or raise the other"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigurationError(
                f"max_num_seqs ({self.max_num_seqs}) exceeds max_num_batched_tokens ({self.max_num_batched_tokens}): "
                "a running sequence could be left without a token; lower the first or raise the second"
            )
        needed = -(-self.max_model_len // self.block_size)
        if self.num_blocks < needed:
            raise ConfigurationError(
                f"{self.num_blocks} KV blocks of {self.block_size} tokens cannot hold one sequence of "
                f"max_model_len {self.max_model_len} ({needed} blocks): "
                "lower max_model_len or give the KV cache more memory"
            )

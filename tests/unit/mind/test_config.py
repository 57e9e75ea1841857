"""Numbers that contradict each other are refused when they are set, in words that say what to change."""

import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine.mind.config import SchedulerConfig


def test_a_pool_that_cannot_hold_one_whole_sequence_is_refused() -> None:
    SchedulerConfig(max_model_len=64, num_blocks=4)
    with pytest.raises(ConfigurationError, match=r"3 KV blocks of 16 tokens cannot hold .* 64 \(4 blocks\)"):
        SchedulerConfig(max_model_len=64, num_blocks=3)


def test_more_sequences_than_budget_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="lower the first or raise the second"):
        SchedulerConfig(max_model_len=64, num_blocks=4, max_num_seqs=65, max_num_batched_tokens=64)


@pytest.mark.parametrize("name", ["max_model_len", "num_blocks", "block_size", "max_num_seqs", "max_steps_in_flight"])
def test_counts_must_be_positive(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be at least 1"):
        SchedulerConfig(**{"max_model_len": 64, "num_blocks": 4, name: 0})  # type: ignore[arg-type]

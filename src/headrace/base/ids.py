"""Names of things that are counted or looked up, as types. Knows no behaviour."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""What a client asked for; unique within one engine while the request lives."""

SequenceId = NewType("SequenceId", int)
"""One generation in progress; given by `EngineCore` in order of arrival, never reused."""

BlockId = NewType("BlockId", int)
"""A place for `block_size` tokens of KV: 0 .. num_blocks - 1."""

StepId = NewType("StepId", int)
"""The number of a step of one engine, counted from 0."""

BlockHash = NewType("BlockHash", bytes)
"""The content hash of a full block and all that precedes it."""

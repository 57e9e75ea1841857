"""BlockTable: one sequence's block ids on the worker's side.

Knows ids. Does not know tokens, tensors or why the blocks were given.
"""

from collections.abc import Sequence

from headrace.base.ids import BlockId


class BlockTable:
    """Changed only by what plans say."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: list[BlockId] = []

    def write(self, offset: int, block_ids: Sequence[BlockId]) -> None:
        """`block_ids` from `offset` on, replacing what was there."""
        assert offset <= len(self.ids), f"blocks {offset}.. leave a gap after {len(self.ids)}"
        self.ids[offset : offset + len(block_ids)] = block_ids

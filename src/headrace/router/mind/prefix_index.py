"""PrefixIndex: which endpoints have probably cached which beginnings, by what was sent where.

A guess: an endpoint evicts without telling. Bounded: the blocks that were sent longest ago are forgotten. Knows hashes and
numbers of endpoints; does not know tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence

from headrace.base.ids import BlockHash


class PrefixIndex:
    def __init__(self, max_blocks: int) -> None:
        assert max_blocks > 0
        self._max_blocks = max_blocks
        self._holders: OrderedDict[BlockHash, int] = OrderedDict()  # a bit for each endpoint; oldest first

    def __len__(self) -> int:
        return len(self._holders)

    def match(self, block_hashes: Sequence[BlockHash]) -> dict[int, int]:
        """For each endpoint that has the first block, how many leading blocks it has."""
        matched: dict[int, int] = {}
        holders, having = self._holders, -1  # all of them
        for index, block_hash in enumerate(block_hashes):
            now = having & holders.get(block_hash, 0)
            if now != having and index:
                _note(matched, having & ~now, index)
            having = now
            if not having:
                return matched
        if block_hashes:
            _note(matched, having, len(block_hashes))
        return matched

    def add(self, block_hashes: Sequence[BlockHash], endpoint: int) -> None:
        """The endpoint is about to compute these blocks. The end of a beginning is forgotten before its start."""
        holders, bit = self._holders, 1 << endpoint
        get, renew = holders.get, holders.move_to_end
        for block_hash in reversed(block_hashes):
            bits = get(block_hash)
            if bits is None:
                holders[block_hash] = bit  # one number for all: with many endpoints it is a large one
                continue
            renew(block_hash)
            if not bits & bit:
                holders[block_hash] = bits | bit
        while len(holders) > self._max_blocks:
            holders.popitem(last=False)

    def remove(self, endpoint: int) -> None:
        """The endpoint lost its cache."""
        keep = ~(1 << endpoint)
        emptied = []
        for block_hash, bits in self._holders.items():
            self._holders[block_hash] = left = bits & keep
            if not left:
                emptied.append(block_hash)
        for block_hash in emptied:
            del self._holders[block_hash]


def _note(matched: dict[int, int], bits: int, num_blocks: int) -> None:
    while bits:
        lowest = bits & -bits
        matched[lowest.bit_length() - 1] = num_blocks
        bits ^= lowest

"""BlockPool owns block ids. It does not know tokens, hashes, sequences or tensors.

Every id is in exactly one of three places:

    free        nobody holds it and its content is worthless
    referenced  one or more holders
    evictable   nobody holds it, but its content is retained for reuse until the space is needed

Eviction takes the evictable block that was released longest ago: the order is the order of releases, never a clock.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from headrace.base.ids import BlockId


class BlockPool:
    """`on_evict` is told each retained block that is about to be given to somebody else."""

    def __init__(self, num_blocks: int, on_evict: Callable[[BlockId], None]) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._on_evict = on_evict
        self._reference_counts = [0] * num_blocks
        self._retained = bytearray(num_blocks)
        self._free = [BlockId(i) for i in range(num_blocks - 1, -1, -1)]  # a stack: the warmest memory first
        self._evictable: OrderedDict[BlockId, None] = OrderedDict()  # oldest release first

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._free) + len(self._evictable)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def reference_count(self, block_id: BlockId) -> int:
        return self._reference_counts[block_id]

    def is_retained(self, block_id: BlockId) -> bool:
        return bool(self._retained[block_id])

    def is_evictable(self, block_id: BlockId) -> bool:
        return block_id in self._evictable

    def allocate(self, count: int) -> list[BlockId]:
        """`count` blocks with one reference each and content that means nothing. The caller has checked that they exist."""
        assert count <= self.num_available, f"asked for {count} blocks of {self.num_available}"
        taken = []
        for _ in range(count):
            block_id = self._free.pop() if self._free else self._evict()
            self._reference_counts[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_id: BlockId) -> None:
        """One more holder, of a block that is held or evictable."""
        if self._reference_counts[block_id] == 0:
            del self._evictable[block_id]
        self._reference_counts[block_id] += 1

    def release(self, block_ids: Iterable[BlockId]) -> None:
        """One holder fewer each. What nobody holds becomes evictable if retained, in the order given, else free."""
        for block_id in block_ids:
            count = self._reference_counts[block_id] - 1
            assert count >= 0, f"block {block_id} released more often than held"
            self._reference_counts[block_id] = count
            if count == 0:
                if self._retained[block_id]:
                    self._evictable[block_id] = None
                else:
                    self._free.append(block_id)

    def retain(self, block_id: BlockId) -> None:
        """The content of a referenced block is worth keeping after its last release."""
        assert self._reference_counts[block_id] > 0, f"block {block_id} has no holder whose content could be kept"
        self._retained[block_id] = 1

    def drop(self, block_id: BlockId) -> None:
        """The content is worth nothing any more. Who holds the block goes on holding it."""
        self._retained[block_id] = 0
        if self._reference_counts[block_id] == 0:
            del self._evictable[block_id]
            self._free.append(block_id)

    def check_integrity(self, holders: Iterable[Iterable[BlockId]]) -> None:
        """Asserts that each block is in one place only and that its references are those of `holders`."""
        counted = [0] * self.num_blocks
        for held in holders:
            for block_id in held:
                counted[block_id] += 1
        assert counted == self._reference_counts, "reference counts differ from what is held"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        for index, count in enumerate(counted):
            block_id = BlockId(index)
            is_free, is_evictable = block_id in free, block_id in self._evictable
            assert (count > 0) + is_free + is_evictable == 1, f"block {block_id} is in several places or in none"
            assert not (is_free and self._retained[block_id]), f"block {block_id} is free and retained"
            assert not is_evictable or self._retained[block_id], f"block {block_id} is evictable but not retained"

    def _evict(self) -> BlockId:
        block_id, _ = self._evictable.popitem(last=False)
        self._retained[block_id] = 0
        self.num_evictions += 1
        self._on_evict(block_id)
        return block_id

"""BlockPool owns block ids. It does not know tokens, hashes, sequences or tensors.

Every id is in exactly one of three places:

    free        nobody holds it and its content is worthless
    referenced  one or more holders
    evictable   nobody holds it, but its content is retained for reuse until the space is needed

Eviction takes the evictable block that was released longest ago: the order is the order of releases, never a clock.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from headrace.base.ids import BlockId


class BlockPool:
    """`on_evict` is told the retained blocks that are about to be given to somebody else."""

    def __init__(self, num_blocks: int, on_evict: Callable[[Sequence[BlockId]], None]) -> None:
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

    def num_evictable_of(self, block_ids: Sequence[BlockId]) -> int:
        """How many of them nobody holds."""
        return list(map(self._reference_counts.__getitem__, block_ids)).count(0)

    def allocate(self, count: int) -> list[BlockId]:
        """`count` blocks with one reference each and content that means nothing. The caller has checked that they exist."""
        assert count <= self.num_available, f"asked for {count} blocks of {self.num_available}"
        free = self._free
        taken = free[: -count - 1 : -1]
        del free[len(free) - len(taken) :]
        if len(taken) < count:
            taken += self._evict(count - len(taken))
        counts = self._reference_counts
        for block_id in taken:
            counts[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[BlockId]) -> None:
        """One more holder each, of blocks that are held or evictable."""
        counts = self._reference_counts
        for block_id in block_ids:
            if counts[block_id] == 0:
                del self._evictable[block_id]
            counts[block_id] += 1

    def release(self, block_ids: Iterable[BlockId]) -> None:
        """One holder fewer each. What nobody holds becomes evictable if retained, in the order given, else free."""
        counts, retained, evictable, free = self._reference_counts, self._retained, self._evictable, self._free
        for block_id in block_ids:
            count = counts[block_id] - 1
            assert count >= 0, f"block {block_id} released more often than held"
            counts[block_id] = count
            if count == 0:
                if retained[block_id]:
                    evictable[block_id] = None
                else:
                    free.append(block_id)

    def retain(self, block_ids: Iterable[BlockId]) -> None:
        """The content of referenced blocks is worth keeping after their last release."""
        counts, retained = self._reference_counts, self._retained
        for block_id in block_ids:
            assert counts[block_id] > 0, f"block {block_id} has no holder whose content could be kept"
            retained[block_id] = 1

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

    def _evict(self, count: int) -> list[BlockId]:
        take, retained = self._evictable.popitem, self._retained
        evicted = []
        for _ in range(count):
            block_id, _ = take(last=False)
            retained[block_id] = 0
            evicted.append(block_id)
        self.num_evictions += count
        self._on_evict(evicted)
        return evicted

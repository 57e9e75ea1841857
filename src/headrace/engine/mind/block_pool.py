"""BlockPool owns block ids. It does not know tokens, hashes, sequences or tensors.

Every id is in exactly one of three places:

    free        nobody holds it and its content is worthless
    referenced  one or more holders
    evictable   nobody holds it, but its content is retained for reuse until the space is needed

Eviction takes the evictable block that was released longest ago: the order is the order of releases, never a clock.

Attention reads neighbouring blocks faster than scattered ones, so which of the free blocks are taken is a matter of
preference: first the one behind the block that the holder had last, else the beginning of the longest free stretch of the
emptiest extent, where the fewest others will want to grow. An extent is EXTENT_BLOCKS neighbours, and nobody owns one. What
is evicted is never chosen by where it lies.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from headrace.base.ids import BlockId

EXTENT_BLOCKS = 16
"""Runs of so many blocks are read about as fast as one run of everything."""


class BlockPool:
    """`on_evict` is told the retained blocks that are about to be given to somebody else."""

    def __init__(self, num_blocks: int, on_evict: Callable[[Sequence[BlockId]], None]) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._on_evict = on_evict
        self._reference_counts = [0] * num_blocks
        self._retained = bytearray(num_blocks)
        self._is_free = bytearray(num_blocks)
        self._num_free = 0
        self._num_free_in = [0] * -(-num_blocks // EXTENT_BLOCKS)  # by extent
        self._extents: list[dict[int, None]] = [{} for _ in range(EXTENT_BLOCKS + 1)]
        """By number of free blocks; the last of each to have become so is taken first: its memory is the warmest."""
        for block_id in range(num_blocks - 1, -1, -1):
            self._put_free(BlockId(block_id))
        self._evictable: OrderedDict[BlockId, None] = OrderedDict()  # oldest release first

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return self._num_free + len(self._evictable)

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

    def allocate(self, count: int, *, after: BlockId | None = None) -> list[BlockId]:
        """`count` blocks with one reference each and content that means nothing. The caller has checked that they exist.

        `after`: the block that will come before them, if any; they are its neighbours where that can be.
        """
        assert count <= self.num_available, f"asked for {count} blocks of {self.num_available}"
        taken: list[BlockId] = []
        while len(taken) < count and self._num_free:
            begin = self._begin_of_run(after)
            taken += self._take_run(begin, count - len(taken))
            after = taken[-1]
        if len(taken) < count:
            # Released from a sequence's end to its beginning, they come in falling order.
            taken += sorted(self._evict(count - len(taken)))
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
        counts, retained, evictable = self._reference_counts, self._retained, self._evictable
        for block_id in block_ids:
            count = counts[block_id] - 1
            assert count >= 0, f"block {block_id} released more often than held"
            counts[block_id] = count
            if count == 0:
                if retained[block_id]:
                    evictable[block_id] = None
                else:
                    self._put_free(block_id)

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
            self._put_free(block_id)

    def check_integrity(self, holders: Iterable[Iterable[BlockId]]) -> None:
        """Asserts that each block is in one place only and that its references are those of `holders`."""
        counted = [0] * self.num_blocks
        for held in holders:
            for block_id in held:
                counted[block_id] += 1
        assert counted == self._reference_counts, "reference counts differ from what is held"
        assert self._num_free == sum(self._is_free), "free blocks are miscounted"
        for extent, num_free in enumerate(self._num_free_in):
            stretch = self._is_free[extent * EXTENT_BLOCKS : (extent + 1) * EXTENT_BLOCKS]
            assert num_free == sum(stretch), f"extent {extent} has {sum(stretch)} free blocks, not {num_free}"
            assert [n for n, kept in enumerate(self._extents) if extent in kept] == [num_free], "an extent is misplaced"
        for index, count in enumerate(counted):
            block_id = BlockId(index)
            is_free, is_evictable = bool(self._is_free[index]), block_id in self._evictable
            assert (count > 0) + is_free + is_evictable == 1, f"block {block_id} is in several places or in none"
            assert not (is_free and self._retained[block_id]), f"block {block_id} is free and retained"
            assert not is_evictable or self._retained[block_id], f"block {block_id} is evictable but not retained"

    def _begin_of_run(self, after: BlockId | None) -> BlockId:
        """A free block, of which there are some: the one behind `after`, else where the longest stretch begins."""
        behind = after + 1 if after is not None else self.num_blocks
        return BlockId(behind) if behind < self.num_blocks and self._is_free[behind] else self._begin_of_longest_stretch()

    def _take_run(self, begin: BlockId, most: int) -> list[BlockId]:
        """Free neighbours from `begin` on, of one extent."""
        extent = begin // EXTENT_BLOCKS
        end = min(begin + most, (extent + 1) * EXTENT_BLOCKS, self.num_blocks)
        held = self._is_free.find(0, begin, end)
        if held >= 0:
            end = held
        count = end - begin
        self._is_free[begin:end] = bytes(count)
        self._num_free -= count
        self._count_extent(extent, -count)
        return [BlockId(index) for index in range(begin, end)]

    def _put_free(self, block_id: BlockId) -> None:
        self._is_free[block_id] = 1
        self._num_free += 1
        self._count_extent(block_id // EXTENT_BLOCKS, +1)

    def _count_extent(self, extent: int, change: int) -> None:
        num_free = self._num_free_in[extent]
        self._extents[num_free].pop(extent, None)
        self._num_free_in[extent] = num_free + change
        self._extents[num_free + change][extent] = None

    def _begin_of_longest_stretch(self) -> BlockId:
        """Of the emptiest extent."""
        extent = next(next(reversed(kept)) for kept in reversed(self._extents) if kept)
        stretches = self._is_free[extent * EXTENT_BLOCKS : (extent + 1) * EXTENT_BLOCKS].split(b"\0")
        longest = max(map(len, stretches))
        begin = self._is_free.index(b"\1" * longest, extent * EXTENT_BLOCKS)
        return BlockId(begin)

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

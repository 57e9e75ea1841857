"""BlockPool owns block ids. It does not know tokens, hashes, sequences or tensors.

Every id is in exactly one of three places:

    free        nobody holds it and its content is worthless
    referenced  one or more holders
    evictable   nobody holds it, but its content is retained for reuse until the space is needed

Eviction takes the evictable block that was released longest ago: the order is the order of releases, never a clock. What is
released together stands in line as one batch. Who leaves the line out of turn, because somebody wants its content again,
keeps its place there, worthless, until the batch is taken or the line is tidied up: so nothing is ever searched for.

Attention reads neighbouring blocks faster than scattered ones, so which of the free blocks are taken is a matter of
preference: first the one behind the block that the holder had last, else the beginning of the longest free stretch of the
emptiest extent, where the fewest others will want to grow. An extent is EXTENT_BLOCKS neighbours, and nobody owns one. What
is evicted is never chosen by where it lies.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from headrace.base.ids import BlockId

EXTENT_BLOCKS = 16
"""Runs of so many blocks are read about as fast as one run of everything."""


class _Batch(NamedTuple):
    """Blocks that became evictable together."""

    number: int
    """Below 0, and falling from batch to batch."""
    block_ids: list[BlockId]
    """The first to be evicted stands last. Those count whose place is still this batch."""


class BlockPool:
    """`on_evict` is told the retained blocks that are about to be given to somebody else."""

    def __init__(self, num_blocks: int, on_evict: Callable[[Sequence[BlockId]], None]) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._on_evict = on_evict
        self._places = [0] * num_blocks
        """For each block: its number of holders; 0 if it is free; the number of its batch if it is evictable."""
        self._retained = bytearray(num_blocks)
        self._is_free = bytearray(b"\1" * num_blocks)
        self._num_free = num_blocks
        num_whole, num_left = divmod(num_blocks, EXTENT_BLOCKS)
        self._num_free_in = [EXTENT_BLOCKS] * num_whole + ([num_left] if num_left else [])  # by extent
        self._extents: list[dict[int, None]] = [{} for _ in range(EXTENT_BLOCKS + 1)]
        """By number of free blocks; the last of each to have become so is taken first: its memory is the warmest."""
        self._extents[EXTENT_BLOCKS] = dict.fromkeys(range(num_whole - 1, -1, -1))
        if num_left:
            self._extents[num_left][num_whole] = None
        self._line: deque[_Batch] = deque()  # oldest release first
        self._last_batch = 0
        self._num_evictable = 0
        self._num_in_line = 0  # with those that left out of turn

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return self._num_free + self._num_evictable

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_evictable(self) -> int:
        return self._num_evictable

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def reference_count(self, block_id: BlockId) -> int:
        return max(0, self._places[block_id])

    def is_retained(self, block_id: BlockId) -> bool:
        return bool(self._retained[block_id])

    def are_retained(self, block_ids: Iterable[BlockId]) -> bool:
        """Whether all of them are."""
        return all(map(self._retained.__getitem__, block_ids))

    def is_shared(self, block_id: BlockId) -> bool:
        """Whether a block that is held has other holders, or content that is kept for others."""
        return self._places[block_id] > 1 or self._retained[block_id] != 0

    def num_evictable_of(self, block_ids: Sequence[BlockId]) -> int:
        """How many of them nobody holds."""
        places = self._places
        return len([block_id for block_id in block_ids if places[block_id] < 0])

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
        places = self._places
        for block_id in taken:
            places[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[BlockId]) -> None:
        """One more holder each, of blocks that are held or evictable."""
        places = self._places
        for block_id in block_ids:
            place = places[block_id]
            if place > 0:
                places[block_id] = place + 1
            else:
                assert place < 0, f"block {block_id} is free: there is nothing to share"
                places[block_id] = 1
                self._num_evictable -= 1

    def release(self, block_ids: Iterable[BlockId]) -> None:
        """One holder fewer each. What nobody holds becomes evictable if retained, in the order given, else free."""
        places, retained, batch = self._places, self._retained, self._last_batch - 1
        evictable = []
        for block_id in block_ids:
            place = places[block_id]
            if place > 1:
                places[block_id] = place - 1
            else:
                assert place == 1, f"block {block_id} released more often than held"
                if retained[block_id]:
                    places[block_id] = batch
                    evictable.append(block_id)
                else:
                    places[block_id] = 0
                    self._put_free(block_id)
        if evictable:
            evictable.reverse()
            self._last_batch = batch
            self._line.append(_Batch(batch, evictable))
            self._num_evictable += len(evictable)
            self._num_in_line += len(evictable)
            if self._num_in_line > 2 * self.num_blocks:
                self._tidy_up()

    def retain(self, block_ids: Iterable[BlockId]) -> None:
        """The content of referenced blocks is worth keeping after their last release."""
        places, retained = self._places, self._retained
        for block_id in block_ids:
            assert places[block_id] > 0, f"block {block_id} has no holder whose content could be kept"
            retained[block_id] = 1

    def drop(self, block_id: BlockId) -> None:
        """The content is worth nothing any more. Who holds the block goes on holding it."""
        self._retained[block_id] = 0
        if self._places[block_id] < 0:
            self._places[block_id] = 0
            self._num_evictable -= 1
            self._put_free(block_id)

    def check_integrity(self, holders: Iterable[Iterable[BlockId]]) -> None:
        """Asserts that each block is in one place only and that its references are those of `holders`."""
        counted = [0] * self.num_blocks
        for held in holders:
            for block_id in held:
                counted[block_id] += 1
        places = self._places
        assert counted == [place if place > 0 else 0 for place in places], "reference counts differ from what is held"
        assert self._is_free == bytes([place == 0 for place in places]), "a block is in several places or in none"
        is_free, is_retained = int.from_bytes(self._is_free, "big"), int.from_bytes(self._retained, "big")
        assert not is_free & is_retained, "a block is free and retained"
        in_line = [block_id for batch in self._line for block_id in self._still_in(batch)]
        assert len(in_line) == len(set(in_line)) == self._num_evictable, "a block stands in line twice, or not at all"
        assert len(in_line) == len([place for place in places if place < 0]), "an evictable block is not in line"
        assert self.are_retained(in_line), "a block is evictable but not retained"
        assert self._num_in_line == sum(len(batch.block_ids) for batch in self._line), "the line is miscounted"
        assert self._num_free == sum(self._is_free), "free blocks are miscounted"
        assert sum(map(len, self._extents)) == len(self._num_free_in), "an extent is in several places"
        for extent, num_free in enumerate(self._num_free_in):
            stretch = self._is_free[extent * EXTENT_BLOCKS : (extent + 1) * EXTENT_BLOCKS]
            assert num_free == sum(stretch), f"extent {extent} has {sum(stretch)} free blocks, not {num_free}"
            assert extent in self._extents[num_free], f"extent {extent} is misplaced"

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
        return cast("list[BlockId]", list(range(begin, end)))

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
        places, retained, line = self._places, self._retained, self._line
        evicted: list[BlockId] = []
        while (missing := count - len(evicted)) > 0:
            batch, block_ids = line[0]
            oldest = block_ids[-missing:]
            oldest.reverse()
            self._num_in_line -= len(oldest)
            evicted += [block_id for block_id in oldest if places[block_id] == batch]
            if missing < len(block_ids):
                del block_ids[-missing:]
            else:
                line.popleft()
        for block_id in evicted:
            retained[block_id] = 0
        self._num_evictable -= count
        self.num_evictions += count
        self._on_evict(evicted)
        return evicted

    def _still_in(self, batch: _Batch) -> list[BlockId]:
        places, number = self._places, batch.number
        return [block_id for block_id in batch.block_ids if places[block_id] == number]

    def _tidy_up(self) -> None:
        """Forgets the places of those that left out of turn: more than half of all, so they have paid for it."""
        batches = (_Batch(batch.number, self._still_in(batch)) for batch in self._line)
        self._line = deque(batch for batch in batches if batch.block_ids)
        self._num_in_line = self._num_evictable

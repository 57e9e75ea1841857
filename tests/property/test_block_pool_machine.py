"""BlockPool against a naive model: three sets and a list of release times."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.base.ids import BlockId
from headrace.engine.mind.block_pool import EXTENT_BLOCKS, BlockPool

NUM_BLOCKS = 2 * EXTENT_BLOCKS + 5


class BlockPoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[BlockId] = []
        self.pool = BlockPool(NUM_BLOCKS, self.evicted.extend)
        self.references: dict[BlockId, int] = {}
        self.retained: set[BlockId] = set()
        self.evictable: list[BlockId] = []  # in order of release

    @property
    def free(self) -> set[BlockId]:
        everything = {BlockId(i) for i in range(NUM_BLOCKS)}
        return everything - set(self.references) - set(self.evictable)

    @rule(count=st.integers(0, NUM_BLOCKS) | st.integers(0, 3), data=st.data())
    def allocate(self, count: int, data: st.DataObject) -> None:
        count = min(count, self.pool.num_available)
        after = data.draw(st.sampled_from([None, *sorted(self.references)]))
        free = self.free
        expected_evictions = self.evictable[: max(count - len(free), 0)]
        self.evicted.clear()
        taken = self.pool.allocate(count, after=after)
        assert len(set(taken)) == count
        assert self.evicted == expected_evictions, "evicts only when nothing is free, the oldest release first"
        self.prefers_neighbours(taken, after, free)
        for block_id in expected_evictions:
            self.evictable.remove(block_id)
            self.retained.discard(block_id)
        for block_id in taken:
            assert block_id not in self.references
            self.references[block_id] = 1

    def prefers_neighbours(self, taken: list[BlockId], after: BlockId | None, free: set[BlockId]) -> None:
        """A block follows its predecessor where it can; a new run begins in an extent that none is freer than."""
        free = set(free)
        for block_id in taken[: len(free)]:
            if after is not None and after + 1 in free:
                assert block_id == after + 1
            else:
                extents = [range(first, first + EXTENT_BLOCKS) for first in range(0, NUM_BLOCKS, EXTENT_BLOCKS)]
                num_free = [len(free.intersection(extent)) for extent in extents]
                assert num_free[block_id // EXTENT_BLOCKS] == max(num_free)
            free.remove(block_id)
            after = block_id

    @precondition(lambda self: self.references or self.evictable)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted([*self.references, *self.evictable])))
        self.pool.share([block_id])
        if block_id in self.evictable:
            self.evictable.remove(block_id)
        self.references[block_id] = self.references.get(block_id, 0) + 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = [block_id for block_id, count in sorted(self.references.items()) for _ in range(count)]
        leaving = data.draw(st.lists(st.sampled_from(range(len(held))), unique=True))
        self.pool.release(held[index] for index in leaving)
        for index in leaving:
            block_id = held[index]
            self.references[block_id] -= 1
            if self.references[block_id] == 0:
                del self.references[block_id]
                if block_id in self.retained:
                    self.evictable.append(block_id)

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.retain([block_id])
        self.retained.add(block_id)

    @precondition(lambda self: self.retained)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.retained)))
        self.pool.drop(block_id)
        self.retained.remove(block_id)
        if block_id in self.evictable:
            self.evictable.remove(block_id)

    @invariant()
    def agrees_with_the_model(self) -> None:
        holders = [[block_id] * count for block_id, count in self.references.items()]
        self.pool.check_integrity(holders)
        assert self.pool.num_available == len(self.free) + len(self.evictable)
        assert self.pool.num_evictable == len(self.evictable)
        assert self.pool.num_referenced == len(self.references)
        for block_id in range(NUM_BLOCKS):
            assert self.pool.is_retained(BlockId(block_id)) == (block_id in self.retained)


def test_content_that_is_wanted_again_and_again_keeps_the_order_of_releases_and_costs_no_memory() -> None:
    evicted: list[BlockId] = []
    pool = BlockPool(NUM_BLOCKS, evicted.extend)
    hot, cold = pool.allocate(3), pool.allocate(NUM_BLOCKS - 3)
    pool.retain([*hot, *cold])
    pool.release(cold)
    for _ in range(10 * NUM_BLOCKS):
        pool.release(hot)
        pool.share(hot)
    pool.release(hot)
    pool.check_integrity([])
    assert sum(len(batch.block_ids) for batch in pool._line) <= 2 * NUM_BLOCKS
    pool.allocate(NUM_BLOCKS)
    assert evicted == [*cold, *hot]


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=60, stateful_step_count=40)

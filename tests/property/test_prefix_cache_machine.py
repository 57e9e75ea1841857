"""PrefixCache against a naive model: a dictionary from whole token sequences to blocks, with no hashes at all."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.base.ids import BlockHash, BlockId, SequenceId
from headrace.engine.mind.block_hashing import chain
from headrace.engine.mind.prefix_cache import PrefixCache

BLOCK_SIZE = 2
MOST_STEPS = 30
MOST_BLOCKS = 4 * MOST_STEPS
Beginning = tuple[str, str, tuple[int, ...]]  # adapter, salt, tokens

tokens = st.lists(st.integers(0, 2), min_size=BLOCK_SIZE, max_size=8).map(
    lambda ids: tuple(ids[: len(ids) // BLOCK_SIZE * BLOCK_SIZE])
)
owners = st.tuples(st.sampled_from(["", "a"]), st.sampled_from(["", "a", "b"]))


class PrefixCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(b"identity", MOST_BLOCKS)
        self.known: dict[Beginning, BlockId] = {}
        self.computing: dict[Beginning, SequenceId] = {}
        self.next_block = 0

    def hashes(self, owner: tuple[str, str], ids: tuple[int, ...]) -> list[BlockHash]:
        parent = self.cache.root(adapter=owner[0], cache_salt=owner[1])
        hashes = []
        for start in range(0, len(ids), BLOCK_SIZE):
            parent = chain(parent, ids[start : start + BLOCK_SIZE])
            hashes.append(parent)
        return hashes

    def beginnings(self, owner: tuple[str, str], ids: tuple[int, ...]) -> list[Beginning]:
        return [(*owner, ids[:end]) for end in range(BLOCK_SIZE, len(ids) + 1, BLOCK_SIZE)]

    @rule(owner=owners, ids=tokens)
    def publish(self, owner: tuple[str, str], ids: tuple[int, ...]) -> None:
        hashes, beginnings = self.hashes(owner, ids), self.beginnings(owner, ids)
        block_ids = [BlockId(self.next_block + index) for index in range(len(hashes))]
        self.next_block += len(hashes)
        published = self.cache.publish(hashes, block_ids)
        for beginning, block_id in zip(beginnings, block_ids, strict=True):
            assert (block_id in published) == (beginning not in self.known), "the first with a content stays the known one"
            self.known.setdefault(beginning, block_id)
            self.computing.pop(beginning, None)

    @rule(owner=owners, ids=tokens, limit=st.integers(0, 5))
    def match(self, owner: tuple[str, str], ids: tuple[int, ...], limit: int) -> None:
        expected = []
        for beginning in self.beginnings(owner, ids)[:limit]:
            if beginning not in self.known:
                break
            expected.append(self.known[beginning])
        assert self.cache.match(self.hashes(owner, ids), limit) == expected

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        beginning = data.draw(st.sampled_from(sorted(self.known)))
        self.cache.forget([self.known.pop(beginning)])

    @rule(owner=owners, ids=tokens, author=st.integers(0, 2))
    def announce(self, owner: tuple[str, str], ids: tuple[int, ...], author: int) -> None:
        self.cache.announce(self.hashes(owner, ids), SequenceId(author))
        for beginning in self.beginnings(owner, ids):
            self.computing.setdefault(beginning, SequenceId(author))

    @rule(owner=owners, ids=tokens, author=st.integers(0, 2))
    def withdraw(self, owner: tuple[str, str], ids: tuple[int, ...], author: int) -> None:
        self.cache.withdraw(self.hashes(owner, ids), SequenceId(author))
        for beginning in self.beginnings(owner, ids):
            if self.computing.get(beginning) == author:
                del self.computing[beginning]

    @rule(owner=owners, ids=tokens)
    def ask_who_computes(self, owner: tuple[str, str], ids: tuple[int, ...]) -> None:
        for block_hash, beginning in zip(self.hashes(owner, ids), self.beginnings(owner, ids), strict=True):
            assert self.cache.is_being_computed(block_hash) == (beginning in self.computing)

    @invariant()
    def knows_what_the_model_knows(self) -> None:
        assert len(self.cache) == len(self.known)
        assert sorted(self.cache.known_blocks()) == sorted(self.known.values())
        self.cache.check_integrity({SequenceId(0), SequenceId(1), SequenceId(2)})


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=60, stateful_step_count=MOST_STEPS)

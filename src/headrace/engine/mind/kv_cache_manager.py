"""KVCacheManager: which blocks a sequence has, may share, must copy and gives back.

It joins the pool (who holds which id) and the prefix cache (what a block's content is) and keeps the one rule that makes
sharing safe: **a block that somebody else holds, or that the cache knows, is never written**; whoever must write into one
takes a copy first. It does not decide who gets blocks.
"""

from collections.abc import Iterable, Sequence

import msgspec

from headrace.base.ids import BlockId
from headrace.engine.mind.block_hashing import BlockHasher, chain
from headrace.engine.mind.block_pool import BlockPool
from headrace.engine.mind.prefix_cache import PrefixCache
from headrace.engine.mind.sequence import SequenceState, Status


class Beginning(msgspec.Struct, frozen=True):
    """What a sequence could start from without computing."""

    block_ids: list[BlockId]
    num_tokens: int
    """Tokens whose KV lies in them; at least one token of the sequence is left to compute."""


class Growth(msgspec.Struct, frozen=True):
    """How a sequence's block table changes in a step."""

    block_offset: int
    block_ids: list[BlockId]
    copy: tuple[BlockId, BlockId] | None
    """(from, to) where the first block to be written was shared."""


class RunGrowth(msgspec.Struct, frozen=True):
    """A block that one sequence grew into in one of many steps that were taken together."""

    step_index: int
    sequence_index: int
    block_offset: int
    block_id: BlockId


_NO_GROWTH = Growth(0, [], None)


class KVCacheManager:
    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        identity_digest: bytes,
        enable_prefix_caching: bool,
        hasher: BlockHasher,
    ) -> None:
        self.block_size = block_size
        self._hasher = hasher
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._caching = enable_prefix_caching
        self._prefix = PrefixCache(identity_digest, num_blocks)
        self._pool = BlockPool(num_blocks, self._prefix.forget)

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # Before a sequence runs

    def find_beginning(self, sequence: SequenceState) -> Beginning:
        """The longest beginning whose KV exists. Changes nothing, so it may be asked again and again."""
        leader, num_tokens = sequence.leader, sequence.num_tokens - 1
        if (
            leader is not None
            and leader.status is Status.RUNNING
            and num_tokens <= min(sequence.num_tokens_of_leader, leader.num_confirmed_tokens)
        ):
            # The leader has computed all but the last token, which is computed here, for its logits. The block it lies
            # in is then copied on write.
            return Beginning(leader.block_ids[: self.num_blocks_for(num_tokens)], num_tokens)
        if not self._caching or sequence.needs_prompt_scores:
            return Beginning([], 0)
        self._extend_hashes(sequence, sequence.num_tokens // self.block_size)
        limit = (sequence.num_tokens - 1) // self.block_size
        block_ids = self._prefix.match(sequence.block_hashes, limit)
        return Beginning(block_ids, len(block_ids) * self.block_size)

    def is_next_block_being_computed(self, sequence: SequenceState, beginning: Beginning) -> bool:
        """Whether a running sequence is about to compute the very block that this one would compute next."""
        index = len(beginning.block_ids)
        if not self._caching or sequence.needs_prompt_scores:
            return False
        if sequence.leader is not None or index >= len(sequence.block_hashes):
            return False
        return self._prefix.is_being_computed(sequence.block_hashes[index])

    def num_blocks_to_begin(self, sequence: SequenceState, beginning: Beginning) -> int:
        """Available blocks that running all known tokens of a sequence uses up: new ones, and evictable ones it revives."""
        revived = self._pool.num_evictable_of(beginning.block_ids)
        copied = 1 if beginning.num_tokens % self.block_size else 0
        missing = self.num_blocks_for(sequence.num_tokens) - len(beginning.block_ids)
        return revived + copied + missing

    def begin(self, sequence: SequenceState, beginning: Beginning) -> None:
        """Holds the blocks of its beginning and announces those it is going to compute."""
        assert not sequence.block_ids
        self._pool.share(beginning.block_ids)
        sequence.block_ids = list(beginning.block_ids)
        sequence.num_computed_tokens = sequence.num_confirmed_tokens = beginning.num_tokens
        if self._caching:
            self._extend_hashes(sequence, sequence.num_tokens // self.block_size)
            sequence.num_published_blocks = beginning.num_tokens // self.block_size
            self._prefix.announce(sequence.block_hashes[sequence.num_published_blocks :], sequence.sequence_id)
        if sequence.scheduled is None and sequence.leader is None:
            self.num_prefix_queries += sequence.num_prompt_tokens
            self.num_prefix_hits += beginning.num_tokens

    def reserve(self, sequence: SequenceState) -> list[BlockId]:
        """Blocks for all known tokens of a sequence that begins: those beyond its beginning, to be filled from elsewhere."""
        held = sequence.block_ids
        new = self._pool.allocate(self.num_blocks_for(sequence.num_tokens) - len(held), after=held[-1] if held else None)
        held.extend(new)
        return new

    def take_loaded(self, sequence: SequenceState, num_tokens: int) -> None:
        """The KV of its first `num_tokens` tokens is there, wherever it came from; full blocks become findable."""
        sequence.num_computed_tokens = max(sequence.num_computed_tokens, num_tokens)
        self.confirm(sequence, sequence.num_computed_tokens - sequence.num_confirmed_tokens)

    # While it runs

    def num_tokens_that_fit(self, sequence: SequenceState, num_tokens: int) -> int:
        """How many of the next `num_tokens` tokens the available blocks admit; 0 if not even one."""
        start, held = sequence.num_computed_tokens, sequence.block_ids
        room = len(held) * self.block_size - start
        if room > 0 and self._pool.is_shared(held[-1]):
            if self._pool.num_available == 0:
                return 0
            room += (self._pool.num_available - 1) * self.block_size
        elif room < num_tokens:
            room += self._pool.num_available * self.block_size
        return min(room, num_tokens)

    def grow_as_fits(self, sequence: SequenceState, num_tokens: int) -> tuple[int, Growth]:
        """How many of the next `num_tokens` tokens the available blocks admit, and the blocks for them; 0 and nothing has
        changed if not even one."""
        held = sequence.block_ids
        room = len(held) * self.block_size - sequence.num_computed_tokens
        if room >= num_tokens and not self._pool.is_shared(held[-1]):  # as nearly always: the next token of an answer
            return num_tokens, _NO_GROWTH
        num_fitting = self.num_tokens_that_fit(sequence, num_tokens)
        return num_fitting, self.grow(sequence, num_fitting) if num_fitting else _NO_GROWTH

    def grow(self, sequence: SequenceState, num_tokens: int) -> Growth:
        """Blocks for the next `num_tokens` tokens, none of them shared where they are written. The caller knows they fit."""
        start, held = sequence.num_computed_tokens, sequence.block_ids
        num_missing = -(-(start + num_tokens) // self.block_size) - len(held)
        if start < len(held) * self.block_size and self._pool.is_shared(held[-1]):
            return self._grow_by_copying(sequence, num_missing)
        if num_missing <= 0:
            return _NO_GROWTH
        offset = len(held)
        new = self._pool.allocate(num_missing, after=held[-1] if held else None)
        held.extend(new)
        return Growth(offset, new, None)

    def _grow_by_copying(self, sequence: SequenceState, num_missing: int) -> Growth:
        """Sharing ends where writing begins, and writing begins in the last block held: nothing is held ahead."""
        held = sequence.block_ids
        offset = len(held) - 1
        assert sequence.num_computed_tokens // self.block_size == offset, "a shared block lies behind the one to be written"
        source = held.pop()
        new = self._pool.allocate(1 + max(num_missing, 0), after=held[-1] if held else None)
        held.extend(new)
        self._pool.release([source])
        return Growth(offset, new, (source, new[0]))

    def confirm(self, sequence: SequenceState, num_tokens: int) -> None:
        """A step computed `num_tokens` more; full blocks become findable."""
        sequence.num_confirmed_tokens += num_tokens
        if self._caching and sequence.num_confirmed_tokens >= (sequence.num_published_blocks + 1) * self.block_size:
            self._publish_full_blocks(sequence, sequence.num_confirmed_tokens // self.block_size)

    def advance(self, sequences: Sequence[SequenceState], num_steps: int) -> list[RunGrowth]:
        """What `confirm` and `grow` would do in so many steps of which each computes one token of each sequence, in the
        same order. The caller knows that the blocks are there and that the tokens are."""
        size = self.block_size
        moments: list[tuple[int, int, int]] = []  # (step, 0 for a full block or 1 for a new one, sequence)
        for index, sequence in enumerate(sequences):
            first_full = size - 1 - sequence.num_confirmed_tokens % size
            first_new = -sequence.num_computed_tokens % size
            if self._caching:
                moments += [(step, 0, index) for step in range(first_full, num_steps, size)]
            moments += [(step, 1, index) for step in range(first_new, num_steps, size)]
            sequence.num_confirmed_tokens += num_steps
            sequence.num_computed_tokens += num_steps
        moments.sort()
        growths = []
        for step, is_new, index in moments:
            sequence = sequences[index]
            if is_new:
                held = sequence.block_ids
                (block_id,) = self._pool.allocate(1, after=held[-1] if held else None)
                growths.append(RunGrowth(step, index, len(held), block_id))
                held.append(block_id)
            else:
                self._publish_full_blocks(sequence, sequence.num_published_blocks + 1)
        return growths

    def num_new_blocks(self, sequences: Iterable[SequenceState], num_steps: int) -> int:
        """How many blocks `advance` would take."""
        size, count = self.block_size, 0
        for sequence in sequences:
            computed = sequence.num_computed_tokens
            count += (computed % -size + num_steps + size - 1) // size
        return count

    def fork(self, sequence: SequenceState, parent: SequenceState) -> None:
        """A running sequence that holds nothing goes on from all that another one has computed: it shares its blocks, and
        whichever of the two writes into the last of them first takes a copy."""
        assert not sequence.block_ids and parent.num_confirmed_tokens == parent.num_computed_tokens
        self._pool.share(parent.block_ids)
        sequence.block_ids = list(parent.block_ids)
        sequence.num_computed_tokens = sequence.num_confirmed_tokens = parent.num_computed_tokens
        sequence.num_published_blocks = parent.num_published_blocks

    # When it stops running

    def hold_prompt(self, sequence: SequenceState) -> list[BlockId]:
        """The blocks of its prompt get a holder more, who outlives it."""
        block_ids = sequence.block_ids[: self.num_blocks_for(sequence.num_prompt_tokens)]
        self._pool.share(block_ids)
        return block_ids

    def let_go(self, block_ids: Sequence[BlockId]) -> None:
        """That holder is gone."""
        self._pool.release(reversed(block_ids))

    def distrust(self, sequence: SequenceState) -> None:
        """Its numbers are of no use: nobody shall find them. Whoever shares a block goes on holding it."""
        for block_id in sequence.block_ids:
            if self._pool.is_retained(block_id):
                self._prefix.forget([block_id])
                self._pool.drop(block_id)

    def would_free(self, sequence: SequenceState) -> bool:
        """Whether taking this sequence's blocks makes any available at once: others may hold all of them."""
        return any(self._pool.reference_count(block_id) == 1 for block_id in reversed(sequence.block_ids))

    def release(self, sequence: SequenceState) -> None:
        """Gives back every block. The end of a sequence is evicted before its beginning, which more others may share."""
        if self._caching:
            self._prefix.withdraw(sequence.block_hashes[sequence.num_published_blocks :], sequence.sequence_id)
        self._pool.release(reversed(sequence.block_ids))
        sequence.block_ids = []
        sequence.num_published_blocks = 0
        sequence.num_computed_tokens = sequence.num_confirmed_tokens = 0

    def reset_prefix_cache(self) -> None:
        """Forgets every known block. Running sequences keep theirs; nobody new will find them."""
        known = self._prefix.known_blocks()
        self._prefix.forget(known)
        for block_id in known:
            self._pool.drop(block_id)

    def check_integrity(self, running: Iterable[SequenceState], others: Iterable[Sequence[BlockId]] = ()) -> None:
        """Asserts that blocks add up, that caches mirror each other and that no block is shared where it is written.
        `others`: what is held by nobody who runs."""
        holders = list(running)
        self._pool.check_integrity([*(sequence.block_ids for sequence in holders), *others])
        self._prefix.check_integrity({sequence.sequence_id for sequence in holders})
        assert self._pool.are_retained(self._prefix.known_blocks()), "a block is known to the cache but not retained"
        for sequence in holders:
            assert len(sequence.block_ids) >= self.num_blocks_for(sequence.num_computed_tokens)

    def _publish_full_blocks(self, sequence: SequenceState, num_full: int) -> None:
        self._extend_hashes(sequence, num_full)
        new = slice(sequence.num_published_blocks, num_full)
        self._pool.retain(self._prefix.publish(sequence.block_hashes[new], sequence.block_ids[new]))
        sequence.num_published_blocks = num_full

    def _extend_hashes(self, sequence: SequenceState, num_blocks: int) -> None:
        """Makes the hashes of the first `num_blocks` blocks known, all of them full."""
        hashes, size = sequence.block_hashes, self.block_size
        if len(hashes) >= num_blocks:
            return
        if not hashes:
            request = sequence.request
            root = self._prefix.root(adapter=request.adapter, cache_salt=request.cache_salt)
            hashes += self._hasher.prompt_hashes(root, request.prompt_token_ids, size)
            sequence.root_hash = root
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else sequence.root_hash
            assert parent is not None
            hashes.append(chain(parent, sequence.tokens_between(index * size, (index + 1) * size)))

"""PrefixCache finds the block that already holds the KV of a beginning. It owns hashes, not blocks.

A full block is named by the hash of its tokens chained through the hash of everything before it (`block_hashing.py`). The
first link is seeded with the execution identity, the adapter and the request's `cache_salt`, so KV is never reused where it
would not be valid, nor across tenants.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from headrace.base.ids import BlockHash, BlockId, SequenceId
from headrace.engine.mind.block_hashing import DIGEST_BYTES


@lru_cache(maxsize=1_024)
def root_hash(identity_digest: bytes, *, adapter: str, cache_salt: str) -> BlockHash:
    """What the first block's hash is chained to."""
    hasher = hashlib.blake2b(identity_digest, digest_size=DIGEST_BYTES)
    for field in (adapter, cache_salt):
        raw = field.encode()
        hasher.update(len(raw).to_bytes(4, "big"))
        hasher.update(raw)
    return BlockHash(hasher.digest())


class PrefixCache:
    def __init__(self, identity_digest: bytes, num_blocks: int) -> None:
        self._identity_digest = identity_digest
        self._block_of: dict[BlockHash, BlockId] = {}
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._computing: dict[BlockHash, SequenceId] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, *, adapter: str, cache_salt: str) -> BlockHash:
        return root_hash(self._identity_digest, adapter=adapter, cache_salt=cache_salt)

    def match(self, hashes: Sequence[BlockHash], limit: int) -> list[BlockId]:
        """The blocks of the longest known beginning of `hashes`, at most `limit` of them. Changes nothing."""
        found: list[BlockId] = []
        for block_id in map(self._block_of.get, hashes[:limit]):
            if block_id is None:
                break
            found.append(block_id)
        return found

    def publish(self, hashes: Sequence[BlockHash], block_ids: Sequence[BlockId]) -> Sequence[BlockId]:
        """Makes computed blocks findable, and says which. Content that is known already stays where it was first."""
        if self._computing:
            computed = self._computing.pop
            for block_hash in hashes:
                computed(block_hash, None)
        block_of, hash_of = self._block_of, self._hash_of
        if len(hashes) > 3 and block_of.keys().isdisjoint(hashes):  # as nearly always: nobody computes what is known
            block_of.update(zip(hashes, block_ids, strict=True))
            for block_hash, block_id in zip(hashes, block_ids, strict=True):
                hash_of[block_id] = block_hash
            return block_ids
        published = []
        for block_hash, block_id in zip(hashes, block_ids, strict=True):
            if block_of.setdefault(block_hash, block_id) == block_id:
                hash_of[block_id] = block_hash
                published.append(block_id)
        return published

    def forget(self, block_ids: Iterable[BlockId]) -> None:
        """The blocks' content is about to go."""
        block_of, hash_of = self._block_of, self._hash_of
        for block_id in block_ids:
            block_hash = hash_of[block_id]
            assert block_hash is not None, f"block {block_id} is not known"
            del block_of[block_hash]
            hash_of[block_id] = None

    def known_blocks(self) -> list[BlockId]:
        return sorted(self._block_of.values())

    # Work in progress: so that equal prompts that arrive together are computed once.

    def announce(self, hashes: Sequence[BlockHash], sequence_id: SequenceId) -> None:
        """`sequence_id` is going to compute these blocks."""
        if not self._computing:  # as nearly always: others have computed what they announced, or were waited for
            self._computing = dict.fromkeys(hashes, sequence_id)
            return
        announce = self._computing.setdefault
        for block_hash in hashes:
            announce(block_hash, sequence_id)

    def withdraw(self, hashes: Sequence[BlockHash], sequence_id: SequenceId) -> None:
        """`sequence_id` is not going to compute those of them that it has not published yet."""
        for block_hash in hashes:
            if self._computing.get(block_hash) == sequence_id:
                del self._computing[block_hash]

    def is_being_computed(self, block_hash: BlockHash) -> bool:
        return block_hash in self._computing

    def check_integrity(self, running: set[SequenceId]) -> None:
        """Asserts that the two maps mirror each other and that announced work has a running author."""
        assert len(self._block_of) == len(self._hash_of) - self._hash_of.count(None)
        for block_hash, block_id in self._block_of.items():
            assert self._hash_of[block_id] == block_hash, f"block {block_id} is known under two hashes"
        for sequence_id in self._computing.values():
            assert sequence_id in running, f"sequence {sequence_id} announced blocks but does not run"

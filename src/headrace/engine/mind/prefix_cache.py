"""PrefixCache finds the block that already holds the KV of a beginning. It owns hashes, not blocks.

A full block is named by the hash of its tokens chained through the hash of everything before it (`block_hashing.py`). The
first link is seeded with the execution identity, the adapter and the request's `cache_salt`, so KV is never reused where it
would not be valid, nor across tenants.
"""

import hashlib
from collections.abc import Iterable, Sequence

from headrace.base.ids import BlockHash, BlockId, SequenceId
from headrace.engine.mind.block_hashing import DIGEST_BYTES


class PrefixCache:
    def __init__(self, identity_digest: bytes) -> None:
        self._identity_digest = identity_digest
        self._block_of: dict[BlockHash, BlockId] = {}
        self._hash_of: dict[BlockId, BlockHash] = {}
        self._computing: dict[BlockHash, SequenceId] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, *, adapter: str, cache_salt: str) -> BlockHash:
        """What the first block's hash is chained to."""
        hasher = hashlib.blake2b(self._identity_digest, digest_size=DIGEST_BYTES)
        for field in (adapter, cache_salt):
            raw = field.encode()
            hasher.update(len(raw).to_bytes(4, "big"))
            hasher.update(raw)
        return BlockHash(hasher.digest())

    def match(self, hashes: Sequence[BlockHash], limit: int) -> list[BlockId]:
        """The blocks of the longest known beginning of `hashes`, at most `limit` of them. Changes nothing."""
        found = []
        block_of = self._block_of.get
        for block_hash in hashes[:limit]:
            block_id = block_of(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def publish(self, hashes: Sequence[BlockHash], block_ids: Sequence[BlockId]) -> list[BlockId]:
        """Makes computed blocks findable, and says which. Content that is known already stays where it was first."""
        block_of, hash_of, computed = self._block_of, self._hash_of, self._computing.pop
        published = []
        for block_hash, block_id in zip(hashes, block_ids, strict=True):
            computed(block_hash, None)
            if block_hash not in block_of:
                block_of[block_hash] = block_id
                hash_of[block_id] = block_hash
                published.append(block_id)
        return published

    def forget(self, block_ids: Iterable[BlockId]) -> None:
        """The blocks' content is about to go."""
        block_of, take = self._block_of, self._hash_of.pop
        for block_id in block_ids:
            del block_of[take(block_id)]

    def known_blocks(self) -> list[BlockId]:
        return list(self._hash_of)

    # Work in progress: so that equal prompts that arrive together are computed once.

    def announce(self, hashes: Sequence[BlockHash], sequence_id: SequenceId) -> None:
        """`sequence_id` is going to compute these blocks."""
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
        assert len(self._block_of) == len(self._hash_of)
        for block_hash, block_id in self._block_of.items():
            assert self._hash_of[block_id] == block_hash, f"block {block_id} is known under two hashes"
        for sequence_id in self._computing.values():
            assert sequence_id in running, f"sequence {sequence_id} announced blocks but does not run"

"""What full blocks of tokens are called: hashes of content, chained through everything before them.

BLAKE2b, 128 bits: equal in every process, whatever its hash seed. Knows tokens; does not know blocks of memory.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Protocol

from headrace.base.ids import BlockHash

DIGEST_BYTES = 16
TOKEN_BYTES = 4

_new_hash = hashlib.blake2b(digest_size=DIGEST_BYTES).copy
"""A copy is made in a fifth of the time that it takes to be told the size again."""


class BlockHasher(Protocol):
    """Whoever knows that prompts repeat may hash what repeats once. The hashes are the same whoever makes them."""

    def prompt_hashes(self, root: BlockHash, token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
        """Of every full block of a prompt, the first chained to `root`."""
        ...


class ContentHasher:
    """Hashes what it is given."""

    def prompt_hashes(self, root: BlockHash, token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
        return chain_of(root, array("I", token_ids).tobytes(), block_size)


def chain_of(parent: BlockHash, tokens: bytes, block_size: int) -> list[BlockHash]:
    """The hashes of the full blocks of `tokens`, `TOKEN_BYTES` each in this machine's order, that follow `parent`."""
    size, new_hash = block_size * TOKEN_BYTES, _new_hash
    hashes = []
    for start in range(0, len(tokens) - size + 1, size):
        hasher = new_hash()
        hasher.update(parent + tokens[start : start + size])
        parent = BlockHash(hasher.digest())
        hashes.append(parent)
    return hashes


def chain_of_equals(parent: BlockHash, tokens: bytes, num_blocks: int) -> list[BlockHash]:
    """The hashes of so many full blocks that follow `parent`, each of which has these tokens.

    >>> chain_of_equals(BlockHash(b"parent"), b"1234" * 2, 3) == chain_of(BlockHash(b"parent"), b"1234" * 6, 2)
    True
    """
    new_hash = _new_hash
    hashes = []
    for _ in range(num_blocks):
        hasher = new_hash()
        hasher.update(parent + tokens)
        parent = BlockHash(hasher.digest())
        hashes.append(parent)
    return hashes


def chain(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """The hash of one full block of `token_ids` that follows `parent`.

    >>> chain(BlockHash(b"parent"), [1, 2]) == ContentHasher().prompt_hashes(BlockHash(b"parent"), [1, 2, 3], 2)[0]
    True
    """
    hasher = _new_hash()
    hasher.update(parent + array("I", token_ids).tobytes())
    return BlockHash(hasher.digest())

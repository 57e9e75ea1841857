"""What full blocks of tokens are called: hashes of content, chained through everything before them.

BLAKE2b, 128 bits, of a block's tokens and then of its parent's hash, so that what is common to blocks of equal tokens is
computed once: equal in every process, whatever its hash seed. Where `native/hash_chain.cpp` was compiled it makes the same
hashes, all of a prompt in one call. Knows tokens; does not know blocks of memory.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Protocol, cast

from headrace.base.ids import BlockHash

try:
    from headrace.engine.mind import _hash_chain as compiled
except ImportError:  # a machine without a compiler
    compiled = None  # type: ignore[assignment]

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
    if compiled is not None:
        return cast("list[BlockHash]", compiled.chain_of(parent, tokens, size))
    hashes: list[bytes] = []
    before: bytes = parent
    for start in range(0, len(tokens) - size + 1, size):
        hasher = new_hash()
        hasher.update(tokens[start : start + size] + before)
        before = hasher.digest()
        hashes.append(before)
    return cast("list[BlockHash]", hashes)


def chain_of_equals(parent: BlockHash, tokens: bytes, num_blocks: int) -> list[BlockHash]:
    """The hashes of so many full blocks that follow `parent`, each of which has these tokens.

    >>> chain_of_equals(BlockHash(b"parent"), b"1234" * 2, 3) == chain_of(BlockHash(b"parent"), b"1234" * 6, 2)
    True
    """
    if compiled is not None:
        return cast("list[BlockHash]", compiled.chain_of_equals(parent, tokens, num_blocks))
    of_tokens = _new_hash()
    of_tokens.update(tokens)
    of_tokens_too = of_tokens.copy
    hashes: list[bytes] = []
    before: bytes = parent
    for _ in range(num_blocks):
        hasher = of_tokens_too()
        hasher.update(before)
        before = hasher.digest()
        hashes.append(before)
    return cast("list[BlockHash]", hashes)


def chain(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """The hash of one full block of `token_ids` that follows `parent`.

    >>> chain(BlockHash(b"parent"), [1, 2]) == ContentHasher().prompt_hashes(BlockHash(b"parent"), [1, 2, 3], 2)[0]
    True
    """
    hasher = _new_hash()
    hasher.update(array("I", token_ids).tobytes() + parent)
    return BlockHash(hasher.digest())

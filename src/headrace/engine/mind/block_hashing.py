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
    size, blake2b = block_size * TOKEN_BYTES, hashlib.blake2b
    hashes = []
    for start in range(0, len(tokens) - size + 1, size):
        parent = BlockHash(blake2b(parent + tokens[start : start + size], digest_size=DIGEST_BYTES).digest())
        hashes.append(parent)
    return hashes


def chain(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """The hash of one full block of `token_ids` that follows `parent`.

    >>> chain(BlockHash(b"parent"), [1, 2]) == ContentHasher().prompt_hashes(BlockHash(b"parent"), [1, 2, 3], 2)[0]
    True
    """
    return chain_of(parent, array("I", token_ids).tobytes(), len(token_ids))[0]

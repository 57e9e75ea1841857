"""Names of blocks: BLAKE2b of a block's tokens and then of its parent, whoever makes them."""

import hashlib
from array import array
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import BlockHash
from headrace.engine.mind.block_hashing import TOKEN_BYTES, ContentHasher, chain, chain_of, chain_of_equals

_parents = st.binary(min_size=0, max_size=300).map(BlockHash)
_block_sizes = st.integers(1, 150)
"""In tokens: below, at and beyond the blocks of 128 bytes that BLAKE2b itself reads."""


@pytest.fixture(params=["compiled", "in Python"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in Python":
        monkeypatch.setattr("headrace.engine.mind.block_hashing.compiled", None)
    elif find_spec("headrace.engine.mind._hash_chain") is None:
        pytest.skip("no extension was compiled here")


def by_definition(parent: bytes, tokens: bytes, block_size: int) -> list[bytes]:
    size, hashes = block_size * TOKEN_BYTES, list[bytes]()
    for start in range(0, len(tokens) // size * size, size):
        parent = hashlib.blake2b(tokens[start : start + size] + parent, digest_size=16).digest()
        hashes.append(parent)
    return hashes


@pytest.mark.usefixtures("maker")
class TestHashes:
    @given(parent=_parents, tokens=st.binary(max_size=3_000), block_size=_block_sizes)
    def test_a_chain_is_what_it_is_by_definition(self, parent: BlockHash, tokens: bytes, block_size: int) -> None:
        assert chain_of(parent, tokens, block_size) == by_definition(parent, tokens, block_size)

    @given(parent=_parents, tokens=st.binary(max_size=600), num_blocks=st.integers(0, 20))
    def test_equal_blocks_are_hashed_as_any_others(self, parent: BlockHash, tokens: bytes, num_blocks: int) -> None:
        tokens = tokens[: len(tokens) // TOKEN_BYTES * TOKEN_BYTES] or b"1234"
        expected = by_definition(parent, tokens * num_blocks, len(tokens) // TOKEN_BYTES)
        assert chain_of_equals(parent, tokens, num_blocks) == expected

    @pytest.mark.parametrize("num_bytes", [124, 128, 132, 252, 256, 260, 384])
    def test_it_makes_no_difference_where_the_blocks_of_blake2b_end(self, num_bytes: int) -> None:
        for parent in (b"", b"p" * 16, b"p" * 112, b"p" * 128):
            tokens = bytes(index % 251 for index in range(num_bytes))
            expected = by_definition(parent, tokens * 3, num_bytes // TOKEN_BYTES)
            assert chain_of_equals(BlockHash(parent), tokens, 3) == expected
            assert chain_of(BlockHash(parent), tokens * 3, num_bytes // TOKEN_BYTES) == expected


def test_one_block_and_a_prompt_have_the_same_hashes() -> None:
    tokens, root = list(range(70_000, 70_100)), BlockHash(b"root")
    hashes = ContentHasher().prompt_hashes(root, tokens, 16)
    assert hashes == by_definition(root, array("I", tokens).tobytes(), 16)
    for index, parent in enumerate([root, *hashes[:-1]]):
        assert chain(parent, tokens[index * 16 : (index + 1) * 16]) == hashes[index]

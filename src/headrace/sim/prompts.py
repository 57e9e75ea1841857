"""Prompts in rehearsal: real token ids that need not be written out, and hashes of them that are made once.

A prompt of a workload is a list of segments by name, and a segment's tokens are a function of its name (and of the
workload's seed). A trace of a hundred million tokens names the same segments again and again; the hash of a block is that
of its tokens, but who has hashed a segment after a certain beginning once need not do it again.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import cast, overload

from headrace.base.ids import BlockHash
from headrace.base.rng import stream
from headrace.engine.mind.block_hashing import ContentHasher, chain_of, chain_of_equals
from headrace.measure.workload.request import Segment

_SegmentName = tuple[BlockHash, str, int, int, int]
"""What precedes it, its key, its number of tokens, the block's size, the seed."""

_CHARACTERS_PER_TOKEN = 4
"""Text has no tokens here, so this stands in for a tokenizer; equal beginnings of texts are equal beginnings of tokens."""

_PERIOD = 16
_new_segment_hash = hashlib.blake2b(digest_size=4 * _PERIOD).copy

_MAX_REMEMBERED = 200_000
"""Segments; half of them may be forgotten at once."""


class SegmentedPrompt(Sequence[int]):
    """The tokens of segments, one after another. Fewer tokens of a name are the beginning of more of them."""

    __slots__ = ("_num_tokens", "hashes", "seed", "segments")

    def __init__(self, segments: tuple[Segment, ...], seed: int) -> None:
        self.segments = segments
        self.seed = seed
        self._num_tokens = sum([segment.num_tokens for segment in segments])
        self.hashes: tuple[BlockHash, int, list[BlockHash]] | None = None
        """What a hasher last made of it: the root, the block's size, the hashes. Router and replica ask for the same."""

    def __len__(self) -> int:
        return self._num_tokens

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice) and index.step is None and index.start is not None and index.stop is not None:
            return self._between(index.start, min(index.stop, self._num_tokens))
        return self.written_out()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.written_out())

    def written_out(self) -> "array[int]":
        return array("I", b"".join(segment_tokens(self.seed, s.key, s.num_tokens) for s in self.segments))

    def _between(self, start: int, stop: int) -> Sequence[int]:
        """Only the segments that it lies in."""
        assert start >= 0
        pieces, position = [], 0
        for segment in self.segments:
            end = position + segment.num_tokens
            if end > start and position < stop:
                tokens = segment_tokens(self.seed, segment.key, segment.num_tokens)
                pieces.append(tokens[4 * max(0, start - position) : 4 * (stop - position)])
            position = end
        return array("I", b"".join(pieces))

    def as_token_ids(self) -> tuple[int, ...]:
        """Itself, for where a tuple is asked for and a sequence is enough."""
        return cast("tuple[int, ...]", self)


def segment_tokens(seed: int, key: str, num_tokens: int) -> bytes:
    """Token ids, 4 bytes each: sixteen that depend on seed and name, over and over."""
    hasher = _new_segment_hash()
    hasher.update(f"{seed}/{key}".encode())
    period = hasher.digest()
    if num_tokens % _PERIOD == 0:
        return period * (num_tokens // _PERIOD)
    return (period * -(-num_tokens // _PERIOD))[: 4 * num_tokens]


class SegmentHasher:
    """A BlockHasher that knows segments again. What was not asked for lately is forgotten."""

    def __init__(self) -> None:
        self._content = ContentHasher()
        self._known: dict[_SegmentName, list[BlockHash]] = {}
        self._known_before: dict[_SegmentName, list[BlockHash]] = {}
        """What is not asked for while as much again comes to be known is dropped with it."""

    def prompt_hashes(self, root: BlockHash, token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
        if not isinstance(token_ids, SegmentedPrompt):
            return self._content.prompt_hashes(root, token_ids, block_size)
        made = token_ids.hashes
        if made is None or made[:2] != (root, block_size):
            made = token_ids.hashes = root, block_size, self._of_segments(root, token_ids, block_size)
        return list(made[2])

    def _of_segments(self, root: BlockHash, prompt: SegmentedPrompt, block_size: int) -> list[BlockHash]:
        hashes: list[BlockHash] = []
        parent, seed, rest, known = root, prompt.seed, b"", self._known
        for segment in prompt.segments:
            key, num_tokens = segment.key, segment.num_tokens
            if rest or num_tokens % block_size:  # not a number of whole blocks: nobody will ask for just this again
                tokens = rest + segment_tokens(seed, key, num_tokens)
                new = chain_of(parent, tokens, block_size)
                rest = tokens[4 * block_size * len(new) :]
            else:
                name = parent, key, num_tokens, block_size, seed
                new = known.get(name) or self._of_whole_blocks(name)
            if new:
                hashes += new
                parent = new[-1]
        if len(known) > _MAX_REMEMBERED // 2:
            self._known, self._known_before = {}, known
        return hashes

    def _of_whole_blocks(self, name: _SegmentName) -> list[BlockHash]:
        found = self._known_before.get(name)
        if found is None:
            parent, key, num_tokens, block_size, seed = name
            if block_size % _PERIOD:
                found = chain_of(parent, segment_tokens(seed, key, num_tokens), block_size)
            else:
                found = chain_of_equals(parent, segment_tokens(seed, key, block_size), num_tokens // block_size)
        self._known[name] = found
        return found


def stand_in_tokens(text: str, vocab_size: int) -> list[int]:
    """A token for every few characters, by what they are."""
    pieces = [text[start : start + _CHARACTERS_PER_TOKEN] for start in range(0, len(text), _CHARACTERS_PER_TOKEN)]
    return [stream(0, piece).randrange(vocab_size) for piece in pieces] or [0]

"""Answers that a form allows, found by walking through its masks at random: what a model might write that knows nothing.

Knows a vocabulary of bytes and of marks. Does not know any form.
"""

import random
from collections.abc import Sequence

import numpy as np

from headrace.engine.grammar.protocol import GrammarBackend, Vocabulary
from headrace.engine.grammar.registry import DEFAULT_BACKEND, make_backend
from headrace.engine.mind.structured_output import StructuredOutput

_END = 256
_CLOSERS = frozenset(b'"}]<)\n,;>')
_USUAL = frozenset(b"abcdeXYZ019 ._-:{[\"'\\/\xc3\xa9")


def backend_of_bytes(marks: Sequence[str] = ()) -> GrammarBackend:
    """Over single bytes, and these marks as control tokens behind the token that ends an answer."""
    texts = (*(bytes([value]) for value in range(_END)), b"<|the_end|>", *(mark.encode() for mark in marks))
    return make_backend(
        DEFAULT_BACKEND,
        Vocabulary(
            token_bytes=texts,
            special_token_ids=tuple(range(_END, len(texts))),
            eos_token_ids=(_END,),
            encode=lambda text: list(text.encode()),
        ),
    )


def random_answer(
    backend: GrammarBackend,
    form: StructuredOutput,
    rng: random.Random,
    *,
    marks: Sequence[str] = (),
    max_tokens: int = 3000,
) -> str | None:
    """One that the form allows, to its end; None where it did not come to one in so many tokens."""
    matcher = backend.compile(form).matcher()
    num_tokens = _END + 1 + len(marks)
    mask = np.zeros(-(-num_tokens // 32), dtype=np.int32)
    written = bytearray()
    for step in range(max_tokens):
        matcher.fill(mask)
        assert not matcher.failure(), matcher.failure()
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:num_tokens]).tolist()
        assert allowed, f"nothing may follow {bytes(written)!r}"
        token = _chosen(allowed, rng, haste=min(0.9, 0.2 + step / 400))
        if token == _END:
            assert matcher.may_end()
            return written.decode()
        assert matcher.accept(token)
        written += marks[token - _END - 1].encode() if token > _END else bytes([token])
    return None


def _chosen(allowed: Sequence[int], rng: random.Random, haste: float) -> int:
    if _END in allowed and rng.random() < 0.5:
        return _END
    closing = [token for token in allowed if token in _CLOSERS or token > _END]
    if closing and rng.random() < haste:
        return rng.choice(closing)
    usual = [token for token in allowed if token in _USUAL or token > _END]
    return rng.choice(usual if usual and rng.random() < 0.9 else allowed)


def accepts(backend: GrammarBackend, form: StructuredOutput, text: str, marks: Sequence[str] = ()) -> bool:
    """Whether the form allows this answer, its marks as control tokens."""
    matcher = backend.compile(form).matcher()
    return all(matcher.accept(token) for token in tokens_of(text, marks)) and matcher.may_end()


def tokens_of(text: str, marks: Sequence[str]) -> list[int]:
    tokens: list[int] = []
    while text:
        mark = next((i for i, mark in enumerate(marks) if text.startswith(mark)), None)
        tokens += list(text[0].encode()) if mark is None else [_END + 1 + mark]
        text = text[1 if mark is None else len(marks[mark]) :]
    return tokens

"""Small vocabularies for forms: bytes, a few longer tokens, and control tokens. They know no model."""

from tests.fakes import EOS, IM_END, IM_START, SPECIAL_TOKENS, ByteTokenizer

from headrace.engine.grammar.protocol import Vocabulary

LONG_TOKENS = ('{"', '":', "true", "name", " the", "é", "水", "}]", "ab", "yes")
"""Beside single bytes: tokens that end in the middle of what a grammar says, and whole characters of several bytes."""


class LongTokenizer(ByteTokenizer):
    """Bytes, control tokens, then LONG_TOKENS; encodes to the longest token that fits."""

    @property
    def vocab_size(self) -> int:
        return super().vocab_size + len(LONG_TOKENS)

    def token_bytes(self, token_id: int) -> bytes:
        first = super().vocab_size
        return LONG_TOKENS[token_id - first].encode() if token_id >= first else super().token_bytes(token_id)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        first = super().vocab_size
        raw, ids, place = text.encode(), [], 0
        while place < len(raw):
            fitting = [(len(t.encode()), i) for i, t in enumerate(LONG_TOKENS) if raw.startswith(t.encode(), place)]
            size, index = max(fitting, default=(1, -1))
            ids.append(raw[place] if index < 0 else first + index)
            place += size
        return ids


def vocabulary(tokenizer: ByteTokenizer | None = None, *, num_logits: int | None = None) -> Vocabulary:
    tokenizer = tokenizer or LongTokenizer()
    size = tokenizer.vocab_size
    padding = (b"",) * ((num_logits or size) - size)
    return Vocabulary(
        token_bytes=(*(tokenizer.token_bytes(i) for i in range(size)), *padding),
        special_token_ids=tuple(SPECIAL_TOKENS),
        eos_token_ids=(EOS, IM_END),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False, parse_special=False),
    )


__all__ = ["EOS", "IM_END", "IM_START", "LongTokenizer", "vocabulary"]

"""Text to token ids and back, for one model, without transformers.

Knows encoding, decoding and what single tokens stand for. Does not know checkpoints' formats: `tokenizer_folder.py` and
`tokenizer_gguf.py` read them. Encoding runs outside the GIL, so a thread pool may do it while the event loop goes on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers

from headrace.base.errors import CheckpointError, InvalidRequestError
from headrace.engine.host.token_spelling import added_bytes, spelled_bytes
from headrace.engine.host.tokenizer_folder import parts_from_folder
from headrace.engine.host.tokenizer_gguf import parts_from_gguf
from headrace.engine.host.tokenizer_parts import TokenizerParts
from headrace.engine.models.gguf import GgufFile


def load_tokenizer(path: Path) -> "TextTokenizer":
    """The tokenizer of a Hugging Face checkpoint folder or of a GGUF file.

    Raises CheckpointError where there is none, or none that is supported.
    """
    if path.is_dir():
        return TextTokenizer(parts_from_folder(path))
    if path.suffix == ".gguf":
        with GgufFile(path) as file:
            return TextTokenizer(parts_from_gguf(file.metadata, source=str(path)))
    raise CheckpointError(f"{path}: no checkpoint folder and no .gguf file")


class TextTokenizer:
    """Implements `generation.Tokenizer`. Immutable in effect; safe to use from several threads."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._parsing = parts.backend
        added = parts.backend.get_added_tokens_decoder()
        self._literal = _without_special_tokens(parts.backend, added)
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._vocab_size = max([parts.backend.get_vocab_size(), *(token_id + 1 for token_id in added)])
        self._bytes: list[bytes | None] = [None] * self._vocab_size
        """Filled as tokens are met: most of a vocabulary never is."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id; a model may have more rows than that."""
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._parts.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's own end-of-text token first, then whatever else ends a generation."""
        return self._parts.eos_token_ids

    @property
    def chat_template(self) -> str | None:
        return self._parts.chat_template

    @property
    def chat_template_file(self) -> str:
        """Where it stands; empty where there is none."""
        return self._parts.chat_template_file

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """By role, as chat templates know them: `bos_token`, `eos_token` and so on, those that the model has."""
        return self._parts.special_tokens

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """`add_special_tokens`: with what the model wants around a text (a BOS). `parse_special`: `<|im_start|>` in the
        text is that token; False makes it plain text, which a user's own words should be.
        """
        backend = self._parsing if parse_special else self._literal
        try:
            # The batch form is the one that releases the GIL, and the fast form does not compute offsets.
            token_ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:
            _refuse_half_characters(text)
            raise
        if not add_special_tokens:
            return token_ids
        return [*self._parts.prefix_token_ids, *token_ids, *self._parts.suffix_token_ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The bytes of all tokens as text, what is no UTF-8 as U+FFFD. White space is never tidied up."""
        if skip_special_tokens:
            token_ids = [token_id for token_id in token_ids if token_id not in self._special_ids]
        text = b"".join([self.token_bytes(token_id) for token_id in token_ids]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._parts.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """Empty for an id that is no token: a model may have more rows than its tokenizer has tokens."""
        if not 0 <= token_id < self._vocab_size:
            return b""
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def _spell(self, token_id: int) -> bytes:
        content = self._added.get(token_id)
        if content is not None:
            return added_bytes(self._parts.spelling, content)
        piece = self._parsing.id_to_token(token_id)
        return b"" if piece is None else spelled_bytes(self._parts.spelling, piece)


def _refuse_half_characters(text: str) -> None:
    """JSON can write half of a surrogate pair, and Python can hold it, but it is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has half of a surrogate pair at character {error.start}, which stands for no character"
        ) from None


def _without_special_tokens(
    backend: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]
) -> tokenizers.Tokenizer:
    """A twin that takes special tokens in a text for text. The vocabulary and the merges are shared, not copied.

    `encode_special_tokens` is a switch on the whole object, so one object cannot serve two threads that differ in it.
    """
    twin = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        twin.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        twin.pre_tokenizer = backend.pre_tokenizer
    twin.add_tokens([token for _, token in sorted(added.items())])
    assert twin.get_added_tokens_decoder().keys() == added.keys(), "added tokens get the ids they had"
    twin.encode_special_tokens = True
    return twin

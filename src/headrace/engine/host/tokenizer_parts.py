"""What a tokenizer is put together from, whichever kind of checkpoint it was read from. Knows no files."""

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from headrace.engine.host.token_spelling import Spelling

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The roles that chat templates and configurations know tokens by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    backend: tokenizers.Tokenizer
    spelling: Spelling
    strips_leading_space: bool
    """Decoding drops one space at the beginning of a text, because encoding had put one there."""
    prefix_token_ids: tuple[int, ...]
    """Put before a text that is encoded with special tokens (a BOS)."""
    suffix_token_ids: tuple[int, ...]
    """Put after it."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Tokens that end a generation; the tokenizer's own end-of-text token comes first."""
    special_tokens: Mapping[str, str]
    """By role, for chat templates: `bos_token` -> `<s>`; roles the model lacks are absent."""
    chat_template: str | None
    chat_template_file: str = ""
    """Where it stands, for people who have to mend it."""

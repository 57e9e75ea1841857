"""A tokenizer from the metadata of a GGUF file, which has the vocabulary but none of the machinery around it.

Knows llama.cpp's keys and how it reads them. Does not know files: `models/gguf.py` has read the metadata.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from numbers import Real
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.base.errors import CheckpointError, nearest
from headrace.engine.host.pre_tokenizers import DEFAULT_PRE, PRE_TOKENIZATIONS, PreTokenization
from headrace.engine.host.token_spelling import METASPACE, Spelling
from headrace.engine.host.tokenizer_parts import TokenizerParts


class TokenType(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # llama.cpp's own spelling
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}

# What ends a turn or a text in the families' chat formats. Files name one end-of-text token; a chat model stops at several.
_END_TOKENS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
        "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>",
        "<｜end▁of▁sentence｜>", "[e~[",
    }
)  # fmt: skip
# These could be ordinary words of a vocabulary, so the file must say that they are control tokens.
_END_TOKENS_IF_CONTROL = frozenset({"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"})

_PADDING_TOKEN = re.compile(r"\[PAD\d+\]")
"""What llama.cpp's converter calls the rows of an embedding that have no token."""

_MERGEABLE = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNDEFINED})
"""Kinds that take part in SentencePiece's merging; control, unknown and byte tokens are never spelt by text."""
_HIDDEN = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})

_PHI3_NAMES = ("phi-3", "phi3")
_PHI3_KEEPS_SPACE_AFTER = frozenset({"<unk>", "<s>", "<|endoftext|>"})


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The checked arrays of a file's vocabulary."""

    pieces: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str] | None
    ids: Mapping[str, int]


def parts_from_gguf(metadata: Mapping[str, object], *, source: str) -> TokenizerParts:
    """Builds the tokenizer that a GGUF describes; `source` names the file in errors.

    Raises CheckpointError where the vocabulary is missing, contradicts itself or is of a kind that is not supported.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise CheckpointError(f"{source}: the file holds no tokenizer (no tokenizer.ggml.model)")
    build = _BUILDERS.get(str(model))
    if build is None:
        raise CheckpointError(
            f"{source}: tokenizer.ggml.model is {model!r}, which is not supported; supported: {', '.join(sorted(_BUILDERS))}"
        )
    vocabulary = _read_vocabulary(metadata, source)
    try:
        parts = build(vocabulary, metadata, source)
    except CheckpointError:
        raise
    except Exception as error:
        # `tokenizers` raises bare exceptions where merges and vocabulary disagree or a token is no text.
        raise CheckpointError(f"{source}: its vocabulary cannot be used: {error}") from error
    return parts if parts.chat_template is None else replace(parts, chat_template_file=source)


# The kinds of vocabulary


def _byte_pair(vocabulary: _Vocabulary, metadata: Mapping[str, object], source: str) -> TokenizerParts:
    """Merges in the file's order: `gpt2` (pieces in the byte alphabet) and `gemma4` (pieces with U+2581)."""
    pre = _pre_tokenization(metadata, source)
    if vocabulary.merges is None:
        raise CheckpointError(f"{source}: its vocabulary has no merges (tokenizer.ggml.merges)")
    backend = Tokenizer(
        models.BPE(
            vocab=dict(vocabulary.ids),
            merges=_pairs(vocabulary.merges, source),
            ignore_merges=pre.ignore_merges,
            byte_fallback=not pre.byte_level,
        )
    )
    cuts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns
    ]
    if pre.byte_level:
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        backend.decoder = decoders.ByteLevel()
    else:
        backend.normalizer = normalizers.Replace(" ", METASPACE)
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return _finish(
        backend,
        vocabulary,
        metadata,
        spelling=Spelling.BYTE_LEVEL if pre.byte_level else Spelling.METASPACE,
        adds_bos=pre.adds_bos,
    )


def _sentence_piece(vocabulary: _Vocabulary, metadata: Mapping[str, object], source: str) -> TokenizerParts:
    """`llama`: SentencePiece's byte-pair model, whose merges are not listed but follow from the pieces' scores."""
    adds_space = _flag(metadata, "tokenizer.ggml.add_space_prefix", default=True)
    unknown_id = _token_id(metadata, "unknown_token_id", vocabulary)
    backend = Tokenizer(
        models.BPE(
            vocab=dict(vocabulary.ids),
            merges=_merges_by_score(vocabulary),
            byte_fallback=True,
            unk_token=None if unknown_id is None else vocabulary.pieces[unknown_id],
            fuse_unk=True,
        )
    )
    escape = normalizers.Replace(" ", METASPACE)
    # The space goes before every stretch of text, also after a control token: llama.cpp and SentencePiece agree on that.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(METASPACE), escape]) if adds_space else escape
    return _finish(
        backend,
        vocabulary,
        metadata,
        spelling=Spelling.METASPACE,
        adds_bos=True,
        strips_leading_space=adds_space,
        strips_space_after_control=_strips_space_after_control(metadata),
        default_ids={"bos_token_id": 1, "eos_token_id": 2},
    )


def _word_piece(vocabulary: _Vocabulary, metadata: Mapping[str, object], source: str) -> TokenizerParts:
    """`bert`: the longest known piece first. The file marks beginnings of words (U+2581), not continuations (`##`)."""
    ids = {_word_piece_spelling(piece): token_id for piece, token_id in vocabulary.ids.items()}
    cls_id = _token_id(metadata, "cls_token_id", vocabulary, default=101)
    sep_id = _token_id(metadata, "seperator_token_id", vocabulary, default=102)
    unknown_id = _token_id(metadata, "unknown_token_id", vocabulary, default=100)
    lowercase = _flag(metadata, "tokenizer.ggml.normalizer.lowercase", default=True)
    strip_accents = _flag(metadata, "tokenizer.ggml.normalizer.strip_accents", default=lowercase)
    if cls_id is None or sep_id is None or unknown_id is None:
        raise CheckpointError(f"{source}: its vocabulary names no class, separator or unknown token")
    backend = Tokenizer(models.WordPiece(vocab=ids, unk_token=vocabulary.pieces[unknown_id]))
    backend.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_tokens(_added_tokens(vocabulary, frozenset()))
    return TokenizerParts(
        backend=backend,
        spelling=Spelling.WORD_PIECE,
        strips_leading_space=True,
        prefix_token_ids=(cls_id,),
        suffix_token_ids=(sep_id,),
        bos_token_id=cls_id,
        eos_token_ids=(sep_id,),
        special_tokens=_special_tokens(metadata, vocabulary),
        chat_template=None,
    )


_BUILDERS: dict[str, Callable[[_Vocabulary, Mapping[str, object], str], TokenizerParts]] = {
    "gpt2": _byte_pair,
    "gemma4": _byte_pair,
    "llama": _sentence_piece,
    "bert": _word_piece,
}


def _finish(
    backend: Tokenizer,
    vocabulary: _Vocabulary,
    metadata: Mapping[str, object],
    *,
    spelling: Spelling,
    adds_bos: bool,
    strips_leading_space: bool = False,
    strips_space_after_control: bool = False,
    default_ids: Mapping[str, int] | None = None,
) -> TokenizerParts:
    """What the generating kinds have in common: added tokens, ends of text, BOS and EOS, the chat template.

    `default_ids`: what files from before the keys existed mean.
    """
    metadata = {**{f"tokenizer.ggml.{key}": value for key, value in (default_ids or {}).items()}, **metadata}
    end_ids = _end_token_ids(vocabulary, metadata)
    backend.add_tokens(_added_tokens(vocabulary, frozenset(end_ids), strips_space_after=strips_space_after_control))
    bos_id = _token_id(metadata, "bos_token_id", vocabulary)
    eos_id = _token_id(metadata, "eos_token_id", vocabulary)
    prefix = [bos_id] if _flag(metadata, "tokenizer.ggml.add_bos_token", default=adds_bos) else []
    suffix = [eos_id] if _flag(metadata, "tokenizer.ggml.add_eos_token", default=False) else []
    return TokenizerParts(
        backend=backend,
        spelling=spelling,
        strips_leading_space=strips_leading_space,
        prefix_token_ids=tuple(token_id for token_id in prefix if token_id is not None),
        suffix_token_ids=tuple(token_id for token_id in suffix if token_id is not None),
        bos_token_id=bos_id,
        eos_token_ids=end_ids,
        special_tokens=_special_tokens(metadata, vocabulary),
        chat_template=_chat_template(metadata),
    )


# The vocabulary


def _read_vocabulary(metadata: Mapping[str, object], source: str) -> _Vocabulary:
    pieces = _array(metadata, "tokenizer.ggml.tokens", str, source)
    if not pieces:
        raise CheckpointError(f"{source}: its vocabulary is empty or missing (tokenizer.ggml.tokens)")
    types = _array(metadata, "tokenizer.ggml.token_type", int, source) or [TokenType.NORMAL] * len(pieces)
    scores = _array(metadata, "tokenizer.ggml.scores", Real, source) or [0.0] * len(pieces)
    for name, values in (("token_type", types), ("scores", scores)):
        if len(values) < len(pieces):
            raise CheckpointError(f"{source}: {len(pieces)} tokens, but {len(values)} entries in tokenizer.ggml.{name}")
    pieces = [piece or f"[EMPTY_{token_id}]" for token_id, piece in enumerate(pieces)]
    ids = {piece: token_id for token_id, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        first = next(piece for token_id, piece in enumerate(pieces) if ids[piece] != token_id)
        raise CheckpointError(f"{source}: its vocabulary has the token {first!r} twice")
    has_merges = "tokenizer.ggml.merges" in metadata
    merges = _array(metadata, "tokenizer.ggml.merges", str, source) if has_merges else None
    return _Vocabulary(pieces=pieces, types=types, scores=scores, merges=merges, ids=ids)


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, best-scored pieces first.

    SentencePiece merges the neighbours whose joint piece scores highest; ranked in that order, merges say the same. The
    order among the cuts of one piece does not matter: what is inside a piece that comes to be has merged as it would have
    alone, so only one of its cuts ever comes up.
    """
    num_pieces = len(vocabulary.pieces)
    candidates = [token_id for token_id, kind in enumerate(vocabulary.types[:num_pieces]) if kind in _MERGEABLE]
    known = {vocabulary.pieces[token_id] for token_id in candidates}
    candidates.sort(key=vocabulary.scores.__getitem__, reverse=True)
    # One flat comprehension: vocabularies of a quarter million pieces have two million cuts to look at.
    return [
        (left, right)
        for token_id in candidates
        for piece in (vocabulary.pieces[token_id],)
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in known and (right := piece[cut:]) in known
    ]


def _pairs(merges: Sequence[str], source: str) -> list[tuple[str, str]]:
    """Nearly all have one space, and there are tens of thousands: those are cut without a call for each."""
    cut: list[Any] = [tuple(merge.split(" ")) for merge in merges]
    if all(len(pair) == 2 and pair[0] for pair in cut):
        return cut
    return [_pair(merge, source) for merge in merges]


def _pair(merge: str, source: str) -> tuple[str, str]:
    middle = merge.find(" ", 1)
    if middle < 0:
        raise CheckpointError(f"{source}: tokenizer.ggml.merges has {merge!r}, which is no pair")
    return merge[:middle], merge[middle + 1 :]


def _word_piece_spelling(piece: str) -> str:
    if piece.startswith(METASPACE):
        return piece[1:]
    return piece if piece.startswith("[") and piece.endswith("]") else f"##{piece}"


def _added_tokens(vocabulary: _Vocabulary, end_ids: frozenset[int], *, strips_space_after: bool = False) -> list[AddedToken]:
    """Tokens that are found whole in a text before anything else happens to it.

    Control tokens are special: they are text where the caller does not want them parsed, and left out of answers.
    """
    added = []
    normal = int(TokenType.NORMAL)  # nearly all are
    for token_id, (piece, kind) in enumerate(zip(vocabulary.pieces, vocabulary.types, strict=False)):
        if kind == normal and token_id not in end_ids:
            continue
        special = kind in _HIDDEN or token_id in end_ids
        if special or (kind == TokenType.USER_DEFINED and not _PADDING_TOKEN.fullmatch(piece)):
            rstrip = strips_space_after and piece not in _PHI3_KEEPS_SPACE_AFTER
            added.append(AddedToken(piece, special=special, normalized=False, rstrip=rstrip))
    return added


def _end_token_ids(vocabulary: _Vocabulary, metadata: Mapping[str, object]) -> tuple[int, ...]:
    """The file's own end-of-text, end-of-turn and end-of-message tokens, and those known by their text."""
    named = (_token_id(metadata, key, vocabulary) for key in ("eos_token_id", "eot_token_id", "eom_token_id"))
    ends = [token_id for token_id in named if token_id is not None]
    for text in sorted(_END_TOKENS | _END_TOKENS_IF_CONTROL):
        token_id = vocabulary.ids.get(text)
        if token_id is not None and (text in _END_TOKENS or vocabulary.types[token_id] == TokenType.CONTROL):
            ends.append(token_id)
    texts = {vocabulary.pieces[token_id] for token_id in ends}
    if {"<|return|>", "<|call|>"} <= texts or {"<|flush|>", "<|calls|>"} <= texts:
        # Here `<|end|>` ends a message within an answer, not the answer.
        ends = [token_id for token_id in ends if vocabulary.pieces[token_id] != "<|end|>"]
    if "<|tool_response>" in texts:
        ends = [token_id for token_id in ends if vocabulary.pieces[token_id] != "</s>"]
    return tuple(dict.fromkeys(ends))


# Single keys


def _pre_tokenization(metadata: Mapping[str, object], source: str) -> PreTokenization:
    name = "gemma4" if metadata.get("tokenizer.ggml.model") == "gemma4" else metadata.get("tokenizer.ggml.pre", DEFAULT_PRE)
    found = PRE_TOKENIZATIONS.get(str(name))
    if found is None:
        raise CheckpointError(
            f"{source}: tokenizer.ggml.pre is {name!r}, a way of cutting words that is not known here"
            f"{nearest(str(name), PRE_TOKENIZATIONS)}; known: {', '.join(sorted(PRE_TOKENIZATIONS))}"
        )
    return found


def _strips_space_after_control(metadata: Mapping[str, object]) -> bool:
    """Phi-3's control tokens swallow the white space that follows them; no key says so, only the model's name."""
    name = str(metadata.get("general.name", "")).lower()
    return any(part in name for part in _PHI3_NAMES)


def _special_tokens(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> dict[str, str]:
    ids = {role: _token_id(metadata, key, vocabulary) for role, key in _SPECIAL_TOKEN_KEYS.items()}
    return {role: vocabulary.pieces[token_id] for role, token_id in ids.items() if token_id is not None}


def _token_id(
    metadata: Mapping[str, object], key: str, vocabulary: _Vocabulary, *, default: int | None = None
) -> int | None:
    """A token named by a key; None where there is none, or where it lies outside the vocabulary as llama.cpp tolerates."""
    token_id = metadata.get(f"tokenizer.ggml.{key}", default)
    return token_id if isinstance(token_id, int) and 0 <= token_id < len(vocabulary.pieces) else None


def _flag(metadata: Mapping[str, object], key: str, *, default: bool) -> bool:
    return bool(metadata.get(key, default))


def _chat_template(metadata: Mapping[str, object]) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None


def _array(metadata: Mapping[str, object], key: str, kind: type, source: str) -> list[Any]:
    values = metadata.get(key, [])
    if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
        raise CheckpointError(f"{source}: {key} is no array of type {kind.__name__}")
    return values

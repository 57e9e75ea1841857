"""A tokenizer from a Hugging Face checkpoint folder: `tokenizer.json`, and the small files beside it on special tokens.

Knows those files. Does not know model weights; no code from a checkpoint is ever run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headrace.base.errors import CheckpointError
from headrace.engine.host.token_spelling import METASPACE, Spelling
from headrace.engine.host.tokenizer_parts import SPECIAL_TOKEN_NAMES, TokenizerParts

_OTHER_FORMATS = ("tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files that hold a vocabulary too, but not how text is cut and normalised."""


def parts_from_folder(folder: Path) -> TokenizerParts:
    """Raises CheckpointError where a file is missing, damaged or contradicts another."""
    backend = _read_backend(folder)
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(config, _read_json(folder / "special_tokens_map.json"))
    bos_id = backend.token_to_id(special_tokens["bos_token"]) if "bos_token" in special_tokens else None
    eos_id = backend.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    prefix, suffix = _surrounding_tokens(backend, config, bos_id, eos_id)
    stages = _stages(backend.decoder) or _stages(backend.pre_tokenizer)
    chat_template, chat_template_file = _chat_template(folder, config)
    return TokenizerParts(
        backend=backend,
        spelling=_spelling(stages),
        strips_leading_space=any(_strips_leading_space(stage) for stage in stages),
        prefix_token_ids=prefix,
        suffix_token_ids=suffix,
        bos_token_id=bos_id,
        eos_token_ids=_end_token_ids(folder, eos_id),
        special_tokens=special_tokens,
        chat_template=chat_template,
        chat_template_file=chat_template_file,
    )


# The files


def _read_backend(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
        raise CheckpointError(
            f"{folder}: tokenizer.json is missing"
            + (f"; {', '.join(others)} alone does not say how text is cut into tokens" if others else "")
            + "; download it, or write it with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare exceptions
        raise CheckpointError(f"{path}: cannot be read as a tokenizer: {error}") from error
    # Left over from training; a server never pads, and refuses what is too long instead of cutting it.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    """An optional file; empty where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return content


def _chat_template(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, str]:
    """And the file that it stands in. Its own goes before the configuration's entry; of several named templates, the one
    named `default`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read_text(path), str(path)
    path, template = folder / "chat_template.json", _read_json(folder / "chat_template.json").get("chat_template")
    if template is None:
        path, template = folder / "tokenizer_config.json", config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return (template, str(path)) if isinstance(template, str) and template else (None, "")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


# Special tokens


def _special_tokens(config: Mapping[str, Any], tokens_map: Mapping[str, Any]) -> dict[str, str]:
    """By role. A token is written as text, or as an object with its text under `content`."""
    special_tokens = {}
    for role in SPECIAL_TOKEN_NAMES:
        entry = config.get(role) or tokens_map.get(role)
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str) and text:
            special_tokens[role] = text
    return special_tokens


def _surrounding_tokens(
    backend: Tokenizer, config: Mapping[str, Any], bos_id: int | None, eos_id: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What encoding puts around a text: as the configuration says outright, else as `tokenizer.json` does it."""
    if "add_bos_token" in config or "add_eos_token" in config:
        prefix = [bos_id] if config.get("add_bos_token") else []
        suffix = [eos_id] if config.get("add_eos_token") else []
        return tuple(one for one in prefix if one is not None), tuple(one for one in suffix if one is not None)
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise AssertionError(f"special tokens go around a text, but {full} does not contain {bare}")


def _end_token_ids(folder: Path, eos_id: int | None) -> tuple[int, ...]:
    """The tokenizer's own end-of-text token, and those that generation stops at besides."""
    generation = _read_json(folder / "generation_config.json")
    source = generation if "eos_token_id" in generation else _read_json(folder / "config.json")
    more = source.get("eos_token_id", source.get("text_config", {}).get("eos_token_id"))
    ends = [eos_id, *(more if isinstance(more, list) else [more])]
    return tuple(dict.fromkeys(token_id for token_id in ends if isinstance(token_id, int)))


# How tokens are spelt


def _stages(component: Any) -> list[dict[str, Any]]:
    """A decoder's or pre-tokenizer's stages, as `tokenizer.json` writes them."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    stages = state.get("decoders", state.get("pretokenizers", [state]))
    assert isinstance(stages, list)
    return stages


def _spelling(stages: list[dict[str, Any]]) -> Spelling:
    kinds = {stage.get("type") for stage in stages}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if "WordPiece" in kinds:
        return Spelling.WORD_PIECE
    replaces = any(stage.get("type") == "Replace" and METASPACE in str(stage.get("pattern")) for stage in stages)
    return Spelling.METASPACE if replaces or kinds & {"Metaspace", "ByteFallback"} else Spelling.PLAIN


def _strips_leading_space(stage: Mapping[str, Any]) -> bool:
    kind = stage.get("type")
    if kind == "Metaspace":
        return bool(stage.get("prepend_scheme", "always") != "never")
    return kind == "WordPiece" or (kind == "Strip" and stage.get("content") == " " and stage.get("start", 0) > 0)

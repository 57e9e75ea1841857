"""Text to make prompts of: the documentation strings of Python's standard library, which every machine has."""

import inspect
import textwrap
from importlib import import_module

from headrace.engine.host.generation import Tokenizer

_MODULES = (
    "argparse", "asyncio", "collections", "contextlib", "csv", "dataclasses", "datetime", "decimal", "difflib", "email",
    "enum", "fractions", "functools", "heapq", "inspect", "itertools", "json", "logging", "optparse", "pathlib", "pickle",
    "pydoc", "random", "re", "shutil", "socket", "statistics", "string", "subprocess", "tarfile", "textwrap", "threading",
    "tokenize", "turtle", "typing", "unittest", "urllib.request", "uuid", "zipfile",
)  # fmt: skip


def long_text() -> str:
    parts = []
    for name in _MODULES:
        module = import_module(name)
        parts.append(inspect.getdoc(module) or "")
        for member in sorted(vars(module)):
            text = inspect.getdoc(getattr(module, member)) if not member.startswith("_") else None
            if text:
                parts.append(textwrap.dedent(text))
    return "\n\n".join(parts)


def prompts(tokenizer: Tokenizer, lengths: list[int]) -> list[list[int]]:
    """Consecutive pieces of the text, of so many tokens each."""
    token_ids = tokenizer.encode(long_text())
    pieces, start = [], 0
    for length in lengths:
        assert start + length <= len(token_ids), "the text is too short for so many prompts"
        pieces.append(token_ids[start : start + length])
        start += length
    return pieces

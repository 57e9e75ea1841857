"""The project's own files, for the tests that read them. Knows which folders are its own; does not know what to look for."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "headrace"

_FOLDERS = (".ci", "benchmarks", "docs", "native", "src", "tests")
"""What else lies at the root (environments, caches, builds) is not the project's text."""

_TEXT_SUFFIXES = frozenset(
    ("", ".cfg", ".cpp", ".css", ".h", ".html", ".js", ".json", ".md", ".mjs", ".py", ".sh", ".svg", ".toml", ".yaml")
)


@cache
def text_files() -> tuple[Path, ...]:
    """Every file that people write, in order of its path."""
    candidates = [*ROOT.iterdir(), *(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*"))]
    return tuple(
        sorted(
            path
            for path in candidates
            if path.is_file()
            and path.suffix in _TEXT_SUFFIXES
            and path.name != ".git"  # a file, not a folder, in a second working tree
            and "__pycache__" not in path.parts
            and not any(part.endswith(".egg-info") for part in path.parts)
        )
    )


@cache
def markdown_files() -> tuple[Path, ...]:
    return tuple(path for path in text_files() if path.suffix == ".md")


@cache
def python_sources() -> tuple[Path, ...]:
    """The package's modules."""
    return tuple(sorted(SOURCES.rglob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def module_name(path: Path) -> str:
    """`src/headrace/base/__init__.py` -> `headrace.base`."""
    parts = path.relative_to(SOURCES.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def shown(path: Path) -> str:
    """A path as people write it."""
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """(`file:line`, text) of every line."""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        yield f"{shown(path)}:{number}", line

"""Habits of the source that a reader relies on: files introduce themselves, options are explained, names say something."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest
from tests.tidy.repository import SOURCES, lines, module_name, parsed, python_sources, shown, text_files

_VAGUE_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "stuff"})

_UNWANTED = {
    "a path of somebody's machine": r"(^|[^.\w])/(work|farm|root)/\w|/home/[a-z]",
    "a promise instead of code": r"\b(TOD[O]|FIXM[E]|XX[X])\b",
    "a stub": r"\bNotImplemente[d]Error\b",
    "a test that never runs, or may fail": r"mark\.(skip|xfai[l])\b|assert Tru[e]\b",
    "the name of a package registry": r"\bpypi\.org|pythonhosted\.org|registry\.npmjs|crates\.io|quay\.io|\bghcr\.io",
}
"""What a line may not hold. No pattern finds itself."""


def test_every_module_opens_by_saying_what_it_is() -> None:
    silent = [
        shown(path)
        for path in python_sources()
        if path.read_text().strip() and not (ast.get_docstring(parsed(path)) or "").strip()
    ]
    assert not silent


def test_every_field_of_a_configuration_is_explained_where_it_is_declared() -> None:
    unexplained: list[str] = []
    num_configs = 0
    for path in python_sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                num_configs += 1
                unexplained += [f"{shown(path)}: {node.name}.{name}" for name in _unexplained_fields(node)]
    assert num_configs >= 5, "the configurations were not found"
    assert not unexplained


def _unexplained_fields(config: ast.ClassDef) -> list[str]:
    """Annotated names that no string literal follows."""
    following = [*config.body[1:], None]
    return [
        node.target.id
        for node, after in zip(config.body, following, strict=True)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _is_text(after)
    ]


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_one_file_reads_the_environment() -> None:
    readers = {
        shown(path)
        for path in python_sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}
    }
    assert readers == {"src/headrace/cli/environment.py"}


def test_no_file_or_folder_has_a_name_that_says_nothing() -> None:
    vague = [shown(path) for path in text_files() if {path.stem, path.parent.name} & _VAGUE_NAMES]
    assert not vague


@pytest.mark.parametrize("what", _UNWANTED)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(_UNWANTED[what])
    found = [f"{place}: {line.strip()}" for path in text_files() for place, line in lines(path) if pattern.search(line)]
    assert not found, f"{what}: {found}"


def _modules_with_doctests() -> list[Path]:
    return [path for path in python_sources() if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)]


def test_modules_with_examples_are_found() -> None:
    assert SOURCES / "base" / "units.py" in _modules_with_doctests()


@pytest.mark.parametrize("path", _modules_with_doctests(), ids=module_name)
def test_examples_in_docstrings_are_true(path: Path) -> None:
    outcome = doctest.testmod(importlib.import_module(module_name(path)))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_type_checkers_are_told_that_the_package_is_typed() -> None:
    assert (SOURCES / "py.typed").is_file()

"""What documents point at exists: links, anchors, files, tests, commands. Knows how they are written, not what they say."""

import argparse
import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from benchmarks.update_readme import ALL_RESULTS, README, full_table, with_table
from tests.tidy.repository import ROOT, SOURCES, markdown_files, parsed, shown

from headrace.cli import main as command_line
from headrace.cli.parser import Parser

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_COMMAND_LINE = re.compile(r"^\s*(?:headrace|\S*/headrace) .+$", re.MULTILINE)

_PLACES = (ROOT, SOURCES, SOURCES / "engine")
"""What paths in documents are relative to."""

_OUR_SUFFIXES = frozenset({".py", ".md", ".mjs", ".html", ".toml"})


@pytest.mark.parametrize("document", markdown_files(), ids=shown)
def test_links_lead_somewhere(document: Path) -> None:
    text = _FENCE.sub("", document.read_text())
    broken = [target for target in _LINK.findall(_CODE.sub("", text)) if not _leads_somewhere(document, target)]
    assert not broken


def _leads_somewhere(document: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):  # another site, or a mail address
        return True
    path, _, anchor = target.partition("#")
    file = (document.parent / path).resolve() if path else document
    return file.exists() and (not anchor or anchor in _anchors(file))


def _anchors(file: Path) -> set[str]:
    """Headings as GitHub names them."""
    headings = _HEADING.findall(_FENCE.sub("", file.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", markdown_files(), ids=shown)
def test_files_and_tests_that_are_named_exist(document: Path) -> None:
    text = _FENCE.sub("", document.read_text())
    missing = [name for name in _CODE.findall(text) if _is_path_of_ours(name) and not _exists(name)]
    assert not missing


def _is_path_of_ours(name: str) -> bool:
    """`engine/mind/` and `README.md` are; `application/json`, `/metrics` and `--port` are not."""
    path = name.partition("::")[0]
    if not re.fullmatch(r"[\w.\-/]+", path) or path.startswith(("/", "-")):
        return False
    first = path.split("/")[0]
    begins_at_home = "/" in path and any((place / first).is_dir() for place in _PLACES)
    return begins_at_home or Path(path).suffix in _OUR_SUFFIXES


def _exists(name: str) -> bool:
    path, _, test = name.partition("::")
    if path in {"router/mind", "fleet/mind"}:  # ARCHITECTURE.md says of both that they are not there yet
        return not (SOURCES / path).exists()
    files = [place / path for place in _PLACES if (place / path).exists()]
    return bool(files) and (not test or test in _tests_of(files[0]))


@cache
def _tests_of(file: Path) -> frozenset[str]:
    """Names of test functions, and of the cases that Hypothesis makes of state machines."""
    names: set[str] = set()
    for node in parsed(file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in names if name.lower().startswith("test"))


@pytest.mark.parametrize("document", markdown_files(), ids=shown)
def test_make_targets_that_are_named_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", document.read_text(), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("document", markdown_files(), ids=shown)
def test_commands_that_are_shown_are_understood(document: Path) -> None:
    misunderstood = [shlex.join(command) for command in _commands(document.read_text()) if not _is_understood(command)]
    assert not misunderstood


def _is_understood(command: list[str]) -> bool:
    try:
        command_line._read(command)
    except SystemExit as stop:
        return not stop.code  # asked for help or the version
    return True


def _commands(text: str) -> Iterator[list[str]]:
    for block in _FENCE.findall(text):
        for line in _COMMAND_LINE.findall(block.replace("\\\n", " ")):
            words = shlex.split(line, comments=True)
            yield [word for word in words[1:] if word != "&"]


def test_options_that_the_readme_names_exist() -> None:
    known = {spelling for parser in _commands_by_name().values() for spelling in parser._option_string_actions}
    named = {name for code in _CODE.findall((ROOT / "README.md").read_text()) for name in re.findall(r"--[a-z][\w-]*", code)}
    assert named
    assert named <= known


def test_every_command_and_every_option_has_help() -> None:
    commands = _commands_by_name()
    assert commands
    for name, parser in commands.items():
        assert parser.description, f"headrace {name}"
    silent = [f"headrace {name} {a.dest}" for name, parser in commands.items() for a in parser._actions if not a.help]
    assert not silent


@cache
def _commands_by_name() -> dict[str, argparse.ArgumentParser]:
    commands = Parser(prog="headrace").add_subparsers()
    for add_parser in command_line._COMMANDS.values():
        add_parser(commands)
    assert [action.dest for action in commands._choices_actions if action.help] == [*commands.choices], "one has no help"
    return dict(commands.choices)


def test_the_tables_of_results_are_what_was_measured() -> None:
    readme = README.read_text()
    assert readme == with_table(readme), "run: python -m benchmarks.update_readme"
    assert ALL_RESULTS.read_text() == full_table(), "run: python -m benchmarks.update_readme"


def test_the_changelog_begins_with_what_is_not_released() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings
    assert headings[0] == "Unreleased"


def test_decisions_are_numbered_without_gaps_and_say_what_a_decision_must() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        text = record.read_text()
        assert text.startswith(f"# {record.name[:4]}. "), record.name
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), record.name


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text()
    unexplained = [name for name in _dependencies() if f"| {name} |" not in reasons]
    assert not unexplained


def _dependencies() -> list[str]:
    """Of the package and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    requirements = [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]
    return [re.split(r"[\[<>=~;! ]", requirement)[0] for requirement in requirements]

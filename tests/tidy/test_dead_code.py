"""Nothing lies about that nobody uses: modules, definitions, files of the web page."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
from tests.tidy.repository import SOURCES, module_name, parsed, python_sources, shown

_ENTRY_POINTS = ("headrace.cli.main", "headrace.engine.host.process")
"""What is run: the command, and the engine process that it starts."""

_USED_BY_OTHERS = {
    "_check_value": "argparse calls it",
    "_generate": "Jinja's Environment calls it",
    "_get_help_string": "argparse's HelpFormatter calls it",
    "call_binop": "Jinja's sandbox calls it",
    "capture_signals": "uvicorn's Server calls it",
    "_print_message": "argparse calls it",
    "components": "benchmarks/gpu_fits fits factors by them",
    "connection_lost": "asyncio calls it",
    "connection_made": "asyncio calls it",
    "data_received": "asyncio calls it",
    "decode_run": "whoever rehearses many decode steps at once asks for it by name",
    "file_response": "starlette's StaticFiles calls it",
    "kv_bytes_per_token_per_gpu": "benchmarks/gpu_fits asks what a cache holds",
    "on_body": "httptools calls it",
    "on_broken_pipe": "rich's Console calls it",
    "on_header": "httptools calls it",
    "on_headers_complete": "httptools calls it",
    "on_message_begin": "httptools calls it",
    "on_message_complete": "httptools calls it",
    "has_unfinished_requests": "benchmarks drive a core until it is false",
    "weight_bytes_per_gpu": "benchmarks/gpu_fits asks what a cache holds",
    "num_open_requests": "tests of the client wait by it for what must not be left open",
}
"""Definitions that no code of the package names, each with who does. Use by tests alone needs a reason, too."""


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def test_every_module_is_reached_from_what_is_run() -> None:
    graph = grimp.build_graph("headrace", cache_dir=None)
    reached: set[str] = set()
    waiting = [*_ENTRY_POINTS]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += graph.find_modules_directly_imported_by(module)
            waiting += [module.rpartition(".")[0]] if "." in module else []  # importing a module imports its packages
    unreached = {module_name(path) for path in python_sources()} - reached
    assert not unreached


def test_every_definition_is_used() -> None:
    unused = [f"{shown(path)}: {definition.name}" for path, definition in _unused_definitions()]
    assert not [place for place in unused if place.split(": ")[1] not in _USED_BY_OTHERS]
    defined = {definition.name for path in python_sources() for definition in _definitions(parsed(path))}
    assert defined >= _USED_BY_OTHERS.keys()


def _unused_definitions() -> Iterator[tuple[Path, _Definition]]:
    uses: Counter[str] = Counter()
    for path in python_sources():
        uses.update(_names_used(parsed(path)))
    for path in python_sources():
        for definition in _definitions(parsed(path)):
            uses_by_itself = Counter(_names_used(definition))[definition.name]
            if uses[definition.name] == uses_by_itself:
                yield path, definition


def _definitions(tree: ast.Module) -> list[_Definition]:
    """Functions and classes of a module, and the methods that a caller would name."""
    top = [node for node in tree.body if isinstance(node, _Definition)]
    methods = [
        node
        for owner in top
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, _Definition) and not node.name.startswith("__")
    ]
    return [*top, *methods]


def _names_used(tree: ast.AST) -> Iterator[str]:
    """Names read, attributes taken, names imported, and words of annotations in quotes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield from _quoted_names(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield from _quoted_names(node.returns)
        elif isinstance(node, ast.Call):
            yield from (name for argument in node.args for name in _quoted_names(argument))


def _quoted_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"[A-Za-z_]\w*", node.value)


def test_every_file_of_the_web_page_is_referred_to_by_another() -> None:
    files = [path for path in (SOURCES / "server").rglob("*") if path.suffix in {".js", ".css", ".svg", ".html"}]
    assert files
    others = [path for path in SOURCES.glob("server/**/*") if path.suffix in {".js", ".css", ".html", ".py"}]
    orphans = [shown(path) for path in files if not any(_mentions(other, path) for other in others if other != path)]
    assert not orphans


def _mentions(text: Path, file: Path) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(file.name)}\b", text.read_text()) is not None

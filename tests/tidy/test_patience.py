"""No test fails because a machine is slow: whoever waits for what should happen at once has the patience of all tests."""

import ast
from collections.abc import Iterator

import pytest
from tests.tidy.repository import ROOT, parsed, shown, text_files

_WAITS = frozenset({"wait", "join", "wait_for"})
"""Whose last positional argument, where it is a number, is a limit in seconds."""

_ASKS = frozenset(f"httpx.{word}" for word in ("get", "head", "post", "stream", "Client", "AsyncClient"))
"""These give up after five seconds unless told otherwise."""

_LEAST_LIMIT_S = 1
"""Shorter ones are there to run out: an impatient client, a pause between two looks."""


def _limits(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that give up after a number of seconds of their own; the client library's own number is one, too."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        limits = [given["timeout"]] if "timeout" in given else call.args[-1:] if name in _WAITS else []
        asks = ast.unparse(call.func) in _ASKS
        if (asks and not {"timeout", "transport"} & given.keys()) or any(_is_long(limit) for limit in limits):
            yield call


def _is_long(limit: ast.expr) -> bool:
    return isinstance(limit, ast.Constant) and isinstance(limit.value, int | float) and limit.value >= _LEAST_LIMIT_S


def test_no_test_gives_up_after_seconds_of_its_own() -> None:
    paths = [path for path in text_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")]
    assert len(paths) > 100
    impatient = [f"{shown(path)}:{call.lineno}: {ast.unparse(call)}" for path in paths for call in _limits(parsed(path))]
    assert not impatient, "tests.patience.PATIENCE_S"


@pytest.mark.parametrize(
    "code",
    ["event.wait(10)", "thread.join(timeout=5)", "wait_for(story(), 30)", "httpx.get(url)", "run(timeout=60.0)"],
)
def test_a_limit_is_found(code: str) -> None:
    assert list(_limits(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["event.wait(PATIENCE_S)", "thread.join(0.01)", '", ".join(names)', "httpx.get(url, timeout=0.4)"]
)
def test_patience_and_impatience_are_passed_over(code: str) -> None:
    assert not list(_limits(ast.parse(code)))

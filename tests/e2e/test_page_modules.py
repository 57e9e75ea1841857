"""The chat page's pure modules (markdown, event stream, answering) under node's own test runner. No browser, no server."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

import headrace.server

WEB = Path(headrace.server.__file__).parent / "web"
SUITES = sorted((Path(__file__).parent / "page").glob("*.test.mjs"))

MIN_NODE = (20, 19)
"""The first that sees by itself that a `.js` file is a module."""


def node() -> str:
    """The path of a node that can run the suites; skips where there is none."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("node is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < MIN_NODE:
        pytest.skip(f"node {version} is older than {MIN_NODE[0]}.{MIN_NODE[1]}")
    return path


def test_the_suites_are_found() -> None:
    assert {suite.name.split(".")[0] for suite in SUITES} == {"answering", "markdown", "sse"}


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name.split(".")[0])
def test_the_page_module_passes_its_suite(suite: Path) -> None:
    environment = {**os.environ, "HEADRACE_WEB": WEB.as_uri()}
    run = subprocess.run(
        [node(), "--test", str(suite)], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"^# pass (\d+)$", run.stdout, re.MULTILINE) or re.search(r"ℹ pass (\d+)", run.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= 5, "the suite did not run its tests"

"""What the README shows is carried out, word by word, against a real server. Only the address is another."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.real_server import RealServer
from tests.patience import PATIENCE_S

_README = (Path(__file__).parents[2] / "README.md").read_text()

_NOT_RUN_HERE = {
    "make": "this suite is run by make: it would run itself, or serve for ever",
    "pip": "installing replaces the package under test, and serving never ends; the session's server has been started so",
}
"""Blocks of shell whose first word is one of these are not carried out. What else they hold is checked by tests/tidy/."""


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", _README, re.MULTILINE | re.DOTALL)


def _shell_blocks_to_run() -> list[str]:
    return [block for block in _blocks("bash") if block.split()[0] not in _NOT_RUN_HERE]


def _here(block: str, server: RealServer) -> str:
    assert "http://127.0.0.1:8000" in block, "a block that asks no server"
    return block.replace("http://127.0.0.1:8000", server.url)


def test_the_readme_has_blocks_to_run() -> None:
    assert len(_shell_blocks_to_run()) >= 3
    assert _blocks("python")


@pytest.mark.parametrize("block", _shell_blocks_to_run(), ids=lambda block: block.splitlines()[0][:60])
def test_a_shell_block_does_what_it_shows(block: str, server: RealServer, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed here, and the README's shell blocks call it")
    # So that an error status fails the block, which a reader of the same block would see with their own eyes.
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    outcome = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _here(block, server)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "CURL_HOME": str(tmp_path)},
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.strip()


@pytest.mark.parametrize("block", _blocks("python"), ids=lambda block: block.splitlines()[0][:60])
def test_a_python_block_does_what_it_shows(block: str, server: RealServer) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", _here(block, server)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.strip()

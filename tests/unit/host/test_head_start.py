"""The engine process with a head start: who gets it, and what becomes of it when nobody does."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.patience import PATIENCE_S

from headrace.engine.host import head_start
from headrace.engine.host.process import EXIT_ORPHANED

ECHO = (sys.executable, "-c", "import sys; sys.stderr.write(sys.stdin.readline())")
"""A process that waits for a line, as the engine's does."""


@pytest.fixture(autouse=True)
def engine_that_echoes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(head_start, "engine_command", lambda: ECHO)
    yield
    if head_start._waiting is not None:
        head_start._waiting.kill()
        head_start._waiting = None


def ended(process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
    _, said = process.communicate(line, timeout=PATIENCE_S)
    return said


def test_the_process_with_a_head_start_is_the_one_that_is_told_what_to_do() -> None:
    head_start.give_head_start()
    waiting = head_start._waiting
    process = head_start.start_process(ECHO)
    assert process is waiting
    assert ended(process, b"serve\n") == b"serve\n"


def test_the_next_one_is_new() -> None:
    head_start.give_head_start()
    first = head_start.start_process(ECHO)
    second = head_start.start_process(ECHO)
    assert first is not second
    assert ended(first, b"1\n") + ended(second, b"2\n") == b"1\n2\n"


def test_another_command_does_not_get_it() -> None:
    head_start.give_head_start()
    other = head_start.start_process((sys.executable, "-c", ""))
    assert other is not head_start._waiting
    assert ended(other, b"") == b""


def test_an_engine_process_that_is_told_nothing_ends_without_a_word() -> None:
    command = [sys.executable, "-m", "headrace.engine.host.process"]
    outcome = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False)
    assert outcome.returncode == EXIT_ORPHANED
    assert outcome.stderr == b""

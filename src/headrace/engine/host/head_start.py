"""A head start for the engine process: its interpreter and its imports, while the parent still finds out what to serve.

Knows how such a process is started. Does not know what it will be told; `process.py` waits for that. A process that was
started and is never told anything ends with its parent.
"""

import subprocess
import sys

_waiting: subprocess.Popen[bytes] | None = None


def engine_command() -> tuple[str, ...]:
    """What starts a real engine process, with the interpreter that runs this."""
    return (sys.executable, "-m", "headrace.engine.host.process")


def give_head_start() -> None:
    """Starts the process that the next `start_process` with `engine_command` will get."""
    global _waiting
    assert _waiting is None, "one engine process has a head start already"
    _waiting = _start(engine_command())


def start_process(command: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """The one with a head start, if it is of this kind; else a new one. Its standard input and error are pipes."""
    global _waiting
    if _waiting is None or command != engine_command():
        return _start(command)
    process, _waiting = _waiting, None
    return process


def _start(command: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for the parent alone, which then drains
    )

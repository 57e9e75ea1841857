"""A head start for the engine process: its interpreter and its imports, while the parent still finds out what to serve.

Knows how such a process is started. Does not know what it will be told; `process.py` waits for that. A process that was
started and is never told anything ends with its parent.
"""

import os
import subprocess
import sys
from collections.abc import Mapping

_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb"

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
        env=engine_environment(os.environ),
    )


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The parent's, with glibc told to ask for huge pages: torch's weights and activations come from malloc, and are read a
    fifth faster so. The C library reads it before anything of ours runs, hence here. What the user says of it counts.

    >>> engine_environment({"GLIBC_TUNABLES": "glibc.malloc.check=1"})
    {'GLIBC_TUNABLES': 'glibc.malloc.check=1:glibc.malloc.hugetlb=1'}
    >>> engine_environment({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})
    {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=0'}
    """
    given = environment.get(_TUNABLES, "")
    if _HUGE_PAGES in given:
        return dict(environment)
    return {**environment, _TUNABLES: ":".join(filter(None, (given, f"{_HUGE_PAGES}=1")))}

"""One engine process as its parent sees it: started, spoken to, heard from, and over.

Knows processes, pipes and the event loop. Does not know what the messages mean, or what to do when the process ends.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from headrace.base.errors import ConfigurationError
from headrace.base.system_clock import SystemClock
from headrace.engine.host.config import EngineConfig
from headrace.engine.host.connection import Connection, client_end
from headrace.engine.host.head_start import start_process
from headrace.engine.host.messages import ClientMessage, EngineMessage, Shutdown

MAX_SOCKET_PATH = 100
"""Unix socket paths end at 104 to 108 bytes, by system."""

_MESSAGES_PER_TURN = 64
"""How many messages are taken in before other work of the event loop gets its turn."""

_LAST_WORDS_S = 0.2
"""How long the last message of a process that said it failed may still be on its way after its exit was seen."""

_KILL_WAIT_S = 5.0

Argument = TypeVar("Argument")


class EngineChild:
    """From construction to `ended`. All methods belong to the event loop that made it."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: tuple[str, ...],
        on_message: Callable[[EngineMessage], None],
        on_log_line: Callable[[str], None],
    ) -> None:
        """`command` starts a process that follows `process.py`'s opening. `on_log_line` gets its standard error."""
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_log_line = on_log_line
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """Resolves to the exit status (negative: the signal's number) after the last message was handed over."""

        self._folder = _socket_folder()
        endpoint = f"ipc://{self._folder}/engine"
        self._connection: Connection[ClientMessage, EngineMessage] = client_end(endpoint)
        self._process = start_process(command)
        launch = {"endpoint": endpoint, "launched": SystemClock().now(), "config": config}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is over already; `ended` will say so
            self._process.stdin.write(msgspec.json.encode(launch) + b"\n")
            self._process.stdin.flush()
        self._loop.add_reader(self._connection.fileno(), self._drain)
        threading.Thread(target=self._read_log, daemon=True, name="engine-log").start()
        threading.Thread(target=self._wait_for_exit, daemon=True, name="engine-exit").start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ClientMessage) -> None:
        """To a process that has spoken already. A message to one that is over goes nowhere: `ended` tells."""
        if self.ended.done():
            return
        with contextlib.suppress(zmq.Again):
            self._connection.send(message)
        # Sending may use up the descriptor's edge that announces messages: look for them.
        self._loop.call_soon(self._drain)

    async def close(self, timeout_s: float) -> None:
        """Asks it to stop, waits so long, and then ends it. Safe to call at any time, and again."""
        if not self.ended.done():
            self.send(Shutdown())
            await asyncio.wait([self.ended], timeout=timeout_s)
        if not self.ended.done():
            self.kill()
            await asyncio.wait([self.ended], timeout=_KILL_WAIT_S)

    def kill(self) -> None:
        """At once, without a word. It holds nothing that would be lost."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    # What comes from it

    def _drain(self) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if self.ended.done():
                return
            message = self._connection.receive()
            if message is None:
                return
            self._on_message(message)
        self._loop.call_soon(self._drain)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._call(self._on_log_line, line.decode(errors="replace").rstrip("\n"))

    def _wait_for_exit(self) -> None:
        status = self._process.wait()
        self._call(self._has_exited, status)

    def _call(self, function: Callable[[Argument], None], argument: Argument) -> None:
        """On the event loop, from a thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, argument)

    def _has_exited(self, status: int) -> None:
        # An exit status of its own follows a last message, which may still be on its way; a signal gives no time for one.
        self._loop.call_later(_LAST_WORDS_S if status > 0 else 0, self._finish, status)

    def _finish(self, status: int) -> None:
        while (message := self._connection.receive()) is not None:
            self._on_message(message)
        self._loop.remove_reader(self._connection.fileno())
        self._connection.close(linger_ms=0)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self.ended.done():
            self.ended.set_result(status)


def describe_exit(status: int) -> str:
    """How a process ended, for people.

    >>> describe_exit(-9)
    'ended by SIGKILL'
    >>> describe_exit(1)
    'exited with status 1'
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def _socket_folder() -> Path:
    """A folder that nobody else may enter, with a path short enough for a Unix socket in it."""
    candidates = [tempfile.gettempdir(), "/tmp"]
    for parent in candidates:
        if len(os.fsencode(parent)) + len("/headrace-xxxxxxxx/engine") <= MAX_SOCKET_PATH and os.path.isdir(parent):
            return Path(tempfile.mkdtemp(prefix="headrace-", dir=parent))
    raise ConfigurationError(
        f"no temporary folder has a path short enough for a Unix socket (tried {', '.join(candidates)}): set TMPDIR to one"
    )

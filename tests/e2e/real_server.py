"""`headrace serve` as a user starts it, with the real model, on a free port. Knows how to wait, and how to clean up."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import openai
from tests.patience import PATIENCE_S

SMALL = ("--kv-cache-memory", "512MiB", "--max-model-len", "2048", "--max-num-seqs", "16", "--threads", "1")
"""Enough for the tests. One thread, since several that wait for one another suffer most where a machine does more than
this."""

_URL = re.compile(r"http://127\.0\.0\.1:\d+")
ENGINE_STARTS = re.compile(r"start the engine process .* pid (\d+)")


class RealServer:
    """`with RealServer() as server:` is up when the block begins and gone when it ends."""

    def __init__(self, *words: str, model: str = "smollm2-135m", environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "headrace.cli.main", "serve", model, "--port", "0", *words]
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._output: list[str] = []
        self.url = ""
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            self.wait_until_up()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGINT)
        try:
            self.wait()
        finally:
            self.kill()

    # Waiting

    def wait_until_up(self) -> None:
        self.url = self.wait_for_line(_URL)[0]

    def wait_for_line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The first match in what it writes from now on."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            if match := pattern.search(line):
                return match
        raise AssertionError(
            f"the server ended with {self.process.wait()} and never wrote {pattern.pattern}:\n{self.output}"
        )

    def wait(self) -> int:
        """Its exit status."""
        status = self.process.wait(timeout=PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._output.append(line)
            self._lines.put(line)
        self._lines.put(None)

    # What it is

    @property
    def output(self) -> str:
        return "".join(self._output)

    @property
    def engine_pid(self) -> int:
        """Of the engine process that was started last."""
        return int(ENGINE_STARTS.findall(self.output)[-1])

    # Asking it

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            **{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": PATIENCE_S, **options}
        )

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    def health(self) -> int:
        return httpx.get(f"{self.url}/health", timeout=PATIENCE_S).status_code

    def metric(self, name: str) -> float:
        """The sum over all labels; 0 where there is no such sample."""
        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text
        samples = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, samples))

    def is_at_rest(self) -> bool:
        """Nothing runs or waits, and nobody holds a block."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in names)

    # Ending it

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def is_alive(pid: int) -> bool:
    """A process that has ended and that nobody has collected yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""Whoever generates tokens for a measure: a process that stays and takes tasks, or a program that runs once for each.

Knows how to ask, and how much was done in how long. Does not know what is compared with what.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from benchmarks.peers import llama_cpp, openvino, vllm_cpu

TASK_TIMEOUT_S = 300
START_TIMEOUT_S = 400

Prompts = Sequence[Sequence[int]]


class Contender(Protocol):
    name: str

    def seconds(self, prompts: Prompts, max_tokens: int, *, num_shared: int = 0) -> float:
        """Of generating exactly `max_tokens` greedy tokens after each prompt, all of them asked for at once.

        `num_shared`: so many tokens begin every prompt.
        """
        ...


class Driver:
    """A process of a peer's own environment, its model loaded, that takes one task after another. Between them it is stopped
    with all that it has started: some wait by looking again and again, which would slow whoever has the turn."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  (as long as the process)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._next(START_TIMEOUT_S)
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._signal(signal.SIGKILL)  # what it has started and left
        self._log.close()

    def seconds(self, prompts: Prompts, max_tokens: int, *, num_shared: int = 0) -> float:
        del num_shared  # it finds that out by itself
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        task = {"prompts": [list(prompt) for prompt in prompts], "max_tokens": max_tokens}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer = self._next(TASK_TIMEOUT_S)
        self._signal(signal.SIGSTOP)
        expected = len(prompts) * max_tokens
        assert answer["num_tokens"] == expected, f"{self.name} made {answer['num_tokens']} tokens, not {expected}"
        return float(answer["seconds"])

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _next(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise RuntimeError(f"{self.name} said nothing for {timeout_s:g} s") from None
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"{self.name} ended with {status}: {self._log.read()[-400:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(line)
        self._answers.put("")


class LlamaBatched:
    """llama-batched-bench, once for each task. It takes no prompts: its own are as long."""

    def __init__(self, name: str, model: Path) -> None:
        self.name = name
        self._model = model

    def __enter__(self) -> Self:
        llama_cpp.program("llama-batched-bench")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def seconds(self, prompts: Prompts, max_tokens: int, *, num_shared: int = 0) -> float:
        """Where a beginning is shared, the whole prompt is, which is a little less to do."""
        figures = llama_cpp.batched(
            self._model, prompt=len(prompts[0]), output=max_tokens, sequences=len(prompts), shared=num_shared > 0
        )
        return figures["t_pp"] if max_tokens == 1 else figures["t"]


def headrace(model: Path, label: str = "") -> Driver:
    return Driver(f"headrace {label}".strip(), [sys.executable, "-m", "benchmarks.peers.headrace_driver", str(model)])


def openvino_genai(model: Path, label: str = "") -> Driver:
    return Driver(f"OpenVINO GenAI {label}".strip(), openvino.driver_command(model))


def vllm(model: Path) -> Driver:
    return Driver("vLLM CPU BF16", vllm_cpu.driver_command(model), vllm_cpu.environment())

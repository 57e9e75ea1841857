"""Peers that speak HTTP: started on a free port, asked by `headrace bench` or by hand, and ended.

Knows when a server is up and what it holds in memory. Does not know what is compared with what.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import llama_cpp, vllm_cpu
from benchmarks.peers.load import resident_bytes
from benchmarks.served import await_first_token, first_model, free_port, is_healthy

START_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class ServerKind:
    name: str
    command: Callable[[int], Sequence[str]]
    """By port."""
    environment: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int
    began: float

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def first_token(self, prompt: Sequence[int]) -> float:
        """When the first piece of a stream arrives, in seconds since the process was started."""
        await_first_token(self.url, {"prompt": list(prompt), "model": first_model(self.url)})
        return time.monotonic() - self.began

    def bench(self, *words: str, timeout_s: float) -> dict[str, Any]:
        """The result file of one run of `headrace bench` against it."""
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable, "-m", "headrace.cli.main", "bench", "--base-url", self.url, "--no-live",
                "--temperature", "0", "--save-result", "--result-dir", folder, "--result-filename", "result.json", *words,
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
            result = Path(folder) / "result.json"
            if not result.exists():
                raise RuntimeError(f"headrace bench ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
            document: dict[str, Any] = json.loads(result.read_text())
            return document


@contextlib.contextmanager
def running(kind: ServerKind) -> Iterator[Server]:
    """Up when the block begins."""
    port = free_port()
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            list(kind.command(port)), stdout=log, stderr=subprocess.STDOUT, env=kind.environment, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            while not is_healthy(url):
                if process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                    log.seek(0)
                    raise RuntimeError(f"{kind.name} is not up: {log.read()[-600:].decode(errors='replace')}")
                time.sleep(0.005)
            yield Server(url, process.pid, began)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own, which we started
                process.wait()


def headrace(model: Path, *, max_num_seqs: int, max_model_len: int, label: str = "") -> ServerKind:
    def command(port: int) -> list[str]:
        # As much KV as llama-server is given.
        return [
            sys.executable, "-m", "headrace.cli.main", "serve", str(model), "--port", str(port), "--no-access-log",
            "--max-num-seqs", str(max_num_seqs), "--max-model-len", str(max_model_len),
            "--kv-cache-memory", str(kv_bytes(max_num_seqs * max_model_len)),
        ]  # fmt: skip

    return ServerKind(f"headrace {label}".strip(), command)


_KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2
"""SmolLM2-135M in 16 bits: layers, keys and values, KV heads, their size, bytes of a number."""


def kv_bytes(num_tokens: int) -> int:
    return num_tokens * _KV_BYTES_PER_TOKEN


def llama_server(model: Path, *, max_num_seqs: int, max_model_len: int, label: str = "") -> ServerKind:
    def command(port: int) -> Sequence[str]:
        return llama_cpp.server_command(model, port=port, max_num_seqs=max_num_seqs, max_model_len=max_model_len)

    return ServerKind(f"llama.cpp {label}".strip(), command, llama_cpp.environment())


def vllm_server(model: Path, *, max_num_seqs: int, max_model_len: int) -> ServerKind:
    def command(port: int) -> Sequence[str]:
        return vllm_cpu.server_command(model, port=port, max_num_seqs=max_num_seqs, max_model_len=max_model_len)

    return ServerKind("vLLM CPU BF16", command, vllm_cpu.environment())

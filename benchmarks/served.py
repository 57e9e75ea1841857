"""A real server for a benchmark: `headrace serve` as a child process on a free port of this machine; and how any server is
asked while it starts.

What asks then takes no more of the machine than it must: a new client of httpx reads certificates, which keeps a core busy
for tens of milliseconds, and asking so every few milliseconds would take one of two cores from the start that is measured.
And it starts servers as users do, whose Python keeps what it has compiled: without that each start would compile all its
modules, twice.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from benchmarks.kernels_build import named_build

MODEL = "smollm2-135m"

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]

    def metric(self, name: str) -> float:
        """The sum over labels of one metric's samples."""
        text = httpx.get(f"{self.url}/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, flags=re.MULTILINE)
        assert values, f"{name} is not among the metrics"
        return sum(map(float, values))

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of the HTTP process and of the engine process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        pids = {"http": self.process.pid, "engine": int(children[0])}
        return {name: _resident_bytes(pid) for name, pid in pids.items()}


@contextlib.contextmanager
def serve(*options: str) -> Iterator[Served]:
    assert not named_build(), (
        "a server loads the package's own kernels: install the build to be measured, or unset HEADRACE_KERNELS"
    )
    port = free_port()
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "serve", MODEL, "--port", str(port), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        while not is_healthy(url):
            assert process.poll() is None, f"the server ended with status {process.returncode}"
            assert time.monotonic() - began < 120, "the server does not become healthy"
            time.sleep(0.01)
        yield Served(url, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_healthy(url: str) -> bool:
    with contextlib.closing(_connection(url)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def first_model(url: str) -> str:
    with contextlib.closing(_connection(url)) as connection:
        connection.request("GET", "/v1/models")
        return str(json.load(connection.getresponse())["data"][0]["id"])


def await_first_token(url: str, body: dict[str, object]) -> None:
    """Returns when the first piece of a completion has come; what comes after it is not read."""
    with contextlib.closing(_connection(url)) as connection:
        document = json.dumps({**body, "stream": True, "max_tokens": 1, "temperature": 0})
        connection.request("POST", "/v1/completions", document, {"content-type": "application/json"})
        response = connection.getresponse()
        if not any(line.startswith(b"data:") for line in response):
            raise RuntimeError(f"status {response.status}, and no token")


def _connection(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=400)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match is not None
    return int(match.group(1)) * 1024

"""Models from a hub: the real `huggingface_hub` in a process of its own, against a small hub made here.

In a process of its own because that library reads its environment when it is imported.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from tests.patience import PATIENCE_S

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORIES: dict[str, dict[str, bytes]] = {
    "mill/checkpoint": {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"the same weights",
        "original/params.json": b"{}",
        "README.md": b"words",
    },
    "mill/quantised": {"README.md": b"words", "small-q4.gguf": b"GGUF small", "large-q8.gguf": b"GGUF large"},
}


class HubHandler(BaseHTTPRequestHandler):
    """The four questions that a download asks."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        parts = unquote(urlparse(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
            files = REPOSITORIES.get(name)
            if files is None:
                self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
            elif rest[:1] == ["tree"]:
                self._send_json([self._entry(path, content) for path, content in files.items()], with_body)
            elif rest[1:] in ([], ["main"], [COMMIT]):
                siblings = [{"rfilename": path} for path in files]
                self._send_json({"id": name, "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}, with_body)
            else:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
            return
        name, path = "/".join(parts[:2]), "/".join(parts[4:])
        content = REPOSITORIES.get(name, {}).get(path)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
        else:
            self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(content)}"'}, with_body)

    @staticmethod
    def _entry(path: str, content: bytes) -> dict[str, object]:
        return {"type": "file", "path": path, "size": len(content), "oid": _digest(content)}

    def _send_json(self, value: object, with_body: bool) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


class Hub:
    def __init__(self, home: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self._home = home

    def pull(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {
            "HF_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "HF_HOME": str(self._home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "COLUMNS": "400",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-m", "headrace.cli.main", "pull", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def go_away(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path)
    yield hub
    hub.go_away()


def path_of(outcome: subprocess.CompletedProcess[str]) -> Path:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return Path(outcome.stdout.strip().rsplit(" is in ", 1)[1])


def complaint(outcome: subprocess.CompletedProcess[str]) -> str:
    assert outcome.returncode == 3, outcome.stdout + outcome.stderr
    assert "Traceback" not in outcome.stderr
    return outcome.stderr


def test_a_checkpoint_comes_without_the_copies_for_other_programs(hub: Hub) -> None:
    folder = path_of(hub.pull("mill/checkpoint"))
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert found == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_what_was_fetched_once_needs_no_hub(hub: Hub) -> None:
    folder = path_of(hub.pull("mill/checkpoint"))
    hub.go_away()
    assert path_of(hub.pull("mill/checkpoint")) == folder


def test_one_gguf_file_of_several_is_fetched(hub: Hub) -> None:
    path = path_of(hub.pull("mill/quantised:small-q4.gguf"))
    assert path.read_bytes() == b"GGUF small"
    assert not (path.parent / "large-q8.gguf").exists()


def test_a_gguf_file_that_is_not_there_is_named_with_those_that_are(hub: Hub) -> None:
    said = complaint(hub.pull("mill/quantised:small-q5.gguf"))
    assert "did you mean 'small-q4.gguf'?" in said
    assert "large-q8.gguf, small-q4.gguf" in said


def test_a_repository_of_gguf_files_says_how_to_name_one(hub: Hub) -> None:
    assert "mill/quantised:large-q8.gguf" in complaint(hub.pull("mill/quantised"))


def test_a_repository_that_does_not_exist_is_named(hub: Hub) -> None:
    assert "the hub has no mill/nothing" in complaint(hub.pull("mill/nothing"))


def test_a_revision_that_does_not_exist_is_named(hub: Hub) -> None:
    assert "no revision 'old'" in complaint(hub.pull("mill/checkpoint", "--revision", "old"))


def test_a_hub_that_cannot_be_reached_is_said_plainly(hub: Hub) -> None:
    hub.go_away()
    said = complaint(hub.pull("mill/checkpoint"))
    assert "cannot fetch mill/checkpoint" in said
    assert "HF_ENDPOINT" in said

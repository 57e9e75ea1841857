"""How a server starts, is told to stop, and loses its engine: in every case soon, in words, and with nothing left behind."""

import contextlib
import os
import random
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.e2e.real_server import ENGINE_STARTS, SMALL, RealServer, is_alive
from tests.patience import PATIENCE_S, eventually

from headrace.cli.main import main

MODEL = "smollm2-135m"

pytestmark = pytest.mark.usefixtures("smollm2_path")


class OpenStream(threading.Thread):
    """A long answer being read, and how it ended."""

    def __init__(self, server: RealServer, max_tokens: int = 1500) -> None:
        super().__init__(daemon=True)
        self._client = server.client()
        self._max_tokens = max_tokens
        self.has_begun = threading.Event()
        self.num_chunks = 0
        self.finish_reason: str | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        asked: Any = {"model": MODEL, "prompt": "Water", "max_tokens": self._max_tokens, "extra_body": {"ignore_eos": True}}
        try:
            for chunk in self._client.completions.create(**asked, stream=True):
                self.num_chunks += 1
                self.has_begun.set()
                if chunk.choices:
                    self.finish_reason = chunk.choices[0].finish_reason or self.finish_reason
        except (openai.APIError, httpx.HTTPError) as error:
            self.error = error
        finally:
            self.has_begun.set()


def begin_streams(server: RealServer, count: int, max_tokens: int = 1500) -> list[OpenStream]:
    streams = [OpenStream(server, max_tokens) for _ in range(count)]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.has_begun.wait(PATIENCE_S)
        assert stream.error is None
    return streams


def end_of(stream: OpenStream) -> OpenStream:
    stream.join(PATIENCE_S)
    assert not stream.is_alive(), "the stream hangs"
    return stream


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# The engine dies


def test_when_the_engine_dies_streams_end_with_an_error_and_the_server_exits() -> None:
    server = RealServer(*SMALL)
    with pytest.raises(AssertionError, match="never wrote"), server:  # noqa: PT012 (the server is expected to end by itself)
        streams = begin_streams(server, 3)
        os.kill(server.engine_pid, signal.SIGKILL)
        for stream in streams:
            assert "SIGKILL" in str(end_of(stream).error)
        assert server.health() == 503
        server.wait_for_line(re.compile("nothing writes this"))
    assert server.wait() == 4
    assert "the engine process ended by SIGKILL" in server.output


def test_told_to_restart_the_server_answers_again() -> None:
    with RealServer(*SMALL, "--on-engine-death", "restart") as server:
        (stream,) = begin_streams(server, 1)
        first = server.engine_pid
        os.kill(first, signal.SIGKILL)
        assert end_of(stream).error is not None
        with stopped(int(server.wait_for_line(ENGINE_STARTS)[1])):  # so that it is down for as long as the test looks
            assert server.health() == 503
            with pytest.raises(openai.InternalServerError) as caught:
                server.client().completions.create(model=MODEL, prompt="x", max_tokens=1)
            assert caught.value.status_code == 503
        eventually(lambda: server.health() == 200, "the engine is back")
        assert server.engine_pid != first
        assert server.client().completions.create(model=MODEL, prompt="x", max_tokens=2, temperature=0).choices[0].text
        eventually(server.is_at_rest, "all blocks are free")


def test_when_the_server_is_killed_its_engine_goes_too() -> None:
    with RealServer(*SMALL) as server:
        engine_pid = server.engine_pid
        begin_streams(server, 1)
        server.process.kill()
        eventually(lambda: not is_alive(engine_pid), "the engine is gone")


# The server is told to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_answers_finish(number: signal.Signals) -> None:
    with RealServer(*SMALL, "--drain-timeout-s", "100") as server:
        (stream,) = begin_streams(server, 1, max_tokens=100)
        server.signal(number)
        assert end_of(stream).error is None
        assert stream.finish_reason == "length"
        assert server.wait() == 0
        assert not is_alive(server.engine_pid)


def test_answers_that_outlast_the_drain_end_with_an_error() -> None:
    with RealServer(*SMALL, "--drain-timeout-s", "0.2") as server:
        (stream,) = begin_streams(server, 1)
        server.signal(signal.SIGTERM)
        assert end_of(stream).error is not None
        assert server.wait() == 0


def test_a_second_signal_ends_it_at_once() -> None:
    with RealServer(*SMALL, "--drain-timeout-s", "100") as server:
        (stream,) = begin_streams(server, 1)
        server.signal(signal.SIGINT)
        eventually(lambda: _refuses_connections(server), "it takes no more connections")
        server.signal(signal.SIGINT)
        assert server.wait() == 130
        assert end_of(stream).error is not None
        eventually(lambda: not is_alive(server.engine_pid), "the engine is gone")


def _refuses_connections(server: RealServer) -> bool:
    try:
        httpx.get(f"{server.url}/health", timeout=PATIENCE_S)
    except httpx.TransportError:
        return True
    return False


def test_a_signal_while_it_starts_ends_it() -> None:
    server = RealServer(*SMALL)
    server.wait_for_line(ENGINE_STARTS)
    server.signal(signal.SIGINT)
    assert server.wait() == 130
    assert "Traceback" not in server.output
    assert not is_alive(server.engine_pid)


# It loads


@pytest.fixture
def free_port() -> int:
    """Below those that systems give to whoever asks for any, so that nobody gets it before the server does."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as other, contextlib.suppress(OSError):
            other.bind(("127.0.0.1", port))
            return port
    pytest.fail("a hundred ports, and none is free")


def test_who_asks_while_the_model_loads_is_told_so_and_nobody_else_gets_the_port(free_port: int) -> None:
    server = RealServer(*SMALL, "--port", str(free_port))
    server.url = f"http://127.0.0.1:{free_port}"
    with stopped(int(server.wait_for_line(ENGINE_STARTS)[1])):  # so that it loads as long as the test takes
        with pytest.raises(openai.InternalServerError, match="still loading") as caught:
            server.client().models.list()
        assert caught.value.code == "loading"
        assert server.health() == 503
        status, output = ended("--port", str(free_port))
        assert (status, "is taken by another program" in output) == (2, True)
    with server:
        assert server.health() == 200
        assert server.client(max_retries=2).completions.create(model=MODEL, prompt="x", max_tokens=2).choices[0].text


# It cannot start


def ended(*words: str, model: str = MODEL) -> tuple[int, str]:
    server = RealServer(*words, model=model)
    status = server.wait()
    assert "Traceback" not in server.output
    return status, server.output


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(taken_port: int) -> None:
    status, output = ended("--port", str(taken_port))
    assert status == 2
    assert f"port {taken_port} on 127.0.0.1 is taken" in output
    assert "starting" not in output


def test_a_kv_cache_too_small_is_refused_and_what_is_proposed_works() -> None:
    tight = ("--kv-cache-memory", "8MiB", "--threads", "1")
    status, output = ended(*tight)
    assert status == 2
    proposal = re.search(r"--max-model-len \d+ fits", output)
    assert proposal is not None, output
    with RealServer(*tight, *proposal[0].split()[:2]) as server:
        assert server.client().completions.create(model=MODEL, prompt="x", max_tokens=2).choices[0].text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--record-steps", "/nowhere/steps"),
            "record_steps: '/nowhere/steps' cannot be written: there is no folder /nowhere",
        ),
        (("--record-steps", "/tmp"), "record_steps: '/tmp' is a folder: name a file in it"),
        (("--chat-template", "/nowhere/x.jinja"), "chat_template: '/nowhere/x.jinja' cannot be read: No such file"),
        (("--hang-timeout-s", "-1"), "hang_timeout_s must be above 0, not -1"),
    ],
)
def test_what_cannot_be_had_or_done_is_named_before_anything_is_loaded(words: tuple[str, str], told: str) -> None:
    status, output = ended(*words)
    assert status == 2
    assert told in output
    assert "starting" not in output


def test_options_that_contradict_each_other_are_refused_before_anything_is_loaded() -> None:
    status, output = ended("--max-num-seqs", "64", "--max-num-batched-tokens", "32")
    assert status == 2
    assert "max_num_seqs (64) exceeds max_num_batched_tokens (32)" in output
    assert "starting" not in output


def test_a_damaged_model_is_refused(tmp_path: Path, smollm2_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    with smollm2_path.open("rb") as file:
        damaged.write_bytes(file.read(5_000_000))
    status, output = ended(model=str(damaged))
    assert status == 3
    assert "damaged.gguf" in output


def test_a_damaged_chat_template_ends_the_start_and_leaves_no_engine(tmp_path: Path) -> None:
    template = tmp_path / "damaged.jinja"
    template.write_text("{% if messages")
    status, output = ended("--chat-template", str(template), *SMALL)
    assert status == 3
    assert "damaged.jinja: the chat template is damaged: line 1" in " ".join(output.split())
    engine = re.search(r"pid (\d+)", output)
    assert engine is not None
    assert not is_alive(int(engine[1]))


# What it is told


def test_a_configuration_file_and_an_api_key_are_obeyed(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(
        'served_model_name = ["mill", "wheel"]\nmax_model_len = 512\nkv_cache_memory = "64MiB"\nmax_num_seqs = 4\n'
        'scheduling_policy = "priority"\nthreads = 1\n'
    )
    with RealServer("--config", str(config), environment={"HEADRACE_API_KEY": "secret"}) as server:
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        client = server.client(api_key="secret")
        assert [model.id for model in client.models.list()] == ["mill", "wheel"]
        asked: Any = {"model": "wheel", "prompt": "x", "max_tokens": 2, "extra_body": {"priority": -1}}
        assert client.completions.create(**asked).choices[0].text
        assert "secret" not in server.output


def test_what_the_engine_decided_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = tmp_path / "steps"
    with RealServer(*SMALL, "--record-steps", str(recording), "--drain-timeout-s", "0.2") as server:
        client = server.client()
        for n in (1, 3):
            client.completions.create(model=MODEL, prompt="Water " * 100, max_tokens=20, n=n, seed=1)
        client.completions.create(model=MODEL, prompt="Water", max_tokens=50, n=2, seed=2, stop=["e", "a"])
        begin_streams(server, 2)
    assert main(["simulate", "--replay", str(recording)]) == 0
    assert "every plan is equal, byte for byte" in capsys.readouterr().out

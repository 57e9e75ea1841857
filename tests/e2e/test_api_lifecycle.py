"""Real sockets: clients that hang up, servers that drain, ports that are taken."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.e2e.live_server import LiveServer
from tests.fakes import FakeEngine, fixed_answer
from tests.patience import PATIENCE_S, eventually

from headrace.base.errors import ConfigurationError
from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app, serve_http
from headrace.server.config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000, "ignore_eos": True} | fields


def held(after: int) -> FakeEngine:
    engine = FakeEngine()
    engine.hold_after = after
    return engine


def server_load(server: LiveServer) -> int:
    load: int = httpx.get(f"{server.url}/load", timeout=PATIENCE_S).json()["server_load"]
    return load


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_aborts_at_once(stream: bool) -> None:
    with LiveServer(held(after=3)) as server:
        port = int(server.url.rsplit(":", 1)[1])
        body = httpx.Request("POST", server.url, json=chat_body(stream=stream)).content
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            eventually(lambda: server.engine.num_live == 1, "the engine works for the client")
        eventually(lambda: server.engine.num_live == 0, "the request is aborted")
        assert server.engine.aborted == [server.engine.requests[0].request_id]
        eventually(lambda: server_load(server) == 0, "the server forgets it")


def test_a_client_that_stops_reading_a_stream_early_aborts_it() -> None:
    with LiveServer(held(after=3)) as server:
        stream = server.client().chat.completions.create(
            model="fake-model", messages=[{"role": "user", "content": "x"}], stream=True
        )
        next(iter(stream))
        stream.close()
        eventually(lambda: len(server.engine.aborted) == 1, "the request is aborted")


def test_many_clients_that_hang_up_leave_nothing_behind() -> None:
    engine = FakeEngine()
    engine.step_s = 0.002

    async def one(client: httpx.AsyncClient, url: str, number: int) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            body = chat_body(stream=number % 2 == 0, n=1 + number % 3)
            await client.post(f"{url}/v1/chat/completions", json=body, timeout=0.02 + 0.003 * (number % 20))

    async def story(url: str) -> None:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=200), timeout=PATIENCE_S) as client:
            await asyncio.gather(*(one(client, url, number) for number in range(150)))

    with LiveServer(engine) as server:
        asyncio.run(story(server.url))
        eventually(lambda: engine.num_live == 0, "all requests are aborted")
        eventually(
            lambda: server_load(server) == 0,
            "the server forgets them",
        )
        assert httpx.get(f"{server.url}/health", timeout=PATIENCE_S).status_code == 200


def test_a_connection_is_used_again_after_every_kind_of_answer() -> None:
    with LiveServer() as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        for body in (chat_body(max_tokens=2), chat_body(max_tokens=0), chat_body(max_tokens=2, stream=True)):
            response = client.post("/v1/chat/completions", json=body)
            assert response.headers.get("connection") != "close"
        assert client.get("/nowhere").status_code == 404


def test_a_client_of_http_1_0_gets_a_stream_whole_as_it_could_not_take_chunks_apart() -> None:
    with LiveServer(FakeEngine(fixed_answer("Water."))) as server:
        body = json.dumps({"prompt": "hello", "max_tokens": 20, "stream": True}).encode()
        address = urlsplit(server.url)
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=PATIENCE_S) as sock:
            head = f"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
    headers, _, events = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert f"content-length: {len(events)}".encode() in headers
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


def test_too_large_a_body_is_refused_while_it_is_still_being_sent() -> None:
    with LiveServer(config=ServerConfig(max_body_bytes=100_000, access_log=False)) as server:
        url = f"{server.url}/v1/completions"
        assert httpx.post(url, json={"prompt": "x" * 5_000_000}, timeout=PATIENCE_S).status_code == 413
        pieces = (b"x" * 10_000 for _ in range(100))
        response = httpx.post(url, content=pieces, headers={"content-type": "application/json"}, timeout=PATIENCE_S)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


# Draining


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_a_draining_server_finishes_open_streams_and_takes_no_new_ones() -> None:
    engine = FakeEngine()
    engine.step_s = 0.01
    with LiveServer(engine, drain_timeout_s=PATIENCE_S) as server:
        url = f"{server.url}/v1/chat/completions"
        thread, results = in_thread(lambda: httpx.post(url, json=chat_body(stream=True, max_tokens=60), timeout=PATIENCE_S))
        eventually(lambda: engine.num_live == 1, "the stream has begun")
        server.begin_to_stop()

        def refused() -> bool:
            try:
                httpx.get(f"{server.url}/health", timeout=PATIENCE_S)
            except httpx.TransportError:
                return True
            return False

        eventually(refused, "new connections are refused")
        thread.join(PATIENCE_S)
        server.wait_until_stopped()
    assert results[0].text.endswith("data: [DONE]\n\n")
    assert engine.aborted == []


@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_finish_in_time_is_ended_with_an_error(stream: bool) -> None:
    with LiveServer(held(after=3), drain_timeout_s=0.05) as server:
        url = f"{server.url}/v1/chat/completions"
        thread, results = in_thread(lambda: httpx.post(url, json=chat_body(stream=stream), timeout=PATIENCE_S))
        eventually(lambda: server.engine.num_live == 1, "the engine works for the client")
        server.begin_to_stop()
        server.wait_until_stopped()
        thread.join(PATIENCE_S)
    assert results[0].status_code == (200 if stream else 503)
    assert "the server shut down" in results[0].text
    assert len(server.engine.aborted) == 1


def test_a_server_with_idle_connections_ends_at_once() -> None:
    with LiveServer(drain_timeout_s=PATIENCE_S) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        assert client.get("/health").status_code == 200
        server.begin_to_stop()
        server.wait_until_stopped()


SERVE_AND_WAIT = """
import asyncio
from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app, serve_http
from headrace.server.signals import stop_on_signals
from headrace.server.config import ServerConfig
from tests.fakes import FakeChatTemplate, FakeEngine

async def main():
    metrics = ServingMetrics(model_name="m", max_model_len=100)
    app = create_app(FakeEngine(), ServerConfig(), metrics, chat_template=FakeChatTemplate())
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await serve_http(app, host="127.0.0.1", port=0, drain_timeout_s=5,
                         on_started=lambda url: print(url, flush=True), stop=stop)
    print("ended", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_in_good_order(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVE_AND_WAIT], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert output == "ended\n"
        assert process.returncode == 0
    finally:
        process.kill()


# Binding


def serve(host: str, port: int) -> None:
    app = create_app(FakeEngine(), ServerConfig(), ServingMetrics(model_name="m", max_model_len=10))

    async def story() -> None:
        stop = asyncio.Event()
        await serve_http(app, host=host, port=port, drain_timeout_s=1, on_started=lambda url: stop.set(), stop=stop)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_a_taken_port_is_told_with_the_option_that_helps() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} on 127\.0\.0\.1 is taken.*--port"):
            serve("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 8000), ("127.0.0.1", 70000), ("192.0.2.1", 8000)])
def test_an_address_that_cannot_be_had_is_told_with_the_options(host: str, port: int) -> None:
    with pytest.raises(ConfigurationError, match="--host and --port"):
        serve(host, port)


def test_a_server_on_all_addresses_names_one_that_a_browser_can_open() -> None:
    urls: list[str] = []
    app = create_app(FakeEngine(), ServerConfig(), ServingMetrics(model_name="m", max_model_len=10))

    async def story() -> None:
        stop = asyncio.Event()

        def started(url: str) -> None:
            urls.append(url)
            stop.set()

        await serve_http(app, host="0.0.0.0", port=0, drain_timeout_s=1, on_started=started, stop=stop)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert urls[0].startswith("http://127.0.0.1:")

"""A server whose delays are known: it does what its script says, and tells at the end when it really did it.

    python -m tests.known_delays '{"num_tokens": 8, "first_ms": 40, "gap_ms": 20}'

Prints its address. When its standard input closes, prints what it did as JSON and ends. A process of its own, so that a
client's processor time is the client's; its clock is the client's, so that moments can be compared. It speaks enough of
HTTP and of OpenAI's completions and Anthropic's messages for that, and knows no model.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

import httptools
import msgspec
import uvloop

CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"known",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)

ANTHROPIC_CHUNK = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}\n\n'
)
ANTHROPIC_END = (
    b"event: message_delta\n"
    b'data: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"input_tokens":10,"output_tokens":%d}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


class Script(msgspec.Struct, kw_only=True):
    """What every request meets. A stall, a drop and a refusal meet every n-th request by the order of arrival, where n is
    set."""

    num_tokens: int = 8
    accept_ms: float = 0.0
    """Between the request and the answer's header."""
    first_ms: float = 0.0
    """Between the header and the first token."""
    gap_ms: float = 0.0
    tokens_per_chunk: int = 1
    stall_every: int = 0
    stall_ms: float = 0.0
    """Before the fourth chunk."""
    drop_every: int = 0
    """The connection closes after the second chunk."""
    refuse_every: int = 0
    """The answer is a 503."""
    freeze_at_ms: float = 0.0
    """After the first request the whole server stops …"""
    freeze_ms: float = 0.0
    """… for so long; 0 is never."""


class Done(msgspec.Struct, kw_only=True):
    """What was done for one request: moments of the monotonic clock in nanoseconds."""

    received: int
    header: int = 0
    chunks: list[int] = []
    end: int = 0
    kind: str = ""


class Truth(msgspec.Struct):
    requests: dict[str, Done] = {}


@dataclass(slots=True)
class _Server:
    script: Script
    truth: Truth = field(default_factory=Truth)
    num_requests: int = 0

    def arrived(self) -> str:
        """What this request meets beside the usual."""
        script = self.script
        number = self.num_requests = self.num_requests + 1
        if number == 1 and script.freeze_ms:
            asyncio.get_running_loop().call_later(script.freeze_at_ms / 1000, time.sleep, script.freeze_ms / 1000)
        for kind, every in (("refuse", script.refuse_every), ("drop", script.drop_every), ("stall", script.stall_every)):
            if every and number % every == 0:
                return kind
        return ""


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._request_id = ""
        self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request_id = value.decode()

    def on_message_complete(self) -> None:
        if self._url == b"/done":
            num_done = sum(done.end > 0 for done in self._server.truth.requests.values())
            body = b"%d" % num_done
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            return
        if self._url not in (b"/v1/completions", b"/v1/messages"):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        kind = self._server.arrived()
        self._done = Done(received=time.monotonic_ns(), kind=kind)
        self._server.truth.requests[self._request_id] = self._done
        self._after(self._server.script.accept_ms, self._begin)

    def _after(self, delay_ms: float, act: Any) -> None:
        if delay_ms:
            asyncio.get_running_loop().call_later(delay_ms / 1000, act)
        else:
            act()

    def _begin(self) -> None:
        self._done.header = time.monotonic_ns()
        if self._done.kind == "refuse":
            body = b'{"error":{"message":"too busy"}}'
            self._transport.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n")
            self._transport.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            self._done.end = time.monotonic_ns()
            return
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._after(self._server.script.first_ms, self._send_chunk)

    def _send_chunk(self) -> None:
        if self._transport.is_closing():
            return
        script, done = self._server.script, self._done
        done.chunks.append(time.monotonic_ns())
        self._write(ANTHROPIC_CHUNK if self._url == b"/v1/messages" else CHUNK)
        if done.kind == "drop" and len(done.chunks) == 2:
            done.end = time.monotonic_ns()
            self._transport.close()
        elif len(done.chunks) * script.tokens_per_chunk >= script.num_tokens:
            self._end()
        else:
            is_stalled = done.kind == "stall" and len(done.chunks) == 3
            self._after(script.stall_ms if is_stalled else script.gap_ms, self._send_chunk)

    def _end(self) -> None:
        usage = {"prompt_tokens": 10, "completion_tokens": self._server.script.num_tokens}
        last = json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage})
        ending = b"data: %s\n\ndata: [DONE]\n\n" % last.encode()
        self._done.end = time.monotonic_ns()
        self._write(ANTHROPIC_END % self._server.script.num_tokens if self._url == b"/v1/messages" else ending)
        self._transport.write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%s\r\n" % (len(data), data))


class KnownServer:
    """`with KnownServer(Script(…)) as server: …` and then `server.truth`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.url = ""
        self.truth = Truth()

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.known_delays", msgspec.json.encode(self._script).decode()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        assert self.url, "the server did not start"
        return self

    def num_done(self) -> int:
        """Answers that have ended until now, well or badly."""
        with urllib.request.urlopen(f"{self.url}/done") as answer:
            return int(answer.read())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        output, _ = self._process.communicate()
        self.truth = msgspec.json.decode(output, type=Truth)


async def _serve(script: Script) -> None:
    loop = asyncio.get_running_loop()
    server = _Server(script)
    listener = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    closed = asyncio.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    await closed.wait()
    sys.stdout.buffer.write(msgspec.json.encode(server.truth))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(msgspec.json.decode(sys.argv[1], type=Script)))

"""HTTP/1.1 for one purpose: streams whose bytes are dated when they come, at little cost each.

Connections are kept and reused. No task is made for a request: the event loop calls the protocol, which calls the exchange.
Knows sockets and headers; does not know when requests are due nor what is made of their moments.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools
import msgspec

from headrace.base.clock import Clock, Nanos
from headrace.base.errors import ConfigurationError
from headrace.measure.bench.formats import DONE, TOKENS, AnswerReader
from headrace.measure.bench.sse import EventScanner

_MOST_ERROR_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server listens."""

    host: str
    port: int
    is_encrypted: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Without a scheme it is http. Raises ConfigurationError where it is no address of a server."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{url!r} is no address of a server; write for example http://127.0.0.1:8000")
        is_encrypted = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_encrypted else 80), is_encrypted, parts.path.rstrip("/"))

    def url(self, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_encrypted else ''}://{host}:{self.port}{self.prefix}{path}"


class Exchange:
    """One request and its answer, from the send to the last byte or the failure."""

    __slots__ = (
        "_body", "_is_done", "_is_stream", "_scanner", "connection", "error", "error_detail", "finished_ns",
        "first_chunk_ns", "gaps_ns", "headers_ns", "last_chunk_ns", "num_attempts", "on_finished", "reader", "sent_ns",
        "status", "wire",
    )  # fmt: skip

    def __init__(self, wire: bytes, reader: AnswerReader, on_finished: "Callable[[Exchange], None]") -> None:
        self.wire = wire
        self.reader = reader
        self.on_finished = on_finished
        self.connection: _Connection | None = None
        self.num_attempts = 0
        self.status = 0
        self.sent_ns: Nanos | None = None
        self.headers_ns: Nanos | None = None
        self.first_chunk_ns: Nanos | None = None
        self.last_chunk_ns: Nanos | None = None
        self.finished_ns: Nanos | None = None
        self.gaps_ns: list[Nanos] = []
        self.error = ""
        self.error_detail = ""
        self._scanner = EventScanner()
        self._is_stream = False
        self._is_done = False
        self._body = b""

    def begin_answer(self, status: int, content_type: bytes, now: Nanos) -> None:
        self.status = status
        self.headers_ns = now
        self._is_stream = status == 200 and content_type.startswith(b"text/event-stream")

    def receive(self, data: bytes, now: Nanos) -> None:
        if not self._is_stream:
            self._body = (self._body + data)[:_MOST_ERROR_BYTES]
            return
        read = self.reader.read
        for event in self._scanner.feed(data):
            try:
                found = read(event)
            except msgspec.DecodeError as error:
                self.fail("malformed", f"{error}: {event[:200]!r}", now)
                return
            if found & TOKENS:
                if self.last_chunk_ns is None:
                    self.first_chunk_ns = now
                else:
                    self.gaps_ns.append(Nanos(now - self.last_chunk_ns))
                self.last_chunk_ns = now
            if found & DONE:
                self._is_done = True

    def end_answer(self, now: Nanos) -> None:
        """The server says that the answer is whole. Whether it is, is another question."""
        if self.status != 200:
            self.fail(f"http {self.status}", self._body.decode(errors="replace"), now)
        elif not self._is_stream:
            self.fail("not streamed", self._body.decode(errors="replace"), now)
        elif self.reader.error:
            self.fail("error event", self.reader.error, now)
        elif not self._is_done:
            self.fail("incomplete", "the answer ended without its last event", now)
        else:
            self._finish(now)

    def lose_connection(self, now: Nanos) -> None:
        """The end of the connection is the end of an answer that has said that it is done."""
        if self._is_done:
            self.end_answer(now)
        else:
            self.fail("dropped", "the connection closed before the answer was whole", now)

    def fail(self, kind: str, detail: str, now: Nanos) -> None:
        if self.finished_ns is None:
            self.error, self.error_detail = kind, detail
            self._finish(now)

    def _finish(self, now: Nanos) -> None:
        if self.finished_ns is None:
            self.finished_ns = now
            self.on_finished(self)


class _Connection(asyncio.Protocol):
    """One connection: at most one exchange at a time."""

    def __init__(self, pool: "HttpClient", clock: Clock) -> None:
        self._pool = pool
        self._now = clock.now
        self._received_at = Nanos(0)
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.is_open = False
        self._is_used = False
        self._content_type = b""
        self._parser = httptools.HttpResponseParser(self)

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's transports are asyncio's by shape, not by class
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        now = self._now()
        self._received_at = now
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            if self.exchange is not None:
                self.exchange.fail("malformed", f"the answer is not HTTP: {error}", now)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._pool.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is None or exchange.finished_ns is not None:
            return
        if self._is_used and exchange.headers_ns is None and exchange.num_attempts < 2:
            self._pool.send(exchange)  # the server had closed an idle connection: nobody has read the request
        else:
            exchange.lose_connection(self._now())

    # httptools calls these

    def on_message_begin(self) -> None:
        self._content_type = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 12 and name.lower() == b"content-type":
            self._content_type = value

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.begin_answer(self._parser.get_status_code(), self._content_type, self._received_at)

    def on_body(self, body: bytes) -> None:
        if self.exchange is not None:
            self.exchange.receive(body, self._received_at)

    def on_message_complete(self) -> None:
        exchange, self.exchange = self.exchange, None
        if self._parser.should_keep_alive() and self.is_open:
            self._is_used = True
            self._pool.give_back(self)
        else:
            self.close()
        if exchange is not None:
            exchange.end_answer(self._received_at)

    def start(self, exchange: Exchange) -> None:
        assert self.transport is not None
        self.exchange = exchange
        exchange.connection = self
        if exchange.sent_ns is None:
            exchange.sent_ns = self._now()
        self.transport.write(exchange.wire)

    def close(self) -> None:
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()


class HttpClient:
    """Connections to one server, as many as there are requests at once."""

    def __init__(self, target: Target, clock: Clock, *, headers: Mapping[str, str] | None = None) -> None:
        self._target = target
        self._clock = clock
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context() if target.is_encrypted else None
        self._address = target.host
        self._header_lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())

    async def resolve(self) -> None:
        """Looks the name up once, so that no request pays for it, and keeps the first of its addresses that answers."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._target.host, self._target.port)
        except OSError as error:
            raise ConfigurationError(f"{self._target.host} cannot be found: {error}") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        self._address = addresses[0]
        for address in addresses if len(addresses) > 1 else ():
            with contextlib.suppress(OSError):
                transport, _ = await loop.create_connection(asyncio.Protocol, address, self._target.port)
                transport.abort()
                self._address = address
                return

    def wire(self, path: str, body: bytes, *, request_id: str) -> bytes:
        """The bytes of a request."""
        head = (
            f"POST {self._target.prefix}{path} HTTP/1.1\r\nHost: {self._target.host}:{self._target.port}\r\n"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\nX-Request-Id: {request_id}\r\n"
            f"{self._header_lines}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def send(self, exchange: Exchange) -> None:
        """On an idle connection, or a new one. The wait for a new one is part of what the user waits."""
        exchange.num_attempts += 1
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                connection.start(exchange)
                return
        if exchange.sent_ns is None:
            exchange.sent_ns = self._clock.now()
        task = asyncio.get_running_loop().create_task(self._connect(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: Exchange) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self, self._clock),
                self._address,
                self._target.port,
                ssl=self._tls,
                server_hostname=self._target.host if self._tls is not None else None,
            )
        except OSError as error:
            exchange.fail("connect", str(error), self._clock.now())
            return
        self._open.add(connection)
        if exchange.finished_ns is not None:  # it gave up while the connection was being made
            self.give_back(connection)
        else:
            connection.start(exchange)

    def give_back(self, connection: _Connection) -> None:
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        self._open.discard(connection)

    def abandon(self, exchange: Exchange, kind: str, detail: str) -> None:
        """The user gives up: the connection goes with the request, so that the server hears of it."""
        exchange.fail(kind, detail, self._clock.now())
        if exchange.connection is not None and exchange.connection.exchange is exchange:
            exchange.connection.exchange = None
            exchange.connection.close()

    async def close(self) -> None:
        for task in list(self._connecting):
            task.cancel()
        for connection in list(self._open):
            connection.close()
        await asyncio.sleep(0)

"""An ASGI endpoint that reads a request and answers it, for as long as the client stays.

Here, and only here: a client that goes away ends the work for it at once, streaming or not; anything raised becomes an
error response, or an error event where the stream has begun; a server that must go ends its open answers. Knows ASGI; does
not know what is asked or answered.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from headrace.base.clock import Nanos
from headrace.base.errors import EngineDeadError
from headrace.server.decoding import ClientGone, read_body
from headrace.server.errors import describe, encode_error
from headrace.server.services import Services

_JSON_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # so that nginx passes events on as they come
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request, read."""

    body: bytes
    request_id: str
    """From the client's `X-Request-Id`, or new; the same as in the response's header."""
    arrived: Nanos
    services: Services


class Reply:
    """The response, in one piece or as a stream of events. `in_chunks`: the client knows HTTP/1.1's way to send what has no
    length yet; for others a stream is kept until its end."""

    def __init__(self, send: Send, *, in_chunks: bool = True) -> None:
        self._send = send
        self._kept: list[bytes] | None = None if in_chunks else []
        self._started = False
        self.complete = False
        """Everything is sent: the client may go without anything being lost."""

    async def whole(self, body: bytes, status: int = 200) -> None:
        assert not self._started, "a response is sent once"
        self._started = True
        length = (b"content-length", str(len(body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [*_JSON_HEADERS, length]})
        self.complete = True
        await self._send({"type": "http.response.body", "body": body})

    async def events(self, events: bytes, *, last: bool = False) -> None:
        """Server-sent events, already framed. The status goes out with the first of them, so that whatever fails before
        has a status of its own."""
        headers = _STREAM_HEADERS
        if self._kept is not None:
            self._kept.append(events)
            if not last:
                return
            events = b"".join(self._kept)
            headers = [*headers, (b"content-length", str(len(events)).encode())]
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self.complete = last
        await self._send({"type": "http.response.body", "body": events, "more_body": not last})

    async def fail(self, error: BaseException) -> None:
        """As a response with a status where none has begun, else as the last event of the stream."""
        status, body = describe(error)
        if not self._started:
            await self.whole(encode_error(body), status)
        elif not self.complete:
            await self.events(b"data: " + encode_error(body) + b"\n\n", last=True)


class Door:
    """Answers POST requests with `answer`, which writes to the Reply."""

    def __init__(self, services: Services, answer: Callable[[Call, Reply], Coroutine[Any, Any, None]]) -> None:
        self._services = services
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = self._services.clock.now()
        reply = Reply(send, in_chunks=scope["http_version"] != "1.0")
        try:
            body = await read_body(scope, receive, max_bytes=self._services.config.max_body_bytes)
            call = Call(body=body, request_id=scope["state"]["request_id"], arrived=arrived, services=self._services)
            await self._answer_while_client_stays(call, reply, receive)
        except ClientGone:
            return
        except Exception as error:
            await reply.fail(error)

    async def _answer_while_client_stays(self, call: Call, reply: Reply, receive: Receive) -> None:
        work = asyncio.create_task(self._answer(call, reply))
        client_left = asyncio.create_task(_until_disconnect(receive))
        self._services.in_flight.add(work)
        try:
            await asyncio.wait((work, client_left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not reply.complete:
                return
            await asyncio.wait((work,))
            if work.cancelled():
                raise EngineDeadError("the server shut down before this answer was complete")
            work.result()
        finally:
            await _end(work)
            await _end(client_left)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Task[None]) -> None:
    """Cancels the task and waits until it has cleaned up: only then are its engine requests aborted."""
    if task.done():
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task

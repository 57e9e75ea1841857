"""What a server answers while its model loads: that it does, with a status after which clients ask again.

Knows as much of HTTP as that takes, and imports no server: this is there before one is. Connections that come while nobody
accepts stay in the listener's queue, for whoever serves next.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

_MESSAGE = "the model is still loading: ask again in a moment"
_BODY = f'{{"error":{{"message":"{_MESSAGE}","type":"server_error","param":null,"code":"loading"}}}}'
"""As `errors.encode_error` would write it, without the time to import that."""
_PAGE = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="1"><title>Loading</title><p>{_MESSAGE}.'
_PATIENCE_S = 5.0
"""With a client that does not finish its request, or does not go."""


@contextlib.asynccontextmanager
async def answering_while_loading(listener: socket.socket) -> AsyncIterator[None]:
    """Every request is answered with 503, as long as this lasts. The listener stays open."""
    server = await asyncio.start_server(_answer, sock=listener.dup())
    try:
        yield
    finally:
        server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(head))
            writer.write_eof()
            while await reader.read(65_536):  # closed over what was not read, a connection would lose the answer
                pass
    writer.close()


def _response(head: bytes) -> bytes:
    is_browser = b"text/html" in head
    body = (_PAGE if is_browser else _BODY).encode()
    kind = "text/html; charset=utf-8" if is_browser else "application/json"
    return (
        f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        "retry-after: 1\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
    ).encode() + (b"" if head.startswith(b"HEAD ") else body)

"""What happens to every request before a door sees it: a name, a line in the log, and a look at its key.

Plain ASGI: nothing here buffers a stream or hides a disconnect. Knows headers; not bodies.
"""

import hmac
import logging
import secrets

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.base.clock import Clock
from headrace.base.units import NANOS_PER_MILLI
from headrace.server.errors import error_response
from headrace.server.validation import valid_request_id

OPEN_PATHS = ("/", "/health", "/ping", "/docs", "/openapi.json", "/web/")
"""Served without a key: health checks, and pages that hold nothing secret and ask for the key themselves.
One that ends in a slash stands for all below it."""

_UNLOGGED_PATHS = ("/health", "/ping", "/metrics")
_CLIENT_LEFT = 499
"""nginx's number for a client that went away before it had an answer."""

_logger = logging.getLogger("headrace.access")


class NameRequests:
    """Gives each request an id: the client's own `X-Request-Id` where it sends a usable one. It comes back in the same
    header, and names the request in the log. What nobody else caught becomes an error response here."""

    def __init__(self, app: ASGIApp, clock: Clock, access_log: bool) -> None:
        self._app = app
        self._clock = clock
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0
        arrived = self._clock.now()

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as error:
            if status:
                raise  # too late for a response: the connection will be cut
            await error_response(error)(scope, receive, send_named)
        finally:
            if self._access_log and scope["path"] not in _UNLOGGED_PATHS:
                duration_ms = (self._clock.now() - arrived) / NANOS_PER_MILLI
                _logger.info(
                    "%s %s %d", scope["method"], _raw_path(scope), status or _CLIENT_LEFT,
                    extra={"ms": round(duration_ms, 1), "request_id": request_id},
                )  # fmt: skip


class CheckKey:
    """Lets in who knows the key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]) or self._knows_the_key(scope):
            await self._app(scope, receive, send)
            return
        error = HTTPException(401, "this server needs an API key: send it as `Authorization: Bearer …`")
        await error_response(error, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _knows_the_key(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        # Compared in constant time, so that the time taken tells nothing about how much of a guess was right.
        return hmac.compare_digest(scheme.capitalize() + b" " + key.strip(), self._expected)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/web/")


def _request_id(scope: Scope) -> str:
    given: bytes = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    if valid_request_id(text := given.decode("latin-1")):
        return text
    return secrets.token_hex(12)


def _raw_path(scope: Scope) -> str:
    """As it was sent, still percent-encoded: a path cannot break a line of the log."""
    raw: bytes = scope["raw_path"]
    return raw.decode("latin-1")

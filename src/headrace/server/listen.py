"""Carries the app over sockets: bind first, serve, drain, end. Knows uvicorn; not what is served.

The order at the end: no new connections; open answers may finish for a while; those that have not are ended with an error
that says so; then the loop is given back.
"""

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from headrace.base.errors import ConfigurationError
from headrace.server.services import Services

_KEEP_ALIVE_S = 65
"""Longer than clients and load balancers keep an idle connection (60 s at most, usually), so that they close it, not we:
a request sent at the moment when we close would be lost."""
_GRACE_AFTER_DRAIN_S = 2
"""For the last error events to reach clients that read."""
_BACKLOG = 2048
_MAX_PORT = 65535

_logger = logging.getLogger("headrace.server")


async def serve_http(
    app: Starlette,
    *,
    host: str,
    port: int,
    drain_timeout_s: float,
    on_started: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serves until `stop` is set and everything open has ended. Calls `on_started` with the URL once requests are taken.

    Port 0 takes a free one. Signals are the caller's business: see `stop_on_signals`. Raises ConfigurationError where the
    address cannot be had.
    """
    services = app.state.services
    assert isinstance(services, Services)
    listener = _bind(host, port)
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(drain_timeout_s) + _GRACE_AFTER_DRAIN_S,
            backlog=_BACKLOG,
        ),
        lambda: on_started(_url(host, listener)),
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await _drain(server, serving, services, drain_timeout_s)
        await serving
    finally:
        stopping.cancel()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await serving
        listener.close()


def check_address(host: str, port: int) -> None:
    """Raises ConfigurationError where nobody could listen there now: sooner than after loading a model."""
    _bind(host, port).close()


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, *, on_second: Callable[[], None] | None = None) -> Iterator[None]:
    """While this lasts, Ctrl-C and SIGTERM set `stop`; a second one calls `on_second`, or ends the process as if nobody
    listened."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def remove() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    def first() -> None:
        stop.set()
        remove()
        if on_second is not None:
            for number in signals:
                loop.add_signal_handler(number, on_second)

    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        remove()


class _Server(uvicorn.Server):
    """uvicorn's, except that it says when it serves and leaves signals alone."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _drain(server: uvicorn.Server, serving: asyncio.Task[None], services: Services, drain_timeout_s: float) -> None:
    server.should_exit = True
    if services.in_flight.count:
        _logger.info("finishing %d open requests", services.in_flight.count)
    await asyncio.wait((serving,), timeout=drain_timeout_s)
    if not serving.done() and services.in_flight.count:
        _logger.warning("ending %d requests that did not finish in time", services.in_flight.count)
        services.in_flight.end_all()


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= _MAX_PORT:
        raise ConfigurationError(f"port must be between 0 and {_MAX_PORT}, not {port}; check --host and --port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"cannot listen on {host!r}, port {port}: {error}; check --host and --port") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_why_not_bound(error, host, port)) from None
    return listener


def _why_not_bound(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken by another program: stop that, or choose another port, for example "
            f"--port {port + 1 if port < _MAX_PORT else 8000} (--port 0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this process has: choose one above 1023 with --port"
    return f"cannot listen on {host}, port {port}: {error.strerror}; check --host and --port"


def _url(host: str, listener: socket.socket) -> str:
    """Where to point a browser: a server on all addresses is also on this machine's own."""
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

"""Carries the app over sockets: bind first, serve, drain, end. Knows uvicorn; not what is served.

The order at the end: no new connections; open answers may finish for a while; those that have not are ended with an error
that says so; then the loop is given back.
"""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.server.address import BACKLOG, bind, url_of
from headrace.server.services import Services

_KEEP_ALIVE_S = 65
"""Longer than clients and load balancers keep an idle connection (60 s at most, usually), so that they close it, not we:
a request sent at the moment when we close would be lost."""
_GRACE_AFTER_DRAIN_S = 2
"""For the last error events to reach clients that read."""

_logger = logging.getLogger("headrace.server")


async def serve_http(
    app: Starlette,
    *,
    host: str,
    port: int,
    drain_timeout_s: float,
    on_started: Callable[[str], None],
    stop: asyncio.Event,
    listener: socket.socket | None = None,
) -> None:
    """Serves until `stop` is set and everything open has ended. Calls `on_started` with the URL once requests are taken.

    Port 0 takes a free one. `listener`: what `bind` gave for this address already; closed at the end. Signals are the
    caller's business: see `signals.py`. Raises ConfigurationError where the address cannot be had.
    """
    services = app.state.services
    assert isinstance(services, Services)
    listener = listener or bind(host, port)
    server = _Server(
        uvicorn.Config(
            app,
            http=HttpToolsProtocol,  # by name, it would be imported when the engine is ready
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(drain_timeout_s) + _GRACE_AFTER_DRAIN_S,
            backlog=BACKLOG,
        ),
        lambda: on_started(url_of(host, listener)),
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

"""Puts the HTTP doors of one engine together: which path leads where, and what every request passes on its way.

Knows the other files of this folder. Does not know how an engine works, nor where its options came from.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.system_clock import SystemClock
from headrace.engine.host.generation import Engine
from headrace.obs.metrics import ServingMetrics
from headrace.server import admin, openapi
from headrace.server.chat import answer_chat
from headrace.server.completions import answer_completion
from headrace.server.config import ServerConfig
from headrace.server.door import Door
from headrace.server.echo import shortened, suggestion
from headrace.server.errors import error_response
from headrace.server.listen import serve_http
from headrace.server.middleware import CheckKey, NameRequests
from headrace.server.refusals import PATHS
from headrace.server.services import ChatRenderer, Services

__all__ = ["create_app", "serve_http"]

_HERE = Path(__file__).parent
_WEB = _HERE / "web"
_DOCS_PAGE = _HERE / "docs.html"

_PAGE_HEADERS = {
    "cache-control": "no-cache",  # an upgraded server must not be asked by half of an old page
    "x-frame-options": "DENY",  # nor be clicked through somebody else's
}

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    engine: Engine,
    config: ServerConfig,
    metrics: ServingMetrics,
    *,
    chat_template: ChatRenderer | None = None,
    compile_chat_template: Callable[[str], ChatRenderer] | None = None,
    clock: Clock | None = None,
) -> Starlette:
    """The ASGI app of a ready engine.

    Without `chat_template` the model knows no conversations and chat requests are refused. `compile_chat_template` is
    given only where clients are trusted with templates of their own.
    """
    services = Services(
        engine=engine,
        config=config,
        metrics=metrics,
        clock=clock or SystemClock(),
        chat_template=chat_template,
        compile_chat_template=compile_chat_template,
    )
    facts = engine.facts
    metrics.describe_engine(
        block_size=facts.block_size,
        num_blocks=facts.num_blocks,
        cache_dtype=facts.dtype,
        startup_seconds=facts.startup_seconds,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        services.text_pool.close()

    app = Starlette(
        routes=_routes(services),
        middleware=_middleware(services),
        exception_handlers={HTTPException: _answer_http_error, HeadraceError: _answer_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirected POST is resent as GET by some clients
    app.state.services = services
    return app


def _routes(services: Services) -> list[BaseRoute]:
    return [
        Route("/", _page(_WEB / "index.html")),
        Mount("/web", _WebFiles(directory=_WEB)),
        Route("/v1/chat/completions", Door(services, answer_chat), methods=["POST"]),
        Route("/v1/completions", Door(services, answer_completion), methods=["POST"]),
        Route("/v1/models", admin.list_models),
        Route("/v1/models/{model:path}", admin.show_model),
        Route("/tokenize", Door(services, admin.answer_tokenize), methods=["POST"]),
        Route("/detokenize", Door(services, admin.answer_detokenize), methods=["POST"]),
        Route("/health", admin.health),
        Route("/ping", admin.health, methods=["GET", "POST"]),
        Route("/version", admin.version),
        Route("/load", admin.load),
        Route("/metrics", admin.metrics),
        Route("/reset_prefix_cache", admin.reset_prefix_cache, methods=["POST"]),
        Route("/openapi.json", _document),
        Route("/docs", _page(_DOCS_PAGE)),
    ]


def _middleware(services: Services) -> list[Middleware]:
    """From the outside in. CORS comes before the key, since browsers ask for permission without it."""
    config = services.config
    layers = [Middleware(NameRequests, clock=services.clock, access_log=config.access_log)]
    if config.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id"],
            )
        )
    if config.api_key is not None:
        layers.append(Middleware(CheckKey, api_key=config.api_key))
    return layers


class _WebFiles(StaticFiles):
    """The page's modules and styles, asked for anew where they changed."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_PAGE_HEADERS)
        return response


async def _document(request: Request) -> Response:
    return Response(openapi.encoded_document(), media_type="application/json")


def _page(path: Path) -> Endpoint:
    async def send_page(request: Request) -> Response:
        return FileResponse(path, media_type="text/html", headers=_PAGE_HEADERS)

    return send_page


def _answer_error(request: Request, error: Exception) -> Response:
    return error_response(error)


def _answer_http_error(request: Request, error: Exception) -> Response:
    """What the router and the static files raise, in words that help."""
    assert isinstance(error, HTTPException)
    path, method = shortened(request.url.path), request.method
    if error.status_code == 404:
        known = [route.path for route in request.app.routes if isinstance(route, Route)]
        advice = f": {PATHS[path]}" if path in PATHS else suggestion(path, known)
        error = HTTPException(404, f"there is no {path} here{advice}")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        error = HTTPException(405, f"{path} does not take {method}, but {allowed}", headers=error.headers)
    return error_response(error, error.headers)

"""Speaks to an app without sockets: one request at a time, or raw ASGI messages where a test needs to be rude."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.types import Message
from tests.fakes import FakeChatTemplate, FakeEngine

from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app
from headrace.server.config import ServerConfig
from headrace.server.services import ChatRenderer

QUIET = ServerConfig(access_log=False)


def make_app(
    engine: FakeEngine | None = None,
    config: ServerConfig = QUIET,
    *,
    chat_template: ChatRenderer | None = None,
    compile_chat_template: Callable[[str], ChatRenderer] | None = None,
) -> Starlette:
    engine = engine or FakeEngine()
    metrics = ServingMetrics(model_name=engine.facts.served_model_names[0], max_model_len=engine.facts.max_model_len)
    return create_app(
        engine,
        config,
        metrics,
        chat_template=chat_template or FakeChatTemplate(),
        compile_chat_template=compile_chat_template,
    )


def call(
    app: Starlette,
    method: str,
    path: str,
    json: Any = None,
    *,
    content: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """One request. `json` may be anything that JSON can hold; `content` goes out as it is, as JSON by its header."""
    body = msgspec.json.encode(json) if json is not None else content
    sent = {"content-type": "application/json"} if body is not None else {}

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, content=body, headers=sent | (headers or {}))

    return asyncio.run(send())


def chat(app: Starlette, /, **fields: Any) -> httpx.Response:
    """A chat request of one message, with further fields."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0} | fields
    return call(app, "POST", "/v1/chat/completions", body)


def complete(app: Starlette, /, **fields: Any) -> httpx.Response:
    """A completion request of one prompt, with further fields."""
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0} | fields
    return call(app, "POST", "/v1/completions", body)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a response that must have this status and OpenAI's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    assert error["message"]
    return error


def events_of(response: httpx.Response) -> list[Any]:
    """The server-sent events of a complete stream, without its `[DONE]`."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]


class RudeClient:
    """A client in control of every message: it sends a body and leaves when it is told to."""

    def __init__(self, app: Starlette, path: str, body: Any) -> None:
        self._app = app
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
        }
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": msgspec.json.encode(body), "more_body": False})
        self.received: list[Message] = []
        self.got_message = asyncio.Event()

    async def talk(self) -> None:
        """Until the app has done with the request."""
        await self._app(self._scope, self._incoming.get, self._receive)

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def _receive(self, message: Message) -> None:
        self.received.append(message)
        self.got_message.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.received)

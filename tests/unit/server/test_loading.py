"""While a model loads, who asks is told so; and whoever comes between loading and serving is answered by the server."""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
from tests.patience import PATIENCE_S

from headrace.server.address import bind
from headrace.server.loading import answering_while_loading


def asked_while_loading(ask: Callable[[str], Any]) -> Any:
    """What `ask` gets of the URL."""

    async def answer_and_ask() -> Any:
        with closing(bind("127.0.0.1", 0)) as listener:
            async with answering_while_loading(listener):
                return await asyncio.to_thread(ask, f"http://127.0.0.1:{listener.getsockname()[1]}")

    return asyncio.run(answer_and_ask())


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/"])
def test_everything_is_unavailable_for_a_moment(path: str) -> None:
    response = asked_while_loading(lambda url: httpx.get(url + path, timeout=PATIENCE_S))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"] == {
        "message": "the model is still loading: ask again in a moment",
        "type": "server_error",
        "param": None,
        "code": "loading",
    }


def test_a_client_that_sends_much_gets_the_answer_all_the_same() -> None:
    body = json.dumps({"prompt": "x" * 4_000_000})
    response = asked_while_loading(lambda url: httpx.post(f"{url}/v1/completions", content=body, timeout=PATIENCE_S))
    assert response.status_code == 503


def test_a_browser_gets_a_page_that_asks_again() -> None:
    response = asked_while_loading(lambda url: httpx.get(url, headers={"accept": "text/html,*/*"}, timeout=PATIENCE_S))
    assert response.status_code == 503
    assert 'http-equiv="refresh"' in response.text


def test_a_head_gets_no_body() -> None:
    response = asked_while_loading(lambda url: httpx.head(f"{url}/health", timeout=PATIENCE_S))
    assert (response.status_code, response.content) == (503, b"")


def test_what_is_no_request_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def ask(url: str) -> httpx.Response:
        for noise in (b"\0" * 70_000, b"GET"):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
                connection.sendall(noise)
        return httpx.get(url, timeout=PATIENCE_S)

    assert asked_while_loading(ask).status_code == 503
    assert not caplog.records


def test_who_connects_after_loading_waits_for_the_server() -> None:
    async def connect_and_serve() -> bytes:
        with closing(bind("127.0.0.1", 0)) as listener:
            async with answering_while_loading(listener):
                pass
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"hello")
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            with connection:
                heard = await asyncio.get_running_loop().sock_recv(connection, 5)
            writer.close()
            return heard

    assert asyncio.run(connect_and_serve()) == b"hello"

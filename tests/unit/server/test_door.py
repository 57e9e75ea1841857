"""Clients that leave, servers that must go: whatever happens, the engine hears of it at once and nothing hangs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.fakes import FakeEngine
from tests.patience import PATIENCE_S
from tests.unit.server.asgi import RudeClient, make_app

from headrace.engine.host.generation import GenerationRequest, OutputChunk
from headrace.engine.mind.update import FinishReason
from headrace.server.services import Services

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000} | fields


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def services_of(app: Starlette) -> Services:
    services = app.state.services
    assert isinstance(services, Services)
    return services


def leave_while_held(engine: FakeEngine, path: str, body: Any, num_live: int = 1) -> RudeClient:
    """A client that leaves once the engine works for it and has said all it will."""
    app = make_app(engine)
    client = RudeClient(app, path, body)

    async def story() -> None:
        talking = asyncio.create_task(client.talk())
        await until(lambda: engine.num_live == num_live)
        for _ in range(50):  # let everything that can be sent be sent
            await asyncio.sleep(0)
        assert services_of(app).in_flight.count == 1
        client.leave()
        await talking
        assert services_of(app).in_flight.count == 0

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    return client


@pytest.mark.parametrize("hold_after", [0, 5])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_aborts_its_request(stream: bool, hold_after: int) -> None:
    engine = FakeEngine()
    engine.hold_after = hold_after
    client = leave_while_held(engine, CHAT, chat_body(stream=stream))
    assert engine.aborted == [engine.requests[0].request_id]
    assert engine.num_live == 0
    assert bool(client.received) == (stream and hold_after > 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_aborts_all_its_prompts(stream: bool) -> None:
    engine = FakeEngine()
    engine.hold_after = 3
    body = {"prompt": ["a", "b", "c"], "n": 2, "stream": stream, "max_tokens": 50}
    leave_while_held(engine, COMPLETIONS, body, num_live=3)
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert engine.num_live == 0


def test_a_client_that_has_its_answer_may_leave_without_aborting_anything() -> None:
    engine = FakeEngine()
    app = make_app(engine)

    class Leaving(RudeClient):
        async def _receive(self, message: Any) -> None:
            await super()._receive(message)
            if not message.get("more_body", True) or message["type"] == "http.response.body":
                self.leave()
                await asyncio.sleep(0)  # the door sees the client leave before it has returned from its last send

    client = Leaving(app, CHAT, chat_body(max_tokens=5))
    asyncio.run(client.talk())
    assert client.received[0]["status"] == 200
    assert engine.aborted == []


def test_an_iterator_without_a_close_method_is_served_too() -> None:
    class Chunks:
        def __init__(self) -> None:
            self._left = 2

        def __aiter__(self) -> AsyncIterator[OutputChunk]:
            return self

        async def __anext__(self) -> OutputChunk:
            self._left -= 1
            if self._left < 0:
                raise StopAsyncIteration
            return OutputChunk(index=0, text="x", token_ids=(1,), finish_reason=None if self._left else FinishReason.STOP)

    class Plain(FakeEngine):
        def generate(self, request: GenerationRequest) -> AsyncIterator[OutputChunk]:
            return Chunks()

    client = RudeClient(make_app(Plain()), CHAT, chat_body())
    asyncio.run(client.talk())
    assert b'"content":"xx"' in client.body


def end_while_held(body: Any, hold_after: int) -> tuple[RudeClient, FakeEngine]:
    engine = FakeEngine()
    engine.hold_after = hold_after
    app = make_app(engine)
    client = RudeClient(app, CHAT, body)

    async def story() -> None:
        talking = asyncio.create_task(client.talk())
        await until(lambda: engine.num_live == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        services_of(app).in_flight.end_all()
        await talking

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    return client, engine


def test_a_server_that_must_go_tells_open_streams() -> None:
    client, engine = end_while_held(chat_body(stream=True), hold_after=4)
    last = client.body.rstrip(b"\n").split(b"\n\n")[-1]
    assert last.startswith(b'data: {"error":{"message":"the server shut down')
    assert client.received[-1]["more_body"] is False
    assert len(engine.aborted) == 1


def test_a_server_that_must_go_answers_503_where_nothing_was_sent() -> None:
    client, engine = end_while_held(chat_body(), hold_after=4)
    assert client.received[0]["status"] == 503
    assert b"shut down" in client.body
    assert len(engine.aborted) == 1


def test_a_door_that_is_cancelled_itself_aborts_too() -> None:
    engine = FakeEngine()
    engine.hold_after = 2
    client = RudeClient(make_app(engine), CHAT, chat_body(stream=True))

    async def story() -> None:
        talking = asyncio.create_task(client.talk())
        await until(lambda: engine.num_live == 1)
        talking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await talking

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert engine.num_live == 0
    assert len(engine.aborted) == 1


def test_a_slow_reader_holds_up_nobody_else() -> None:
    engine = FakeEngine()
    app = make_app(engine)
    may_read = asyncio.Event()

    class Slow(RudeClient):
        async def _receive(self, message: Any) -> None:
            await may_read.wait()
            await super()._receive(message)

    slow = Slow(app, CHAT, chat_body(stream=True))
    quick = RudeClient(app, CHAT, chat_body(stream=True))

    async def story() -> None:
        reading_slowly = asyncio.create_task(slow.talk())
        await quick.talk()
        assert quick.body.endswith(b"data: [DONE]\n\n")
        assert not reading_slowly.done()
        may_read.set()
        await reading_slowly

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert slow.body.endswith(b"data: [DONE]\n\n")


def test_load_counts_what_is_in_progress() -> None:
    engine = FakeEngine()
    engine.hold_after = 1
    app = make_app(engine)
    clients = [RudeClient(app, CHAT, chat_body()) for _ in range(3)]

    async def story() -> None:
        talking = [asyncio.create_task(client.talk()) for client in clients]
        await until(lambda: engine.num_live == 3)
        assert services_of(app).in_flight.count == 3
        for client in clients:
            client.leave()
        await asyncio.gather(*talking)
        assert services_of(app).in_flight.count == 0

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))

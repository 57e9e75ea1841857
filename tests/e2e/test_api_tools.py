"""The official client and tools: what a model wrote in its format arrives as the client's own types, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.e2e.live_server import LiveServer
from tests.fakes import FakeChatTemplate, FakeEngine, fixed_answer
from tests.tool_formats import WRITERS

from headrace.server.config import ServerConfig

MODEL = "fake-model"
MESSAGES: Any = [{"role": "user", "content": "How is the weather?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
CALLS: Any = [("get_weather", {"city": 'Zürich "Höngg" 🌊\n', "days": 3}), ("stop", {})]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module", params=sorted({format_name for format_name, _ in WRITERS.values()}))
def server(request: pytest.FixtureRequest, engine: FakeEngine) -> Iterator[LiveServer]:
    _, write = next(pair for pair in WRITERS.values() if pair[0] == request.param)
    content = "" if request.param in ("llama3_json", "generic_json", "pythonic") else "Let me see."
    engine.answer = fixed_answer(write(content, CALLS))
    config = ServerConfig(access_log=False, tool_call_parser=request.param)
    with LiveServer(engine, config, chat_template=FakeChatTemplate("tools")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: LiveServer) -> openai.OpenAI:
    return server.client()


def _calls(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


def test_calls_are_read(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert _calls(answer.choices[0].message) == CALLS
    assert answer.choices[0].message.content in (None, "Let me see.")


def test_the_clients_own_stream_helper_puts_calls_together(client: openai.OpenAI, engine: FakeEngine) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS).choices[0]
    for engine.tokens_per_step in (1, 5):
        with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=TOOLS) as stream:
            pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final = stream.get_final_completion().choices[0]
        assert pieces
        assert final.finish_reason == whole.finish_reason
        assert _calls(final.message) == _calls(whole.message) == CALLS
        assert (final.message.content or None) == whole.message.content


def test_calls_and_their_results_can_be_sent_back_as_the_client_holds_them(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=TOOLS) as stream:
        streamed: Any = stream.get_final_completion().choices[0].message
    whole: Any = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS).choices[0].message
    for said in (streamed, whole):
        results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in said.tool_calls]
        answer = client.chat.completions.create(model=MODEL, messages=[*MESSAGES, said, *results], tools=TOOLS)
        assert answer.choices


def test_reasoning_arrives_as_a_field_of_the_message_and_of_deltas() -> None:
    engine = FakeEngine(fixed_answer("<think>\nHm, où?\n</think>\n\nThere."))
    with LiveServer(engine, chat_template=FakeChatTemplate("<think>")) as server:
        client = server.client()
        message: Any = client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message
        assert (message.reasoning, message.content) == ("Hm, où?", "There.")
        reasoning = content = ""
        for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            delta: Any = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning", None) or ""
            content += delta.content or ""
        assert (reasoning, content) == ("Hm, où?", "There.")
        back: Any = [*MESSAGES, message, {"role": "user", "content": "Where?"}]
        assert client.chat.completions.create(model=MODEL, messages=back).choices
        assert "<think>Hm, où?</think>There." in engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)

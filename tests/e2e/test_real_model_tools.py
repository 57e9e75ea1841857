"""The real model made to call the tools of a public suite: small as it is, what it calls exists and is called as its schema
says. And what it says of its own accord comes back as calls or as text, streamed as whole.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from tests.cpu.test_bfcl_round_trip import ARCHIVE, tasks
from tests.e2e.real_server import SMALL, RealServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs ../shared/data/suites/bfcl"),
]

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall a function within <tool_call></tool_call>:\n"
    '<tool_call>{"name": ..., "arguments": ...}</tool_call>\n'
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_TASKS = 6


@pytest.fixture(scope="module")
def client(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    path = tmp_path_factory.mktemp("template") / "tools.jinja"
    path.write_text(TEMPLATE, encoding="utf-8")
    with RealServer(*SMALL, "--chat-template", str(path)) as server:
        yield server.client()


def some_tools() -> list[tuple[list[Any], str]]:
    """Tools with a word on what to do with them."""
    every = tasks()
    return [(tools[:4], f"Please use {tools[0]['function']['name']}.") for tools, _ in every[:: len(every) // NUM_TASKS]]


def check(message: Any, tools: list[Any], allowed: set[str]) -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    assert message.tool_calls
    for call in message.tool_calls:
        assert call.function.name in allowed
        Draft202012Validator(schemas[call.function.name]).validate(json.loads(call.function.arguments))


def ask(client: openai.OpenAI, tools: list[Any], said: str, **fields: Any) -> Any:
    """The whole answer's choice, once a stream has said the same."""
    common: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": said}],
        "tools": tools,
        "temperature": 0,
        **fields,
    }
    whole = client.chat.completions.create(**common).choices[0]
    content, calls, reason = "", list[list[str]](), None
    for chunk in client.chat.completions.create(**common, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or ():
            if call.index == len(calls):
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
        reason = chunk.choices[0].finish_reason or reason
    assert reason == whole.finish_reason
    assert content == (whole.message.content or "")
    assert calls == [[call.function.name, call.function.arguments] for call in whole.message.tool_calls or ()]
    return whole


def test_a_model_that_must_call_calls_what_there_is_as_its_schema_says(client: openai.OpenAI) -> None:
    num_complete = 0
    for tools, said in some_tools():
        choice = ask(client, tools, said, tool_choice="required", parallel_tool_calls=False, max_tokens=150)
        if choice.finish_reason == "length":  # a small model may fill a string for ever
            continue
        assert choice.finish_reason == "tool_calls"
        check(choice.message, tools, {tool["function"]["name"] for tool in tools})
        num_complete += 1
    assert num_complete >= NUM_TASKS // 2


def test_a_model_that_must_call_one_tool_calls_that_one(client: openai.OpenAI) -> None:
    for tools, said in some_tools()[:2]:
        name = tools[-1]["function"]["name"]
        choice = ask(client, tools, said, tool_choice={"type": "function", "function": {"name": name}}, max_tokens=150)
        if choice.finish_reason == "tool_calls":
            check(choice.message, tools, {name})


def test_what_the_model_says_of_its_own_accord_is_the_same_streamed_and_whole(client: openai.OpenAI) -> None:
    for tools, said in some_tools()[:2]:
        choice = ask(client, tools, said, max_tokens=80)
        assert choice.message.content or choice.message.tool_calls

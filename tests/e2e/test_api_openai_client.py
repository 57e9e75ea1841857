"""The official client against the real server: what it sends is understood, and what comes back it can read."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from tests.e2e.live_server import LiveServer
from tests.fakes import FakeEngine, fixed_answer
from tests.patience import PATIENCE_S

from headrace.base.errors import EngineDeadError, OverloadedError
from headrace.server.config import ServerConfig

MODEL = "fake-model"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: LiveServer) -> openai.OpenAI:
    return server.client()


def test_a_chat_answer_is_read(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint is not None
    choice = answer.choices[0]
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer._request_id is not None


def test_a_chat_stream_is_read_and_says_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=4, n=2)
    texts = {0: "", 1: ""}
    reasons = {}
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=4, n=2, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}


def test_usage_of_a_stream_is_read(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 3


def test_the_clients_own_stream_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=2, logprobs=True, top_logprobs=2)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, seed=2, logprobs=True, top_logprobs=2) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert final.choices[0].logprobs is not None
    assert whole.choices[0].logprobs is not None
    assert final.choices[0].logprobs.content is not None
    assert whole.choices[0].logprobs.content is not None
    assert [t.token for t in final.choices[0].logprobs.content] == [t.token for t in whole.choices[0].logprobs.content]


def test_logprobs_are_read_with_their_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=3, max_tokens=50
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    spelt = b"".join(bytes(token.bytes or []) for token in logprobs.content if not token.token.startswith("<|"))
    assert spelt.decode(errors="replace") == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 3 for token in logprobs.content)


def test_an_answer_can_be_sent_back_as_the_client_holds_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    messages: list[Any] = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "go on"}]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5).choices


def test_completions_are_read_whole_and_streamed(client: openai.OpenAI) -> None:
    prompts = ["one", "two"]
    whole = client.completions.create(model=MODEL, prompt=prompts, n=2, seed=1, max_tokens=40, logprobs=2)
    texts = ["", "", "", ""]
    for chunk in client.completions.create(model=MODEL, prompt=prompts, n=2, seed=1, max_tokens=40, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset is not None
    assert logprobs.tokens is not None
    assert len(logprobs.text_offset) == len(logprobs.tokens)


def test_token_ids_are_taken_as_prompts(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt=[97, 98], echo=True, max_tokens=1).choices[0].text[:2] == "ab"
    assert len(client.completions.create(model=MODEL, prompt=[[97], [98]], max_tokens=1).choices) == 2


def test_models_are_read(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake-model", "fake-alias"]
    assert client.models.retrieve("fake-alias").id == "fake-alias"


def test_the_asynchronous_client_is_served_too(server: LiveServer) -> None:
    async def story() -> tuple[str | None, str, str]:
        async with server.async_client() as client:
            whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            text = await client.completions.create(model=MODEL, prompt="hello", temperature=0)
            return whole.choices[0].message.content, streamed, text.choices[0].text

    whole, streamed, text = asyncio.run(story())
    assert whole == streamed
    assert text


def test_vllms_parameters_pass_through_the_clients_extra_body(client: openai.OpenAI) -> None:
    extra = {"top_k": 5, "min_p": 0.1, "ignore_eos": True, "min_tokens": 3, "cache_salt": "s", "return_token_ids": True}
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, extra_body=extra)
    assert answer.choices[0].model_extra is not None
    assert len(answer.choices[0].model_extra["token_ids"]) == 6


def test_errors_arrive_as_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=1000)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="x" * 5000)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert tools.value.param == "tools"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")


def test_a_wrong_key_is_an_authentication_error() -> None:
    with LiveServer(config=ServerConfig(api_key="sesame", access_log=False)) as server:
        with pytest.raises(openai.AuthenticationError):
            server.client().models.list()
        right = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0)
        assert right.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1).choices


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client() -> None:
    engine = FakeEngine()
    engine.fail_after = (3, EngineDeadError("the engine process ended with code 9"))
    with LiveServer(engine) as server:
        received = []

        def read() -> None:
            for chunk in server.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
                received.append(chunk)

        with pytest.raises(openai.APIError, match="code 9"):
            read()
        assert received


def test_an_overloaded_engine_is_a_503_that_the_client_may_retry() -> None:
    engine = FakeEngine()
    engine.refusal = OverloadedError("10000 requests wait already")
    with LiveServer(engine) as server, pytest.raises(openai.InternalServerError) as refused:
        server.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    assert refused.value.status_code == 503


def test_two_hundred_streams_at_once_are_all_complete_and_each_has_its_own_answer() -> None:
    engine = FakeEngine()
    engine.step_s = 0.001

    async def one(client: openai.AsyncOpenAI, number: int) -> tuple[str, str]:
        prompt = f"stream number {number}"
        stream = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=60, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
        whole = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=60)
        return streamed, whole.choices[0].text

    async def story(server: LiveServer) -> list[tuple[str, str]]:
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, number) for number in range(200)))

    with LiveServer(engine) as server:
        answers = asyncio.run(asyncio.wait_for(story(server), PATIENCE_S))
    assert all(streamed == whole for streamed, whole in answers)
    assert len({streamed for streamed, _ in answers}) > 150
    assert engine.num_live == 0
    assert engine.aborted == []


def test_half_characters_never_reach_a_client() -> None:
    text = "naïve 水 🌊"
    with LiveServer(FakeEngine(fixed_answer(text))) as server:
        stream = server.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)

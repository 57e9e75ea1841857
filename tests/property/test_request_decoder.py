"""Whatever JSON, or no JSON, a client sends: an answer or a 4xx that names something, never a bug."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeChatTemplate, FakeEngine

from headrace.base.errors import InvalidRequestError
from headrace.obs.metrics import ServingMetrics
from headrace.protocol.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from headrace.server import decoding, refusals
from headrace.server.app import create_app
from headrace.server.config import ServerConfig
from headrace.server.decoding import RequestDecoder
from headrace.server.refusals import Refusal

PATHS: dict[str, tuple[RequestDecoder[Any], type[msgspec.Struct], Mapping[str, Refusal]]] = {
    "/v1/chat/completions": (decoding.CHAT, ChatCompletionRequest, refusals.CHAT),
    "/v1/completions": (decoding.COMPLETION, CompletionRequest, refusals.COMPLETION),
    "/tokenize": (decoding.TOKENIZE, TokenizeRequest, refusals.TOKENIZE),
    "/detokenize": (decoding.DETOKENIZE, DetokenizeRequest, refusals.DETOKENIZE),
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "king"])
parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]) | json_values}, optional={"text": scalars})
messages = st.lists(
    st.fixed_dictionaries(
        {"role": roles | json_values, "content": st.text(max_size=30) | st.lists(parts, max_size=2) | json_values},
        optional={"name": scalars, "tool_calls": json_values, "reasoning": scalars, "tool_call_id": scalars},
    ),
    max_size=3,
)
token_ids = st.lists(st.integers(-5, 300), max_size=8)
plausible: dict[str, st.SearchStrategy[Any]] = {
    "messages": messages,
    "prompt": st.text(max_size=20) | token_ids | st.lists(st.text(max_size=5) | token_ids, max_size=3),
    "content": st.text(max_size=20),
    "tokens": token_ids,
    "stream": st.booleans(),
    "n": st.integers(-1, 3),
    "max_tokens": st.integers(-1, 12),
    "temperature": st.floats(-1, 3),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3),
    "logprobs": st.booleans() | st.integers(-1, 22),
    "top_logprobs": st.integers(-1, 22),
    "logit_bias": st.dictionaries(st.integers(-1, 300).map(str), st.floats(-120, 120), max_size=3),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "include_usages"]), st.booleans()),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["enable_thinking", "messages", "self", "x"]), json_values),
}


REQUIRED = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/tokenize": "prompt", "/detokenize": "tokens"}
good_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=30)}),
    min_size=1,
    max_size=3,
)
good: dict[str, st.SearchStrategy[Any]] = {
    "messages": good_messages,
    "prompt": st.text(max_size=20) | st.lists(st.integers(0, 259), min_size=1, max_size=8),
    "tokens": st.lists(st.integers(0, 259), max_size=8),
}


@st.composite
def bodies(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """Fields that the path knows, refuses or does not know, with values that fit or do not: half of them nearly right."""
    _, request_type, refused = PATHS[path]
    required = REQUIRED[path]
    known = [name for name in request_type.__struct_fields__ if name != required]
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from([n for n in known if n in plausible] or known), max_size=3, unique=True))
        return {required: draw(good[required])} | {name: draw(plausible.get(name, st.none())) for name in names}
    names = draw(st.lists(st.sampled_from([*known, *refused, "zzz"]), max_size=4))
    body = {name: draw(plausible.get(name, json_values) | json_values) for name in names}
    return body | ({required: draw(plausible[required])} if draw(st.booleans()) else {})


@settings(max_examples=400)
@given(data=st.data(), path=st.sampled_from(list(PATHS)))
def test_a_body_decodes_or_is_the_callers_fault(data: st.DataObject, path: str) -> None:
    body = data.draw(bodies(path) | st.dictionaries(st.text(max_size=8), json_values, max_size=3) | json_values)
    with contextlib.suppress(InvalidRequestError):
        PATHS[path][0].decode(msgspec.json.encode(body))


@settings(max_examples=300)
@given(raw=st.binary(max_size=40) | st.text(alphabet='{}[]",:0123456789eE.+-ntfu\\ud8', max_size=40).map(str.encode))
def test_bytes_that_are_no_json_are_the_callers_fault(raw: bytes) -> None:
    for decoder, _, _ in PATHS.values():
        with contextlib.suppress(InvalidRequestError):
            decoder.decode(raw)


@settings(max_examples=250)
@given(data=st.data(), path=st.sampled_from(list(PATHS)))
def test_the_doors_answer_everything_without_a_bug_and_leave_nothing_running(data: st.DataObject, path: str) -> None:
    body = data.draw(bodies(path))
    engine = FakeEngine(max_model_len=400)
    app = create_app(
        engine,
        ServerConfig(access_log=False),
        ServingMetrics(model_name="fake-model", max_model_len=400),
        chat_template=FakeChatTemplate(),
    )

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            sent = msgspec.json.encode(body)
            return await client.post(path, content=sent, headers={"content-type": "application/json"})

    response = asyncio.run(ask())
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n"), (body, response.text)
    assert engine.num_live == 0
    assert engine.aborted == []

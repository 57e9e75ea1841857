"""Bodies that are not what they should be: each gets a 4xx that says where, and none a 500."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message
from tests.unit.server.asgi import RudeClient, call, chat, complete, error_of, make_app

from headrace.base.units import MIB
from headrace.server.config import ServerConfig

APP = make_app()
CHAT = "/v1/chat/completions"
MESSAGE = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": 8.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": []}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias[...]"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"user": 5}, "user"),
        ({"seed": 1.5}, "seed"),
        ({"model": 5}, "model"),
        ({"messages": {}}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [MESSAGE, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": 5, "text": "a"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{**MESSAGE, "nmae": "x"}]}, "messages[0].nmae"),
        ({"logprobs": 2}, "logprobs"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ],
)
def test_a_wrong_type_is_named_by_its_path(fields: dict[str, Any], param: str) -> None:
    error = error_of(chat(APP, **fields), 400)
    assert error["param"] == param
    assert param.split("[")[0] in error["message"]


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(5, "prompt"), (None, "prompt"), ({}, "prompt"), ([True], "prompt[0]"), ([[1, "a"]], "prompt[0][1]"),
     ([1.5], "prompt[0]"), (["a", None], "prompt[1]")],
)  # fmt: skip
def test_a_wrong_prompt_is_named_by_its_path(prompt: Any, param: str) -> None:
    assert error_of(complete(APP, prompt=prompt), 400)["param"] == param


def test_an_error_about_a_long_value_is_short_and_still_names_its_path() -> None:
    error = error_of(chat(APP, messages=[{"role": "x" * 100_000, "content": "a"}]), 400)
    assert error["param"] == "messages[0].role"
    assert len(error["message"]) < 500


def test_a_missing_field_is_named() -> None:
    error = error_of(call(APP, "POST", CHAT, {"max_tokens": 1}), 400)
    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")
    assert error_of(call(APP, "POST", "/v1/completions", {}), 400)["param"] == "prompt"
    assert error_of(call(APP, "POST", "/detokenize", {}), 400)["param"] == "tokens"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"prompt": "a",}',
        b'{"prompt": "a"}}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"zzz": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xef\xbb\xbf{}",
        b"\x00" * 100,
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
def test_what_is_no_json_object_of_ours_is_the_callers_fault(path: str, body: bytes) -> None:
    error = error_of(call(APP, "POST", path, content=body), 400)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 1000


@pytest.mark.parametrize("body", [[], "text", 5, True])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    assert "object" in error_of(call(APP, "POST", CHAT, body), 400)["message"]


def test_deep_nesting_in_template_variables_is_refused_not_crashed_on() -> None:
    nested = b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":' + b"[" * 100_000 + b"]" * 100_000
    assert "deep" in error_of(call(APP, "POST", CHAT, content=nested + b"}}"), 400)["message"]


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp"],
)
def test_another_content_type_is_refused_with_the_right_one(content_type: str) -> None:
    response = call(APP, "POST", CHAT, {"messages": [MESSAGE]}, headers={"content-type": content_type})
    error = error_of(response, 400)
    assert error["param"] == "content-type"
    assert "application/json" in error["message"]


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_json_may_be_announced_in_any_case_and_with_its_charset(content_type: str) -> None:
    body = {"messages": [MESSAGE], "max_tokens": 2}
    assert call(APP, "POST", CHAT, body, headers={"content-type": content_type}).status_code == 200


def test_another_charset_or_a_compressed_body_is_refused() -> None:
    body = {"messages": [MESSAGE]}
    latin = call(APP, "POST", CHAT, body, headers={"content-type": "application/json; charset=latin-1"})
    assert "latin-1" in error_of(latin, 400)["message"]
    packed = call(APP, "POST", CHAT, body, headers={"content-encoding": "gzip"})
    assert error_of(packed, 400)["param"] == "content-encoding"


def test_a_body_that_announces_too_much_is_refused_before_it_is_read() -> None:
    app = make_app(config=ServerConfig(max_body_bytes=1000, access_log=False))
    client = RudeClient(app, CHAT, {"messages": [MESSAGE]})
    client._scope["headers"] = [(b"content-type", b"application/json"), (b"content-length", b"1001")]
    asyncio.run(client.talk())
    assert client.received[0]["status"] == 413
    assert client._incoming.qsize() == 1  # still there


def test_a_body_that_grows_too_large_is_refused_where_it_crosses_the_limit() -> None:
    app = make_app(config=ServerConfig(max_body_bytes=MIB, access_log=False))
    client = RudeClient(app, CHAT, {})
    client._incoming.get_nowait()
    piece: Message = {"type": "http.request", "body": b" " * 600_000, "more_body": True}
    for _ in range(3):
        client._incoming.put_nowait(piece)
    asyncio.run(client.talk())
    assert client.received[0]["status"] == 413
    assert b"1048576" in client.body
    assert client._incoming.qsize() == 1


def test_a_body_just_within_the_limit_is_taken() -> None:
    body = b'{"prompt":"a","max_tokens":1}'
    app = make_app(config=ServerConfig(max_body_bytes=len(body), access_log=False))
    assert call(app, "POST", "/v1/completions", content=body).status_code == 200
    assert error_of(call(app, "POST", "/v1/completions", content=body + b" "), 413)["code"] == "request_too_large"


def test_a_client_that_leaves_while_sending_is_forgotten() -> None:
    client = RudeClient(APP, CHAT, {})
    client._incoming.get_nowait()
    client._incoming.put_nowait({"type": "http.request", "body": b'{"mess', "more_body": True})
    client.leave()
    asyncio.run(client.talk())
    assert client.received == []

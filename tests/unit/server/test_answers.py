"""What answers look like, whole and streamed, down to the fields: checked against the OpenAPI document too."""

from typing import Any

import httpx
import jsonschema
import pytest
from tests.fakes import EOS, IM_END, FakeEngine, fixed_answer
from tests.unit.server.asgi import call, chat, complete, error_of, events_of, make_app

from headrace.base.errors import EngineDeadError, InvalidRequestError, OverloadedError
from headrace.engine.mind.step import FORM_ENDED, NOTHING_ALLOWED, NOTHING_LEFT
from headrace.server import openapi

DOCUMENT = openapi.document()


def check_against(schema: str, body: Any) -> None:
    jsonschema.validate(body, {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]})


def says(text: str, **options: Any) -> FakeEngine:
    return FakeEngine(fixed_answer(text), **options)


# Chat, whole


def test_a_chat_answer_has_openais_fields_and_nothing_unasked() -> None:
    response = chat(make_app(says("Hi there")), max_tokens=100)
    body = response.json()
    check_against("ChatCompletion", body)
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    num_prompt_tokens = body["usage"]["prompt_tokens"]
    assert body == {
        "object": "chat.completion",
        "model": "fake-model",
        "system_fingerprint": "fp_fafafafafafa",
        "service_tier": None,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi there", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": 9,
            "total_tokens": num_prompt_tokens + 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_an_answer_that_reaches_its_limit_says_so() -> None:
    choice = chat(make_app(says("Hi there")), max_tokens=4).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hi t", "length")


def test_an_alias_is_accepted_and_the_answer_bears_the_models_first_name() -> None:
    assert chat(make_app(), model="fake-alias").json()["model"] == "fake-model"


def test_several_answers_come_in_order_and_the_prompt_is_counted_once() -> None:
    app = make_app()
    one = chat(app, n=1, seed=5, temperature=1, max_tokens=100).json()
    body = chat(app, n=3, seed=5, temperature=1, max_tokens=100).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in body["choices"]}) == 3
    assert body["choices"][0]["message"] == one["choices"][0]["message"]
    assert body["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] > one["usage"]["completion_tokens"]


def test_cached_prompt_tokens_are_reported() -> None:
    app = make_app()
    assert chat(app).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert chat(app, n=2).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    assert chat(app, cache_salt="other").json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_stop_string_ends_the_answer_and_is_named() -> None:
    app = make_app(says("one END two"))
    choice = chat(app, max_tokens=100, stop=["END", "zzz"]).json()["choices"][0]
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
    kept = chat(app, max_tokens=100, stop="END", include_stop_str_in_output=True).json()["choices"][0]
    assert kept["message"]["content"] == "one END"


def test_a_stop_token_ends_the_answer_and_is_named() -> None:
    choice = chat(make_app(says("ab.cd")), max_tokens=100, stop_token_ids=[ord(".")]).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord("."))


def test_logprobs_tell_each_token_with_bytes_and_alternatives() -> None:
    body = chat(make_app(says("é")), max_tokens=100, logprobs=True, top_logprobs=2).json()
    check_against("ChatCompletion", body)
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content[:2]] == [[0xC3], [0xA9]]
    assert content[2]["token"] == "<|im_end|>"
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
    assert content[0]["top_logprobs"][0] == {"token": "�", "logprob": pytest.approx(-0.6931, abs=1e-3), "bytes": [0xC3]}
    plain = chat(make_app(says("é")), max_tokens=100, logprobs=True).json()["choices"][0]["logprobs"]
    assert [entry["top_logprobs"] for entry in plain["content"]] == [[], [], []]


def test_token_ids_are_returned_where_asked_for() -> None:
    engine = says("ab")
    body = chat(make_app(engine), max_tokens=100, return_token_ids=True).json()
    check_against("ChatCompletion", body)
    assert body["choices"][0]["token_ids"] == [97, 98, IM_END]
    assert body["prompt_token_ids"] == list(engine.requests[0].prompt_token_ids)


# Chat, streamed


def test_a_chat_stream_brings_role_then_text_then_reason() -> None:
    response = chat(make_app(says("né")), max_tokens=100, stream=True)
    events = events_of(response)
    for event in events:
        check_against("ChatCompletionChunk", event)
    assert response.headers["cache-control"] == "no-cache"
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    choices = [event["choices"][0] for event in events]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "n"},
        {"content": "é"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert choices[-1]["stop_reason"] is None
    assert all("usage" not in event and "prompt_token_ids" not in event for event in events)


def streamed_chat(events: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "") for event in events for choice in event["choices"] if choice["index"] == index
    )


def test_a_stream_says_what_the_whole_answer_says() -> None:
    app = make_app()
    fields = {"n": 3, "seed": 9, "temperature": 1, "max_tokens": 100}
    whole = chat(app, **fields).json()["choices"]
    events = events_of(chat(app, stream=True, **fields))
    for choice in whole:
        assert streamed_chat(events, choice["index"]) == choice["message"]["content"]
    roles = [e["choices"][0]["index"] for e in events if "role" in e["choices"][0]["delta"]]
    reasons = [e["choices"][0]["index"] for e in events if e["choices"][0]["finish_reason"]]
    assert sorted(roles) == sorted(reasons) == [0, 1, 2]


def test_usage_comes_last_and_alone_where_asked_for() -> None:
    app = make_app(says("abc"))
    whole = chat(app, max_tokens=100).json()["usage"]
    events = events_of(chat(app, max_tokens=100, stream=True, cache_salt="x", stream_options={"include_usage": True}))
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert (events[-1]["usage"], events[-1]["choices"]) == (whole, [])


def test_continuous_usage_grows_with_the_answer() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = events_of(chat(make_app(says("abc")), max_tokens=100, stream=True, stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 4)


def test_continuous_usage_without_usage_is_no_usage() -> None:
    options = {"continuous_usage_stats": True}
    events = events_of(chat(make_app(), stream=True, stream_options=options))
    assert all("usage" not in event for event in events)


def test_streamed_logprobs_and_token_ids_together_are_those_of_the_whole() -> None:
    app = make_app(says("né"))
    fields = {"max_tokens": 100, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    whole = chat(app, **fields).json()
    events = events_of(chat(app, stream=True, **fields))
    choices = [event["choices"][0] for event in events]
    logprobs = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    token_ids = [token for choice in choices for token in choice.get("token_ids", [])]
    assert logprobs == whole["choices"][0]["logprobs"]["content"]
    assert token_ids == whole["choices"][0]["token_ids"]
    assert [event.get("prompt_token_ids") for event in events] == [whole["prompt_token_ids"]] + [None] * (len(events) - 1)


def test_text_that_waits_for_the_rest_of_a_character_sends_no_empty_event() -> None:
    events = events_of(chat(make_app(says("🌊")), max_tokens=100, stream=True))
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["", "🌊", None]


def test_several_tokens_in_one_chunk_are_one_event() -> None:
    engine = says("abcdef")
    engine.tokens_per_step = 3
    events = events_of(chat(make_app(engine), max_tokens=6, stream=True))
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["", "abc", "def", None]


# Completions


def test_a_completion_has_openais_fields_and_nothing_unasked() -> None:
    body = complete(make_app(says("world")), max_tokens=100).json()
    check_against("Completion", body)
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "text_completion",
        "model": "fake-model",
        "system_fingerprint": "fp_fafafafafafa",
        "choices": [{"index": 0, "text": "world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 6,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_choices_are_ordered_by_prompt_and_then_by_answer() -> None:
    app = make_app()
    body = complete(app, prompt=["one", "two"], n=2, seed=1, temperature=1, max_tokens=100).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    second = complete(app, prompt="two", n=2, seed=1, temperature=1, max_tokens=100).json()
    assert [choice["text"] for choice in body["choices"][2:]] == [choice["text"] for choice in second["choices"]]
    assert body["usage"]["prompt_tokens"] == 8


def test_echo_begins_with_the_prompt() -> None:
    app = make_app(says("world"))
    assert complete(app, prompt="héllo ", echo=True).json()["choices"][0]["text"] == "héllo world"
    assert complete(app, prompt=[104, 105], echo=True).json()["choices"][0]["text"] == "hiworld"
    events = events_of(complete(app, prompt="héllo ", echo=True, stream=True))
    assert "".join(event["choices"][0]["text"] for event in events) == "héllo world"


def test_completion_logprobs_are_parallel_lists_with_offsets_into_the_text() -> None:
    body = complete(make_app(says("né!")), max_tokens=100, logprobs=2).json()
    check_against("Completion", body)
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["n", r"bytes:\xc3", r"bytes:\xa9", "!", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 5
    assert list(logprobs["top_logprobs"][0]) == ["n", "o"]


def test_zero_completion_logprobs_report_the_chosen_tokens_only() -> None:
    logprobs = complete(make_app(says("ab")), max_tokens=2, logprobs=0).json()["choices"][0]["logprobs"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [["a"], ["b"]]


def test_a_completion_stream_says_what_the_whole_says() -> None:
    app = make_app()
    fields: dict[str, Any] = {"prompt": ["one", "two"], "n": 2, "seed": 3, "temperature": 1, "max_tokens": 100}
    fields |= {"logprobs": 1, "return_token_ids": True, "echo": False}
    whole = complete(app, **fields).json()
    events = events_of(complete(app, stream=True, stream_options={"include_usage": True}, **fields))
    for event in events:
        check_against("Completion", event)
    for choice in whole["choices"]:
        parts = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert [o for part in parts for o in part["logprobs"]["text_offset"]] == choice["logprobs"]["text_offset"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [choice["prompt_token_ids"]]
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(event["usage"] is None for event in events[:-1])


def test_special_tokens_appear_where_they_are_not_to_be_skipped() -> None:
    engine = FakeEngine(lambda request, index: [97, EOS])
    fields = {"ignore_eos": True, "max_tokens": 2, "logprobs": 0}
    choice = complete(make_app(engine), skip_special_tokens=False, **fields).json()["choices"][0]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == ("a<|eos|>", [0, 1])
    assert complete(make_app(engine), **fields).json()["choices"][0]["text"] == "a"


# What goes wrong


ASK = [chat, complete]


def error_event(response: httpx.Response) -> dict[str, Any]:
    """The last event of a stream that failed: an error, and no `[DONE]` after it."""
    assert response.status_code == 200
    *_, last, end = response.text.split("\n\n")
    assert end == ""
    assert "[DONE]" not in response.text
    body = httpx.Response(200, text=last.removeprefix("data: ")).json()
    check_against("ErrorResponse", body)
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("stream", [True, False])
def test_what_fails_before_the_first_token_has_a_status_of_its_own(ask: Any, stream: bool) -> None:
    engine = FakeEngine()
    app = make_app(engine)
    engine.refusal = OverloadedError("10000 requests wait already")
    error = error_of(ask(app, stream=stream), 503)
    assert (error["type"], error["code"]) == ("server_error", "overloaded")
    engine.refusal = InvalidRequestError("no", param="seed")
    assert error_of(ask(app, stream=stream), 400)["param"] == "seed"
    engine.refusal = EngineDeadError("the engine process ended with code 9")
    assert error_of(ask(app, stream=stream), 503)["code"] == "engine_unavailable"
    engine.refusal = RuntimeError("secret detail")
    error = error_of(ask(app, stream=stream), 500)
    assert "secret" not in error["message"]


@pytest.mark.parametrize("ask", ASK)
def test_an_engine_that_dies_in_the_middle_ends_streams_with_an_error_and_the_rest_with_503(ask: Any) -> None:
    engine = FakeEngine()
    engine.fail_after = (3, EngineDeadError("the engine process ended with code 9"))
    app = make_app(engine)
    assert error_event(ask(app, stream=True))["message"] == "the engine process ended with code 9"
    assert error_of(ask(app), 503)["code"] == "engine_unavailable"


@pytest.mark.parametrize("ask", ASK)
def test_numbers_that_are_not_usable_are_an_error_not_an_answer(ask: Any) -> None:
    engine = FakeEngine()
    engine.broken_after = 2
    app = make_app(engine)
    assert "not finite" in error_event(ask(app, stream=True))["message"]
    assert "not finite" in error_of(ask(app), 500)["message"]


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("reason", [NOTHING_LEFT, NOTHING_ALLOWED, f"{FORM_ENDED}too many items"])
def test_an_answer_that_its_own_request_leaves_no_way_for_is_a_callers_error(ask: Any, reason: str) -> None:
    engine = FakeEngine()
    engine.broken_after, engine.broken_by = 2, reason
    app = make_app(engine)
    event = error_event(ask(app, stream=True))
    assert reason in event["message"]
    assert event["type"] == "invalid_request_error"
    assert reason in error_of(ask(app), 400)["message"]


def test_one_failing_prompt_of_several_ends_the_others() -> None:
    def answer(request: Any, index: int) -> list[int]:
        if 98 in request.prompt_token_ids:
            raise RuntimeError("a bug in one of them")
        return [97]

    engine = FakeEngine(answer)
    response = complete(make_app(engine), prompt=["a", "b"], max_tokens=1000)
    error_of(response, 500)
    assert engine.num_live == 0


# The other doors


def test_tokenize_takes_vllms_fields() -> None:
    app = make_app()
    body = call(app, "POST", "/tokenize", {"prompt": "aé", "return_token_strs": True}).json()
    check_against("TokenizeResponse", body)
    assert body == {
        "count": 4,
        "max_model_len": 4096,
        "tokens": [256, 97, 0xC3, 0xA9],
        "token_strs": ["<|bos|>", "a", "�", "�"],
    }
    body = call(app, "POST", "/tokenize", {"prompt": "a", "add_special_tokens": False}).json()
    assert (body["tokens"], body["token_strs"]) == ([97], None)


def test_tokenize_renders_conversations() -> None:
    app = make_app()
    body = {"messages": [{"role": "user", "content": "hello"}]}
    tokens = call(app, "POST", "/tokenize", body).json()["tokens"]
    assert len(tokens) == chat(app).json()["usage"]["prompt_tokens"]


def test_tokenize_takes_llama_cpps_fields() -> None:
    app = make_app()
    assert call(app, "POST", "/tokenize", {"content": "a<|eos|>"}).json()["tokens"] == [97, EOS]
    body = {"content": "<|eos|>", "parse_special": False, "add_special": True}
    assert call(app, "POST", "/tokenize", body).json()["tokens"] == [256, *b"<|eos|>"]
    pieces = call(app, "POST", "/tokenize", {"content": "aé", "with_pieces": True}).json()
    check_against("TokenizeResponse", pieces)
    assert pieces["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "content": "b"}, {"content": "b", "messages": []}])
def test_tokenize_wants_exactly_one_text(body: Any) -> None:
    assert "exactly one" in error_of(call(make_app(), "POST", "/tokenize", body), 400)["message"]


def test_detokenize_gives_the_text_under_both_names() -> None:
    body = call(make_app(), "POST", "/detokenize", {"tokens": [97, 0xC3, 0xA9, EOS]}).json()
    check_against("DetokenizeResponse", body)
    assert body == {"prompt": "aé<|eos|>", "content": "aé<|eos|>"}
    assert error_of(call(make_app(), "POST", "/detokenize", {"tokens": [1, 999]}), 400)["param"] == "tokens[1]"
    assert call(make_app(), "POST", "/detokenize", {"tokens": []}).json()["prompt"] == ""


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_token_doors_know_their_models(path: str) -> None:
    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    assert error_of(call(make_app(), "POST", path, body | {"model": "x"}), 404)["code"] == "model_not_found"
    assert call(make_app(), "POST", path, body | {"model": "fake-alias"}).status_code == 200


def test_long_texts_pass_through_both_token_doors() -> None:
    app = make_app()
    text = "long é " * 2000
    tokens = call(app, "POST", "/tokenize", {"content": text}).json()["tokens"]
    assert call(app, "POST", "/detokenize", {"tokens": tokens}).json()["content"] == text

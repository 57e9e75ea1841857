"""Every parameter that is known and not carried out is refused by name, and let through where it asks for nothing."""

from typing import Any

import pytest
from tests.unit.server.asgi import call, chat, complete, error_of, make_app

from headrace.server import refusals

REFUSED: dict[str, Any] = {
    "store": True,
    "service_tier": "flex",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "explicit"},
    "moderation": {"model": "m"},
    "guided_json": {},
    "guided_regex": "a+",
    "guided_choice": ["a"],
    "guided_grammar": "root ::= 'a'",
    "spaces_between_special_tokens": False,
    "return_token_offsets": True,
    "return_mm_kwargs": False,
    "routed_experts_prompt_start": 3,
    "watermarking": True,
    "kv_transfer_params": {"do_remote_decode": True},
    "ec_transfer_params": {},
    "vllm_xargs": {"a": 1},
}
REFUSED_IN_CHAT: dict[str, Any] = {
    "prompt": "once upon",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "web_search_options": {},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy"},
    "media_io_kwargs": {"image": {}},
    "mm_processor_kwargs": {"size": 1},
    "prediction": {"type": "content", "content": "x"},
    "verbosity": "low",
    "best_of": 2,
}
REFUSED_IN_COMPLETIONS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "suffix": "the end",
    "prompt_embeds": "AAAA",
    "return_prompt_text": True,
}

HARMLESS: dict[str, list[Any]] = {
    "store": [False],
    "service_tier": ["auto", "default"],
    "prompt_cache_retention": ["in_memory"],
    "use_beam_search": [False],
    "length_penalty": [1, 1.0],
    "early_stopping": [False],
    "spaces_between_special_tokens": [True],
    "return_tokens_as_token_ids": [False],
    "return_token_offsets": [False],
    "return_prompt_text": [False],
    "watermarking": [False],
    "stream_interval": [1],
    "vllm_xargs": [{}],
}
HARMLESS_IN_CHAT: dict[str, list[Any]] = {
    "functions": [[]],
    "function_call": ["none", "auto"],
    "modalities": [["text"], []],
    "media_io_kwargs": [{}],
    "mm_processor_kwargs": [{}],
    "verbosity": ["medium"],
    "documents": [[]],
    "echo": [False],
    "best_of": [1],
}
HARMLESS_IN_COMPLETIONS: dict[str, list[Any]] = {"suffix": [""], "return_prompt_text": [False]}

APP = make_app()


def test_the_cases_here_cover_the_whole_table() -> None:
    assert set(refusals.CHAT) == set(REFUSED) | set(REFUSED_IN_CHAT)
    assert set(refusals.COMPLETION) == set(REFUSED) | set(REFUSED_IN_COMPLETIONS)


@pytest.mark.parametrize(("name", "value"), (REFUSED | REFUSED_IN_CHAT).items())
def test_chat_refuses_by_name(name: str, value: Any) -> None:
    error = error_of(chat(APP, **{name: value}), 400)
    assert error["param"] == name
    assert error["code"] == "unsupported_parameter"
    assert error["type"] == "invalid_request_error"
    assert name in error["message"]


@pytest.mark.parametrize(("name", "value"), (REFUSED | REFUSED_IN_COMPLETIONS).items())
def test_completions_refuse_by_name(name: str, value: Any) -> None:
    error = error_of(complete(APP, **{name: value}), 400)
    assert error["param"] == name
    assert error["code"] == "unsupported_parameter"


@pytest.mark.parametrize(("name", "values"), (HARMLESS | HARMLESS_IN_CHAT).items())
def test_chat_accepts_values_that_ask_for_nothing(name: str, values: list[Any]) -> None:
    for value in [*values, None]:
        assert chat(APP, **{name: value}).status_code == 200, (name, value)


@pytest.mark.parametrize(("name", "values"), (HARMLESS | HARMLESS_IN_COMPLETIONS).items())
def test_completions_accept_values_that_ask_for_nothing(name: str, values: list[Any]) -> None:
    for value in [*values, None]:
        assert complete(APP, **{name: value}).status_code == 200, (name, value)


def test_a_number_does_not_pass_for_a_harmless_boolean() -> None:
    assert error_of(chat(APP, store=0), 400)["param"] == "store"


def test_best_of_is_harmless_in_chat_exactly_where_it_equals_n() -> None:
    assert chat(APP, n=3, best_of=3).status_code == 200
    assert error_of(chat(APP, n=3, best_of=2), 400)["param"] == "best_of"
    assert error_of(chat(APP, best_of=True), 400)["param"] == "best_of"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [("temprature", "temperature"), ("max_token", "max_tokens"), ("max_new_tokens", "max_tokens"),
     ("n_predict", "max_tokens"), ("repeat_penalty", "repetition_penalty"), ("Stream", "stream")],
)  # fmt: skip
def test_an_unknown_parameter_is_refused_with_the_nearest_name(sent: str, meant: str) -> None:
    error = error_of(chat(APP, **{sent: 1}), 400)
    assert error["param"] == sent
    assert error["code"] == "unknown_parameter"
    assert repr(meant) in error["message"]


@pytest.mark.parametrize(
    ("path", "field", "other"),
    [
        ("/v1/chat/completions", "prompt", "/v1/completions"),
        ("/v1/completions", "messages", "/v1/chat/completions"),
    ],
)
def test_what_belongs_to_the_other_door_is_sent_there(path: str, field: str, other: str) -> None:
    value = "once upon" if field == "prompt" else [{"role": "user", "content": "hello"}]
    assert other in error_of(call(APP, "POST", path, {field: value}), 400)["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_an_empty_body_is_called_empty(path: str) -> None:
    headers = {"content-type": "application/json"}
    error = error_of(call(APP, "POST", path, content=b"", headers=headers), 400)
    assert "the body is empty" in error["message"]
    assert error["code"] == "invalid_json"


def test_an_unknown_parameter_like_no_other_gets_no_suggestion() -> None:
    assert "did you mean" not in error_of(chat(APP, zzz=1), 400)["message"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"tools": [{"name": "x"}]}, "'tools[0].name'; it belongs in 'tools[0].function'"),
        ({"tools": [{"type": "function", "function": {"nam": "x"}}]}, "'tools[0].function.nam'; did you mean 'name'?"),
        ({"structured_outputs": {"jsn": {}}}, "'structured_outputs.jsn'; did you mean 'json'?"),
        ({"stream_options": {"include_usag": True}}, "did you mean 'include_usage'?"),
        ({"stream_options": {"name": "x"}}, "unknown parameter 'stream_options.name'"),
        ({"json_schema": {}}, "'json_schema'; it belongs in 'response_format'"),
    ],
)
def test_an_unknown_parameter_inside_another_is_refused_with_its_right_name_or_place(
    body: dict[str, Any], told: str
) -> None:
    assert error_of(chat(APP, **body), 400)["message"].endswith(told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"tool_choice": "requred"}, "tool_choice: 'requred' is none of auto, none, required; did you mean 'required'?"),
        (
            {"response_format": {"type": "json"}},
            "response_format.type: 'json' is none of json_object, json_schema, structural_tag, text",
        ),
        ({"messages": [{"role": "it's", "content": ""}]}, "is none of assistant, developer, system, tool, user"),
    ],
)
def test_a_word_that_is_none_of_those_known_is_refused_with_those(body: dict[str, Any], told: str) -> None:
    assert error_of(chat(APP, **body), 400)["message"].endswith(told)


def test_a_very_long_unknown_name_is_refused_briefly() -> None:
    assert len(error_of(chat(APP, **{"x" * 100_000: 1}), 400)["message"]) < 500


def test_chat_only_parameters_are_unknown_to_completions() -> None:
    assert error_of(complete(APP, messages=[]), 400)["param"] == "messages"
    assert error_of(chat(APP, prompt="x"), 400)["param"] == "prompt"


@pytest.mark.parametrize(
    ("field", "value"),
    [("function_call", {}), ("refusal", "no"), ("annotations", [{}]), ("audio", {})],
)
def test_what_a_message_may_not_hold_is_refused_by_its_path(field: str, value: Any) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", field: value}]
    assert error_of(chat(APP, messages=messages), 400)["param"] == f"messages[1].{field}"


def test_an_earlier_answer_may_be_sent_back_with_its_empty_fields() -> None:
    empty: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None, "tool_calls": []}
    answer = {"role": "assistant", "content": "b", **empty}
    assert chat(APP, messages=[{"role": "user", "content": "a"}, answer]).status_code == 200


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal", "video_url", ""])
def test_content_parts_other_than_text_are_refused_by_type(kind: str) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind or "x": {"url": "data:,"}}]
    error = error_of(chat(APP, messages=[{"role": "user", "content": parts}]), 400)
    assert error["param"] == "messages[0].content[1].type"
    assert repr(kind) in error["message"]


def test_stream_options_refuse_what_they_do_not_know() -> None:
    error = error_of(chat(APP, stream=True, stream_options={"include_usages": True}), 400)
    assert error["param"] == "stream_options.include_usages"
    assert "'include_usage'" in error["message"]
    assert chat(APP, stream=True, stream_options={"include_obfuscation": False}).status_code == 200
    error = error_of(chat(APP, stream=True, stream_options={"include_obfuscation": True}), 400)
    assert error["param"] == "stream_options.include_obfuscation"

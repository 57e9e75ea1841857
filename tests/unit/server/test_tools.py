"""Tools and reasoning at the chat door: what is refused, what the model is told, and the shape of what comes back."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from tests.fakes import BOS, IM_END, IM_START, SPECIAL_IDS, SPECIAL_TOKENS, FakeChatTemplate, FakeEngine, fixed_answer
from tests.unit.server.asgi import call, chat, error_of, events_of, make_app

from headrace.base.errors import ConfigurationError
from headrace.engine.mind.structured_output import OutputKind
from headrace.server.config import ServerConfig

HERMES = FakeChatTemplate("{% for tool in tools %}<tool_call>{% endfor %}<think>")
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = [WEATHER, STOP]
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🌊"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
)


def app_saying(text: str, template: FakeChatTemplate = HERMES, **config: Any) -> tuple[Any, FakeEngine]:
    engine = FakeEngine(fixed_answer(text))
    return make_app(engine, ServerConfig(access_log=False, **config), chat_template=template), engine


def streamed(response: Any) -> tuple[dict[str, Any], str | None]:
    """The message that a stream adds up to, and why it ended."""
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    reason = None
    for event in events_of(response):
        for choice in event["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning"):
                if delta.get(key):
                    message[key] = (message.get(key) or "") + delta[key]
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(message["tool_calls"]):
                    assert set(piece) == {"index", "id", "type", "function"}, "a call begins with its id and name"
                    message["tool_calls"].append({"name": piece["function"]["name"], "arguments": ""})
                else:
                    assert set(piece) == {"index", "function"}
                    assert set(piece["function"]) == {"arguments"}
                message["tool_calls"][piece["index"]]["arguments"] += piece["function"]["arguments"]
            reason = choice["finish_reason"] or reason
    return message, reason


# Calls


def test_calls_come_back_as_calls() -> None:
    app, _ = app_saying(CALLS)
    choice = chat(app, tools=TOOLS, max_tokens=500).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Let me see."
    assert [one["function"] for one in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Zürich 🌊"}'},
        {"name": "stop", "arguments": "{}"},
    ]
    ids = [one["id"] for one in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(one.startswith("call_") for one in ids)


@pytest.mark.parametrize("tokens_per_step", [1, 3, 7, 1000])
def test_a_stream_of_calls_adds_up_to_the_whole(tokens_per_step: int) -> None:
    """The fake model's tokens are bytes: characters are split, too."""
    app, engine = app_saying("<think>Hm, où?</think>" + CALLS)
    engine.tokens_per_step = tokens_per_step
    message, reason = streamed(chat(app, tools=TOOLS, max_tokens=500, stream=True))
    assert reason == "tool_calls"
    assert message == {
        "content": "Let me see.",
        "reasoning": "Hm, où?",
        "tool_calls": [
            {"name": "get_weather", "arguments": '{"city": "Zürich 🌊"}'},
            {"name": "stop", "arguments": "{}"},
        ],
    }


@pytest.mark.parametrize("max_tokens", range(1, 130, 3))
def test_a_stream_cut_off_anywhere_says_what_the_whole_says(max_tokens: int) -> None:
    app, _ = app_saying(CALLS)
    choice = chat(app, tools=TOOLS, max_tokens=max_tokens).json()["choices"][0]
    message, reason = streamed(chat(app, tools=TOOLS, max_tokens=max_tokens, stream=True))
    assert reason == choice["finish_reason"] == "length"
    assert (message["content"] or None) == (choice["message"]["content"] or None)
    assert message["tool_calls"] == [one["function"] for one in choice["message"].get("tool_calls", [])]


def test_an_answer_that_only_calls_has_no_content() -> None:
    app, _ = app_saying('<tool_call>{"name": "stop", "arguments": {}}</tool_call>')
    message = chat(app, tools=TOOLS, max_tokens=100).json()["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


def test_without_tools_a_call_is_text() -> None:
    app, _ = app_saying(CALLS)
    nothing: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}]
    for fields in nothing:
        choice = chat(app, max_tokens=500, **fields).json()["choices"][0]
        assert choice["message"]["content"] == CALLS
        assert choice["finish_reason"] == "stop"


def test_the_model_is_told_of_its_tools_unless_it_may_not_call_them() -> None:
    app, engine = app_saying("no")
    prompts = []
    for fields in ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {}):
        assert chat(app, **fields).status_code == 200
        prompts.append(engine.tokenizer.decode(engine.requests[-1].prompt_token_ids))
    assert json.dumps(TOOLS) in prompts[0]
    assert prompts[1] == prompts[2]


def test_without_parallel_calls_the_answer_ends_before_the_second() -> None:
    app, _ = app_saying(CALLS)
    fields: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 500}
    choice = chat(app, **fields).json()["choices"][0]
    message, reason = streamed(chat(app, stream=True, **fields))
    assert reason == choice["finish_reason"] == "tool_calls"
    assert [one["name"] for one in message["tool_calls"]] == ["get_weather"]
    assert [one["function"] for one in choice["message"]["tool_calls"]] == message["tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_per_step", [1, 5, 1000])
def test_without_parallel_calls_the_engine_stops_with_the_first(stream: bool, tokens_per_step: int) -> None:
    """It does not go on to write a second call that nobody will see; nor does anything behind the call show."""
    app, engine = app_saying(CALLS.split('\n<tool_call>\n{"name": "stop"')[0] + " Well, then." + CALLS)
    engine.tokens_per_step = tokens_per_step
    fields: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 500, "stream": stream}
    response = chat(app, n=2, return_token_ids=True, **fields)
    choices = [choice for event in (events_of(response) if stream else [response.json()]) for choice in event["choices"]]
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == {0: "tool_calls", 1: "tool_calls"}
    assert "Well" not in response.text
    num_tokens = sum(len(choice.get("token_ids") or ()) for choice in choices)
    if tokens_per_step < 1000:
        first_call = CALLS.split("}}")[0] + "}}"
        assert num_tokens < 2 * (len(first_call.encode()) + tokens_per_step), "and it stopped at once"


def test_braces_in_strings_do_not_end_a_call() -> None:
    said = '<tool_call>{"name": "get_weather", "arguments": {"city": "}\\"}{", "more": [{"a": 1}]}}</tool_call>after'
    app, _ = app_saying(said)
    choice = chat(app, tools=TOOLS, parallel_tool_calls=False, max_tokens=500).json()["choices"][0]
    (only,) = choice["message"]["tool_calls"]
    assert json.loads(only["function"]["arguments"]) == {"city": '}"}{', "more": [{"a": 1}]}
    assert choice["message"]["content"] is None


def test_several_answers_have_calls_of_their_own() -> None:
    app, _ = app_saying(CALLS)
    choices = chat(app, tools=TOOLS, max_tokens=500, n=3).json()["choices"]
    assert [len(choice["message"]["tool_calls"]) for choice in choices] == [2, 2, 2]
    assert len({one["id"] for choice in choices for one in choice["message"]["tool_calls"]}) == 6


def test_every_token_has_its_logprob_though_calls_have_no_text_of_their_own() -> None:
    app, _ = app_saying(CALLS)
    fields: dict[str, Any] = {"tools": TOOLS, "max_tokens": 500, "logprobs": True, "return_token_ids": True}
    choice = chat(app, **fields).json()["choices"][0]
    events = events_of(chat(app, stream=True, **fields))
    streamed_tokens = [
        token["token"]
        for event in events
        for one in event["choices"]
        if one.get("logprobs")
        for token in one["logprobs"]["content"]
    ]
    assert streamed_tokens == [token["token"] for token in choice["logprobs"]["content"]]
    assert sum(len(one.get("token_ids", ())) for event in events for one in event["choices"]) == len(choice["token_ids"])


# Marks that are special tokens


def test_special_tokens_that_mark_calls_are_seen_and_others_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPECIAL_TOKENS, BOS, "<|python_tag|>")
    monkeypatch.setitem(SPECIAL_IDS, "<|python_tag|>", BOS)
    engine = FakeEngine(lambda request, index: [*b"Well.", IM_START, BOS, *b'{"name": "stop", "parameters": {}}', IM_END])
    app = make_app(engine, chat_template=FakeChatTemplate("tools <|python_tag|>"))
    message = chat(app, tools=TOOLS, max_tokens=100).json()["choices"][0]["message"]
    assert message["content"] == "Well."
    assert message["tool_calls"][0]["function"] == {"name": "stop", "arguments": "{}"}
    assert engine.requests[-1].shown_special_token_ids == {BOS}
    content = chat(app, max_tokens=100).json()["choices"][0]["message"]["content"]
    assert content == 'Well.{"name": "stop", "parameters": {}}', "without tools, no special token is shown"


# What must be called


MUST = ["required", {"type": "function", "function": {"name": "get_weather"}}]


@pytest.mark.parametrize("choice", MUST)
def test_a_call_that_must_be_made_has_the_models_own_form_and_is_read(choice: Any) -> None:
    app, engine = app_saying('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>')
    answer = chat(app, tools=TOOLS, tool_choice=choice, max_tokens=200).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    form = engine.requests[-1].structured_output
    assert form is not None
    assert (form.kind, form.field, form.begins_after) == (OutputKind.STRUCTURAL_TAG, "tools", ())
    assert form.text.count("<tool_call>") == (2 if choice == "required" else 1), "a second call may follow"


@pytest.mark.parametrize("choice", MUST)
@pytest.mark.parametrize("why", ["no tags", "no own format"])
def test_where_the_models_form_cannot_be_had_calls_that_must_be_made_are_plain_json(choice: Any, why: str) -> None:
    template = HERMES if why == "no tags" else FakeChatTemplate("{% for tool in tools %}{{ tool }}{% endfor %}")
    text = '[{"name": "get_weather", "parameters": {"city": "Paris"}}]'
    app, engine = app_saying(text, template, enforces_tags=why != "no tags")
    answer = chat(app, tools=TOOLS, tool_choice=choice, max_tokens=200).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert [one["function"] for one in answer["message"]["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    ]
    form = engine.requests[-1].structured_output
    assert form is not None
    assert form.kind is OutputKind.JSON_SCHEMA
    assert form.begins_after == ()
    schema = msgspec.json.decode(form.text)
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert ("maxItems" in schema) == (choice != "required")


def test_reasoning_that_the_prompt_has_begun_comes_before_the_form() -> None:
    app, engine = app_saying('I must.\n</think>\n\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>')
    fields = {"tool_choice": "required", "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}}
    message = chat(app, max_tokens=200, **fields).json()["choices"][0]["message"]
    assert message["reasoning"] == "I must."
    assert message["tool_calls"][0]["function"]["name"] == "stop"
    form = engine.requests[-1].structured_output
    assert form is not None
    assert bytes(form.begins_after) == b"</think>"


def test_any_form_begins_behind_the_reasoning_that_the_prompt_has_begun() -> None:
    app, engine = app_saying("Hm.</think>{}")
    for thinks in (True, False):
        fields: dict[str, Any] = {"response_format": {"type": "json_object"}}
        assert chat(app, chat_template_kwargs={"enable_thinking": thinks}, **fields).status_code == 200
        form = engine.requests[-1].structured_output
        assert form is not None
        assert bytes(form.begins_after) == (b"</think>" if thinks else b"")


FORM = {"response_format": {"type": "json_object"}}


def test_beside_tools_a_form_is_one_of_two_things_that_an_answer_may_be() -> None:
    app, engine = app_saying("{}")
    for choice, kind in (("auto", OutputKind.STRUCTURAL_TAG), ("none", OutputKind.JSON_SCHEMA)):
        assert chat(app, tool_choice=choice, tools=TOOLS, **FORM).json()["choices"][0]["message"]["content"] == "{}"
        form = engine.requests[-1].structured_output
        assert form is not None
        assert form.kind is kind
        assert form.field == "response_format"
        assert ("get_weather" in form.text) == (choice == "auto")


def test_where_calls_must_be_made_the_form_of_other_answers_does_not_matter() -> None:
    app, _ = app_saying('<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>')
    message = chat(app, tool_choice="required", tools=TOOLS, max_tokens=200, **FORM).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (FORM, "response_format"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
    ],
)
def test_a_form_is_refused_beside_tools_whose_calls_nothing_announces(fields: dict[str, Any], param: str) -> None:
    app, _ = app_saying("{}", tool_call_parser="llama3_json")
    assert error_of(chat(app, tools=TOOLS, **fields), 400)["param"] == param


def test_strict_tools_bind_calls_and_leave_words_free() -> None:
    app, engine = app_saying(CALLS)
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    answer = chat(app, tools=[strict, STOP], max_tokens=500).json()["choices"][0]["message"]
    assert answer["content"] == "Let me see."
    assert len(answer["tool_calls"]) == 2
    form = engine.requests[-1].structured_output
    assert form is not None
    described = msgspec.json.decode(form.text)["format"]
    assert (described["type"], described["triggers"]) == ("triggered_tags", ["<tool_call>"])
    assert chat(app, tools=TOOLS, max_tokens=500).status_code == 200
    assert engine.requests[-1].structured_output is None, "tools that are not strict are called as the model likes"


def test_strict_is_refused_where_it_cannot_be_kept() -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    app, _ = app_saying(CALLS, enforces_tags=False)
    assert error_of(chat(app, tools=[STOP, strict]), 400)["param"] == "tools[1].function.strict"
    anything = {"type": "function", "function": {"name": "do", "strict": True, "parameters": {"type": "object"}}}
    app, _ = app_saying(CALLS, tool_call_parser="qwen3_coder")
    error = error_of(chat(app, tools=[anything]), 400)
    assert error["param"] == "tools[0].function.strict"
    assert "bare text" in error["message"]


def test_references_within_a_tools_schema_point_at_it_still() -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/size"}, "$ref": {"type": "string"}},
        "$defs": {"size": {"enum": ["s", "m"]}},
    }
    tools = [{"type": "function", "function": {"name": "a/b", "parameters": parameters}}, STOP]
    app, engine = app_saying("[]", enforces_tags=False)
    assert chat(app, tools=tools, tool_choice="required").status_code == 200
    form = engine.requests[-1].structured_output
    assert form is not None
    schema = msgspec.json.decode(form.text)
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == {"$ref": "#/$defs/a~1b"}
    assert schema["$defs"]["a/b"]["properties"]["a"] == {"$ref": "#/$defs/a~1b/$defs/size"}
    assert schema["$defs"]["a/b"]["properties"]["$ref"] == {"type": "string"}


# Reasoning


def test_reasoning_comes_apart_from_the_answer() -> None:
    app, _ = app_saying("<think>\nFirst this.\n</think>\n\nThen that.")
    message = chat(app, max_tokens=200).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("First this.", "Then that.")
    assert "tool_calls" not in message


def test_reasoning_that_the_prompt_has_begun_is_reasoning() -> None:
    app, _ = app_saying("First this.\n</think>\n\nThen that.")
    fields = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 200}
    message = chat(app, **fields).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("First this.", "Then that.")
    fields["max_tokens"] = 5
    message = chat(app, **fields).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("First", None)


def test_reasoning_that_the_prompt_has_ended_leaves_the_answer_alone() -> None:
    app, _ = app_saying("<think> is a tag.")
    message = chat(app, chat_template_kwargs={"enable_thinking": False}, max_tokens=200).json()["choices"][0]["message"]
    assert message["content"] == "<think> is a tag."


def test_reasoning_may_be_left_out() -> None:
    app, _ = app_saying("<think>First this.</think>Then that.")
    message = chat(app, include_reasoning=False, max_tokens=200).json()["choices"][0]["message"]
    assert message["content"] == "Then that."
    assert "reasoning" not in message


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_goes_back_into_the_prompt_under_both_its_names(name: str) -> None:
    app, engine = app_saying("ok")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", name: "because"},
        {"role": "user", "content": "c"},
    ]
    assert chat(app, messages=messages).status_code == 200
    assert "<think>because</think>b" in engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)


# Turns with calls


def turns(**answer: Any) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": '{"city": "Paris", "b": 1}'}
    called = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    return [
        {"role": "user", "content": "a"},
        called | answer,
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]


@pytest.mark.parametrize(
    "answer", [{}, {"content": None}, {"content": "Let me see."}, {"content": None, "refusal": None, "audio": None}]
)
def test_turns_with_calls_and_their_results_reach_the_template_with_arguments_as_objects(answer: dict[str, Any]) -> None:
    app, engine = app_saying("ok")
    assert chat(app, messages=turns(**answer), tools=TOOLS).status_code == 200
    prompt = engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)
    assert '{"name": "get_weather", "arguments": {"city": "Paris", "b": 1}}' in prompt
    assert "sunny" in prompt


def test_the_clients_own_notes_on_a_call_are_no_obstacle() -> None:
    app, _ = app_saying("ok")
    messages = turns(parsed=None)
    messages[1]["tool_calls"][0]["index"] = 0
    messages[1]["tool_calls"][0]["function"]["parsed_arguments"] = {"city": "Paris"}
    assert chat(app, messages=messages, tools=TOOLS).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [({"arguments": "{"}, "messages[1].tool_calls[0].function.arguments"),
     ({"arguments": "[1]"}, "messages[1].tool_calls[0].function.arguments"),
     ({"arguments": {}}, "messages[1].tool_calls[0].function.arguments"),
     ({"argument": "{}"}, "messages[1].tool_calls[0].function.argument")],
)  # fmt: skip
def test_a_call_that_is_none_is_refused_by_its_path(change: dict[str, Any], param: str) -> None:
    app, _ = app_saying("ok")
    messages = turns()
    messages[1]["tool_calls"][0]["function"] |= change
    assert error_of(chat(app, messages=messages), 400)["param"] == param


def test_calls_belong_to_the_assistant_and_others_must_say_something() -> None:
    app, _ = app_saying("ok")
    assert error_of(chat(app, messages=turns(role="user", content="x")), 400)["param"] == "messages[1].tool_calls"
    for role in ("user", "assistant", "system"):
        error = error_of(chat(app, messages=[{"role": role}]), 400)
        assert (error["param"], error["code"]) == ("messages[0].content", "missing_required_parameter")


# What is refused


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f"} | fields}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"tools": function(name="no spaces")}, "tools[0].function.name"),
     ({"tools": function(name="")}, "tools[0].function.name"),
     ({"tools": function(name="x" * 129)}, "tools[0].function.name"),
     ({"tools": [*function(), *function()]}, "tools[1].function.name"),
     ({"tools": function(parameters={"type": "string"})}, "tools[0].function.parameters.type"),
     ({"tools": function(parameters={"properties": []})}, "tools[0].function.parameters.properties"),
     ({"tools": function(parameters={"properties": {"a": 1}})}, "tools[0].function.parameters.properties"),
     ({"tools": function(parameters={"required": "a"})}, "tools[0].function.parameters.required"),
     ({"tools": function(parameters=[])}, "tools[0].function.parameters"),
     ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
     ({"tools": [{"type": "function"}]}, "tools[0].function"),
     ({"tools": {"type": "function"}}, "tools"),
     ({"tool_choice": "required"}, "tool_choice"),
     ({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": []}, "tool_choice"),
     ({"tools": function(), "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
     ({"tools": function(), "tool_choice": "any"}, "tool_choice"),
     ({"tools": function(), "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
     ({"functions": [{"name": "f"}]}, "functions")],
)  # fmt: skip
def test_tools_that_are_none_are_refused_by_their_path(fields: dict[str, Any], param: str) -> None:
    app, engine = app_saying("ok")
    assert error_of(chat(app, **fields), 400)["param"] == param
    assert not engine.requests


def test_a_model_that_nobody_tells_of_tools_refuses_them() -> None:
    app, _ = app_saying(CALLS, FakeChatTemplate("{{ messages }}"))
    error = error_of(chat(app, tools=TOOLS), 400)
    assert error["param"] == "tools"
    app, _ = app_saying(CALLS, FakeChatTemplate("{{ messages }}"), tool_call_parser="hermes")
    assert chat(app, tools=TOOLS, max_tokens=500).json()["choices"][0]["finish_reason"] == "tool_calls"


def test_a_format_that_is_named_counts_for_more_than_the_templates() -> None:
    app, _ = app_saying("[TOOL_CALLS]stop[ARGS]{}", tool_call_parser="mistral", reasoning_parser="none")
    call_made = chat(app, tools=TOOLS, max_tokens=100).json()["choices"][0]["message"]["tool_calls"][0]
    assert call_made["function"] == {"name": "stop", "arguments": "{}"}
    assert len(call_made["id"]) == 9
    assert call_made["id"].isalnum()
    app, _ = app_saying("<think>a</think>b", reasoning_parser="none")
    assert chat(app, max_tokens=100).json()["choices"][0]["message"]["content"] == "<think>a</think>b"
    app, _ = app_saying("a</think>b", reasoning_parser="deepseek_r1")
    assert chat(app, max_tokens=100).json()["choices"][0]["message"]["reasoning"] == "a"


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"tool_call_parser": "hermse"}, "hermes"),
        ({"tool_call_parser": "kimi-k2"}, "kimi_k2"),
        ({"reasoning_parser": "thnk"}, "think"),
    ],
)
def test_a_format_that_nobody_knows_is_refused_with_the_nearest(options: dict[str, str], near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean '{near}'"):
        ServerConfig(**options)  # type: ignore[arg-type]


# Elsewhere


def test_tokenize_counts_tools_as_the_chat_does() -> None:
    app, engine = app_saying("ok")
    body = {"messages": [{"role": "user", "content": "hello"}], "tools": TOOLS}
    assert chat(app, tools=TOOLS).status_code == 200
    tokens = call(app, "POST", "/tokenize", body).json()["tokens"]
    assert tokens == list(engine.requests[-1].prompt_token_ids)
    assert error_of(call(app, "POST", "/tokenize", {"prompt": "a", "tools": TOOLS}), 400)["param"] == "tools"


def test_two_streams_at_once_do_not_mix() -> None:
    app, _ = app_saying(CALLS)

    async def both() -> list[Any]:
        return await asyncio.gather(
            *(asyncio.to_thread(chat, app, tools=TOOLS, max_tokens=500, stream=True) for _ in range(2))
        )

    first, second = (streamed(response) for response in asyncio.run(both()))
    assert first == second

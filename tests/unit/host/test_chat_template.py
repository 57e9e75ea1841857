"""Chat templates: what a template sees, what it may not do, and what its errors become."""

from typing import Any

import pytest
from tests.fakes import ByteTokenizer

from headrace.base.errors import CheckpointError, InvalidRequestError
from headrace.engine.host.chat_template import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = [{"role": "user", "content": "Hello"}]
TURNS = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
TRIMMED_TURNS = "{% for message in messages %}[{{ message.role }}] {{ message.content | trim }}</s>{% endfor %}"
PARTS_ONLY = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{{ ';' }}{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, TOKENS).render(HELLO if messages is None else messages, **options)


# What a template sees


def test_messages_special_tokens_and_variables_reach_the_template() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ mood }}{{ eos_token }}"
    assert render(source, mood="!") == "<s>Hello!</s>"
    assert render(source, eos_token="<end>") == "<s>Hello<end>"


def test_a_generation_prompt_is_asked_for_unless_told_otherwise() -> None:
    source = "{% if add_generation_prompt %}assistant:{% endif %}"
    assert render(source) == "assistant:"
    assert render(source, add_generation_prompt=False) == ""


def test_tools_and_documents_reach_the_template_and_are_none_where_there_are_none() -> None:
    source = "{{ tools is none }} {{ documents is none }} {{ tools | tojson }} {{ documents[0].title }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    expected = 'False False [{"type": "function", "function": {"name": "f"}}] T'
    assert render(source, tools=tools, documents=[{"title": "T"}]) == expected
    assert render("{{ tools is none }} {{ documents is none }}") == "True True"


def test_lines_that_hold_only_a_block_leave_no_white_space() -> None:
    assert render("a\n    {% if true %}\n    b\n    {% endif %}\nc") == "a\n    b\nc"


def test_json_is_written_as_it_is_and_not_for_web_pages() -> None:
    assert render("{{ {'a': '<é&>'} | tojson }}") == '{"a": "<é&>"}'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": [\n  2\n ],\n "b": 1\n}'


def test_loops_may_break_and_continue() -> None:
    source = "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% elif n == 4 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    assert render(source) == "023"


def test_the_generation_block_is_what_it_encloses() -> None:
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aHellob"


def test_the_time_comes_from_the_clock_that_was_passed_in() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}, now_unix_s=lambda: 12 * 3600)
    assert template.render(HELLO) == "1970-01-01"


def test_namespaces_and_dicts_work_as_templates_expect() -> None:
    assert render("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ dict(a=3).a }}") == "23"


def test_fields_without_a_value_are_absent() -> None:
    messages = [{"role": "assistant", "content": "x", "tool_calls": None}]
    assert render("{{ messages[0].tool_calls is defined }}", messages) == "False"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_is_found_under_the_names_that_templates_use(name: str) -> None:
    messages = [{"role": "assistant", "content": "x", name: "why"}]
    assert render("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}", messages) == "why why"


def test_the_callers_messages_are_left_as_they_were() -> None:
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning": "why", "name": None}]
    before = repr(messages)
    render(EITHER, messages)
    render(EITHER, messages, add_generation_prompt=False, continue_final_message=True)
    assert repr(messages) == before


# Content as text or as parts

PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]


def test_parts_are_joined_for_a_template_that_wants_text() -> None:
    assert render(TURNS, PARTS) == "[user] one\ntwo\n"


def test_parts_stay_parts_for_a_template_that_looks_into_them() -> None:
    assert render(EITHER, PARTS) == "onetwo"
    assert render(PARTS_ONLY, PARTS) == "one;two;"


def test_text_becomes_a_part_only_where_a_template_cannot_take_text() -> None:
    assert render(PARTS_ONLY) == "Hello;"
    assert render(EITHER) == "Hello"


def test_a_part_that_is_no_text_is_refused_by_its_type() -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    with pytest.raises(InvalidRequestError, match="content part of type 'image_url'") as refusal:
        render(TURNS, picture)
    assert refusal.value.param == "messages"
    with pytest.raises(InvalidRequestError, match="content part of type 'int'"):
        render(TURNS, [{"role": "user", "content": [3]}])


# Going on with the last message

OPEN = [*HELLO, {"role": "assistant", "content": "I think "}]


def test_the_last_message_may_be_left_open() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(TURNS, OPEN, **options) == "[user] Hello\n[assistant] I think "
    assert render(TRIMMED_TURNS, OPEN, **options) == "[user] Hello</s>[assistant] I think"


def test_the_last_text_part_may_be_left_open() -> None:
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    for source, expected in ((PARTS_ONLY, "a;b"), (EITHER, "ab"), (TURNS, "[assistant] a\nb")):
        assert render(source, parts, add_generation_prompt=False, continue_final_message=True) == expected


def test_an_open_message_and_a_new_one_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other") as refusal:
        render(TURNS, OPEN, continue_final_message=True)
    assert refusal.value.param == "continue_final_message"


@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": []}])
def test_a_message_without_content_cannot_be_left_open(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="needs a last message with content"):
        render(EITHER, [message], add_generation_prompt=False, continue_final_message=True)


def test_a_template_that_does_not_print_the_last_message_cannot_leave_it_open() -> None:
    with pytest.raises(InvalidRequestError, match="does not print the last message"):
        render("{{ messages[0].role }}", add_generation_prompt=False, continue_final_message=True)


# Errors


def test_the_templates_own_refusal_reaches_the_client() -> None:
    with pytest.raises(InvalidRequestError, match=r"^roles must alternate$") as refusal:
        render("{{ raise_exception('roles must alternate') }}")
    assert refusal.value.param == "messages"


def test_what_a_template_stumbles_over_is_the_callers_error() -> None:
    with pytest.raises(InvalidRequestError, match="cannot render these messages: TypeError") as refusal:
        render("{{ 'a' + messages[0].content }}", [{"role": "user", "content": 3}])
    assert refusal.value.param == "messages"
    with pytest.raises(InvalidRequestError, match="'dict object' has no attribute 'content'"):
        render("{{ messages[0].content.upper() }}", [{"role": "user"}])


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(InvalidRequestError, match=r"no chat template.*use /v1/completions") as refusal:
        ChatTemplate(None, {}).render(HELLO)
    assert refusal.value.param == "messages"


def test_a_call_that_was_answered_is_rendered_though_nothing_was_said_beside_it() -> None:
    """Templates that cut reasoning from earlier turns split what the last turn may lack."""
    source = (
        "{% for m in messages %}{% set said = m.content %}"
        "{% if not loop.last %}{% set said = m.content.split('</think>')[-1] %}{% endif %}"
        "[{{ said or '' }}{% for call in m.tool_calls or () %}{% set f = call.function %}"
        "{{ f.name }}{{ f.arguments | tojson }}{% endfor %}]{% endfor %}"
    )
    call = {"id": "a", "type": "function", "function": {"name": "turn", "arguments": {"rpm": 3}}}
    turns: list[dict[str, Any]] = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    turns.append({"role": "tool", "tool_call_id": "a", "content": "done"})
    assert render(source, turns) == '[Hello][turn{"rpm": 3}][done]'


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="must not be empty"):
        render(TURNS, [])


def test_a_damaged_template_is_the_checkpoints_fault_or_the_clients() -> None:
    with pytest.raises(CheckpointError, match="chat template is damaged: line 2: "):
        ChatTemplate("\n{% for %}", {})
    with pytest.raises(CheckpointError, match=r"^mill/chat_template.jinja: the chat template is damaged: line 1: "):
        ChatTemplate("{% for %}", {}, file="mill/chat_template.jinja")
    with pytest.raises(InvalidRequestError, match="chat template is damaged") as refusal:
        ChatTemplate.of_request("{% if %}", {})
    assert refusal.value.param == "chat_template"
    assert ChatTemplate.of_request(TURNS, {}).render(HELLO) == "[user] Hello\n"


# What a template may not do


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
    ],
)
def test_a_template_cannot_reach_into_python(source: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        render(source)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        (
            "{% macro w(n) %}{{ caller() }}{% endmacro %}{% macro f(n) %}{% if n %}{% call w(n) %}"
            "{{ f(n - 1) }}{{ f(n - 1) }}{% endcall %}{% endif %}{% endmacro %}{{ f(60) }}"
        ),
    ],
)
def test_a_template_that_would_not_end_is_stopped(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="did not end within"):
        render(source)


def test_a_template_that_calls_itself_for_ever_is_stopped() -> None:
    with pytest.raises(InvalidRequestError, match="RecursionError"):
        render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


@pytest.mark.parametrize("source", ["{{ 'x' * 10 ** 10 }}", "{{ 10 ** 7 * 'x' }}", "{{ [0] * 10 ** 9 }}", "{{ 9 ** 999 }}"])
def test_a_template_cannot_ask_for_more_memory_than_a_layout_needs(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"the limit is 64|to more than 1000000"):
        render(source)


def test_a_template_may_draw_a_line_and_square_a_number() -> None:
    assert render("{{ '-' * 40 }}{{ 3 ** 2 }}{{ 2 * 3 }}") == "-" * 40 + "96"


def test_long_conversations_stay_far_from_the_limit() -> None:
    messages = [{"role": "user", "content": str(number)} for number in range(20_000)]
    assert render(TURNS, messages).count("\n") == 20_000


# From a tokenizer


def test_a_tokenizers_template_knows_its_first_and_last_token() -> None:
    class Tokenizer(ByteTokenizer):
        @property
        def chat_template(self) -> str | None:
            return "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"

    assert ChatTemplate.of(Tokenizer()).render(HELLO) == "<|bos|>Hello<|eos|>"


# Calls of tools


def called(**fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": {"x": "é"}}
    return {"role": "assistant", "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": function}]} | fields


CALLING = "{% for m in messages %}{% if m.tool_calls %}%s{% else %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("writes", "text"),
    [("{{ m.tool_calls[0].function.arguments | tojson }}", '{"x": "é"}'),
     ("{{ '<' + m.tool_calls[0].function.arguments + '>' }}", '<{"x": "é"}>'),
     ("{{ m.content is none }}{{ m.tool_calls[0].function.arguments.x }}", "Trueé"),
     ("{{ m.content + m.tool_calls[0].function.arguments.x }}", "é"),
     ("{{ 'content' in m }}{{ m.content }}{{ m.tool_calls[0].function.arguments.x }}", "Trueé")],
)  # fmt: skip
def test_calls_have_the_form_that_the_template_wants(writes: str, text: str) -> None:
    template = ChatTemplate(CALLING.replace("%s", writes), {})
    assert template.render([{"role": "user", "content": ""}, called()], add_generation_prompt=False) == text


def test_what_is_said_beside_a_call_stays_and_the_message_is_not_changed() -> None:
    message = called(content="Well: ")
    before = repr(message)
    template = ChatTemplate(CALLING.replace("%s", "{{ m.content ~ '' + m.tool_calls[0].function.arguments }}"), {})
    assert template.render([{"role": "user", "content": ""}, message], add_generation_prompt=False) == 'Well: {"x": "é"}'
    assert repr(message) == before

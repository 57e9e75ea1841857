"""Answers that must call, or whose calls must fit their schemas, in each model's own format: whatever the form allows is
read back by the format's parser as calls that are valid. Tools are those of a public suite, where it is there.
"""

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests import fakes
from tests.cpu.test_bfcl_round_trip import ARCHIVE, tasks
from tests.tool_formats import calls_of, parsed
from tests.walks import accepts, backend_of_bytes, random_answer

from headrace.base.errors import InvalidRequestError
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput
from headrace.server.reading import AnswerReading
from headrace.server.tools.answer_form import answer_form
from headrace.server.tools.formats import FORMATS
from headrace.server.tools.request import ToolUse
from headrace.server.tools.schemas import Tools

SPELLINGS = {
    "hermes": ("hermes", "<tool_call>"),
    "hermes, a list in tags": ("hermes", "<TOOLCALL>["),
    "hermes, lines in tags": ("hermes", "<tool_calls>\n"),
    "granite": ("granite", "<|tool_call|>"),
    "phi4": ("phi4", "functools["),
    "phi4, in marks": ("phi4", "<|tool_call|>"),
    "llama3_json": ("llama3_json", ""),
    "pythonic": ("pythonic", ""),
    "pythonic, in marks": ("pythonic", "<|tool_call_start|>"),
    "mistral, a list": ("mistral", "[TOOL_CALLS]"),
    "mistral, names": ("mistral", "[TOOL_CALLS][ARGS]"),
    "mistral, names and ids": ("mistral", "[TOOL_CALLS][CALL_ID][ARGS]"),
    "deepseek v3": ("deepseek", "```json"),
    "deepseek v3.1": ("deepseek", ""),
    "kimi_k2": ("kimi_k2", ""),
    "glm": ("glm", "</arg_key>\n<arg_value>"),
    "glm, on one line": ("glm", ""),
    "qwen3_coder": ("qwen3_coder", "<tool_call>"),
    "qwen3_coder, without the outer tag": ("qwen3_coder", ""),
    "seed": ("qwen3_coder", "<seed:tool_call>"),
    "hunyuan": ("hunyuan", ""),
    "dsml": ("dsml", ""),
    "dsml, function calls": ("dsml", "function_calls>"),
    "minimax_m2": ("minimax_m2", ""),
    "minimax_m3": ("minimax_m3", ""),
    "gigachat": ("gigachat", "<|function_call|>"),
    "gigachat, as a role": ("gigachat", ""),
    "solar": ("solar", ""),
    "cohere": ("cohere", ""),
    "apertus": ("apertus", ""),
    "gemma4": ("gemma4", "<|tool_call>"),
    "gemma4, function_gemma": ("gemma4", "<start_function_call>"),
    "functionary_v3_1": ("functionary_v3_1", ""),
    "functionary_v3_2": ("functionary_v3_2", ""),
    "harmony": ("harmony", ""),
    "generic_json": ("generic_json", ""),
}
"""By what they write: the format, and what a template of it holds."""

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 12},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
        "way": {"$ref": "#/$defs/way"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "way": {"enum": ["left", "right", "12"]},
    },
}
STOP: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "stop": STOP}
ANSWER = StructuredOutput(
    kind=OutputKind.JSON_SCHEMA,
    text='{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}',
    field="response_format",
)


def use_of(schemas: Mapping[str, Mapping[str, Any]], **fields: Any) -> ToolUse:
    places = {name: i for i, name in enumerate(schemas)}
    return ToolUse(tools=Tools(schemas), schemas=schemas, places=places, **fields)


def strict_use(schemas: Mapping[str, Mapping[str, Any]], **fields: Any) -> ToolUse:
    return use_of(schemas, strict=frozenset(schemas), **fields)


def marks_of(format_name: str) -> tuple[str, ...]:
    """What models of this format have as control tokens: whatever stands in brackets."""
    parser = FORMATS[format_name].parser
    marks = dict.fromkeys((*parser.markers, *parser.shown_tokens))
    return tuple(mark for mark in marks if mark[0] + mark.rstrip()[-1] in ("<>", "[]", "][") and not mark.endswith("="))


def form_of(spelling: str, use: ToolUse) -> StructuredOutput:
    format_name, template = SPELLINGS[spelling]
    known, form = answer_form(use, FORMATS[format_name], template, enforces_tags=True)
    assert known is FORMATS[format_name], "the model's own format is kept"
    assert form is not None
    return form


def check_calls(format_name: str, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> int:
    answer = parsed(format_name, [text], Tools(schemas))
    for name, given in calls_of(answer):
        assert name in schemas, text
        Draft202012Validator(schemas[name]).validate(given)
    return len(answer.calls)


@pytest.mark.parametrize("are_tokens", [False, True], ids=["marks as text", "marks as tokens"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_whatever_must_be_a_call_is_read_as_valid_calls_and_nothing_else(spelling: str, are_tokens: bool) -> None:
    format_name = SPELLINGS[spelling][0]
    if format_name == "generic_json":
        pytest.skip("calls that must come are an array of JSON there, which other tests check")
    marks = marks_of(format_name) if are_tokens else ()
    backend, rng = backend_of_bytes(marks), random.Random(7)
    for is_limited in (True, False):
        form = form_of(spelling, use_of(SCHEMAS, must_call=True, is_limited_to_one=is_limited))
        num_calls = 0
        for _ in range(12):
            text = random_answer(backend, form, rng, marks=marks)
            if text is None:
                continue
            found = check_calls(format_name, text, SCHEMAS)
            assert found >= 1, text
            assert not is_limited or found == 1, text
            assert parsed(format_name, [text], Tools(SCHEMAS)).content == "", text
            num_calls += found
        assert num_calls >= 6


@pytest.mark.parametrize("are_tokens", [False, True], ids=["marks as text", "marks as tokens"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_strict_tools_are_called_as_their_schemas_say_among_any_words(spelling: str, are_tokens: bool) -> None:
    format_name = SPELLINGS[spelling][0]
    marks = marks_of(format_name) if are_tokens else ()
    backend, rng = backend_of_bytes(marks), random.Random(11)
    form = form_of(spelling, strict_use(SCHEMAS))
    for _ in range(12):
        text = random_answer(backend, form, rng, marks=marks)
        if text is not None:
            check_calls(format_name, text, SCHEMAS)


UNIQUE: dict[str, Any] = {
    "type": "object",
    "properties": {"ids": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
    "required": ["ids"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("fields", [{"must_call": True}, {"strict": ["stop", "pick"]}], ids=["must", "strict"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_tool_whose_schema_cannot_be_enforced_is_refused_by_its_name(spelling: str, fields: dict[str, Any]) -> None:
    format_name, template = SPELLINGS[spelling]
    backend, use = backend_of_bytes(marks_of(format_name)), use_of(SCHEMAS | {"pick": UNIQUE}, **fields)

    def compile_form() -> None:
        _, form = answer_form(use, FORMATS[format_name], template, enforces_tags=True)
        assert form is not None
        backend.compile(form)

    with pytest.raises(InvalidRequestError) as refused:
        compile_form()
    assert "'pick'" in str(refused.value)
    assert refused.value.param in ("tools[2].function.parameters", "tools[2].function.strict")
    if refused.value.param == "tools[2].function.parameters":
        assert "the keyword uniqueItems is not supported (at /properties/ids)" in str(refused.value)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_beside_a_form_an_answer_is_calls_or_of_the_form(spelling: str) -> None:
    format_name, template = SPELLINGS[spelling]
    marks = marks_of(format_name)
    use = strict_use(SCHEMAS, form=ANSWER)
    if format_name in ("llama3_json", "generic_json") or spelling == "pythonic":
        with pytest.raises(Exception, match="announces its calls by nothing"):
            answer_form(use, FORMATS[format_name], template, enforces_tags=True)
        return
    backend, rng, form = backend_of_bytes(marks), random.Random(5), form_of(spelling, use)
    seen = set()
    for _ in range(24):
        text = random_answer(backend, form, rng, marks=marks)
        if text is None:
            continue
        if check_calls(format_name, text, SCHEMAS):
            seen.add("calls")
        else:
            assert json.loads(parsed(format_name, [text], Tools(SCHEMAS)).content) in ({"ok": True}, {"ok": False})
            seen.add("form")
    assert seen == {"calls", "form"}


@pytest.mark.parametrize("message_end", ["<|message_sep|>", "<|message_sep|>\n\n"])
def test_a_call_in_a_role_of_its_own_comes_behind_the_end_of_the_message(message_end: str) -> None:
    """As the model's template writes it, whether the mark's line breaks belong to its token or not."""
    marks = (message_end, "<|role_sep|>\n")
    backend = backend_of_bytes(marks)
    call = 'function call<|role_sep|>\n{"name": "stop", "arguments": {}}'
    called = "<|message_sep|>\n\n" + call
    must = form_of("gigachat, as a role", use_of({"stop": STOP}, must_call=True))
    assert accepts(backend, must, called, marks)
    assert not accepts(backend, must, call, marks)
    may = form_of("gigachat, as a role", strict_use({"stop": STOP}))
    assert accepts(backend, may, "I stop." + called, marks)
    assert accepts(backend, may, "I stop.", marks)
    assert not accepts(backend, may, called.replace("{}", '{"a": 1}'), marks)


@pytest.mark.parametrize("line_break", ["", "\n"], ids=["a break of its own", "a break in the token"])
def test_the_role_that_announces_a_call_is_shown_to_the_parser(line_break: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is a control token, which others leave out of the text."""
    monkeypatch.setitem(fakes.SPECIAL_TOKENS, 260, role := f"<|role_sep|>{line_break}")
    monkeypatch.setitem(fakes.SPECIAL_IDS, role, 260)
    reading = AnswerReading(tools=None, tool_format=FORMATS["gigachat"], form=None, reasoning_format=None)
    assert 260 in reading.shown_special_token_ids(fakes.ByteTokenizer())


@pytest.mark.slow
@pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs ../shared/data/suites/bfcl")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tools_of_the_suite_are_called_validly(spelling: str) -> None:
    format_name, template = SPELLINGS[spelling]
    marks = marks_of(format_name)
    backend, rng = backend_of_bytes(marks), random.Random(3)
    num_native = num_calls = 0
    for tools, _ in tasks()[::130]:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        use = use_of(schemas, must_call=True)
        known, form = answer_form(use, FORMATS[format_name], template, enforces_tags=True)
        assert known is not None
        assert form is not None
        num_native += known is FORMATS[format_name]
        read_by = format_name if known is FORMATS[format_name] else "generic_json"
        text = random_answer(backend, form, rng, marks=marks, max_tokens=1500)
        if text is not None:
            found = check_calls(read_by, text, schemas)
            assert found >= 1, text
            num_calls += found
    assert num_calls >= 6
    assert num_native >= 6 or format_name == "generic_json"

"""The one law of all parsers: a stream says what the whole answer says, and no generated text is lost."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tool_formats import TOOLS, WRITERS, Arguments, calls_of, everything, parsed, parser_of

from headrace.server.parsing.events import Content, Event, Parsed, Reasoning
from headrace.server.reading import AnswerParser
from headrace.server.reasoning.formats import FORMATS as REASONING_FORMATS
from headrace.server.tools.formats import FORMATS
from headrace.server.tools.schemas import Tools, json_of

NAMES = ["get_weather", "math.add", "stop", "a-b_C9"]

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20) | st.sampled_from(
    [
        "</tool_call>",
        '"}</tool_call>',
        "[TOOL_CALLS]",
        "\\",
        '\\"',
        "{[",
        "]}",
        "<arg_key>",
        "<|end|",
        ">>>",
        "é🌊",
        "\n\n",
        " x ",
    ]
)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
arguments = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), values, max_size=4)
calls = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3)
words = st.text("abcdefgh .,!?é水🌊\n", max_size=30).filter(lambda text: text == text.strip())
PARTS = re.compile(r"[<>\[\]{}|/=\"`▁｜_:,;]+|\w+|\s+")


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def schemas_of(given_calls: list[tuple[str, Arguments]]) -> Tools:
    """Schemas that type every argument as what it is; for two of one name, as either."""
    types: dict[str, dict[str, list[str]]] = {name: {} for name in NAMES}
    for name, given_arguments in given_calls:
        for key, value in given_arguments.items():
            types[name].setdefault(key, []).append(_type(value))
    return Tools(
        {
            name: {
                "type": "object",
                "properties": {key: {"type": sorted(set(kinds))} for key, kinds in keys.items()},
            }
            for name, keys in types.items()
        }
    )


def _type(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


_UNTAGGABLE = re.compile(r"</parameter>|</arg_value(?::opensource)?>|</｜DSML｜parameter>")
_UNQUOTABLE = re.compile(r"<\|\\?\"\|>|<escape>")
_NO_BARE_KEY = re.compile(r"[:{}\[\],<>\n\"]|^\s|\s$|^$")


def _is_writable(format_name: str, given_calls: list[tuple[str, Arguments]]) -> bool:
    """Bare text cannot say everything: not its own end, and not a string beside other types."""
    if format_name == "functionary_v3_2":
        return True
    if format_name == "gemma4":
        return not _UNQUOTABLE.search(json.dumps(given_calls)) and all(map(_has_bare_keys, given_calls))
    if format_name == "minimax_m3":
        tools = schemas_of(given_calls)
        return all(
            _has_telling_tags(value, tools.types(name, key)) for name, given in given_calls for key, value in given.items()
        )
    if format_name == "dsml":
        return not _UNTAGGABLE.search(json.dumps(given_calls, ensure_ascii=False))
    if format_name not in ("glm", "hunyuan", "qwen3_coder", "minimax_m2"):
        return True
    tools = schemas_of(given_calls)
    return not any(
        _UNTAGGABLE.search(json.dumps(value)) or (isinstance(value, str) and tools.types(name, key) != {"string"})
        for name, given_arguments in given_calls
        for key, value in given_arguments.items()
    )


def _has_bare_keys(value: Any) -> bool:
    """Whether no key of any object needs quotes."""
    if isinstance(value, dict):
        return all(not _NO_BARE_KEY.search(key) and len(key) < 128 and _has_bare_keys(one) for key, one in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_bare_keys, value))


def _has_telling_tags(value: Any, types: frozenset[str]) -> bool:
    """Whether tags and bare text say what the value is, where a schema says this much of it."""
    match value:
        case None:
            return False
        case str():
            return types == {"string"} or (not types and json.loads(json_of(value, types)) == value and value != "")
        case dict():
            keys_tell = all(
                re.fullmatch(r"[^<>/\n\s][^<>\n]*", key) and key == key.strip() and len(key) < 128 for key in value
            )
            is_told = types == {"object"} or (not types and bool(value) and next(iter(value)) != "item")
            return is_told and keys_tell and all(_has_telling_tags(one, frozenset()) for one in value.values())
        case list():
            is_told = types == {"array"} or (not types and bool(value))
            return is_told and all(_has_telling_tags(one, frozenset()) for one in value)
    return "string" not in types


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=60)
@given(content=words, given_calls=calls, places=st.lists(st.integers(0, 600), max_size=6))
def test_what_a_formats_own_writer_writes_is_read_back_however_it_is_cut(
    name: str, content: str, given_calls: list[tuple[str, Arguments]], places: list[int]
) -> None:
    format_name, write = WRITERS[name]
    if not _is_writable(format_name, given_calls):
        return
    tools, text = schemas_of(given_calls), write(content, given_calls)
    answer = parsed(format_name, cut(text, places), tools)
    assert calls_of(answer) == given_calls
    assert answer.content == content
    assert _without_ids(parsed(format_name, text, tools)) == _without_ids(answer)


@pytest.mark.parametrize("name", WRITERS)
def test_names_of_arguments_may_be_cut_wherever_they_have_white_space(name: str) -> None:
    format_name, write = WRITERS[name]
    given: Arguments = {"a b": 1, "c\u00a0d\x85 e": {"x  y": True, "z /": [{"p q": 2}]}, "/f": 3}
    given_calls = [("get_weather", given)]
    tools, text = schemas_of(given_calls), write("", given_calls)
    whole = _without_ids(parsed(format_name, [text], tools))
    for place in range(1, len(text)):
        assert _without_ids(parsed(format_name, cut(text, [place]), tools)) == whole, text[:place]
    assert _without_ids(parsed(format_name, list(text), tools)) == whole


def _without_ids(answer: Parsed) -> tuple[str, str, list[tuple[str, str]]]:
    return answer.content, answer.reasoning, [(call.name, call.arguments) for call in answer.calls]


def _fragments(format_name: str) -> list[str]:
    """Pieces of what the format is made of, markers and their beginnings among them."""
    parser = FORMATS[format_name].parser
    written = [
        write("", [("get_weather", {"city": "w1"}), ("stop", {})]) for kind, write in WRITERS.values() if kind == format_name
    ]
    marks = [*parser.markers, *parser.shown_tokens]
    pieces = {piece for text in written for piece in PARTS.findall(text)}
    return sorted(
        {*marks, *(mark[: len(mark) // 2] for mark in marks), *(mark[1:] for mark in marks), *pieces, *written} - {""}
    )


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=150)
@given(data=st.data())
def test_text_that_is_nearly_a_call_is_neither_lost_nor_read_differently_when_it_is_cut(
    format_name: str, data: st.DataObject
) -> None:
    pieces = data.draw(st.lists(st.sampled_from(_fragments(format_name)) | st.just("WORD"), max_size=14))
    text = "".join(f"W{i}" if piece == "WORD" else piece for i, piece in enumerate(pieces))
    whole = parsed(format_name, [text])
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    assert parsed(format_name, cut(text, places)) == whole
    assert parsed(format_name, text) == whole
    shown = everything(whole)
    for word in re.findall(r"W\d+", text):
        assert word in shown
    if not whole.calls and format_name not in ("harmony", "functionary_v3_2", "solar"):
        assert whole.content == text, "without a call, an answer is its text, to the letter"


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=50)
@given(text=st.text(max_size=80))
def test_any_text_at_all_is_shown_to_the_letter_where_it_calls_nothing(format_name: str, text: str) -> None:
    answer = parsed(format_name, [text])
    assert answer.calls or answer.content == text or format_name == "functionary_v3_2"


# Reasoning before calls


def _read(reasoning: str, prompt: str, format_name: str | None, pieces: list[str]) -> Parsed:
    calls = None if format_name is None else parser_of(format_name)
    parser, answer = AnswerParser(REASONING_FORMATS[reasoning].parser(prompt), calls), Parsed()
    for piece in pieces:
        answer.add(parser.push(piece))
    answer.add(parser.finish())
    return answer


@pytest.mark.parametrize("reasoning", REASONING_FORMATS)
@settings(max_examples=60)
@given(thought=words, content=words, places=st.lists(st.integers(0, 200), max_size=5), is_open=st.booleans())
def test_reasoning_is_told_from_the_answer_however_it_is_cut(
    reasoning: str, thought: str, content: str, places: list[int], is_open: bool
) -> None:
    form = REASONING_FORMATS[reasoning]
    opening, closing = form.opening[0], form.closing[0]
    text = ("" if is_open else opening) + f"\n{thought}\n{closing}\n\n{content}"
    prompt = f"<|assistant|>{opening}\n" if is_open else "<|assistant|>"
    answer = _read(reasoning, prompt, None, cut(text, places))
    assert (answer.reasoning, answer.content) == (thought, content)


@settings(max_examples=100)
@given(
    pieces=st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "<thi",
                "</",
                "think>",
                " ",
                "\n",
                "W",
                "<tool_call>",
                '{"name": "stop"}',
                "</tool_call>",
            ]
        ),
        max_size=12,
    ),
    places=st.lists(st.integers(0, 100), max_size=5),
    is_open=st.booleans(),
)
def test_reasoning_and_calls_together_keep_the_law(pieces: list[str], places: list[int], is_open: bool) -> None:
    text = "".join(f"W{i}" if piece == "W" else piece for i, piece in enumerate(pieces))
    prompt = "<think>" if is_open else ""
    whole = _read("think", prompt, "hermes", [text])
    assert _read("think", prompt, "hermes", cut(text, places)) == whole
    assert _read("think", prompt, "hermes", list(text)) == whole
    shown = everything(whole)
    assert all(word in shown for word in re.findall(r"W\d+", text))


@settings(max_examples=50)
@given(given_calls=calls, is_shown=st.booleans(), max_calls=st.sampled_from([None, 1, 2]))
def test_limits_cut_calls_and_leave_reasoning_out_alike_in_streams_and_wholes(
    given_calls: list[tuple[str, Arguments]], is_shown: bool, max_calls: int | None
) -> None:
    _, write = WRITERS["hermes"]
    text = "<think>hm</think>Well." + write("", given_calls) + " That is all."

    def read(pieces: list[str]) -> Parsed:
        parser = AnswerParser(
            REASONING_FORMATS["think"].parser(""),
            parser_of("hermes", TOOLS),
            shows_reasoning=is_shown,
            max_calls=max_calls,
        )
        events: list[Event] = [event for piece in pieces for event in parser.push(piece)]
        events += parser.finish()
        assert is_shown or not any(isinstance(event, Reasoning) for event in events)
        assert any(isinstance(event, Content) for event in events)
        answer = Parsed()
        answer.add(events)
        return answer

    whole = read([text])
    assert read(list(text)) == whole
    assert calls_of(whole) == given_calls[:max_calls]
    assert ("That is all" in whole.content) == (max_calls is None or len(given_calls) < max_calls), "the last call ends it"

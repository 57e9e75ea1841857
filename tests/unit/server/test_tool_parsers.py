"""What models write in each format is read as they meant it, wherever the text is cut, and nothing of it is lost."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.tool_formats import SAMPLES, WRITERS, Sample, calls_of, everything, parsed, parser_of

from headrace.server.parsing.events import CallArguments, CallStart
from headrace.server.tools.formats import FORMATS

WORD = re.compile(r"\w+")

sample = pytest.mark.parametrize("sample", SAMPLES, ids=[f"{i}-{one.format}" for i, one in enumerate(SAMPLES)])


def test_every_format_has_samples_and_a_writer() -> None:
    assert {one.format for one in SAMPLES} == set(FORMATS)
    assert {name for name, _ in WRITERS.values()} == set(FORMATS)


@sample
def test_an_answer_is_read_as_it_was_meant(sample: Sample) -> None:
    answer = parsed(sample.format, [sample.text])
    assert answer.content == sample.content
    assert answer.reasoning == sample.reasoning
    assert calls_of(answer) == list(sample.calls)


@sample
def test_it_does_not_matter_where_the_text_is_cut(sample: Sample) -> None:
    whole = parsed(sample.format, [sample.text])
    assert parsed(sample.format, sample.text) == whole
    for place in range(len(sample.text)):
        assert parsed(sample.format, [sample.text[:place], sample.text[place:]]) == whole


@sample
def test_an_answer_that_breaks_off_has_begun_what_it_would_have_said(sample: Sample) -> None:
    whole = parsed(sample.format, [sample.text])
    # What is not JSON yet cannot be told before it is complete; and a broken end is shown as it is.
    rewrites = sample.format in (
        "glm", "hunyuan", "qwen3_coder", "pythonic", "dsml", "minimax_m2", "minimax_m3", "gemma4"
    )  # fmt: skip
    for end in range(len(sample.text)):
        begun = parsed(sample.format, [sample.text[:end]])
        assert len(begun.calls) <= len(whole.calls)
        for call, complete in zip(begun.calls, whole.calls, strict=False):
            assert call.name == complete.name
            assert rewrites or complete.arguments.startswith(call.arguments.rstrip('}"\\<'))


def words_of(sample: Sample) -> set[str]:
    """What it says: content, reasoning, names and arguments; but for words that are also part of its marks."""
    said = " ".join([sample.content, sample.reasoning, *strings_in([list(call) for call in sample.calls])])
    in_text = Counter(WORD.findall(sample.text))
    return {word for word, count in Counter(WORD.findall(said)).items() if in_text[word] == count}


def strings_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from strings_in([*value.items()])
        case list() | tuple():
            for one in value:
                yield from strings_in(one)


@sample
def test_every_word_that_was_generated_is_shown(sample: Sample) -> None:
    words = words_of(sample)
    assert words
    for end in range(len(sample.text) + 1):
        begun = sample.text[:end]
        shown = everything(parsed(sample.format, [begun]))
        for word in words & set(WORD.findall(begun)):
            assert word in shown, begun


@pytest.mark.parametrize("name", WRITERS)
def test_a_name_comes_first_and_arguments_come_as_they_are_generated(name: str) -> None:
    format_name, write = WRITERS[name]
    parser = parser_of(format_name)
    events = [event for char in write("", [("get_weather", {"city": "Paris in the spring"})]) for event in parser.push(char)]
    kinds = [type(event) for event in events]
    assert kinds[0] is CallStart
    assert set(kinds[1:]) == {CallArguments}
    assert len(events) > 15, "one piece for each character of a long text"


def test_a_string_of_bare_text_is_written_on_as_it_comes_and_other_values_when_they_are_complete() -> None:
    parser = parser_of("qwen3_coder")
    parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nPa")
    assert [event.text for event in parser.push("ris") if isinstance(event, CallArguments)] == ["ris"]
    parser.push("\n</parameter>\n<parameter=days>\n1")
    assert parser.push("2") == []
    assert [event.text for event in parser.push("\n</parameter>\n</function>") if isinstance(event, CallArguments)] == [
        "12}"
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", "12"), ("12 monkeys", '"12 monkeys"'), ("true", "true"), ("False", "false"), ("None", "null"),
     ('"q"', '"\\"q\\""'), ("[1, 2]", "[1, 2]"), ("{'a': 1}", "\"{'a': 1}\""),
     ("", '""'), ("1.50", "1.50"), ("a\tb", '"a\\tb"')],
)  # fmt: skip
def test_bare_text_that_no_schema_types_is_what_it_reads_as(text: str, value: str) -> None:
    call = parsed("glm", [f"<tool_call>math.add\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"]).calls[
        0
    ]
    assert call.arguments == f'{{"a": {value}}}'


@pytest.mark.parametrize("text", ["12", "true", "null", "[1]", '"q"'])
def test_bare_text_is_a_string_where_the_schema_says_so(text: str) -> None:
    written = f"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    assert calls_of(parsed("glm", [written])) == [("get_weather", {"city": text})]


def test_a_model_that_numbers_its_calls_keeps_its_ids() -> None:
    text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.stop:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert parsed("kimi_k2", [text]).calls[0].id == "functions.stop:7"
    assert parsed("mistral", ["[TOOL_CALLS]stop[CALL_ID]9aXb3cD4e[ARGS]{}"]).calls[0].id == "9aXb3cD4e"

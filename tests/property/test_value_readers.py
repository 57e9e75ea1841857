"""Values that arrive in pieces: JSON is copied to the letter, and Python becomes the JSON that means the same."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.parsing.json_text import json_string_text, json_value
from headrace.server.parsing.python_text import python_value
from headrace.server.parsing.reader import NotAsExpected, Reader, Reading, Write

Copy = Callable[[Reader, Write], Reading[None]]

texts = st.text(max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
JSON_PIECES = ("{", "}", "[", "]", ",", ":", '"', "\\", "1", "true", "nul", " ", '"a"', "-", "1e5")
cuts = st.lists(st.integers(0, 400), max_size=6)


def read(copy: Copy, text: str, places: list[int]) -> tuple[str, str, bool]:
    """What was written, what is left unread, and whether a value was there."""
    reader, written = Reader(), list[str]()
    work = copy(reader, written.append)
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    try:
        for start, end in zip([0, *ends], ends, strict=False):
            reader.feed(text[start:end])
            next(work)
        reader.end()
        next(work)
    except StopIteration:
        fed = reader.take(len(text))
        return "".join(written), fed, True
    except NotAsExpected:
        return "".join(written), reader.take(len(text)), False
    raise AssertionError("nothing is waited for beyond the end")


@given(value=values, places=cuts, is_ascii=st.booleans(), indent=st.sampled_from([None, 2]))
def test_json_is_copied_to_the_letter(value: Any, places: list[int], is_ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    assert read(json_value, text, places) == (text, "", True)


@given(value=st.dictionaries(texts, values, max_size=3), tail=st.text(max_size=5))
def test_json_ends_where_its_brackets_close(value: Any, tail: str) -> None:
    text = json.dumps(value)
    assert read(json_value, text + tail, [])[0] == text


@settings(max_examples=300)
@given(pieces=st.lists(st.sampled_from(JSON_PIECES), max_size=12))
def test_what_is_taken_for_json_is_json(pieces: list[str]) -> None:
    text = "".join(pieces)
    written, rest, is_value = read(json_value, text, [])
    if is_value and not (rest == "" and text[-1] not in '"}] '):  # a number or word that the end may have cut off
        json.loads(written)
    assert read(json_value, text, list(range(len(text))))[::2] == (written, is_value)


@given(text=st.text(), places=cuts, is_ascii=st.booleans())
def test_a_strings_text_is_what_it_says(text: str, places: list[int], is_ascii: bool) -> None:
    assert read(json_string_text, json.dumps(text, ensure_ascii=is_ascii), places)[0] == text


@given(value=values, places=cuts)
def test_python_becomes_the_json_that_means_the_same(value: Any, places: list[int]) -> None:
    written, rest, is_value = read(python_value, repr(value) + " ", places)  # without the space, a number might go on
    assert (json.loads(written), rest.strip(), is_value) == (value, "", True)


@pytest.mark.parametrize(("text", "meant"), [('"a\nb"', "a\nb"), (r'"\q"', r"\q"), (r'"it\'s"', r"it\'s")])
def test_what_json_forbids_in_strings_and_everybody_understands_is_written_as_json_has_it(text: str, meant: str) -> None:
    assert json.loads(read(json_value, text, [])[0]) == meant

"""A schema that says the same in several places, with definitions in their stead: every answer that the one allows the other
allows, token by token, and nothing else."""

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.walks import backend_of_bytes

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar import json_schema, same_subschemas
from headrace.engine.grammar.protocol import CompiledForm
from headrace.engine.grammar.same_subschemas import said_once
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

BACKEND = backend_of_bytes()
leaves: st.SearchStrategy[Any] = st.sampled_from(
    [
        *({"const": value} for value in (1, True, "a", "b", None)),
        *({"type": "integer", "minimum": low, "maximum": high} for low, high in ((2, 40), (2, 50), (5, 3))),
        *({"type": "string", "enum": values} for values in (["left"], ["right"], [1])),
        {"type": "string", "minLength": 1, "maxLength": 3},
        {"anyOf": [{"type": "object", "properties": {"p": {"const": 1}}, "required": ["p"]}, {"type": "null"}]},
        {"allOf": [{"type": "object", "properties": {"p": {"type": "string"}}}, {"properties": {"p": {"maxLength": 2}}}]},
        *(True, False),
    ]
)
"""Mostly such as differ in little; some that nothing satisfies."""
names = st.sampled_from("pqrs")


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(names, inner, min_size=1, max_size=3),
            "additionalProperties": st.just(False) | st.just(False) | inner,
        },
        optional={
            "required": st.lists(names, max_size=1),
            "x-kind": st.just("map"),
            "patternProperties": st.just({"^z": {"type": "null"}}),
        },
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers(0, 2)})


@st.composite
def repetitive(draw: st.DrawFn) -> dict[str, Any]:
    """An object whose parts are drawn from a few, which are themselves made of fewer."""
    few = draw(st.lists(leaves, min_size=2, max_size=5))
    for _ in range(draw(st.integers(1, 2))):
        made = draw(st.lists(objects(st.sampled_from(few)) | arrays(st.sampled_from(few)), min_size=1, max_size=3))
        few = [*made, *few[:2]]
    schema: dict[str, Any] = draw(objects(st.sampled_from(few)))
    return schema


def compiled(schema: Any, *, is_compact: bool = False) -> CompiledForm | None:
    text = json.dumps(schema)
    try:
        return BACKEND.compile(StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=text, disable_any_whitespace=is_compact))
    except InvalidRequestError:
        return None


def check_walk(one: CompiledForm, other: CompiledForm, rng: random.Random, num_tokens: int = 60) -> None:
    matchers = one.matcher(), other.matcher()
    masks = np.zeros((2, 9), dtype=np.int32)
    for _ in range(num_tokens):
        for matcher, mask in zip(matchers, masks, strict=True):
            matcher.fill(mask)
        assert masks[0].tolist() == masks[1].tolist()
        assert matchers[0].may_end() is matchers[1].may_end()
        allowed = np.flatnonzero(np.unpackbits(masks[0].view(np.uint8), bitorder="little")[:256])
        printable = [token for token in allowed.tolist() if 33 <= token < 127] or allowed.tolist()
        if not printable:
            return
        token = rng.choice(printable)
        assert [matcher.accept(token) for matcher in matchers] == [True, True]


@settings(max_examples=150)
@given(schema=repetitive(), seed=st.integers(0, 2**32), is_compact=st.booleans())
def test_definitions_change_no_answer(schema: dict[str, Any], seed: int, is_compact: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(same_subschemas, "_LEAST", 2)
        patch.setattr(same_subschemas, "_LEAST_SHARE", 0)
        patch.setattr(json_schema, "_WORTH_SHARING", 10**9)
        as_given = compiled(schema, is_compact=is_compact)
        shared = said_once(schema, json.dumps(schema))
        assert "$defs" in shared
        by_reference = compiled(shared, is_compact=is_compact)
        patch.setattr(json_schema, "_WORTH_SHARING", 0)
        with_a_way_back = compiled(schema, is_compact=is_compact)
    # What is refused with definitions may be enforced without; never the other way round, and never in silence.
    assert (as_given is None) is (with_a_way_back is None)
    assert by_reference is None or as_given is not None
    for other in (by_reference, with_a_way_back):
        if as_given is not None and other is not None:
            for walk in range(3):
                check_walk(as_given, other, random.Random(seed + walk))


def parts_of(schema: Any) -> list[Any]:
    """Every subschema, once for each place."""
    if not isinstance(schema, dict):
        return []
    inner = [*schema.get("properties", {}).values(), schema.get("items"), *schema.get("$defs", {}).values()]
    return [schema, *(part for one in inner for part in parts_of(one))]


def test_what_is_said_in_many_places_is_written_once() -> None:
    port = {"type": "object", "properties": {"name": {"type": "string"}, "number": {"type": "integer", "minimum": 1}}}
    box = {"type": "object", "properties": {"image": {"type": "string"}, "ports": {"type": "array", "items": port}}}
    schema = {"type": "object", "properties": dict.fromkeys(("first", "second", "third"), box) | {"port": port}}
    shared = said_once(schema, json.dumps(schema))
    assert [part for part in parts_of(shared) if part == port] == [port]
    assert len(json.dumps(shared)) < 0.6 * len(json.dumps(schema))
    assert compiled(shared) is not None


def test_numbers_and_truths_that_python_takes_for_equal_are_not_the_same() -> None:
    parts = [{"type": "array", "items": {"enum": [value] * 20}} for value in (1, 1.0, True)]
    schema = {"type": "object", "properties": {str(i): part for i, part in enumerate((*parts, *parts))}}
    shared = said_once(schema, json.dumps(schema))
    assert len(shared["$defs"]) >= 3


@pytest.mark.parametrize(
    "keyword", [{"$ref": "#/properties/p"}, {"$id": "https://mill/"}, {"$anchor": "a"}, {"$dynamicRef": "#a"}]
)
def test_where_places_have_names_nothing_is_moved(keyword: dict[str, Any]) -> None:
    part = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}}
    schema = {"type": "object", "properties": {"p": part, "q": part, "r": keyword}}
    assert said_once(schema, json.dumps(schema)) is schema


@pytest.mark.parametrize("num_levels", [100, 195, 240, 400])
def test_however_deep_a_schema_is_it_is_shared_left_or_refused_in_words(num_levels: int) -> None:
    part: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}}
    for _ in range(num_levels):
        part = {"type": "object", "properties": {"p": part}}
    schema = {"type": "object", "properties": {"p": part, "q": part}}
    said_once(schema, json.dumps(schema))
    wanted = StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=json.dumps(schema), field="f")
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        BACKEND.compile(wanted)


def test_what_hardly_repeats_itself_is_left_as_it_is() -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer", "maximum": i} for i in range(50)}}
    assert said_once(schema, json.dumps(schema)) is schema
    torn = {"type": "object", "properties": {"p": {"const": "\ud800" * 20}, "q": {"const": "\ud800" * 20}}}
    assert said_once(torn, json.dumps(torn)) is torn

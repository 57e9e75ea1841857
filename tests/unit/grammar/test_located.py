"""A refusal names the field, the part of it that is at fault, and where it is a matter of size, the limit and the size."""

import json
import threading
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.unit.grammar.vocabularies import vocabulary

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.cache import FormCache
from headrace.engine.grammar.located import LocatingBackend
from headrace.engine.grammar.protocol import CompiledForm
from headrace.engine.grammar.registry import make_backend
from headrace.engine.mind.structured_output import OutputKind, SchemaSource, StructuredOutput

BACKEND = make_backend("llguidance", vocabulary())


def form(kind: OutputKind, text: Any, **options: Any) -> StructuredOutput:
    text = text if isinstance(text, str) else json.dumps(text)
    return StructuredOutput(kind=kind, text=text, **({"field": "f"} | options))


def refusal(wanted: StructuredOutput) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        BACKEND.compile(wanted)
    return refused.value


BAD: dict[str, Any] = {
    "a keyword": {"type": "array", "uniqueItems": True},
    "several keywords": {"type": "array", "contains": {"type": "null"}, "minContains": 2},
    "a complement": {"not": {"type": "object", "properties": {"a": {"pattern": "x"}}}},
    "alternatives": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "a pattern": {"type": "string", "pattern": "(a"},
    "a format": {"type": "string", "format": "uri-template"},
    "a type": {"type": "strin"},
    "a count": {"type": "string", "minLength": "3"},
    "a bound": {"type": "integer", "minimum": "x"},
    "a reference": {"$ref": "#/$defs/none"},
    "a number": 3,
}
GOOD = {"type": "object", "properties": {"x": {"type": "string"}, "n": {"enum": [1, 2]}}}
PLACES: dict[str, tuple[str, Any]] = {
    "a property": ("/properties/b", lambda bad: {"properties": {"a": GOOD, "b": bad, "c": GOOD}}),
    "a property with a strange name": ("/properties/a~1b~0", lambda bad: {"properties": {"a/b~": bad}}),
    "a property called like a keyword": ("/properties/items", lambda bad: {"properties": {"items": bad}}),
    "items": ("/items", lambda bad: {"type": "array", "items": bad}),
    "the second item": ("/prefixItems/1", lambda bad: {"prefixItems": [GOOD, bad]}),
    "other properties": ("/additionalProperties", lambda bad: {"properties": {"a": GOOD}, "additionalProperties": bad}),
    "an alternative": ("/anyOf/1", lambda bad: {"anyOf": [GOOD, bad]}),
    "a definition": ("/$defs/d", lambda bad: {"properties": {"a": {"$ref": "#/$defs/d"}}, "$defs": {"d": bad}}),
    "deep inside": (
        "/properties/a/items/properties/b/anyOf/0",
        lambda bad: {"properties": {"a": {"items": {"properties": {"x": GOOD, "b": {"anyOf": [bad, GOOD]}}}}}},
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", BAD)
def test_a_schema_is_refused_where_it_goes_wrong(what: str, place: str) -> None:
    pointer, put = PLACES[place]
    error = refusal(form(OutputKind.JSON_SCHEMA, put(BAD[what])))
    assert error.param == "f"
    assert str(error).startswith("f cannot be enforced: ")
    assert str(error).endswith(f"(at {pointer})")


def test_what_is_wrong_with_the_schema_itself_has_no_place_in_it() -> None:
    for what, schema in BAD.items():
        if isinstance(schema, dict):
            assert "(at" not in str(refusal(form(OutputKind.JSON_SCHEMA, schema))), what


def test_a_place_that_the_reader_of_schemas_names_is_named_once() -> None:
    said = str(refusal(form(OutputKind.JSON_SCHEMA, {"properties": {"a": {"items": [GOOD]}}})))
    assert said.count("/properties/a") == 1


def source(place: int, tool: str, schema: Any) -> SchemaSource:
    return SchemaSource(field=f"tools[{place}].function.parameters", text=json.dumps(schema), tool=tool)


@pytest.mark.parametrize("what", BAD)
def test_of_several_tools_the_one_that_is_wrong_is_named(what: str) -> None:
    schema = {"type": "object", "properties": {"b": BAD[what]}}
    calls = {"anyOf": [GOOD, schema, GOOD]}
    sources = (source(0, "good", GOOD), source(2, "bad", schema), source(3, "other", GOOD))
    error = refusal(form(OutputKind.JSON_SCHEMA, calls, field="tools", sources=sources))
    assert error.param == "tools[2].function.parameters"
    assert str(error).startswith("tools[2].function.parameters (the tool 'bad') cannot be enforced: ")
    assert str(error).endswith("(at /properties/b)")


def test_where_no_source_is_wrong_by_itself_the_whole_is_refused() -> None:
    wanted = form(OutputKind.JSON_SCHEMA, BAD["a keyword"], field="tools", sources=(source(0, "good", GOOD),))
    assert refusal(wanted).param == "tools"


@pytest.mark.parametrize(
    ("tag", "field"),
    [
        (lambda bad: {"format": {"type": "json_schema", "json_schema": bad}}, "f.format.json_schema"),
        (
            lambda bad: {
                "format": {
                    "type": "sequence",
                    "elements": [{"type": "json_schema", "json_schema": one} for one in (GOOD, bad)],
                }
            },
            "f.format.elements[1].json_schema",
        ),
        (
            lambda bad: {
                "structures": [{"begin": f"<{i}>", "schema": one, "end": "</>"} for i, one in enumerate((GOOD, bad))],
                "triggers": ["<"],
            },
            "f.structures[1].schema",
        ),
    ],
    ids=["alone", "in a sequence", "among structures"],
)
def test_of_several_schemas_in_a_tag_the_one_that_is_wrong_is_named(tag: Any, field: str) -> None:
    error = refusal(form(OutputKind.STRUCTURAL_TAG, tag({"type": "object", "properties": {"b": BAD["a keyword"]}})))
    assert error.param == field
    assert str(error) == f"{field} cannot be enforced: the keyword uniqueItems is not supported (at /properties/b)"


def wide(num_properties: int) -> dict[str, Any]:
    names = [f"p{i}" for i in range(num_properties)]
    return {"type": "object", "properties": {name: {"type": "null"} for name in names}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("kind", "text", "sizes"),
    [
        (OutputKind.JSON_SCHEMA, {"prefixItems": [{"enum": [i, "a"]} for i in range(26_000)]}, ["50000", "26001"]),
        (OutputKind.JSON_SCHEMA, wide(2500), ["8000", "9999"]),
        (OutputKind.GRAMMAR, "start: " + " | ".join(f'"option {i}"' for i in range(10_000)), ["8000", "10001"]),
        (OutputKind.REGEX, "a{10000000}", ["250550", "counts in braces"]),
        (OutputKind.REGEX, "((a{100}){100}){100}", ["251000", "one stands in another"]),
        (OutputKind.JSON_SCHEMA, {"type": "string", "pattern": "^((a{100}){100}){100}$"}, ["more than 25"]),
        (OutputKind.GRAMMAR, "start: " + '"a" ' * 70_000, ["65000"]),
        (OutputKind.GRAMMAR, "start: /((a{100}){100}){100}/", ["251450"]),
        (OutputKind.REGEX, "(a{1000}){1000}" + "b" * 20_000, ["1000000"]),
    ],
    ids=["subschemas", "properties", "alternatives", "a count", "counts", "in a schema", "symbols", "in a grammar", "long"],
)
def test_what_is_too_large_is_refused_before_an_answer_begins_with_the_limit_and_the_size(
    kind: OutputKind, text: Any, sizes: list[str]
) -> None:
    wanted = form(kind, text)
    said = str(refusal(wanted))
    assert said.startswith(f"f cannot be enforced: it is too large ({len(wanted.text)} characters): ")
    assert [size for size in sizes if size not in said] == []
    for inner in ("Parser Error", "lexer error", "left-recursive", "panic", "backtrace"):
        assert inner not in said


def test_a_tool_that_is_too_large_is_named_with_its_own_size() -> None:
    large = wide(2500)
    sources = (source(0, "good", GOOD), source(1, "large", large))
    error = refusal(form(OutputKind.JSON_SCHEMA, {"anyOf": [GOOD, large]}, field="tools", sources=sources))
    assert error.param == "tools[1].function.parameters"
    assert f"({len(json.dumps(large))} characters)" in str(error)


class Refusing:
    """Refuses what holds a certain word, and counts what it was asked."""

    def __init__(self) -> None:
        self.num_characters = 0

    def compile(self, wanted: StructuredOutput) -> CompiledForm:
        self.num_characters += len(wanted.text)
        raise InvalidRequestError(f"{wanted.field} is refused", param=wanted.field)


def test_finding_the_place_takes_no_longer_than_compiling_a_long_schema() -> None:
    schema: dict[str, Any] = {"description": "x" * 1000}
    for _ in range(150):
        schema = {"description": "x" * 1000, "items": schema}
    wanted = form(OutputKind.JSON_SCHEMA, schema)
    backend = Refusing()
    with pytest.raises(InvalidRequestError):
        LocatingBackend(backend).compile(wanted)
    assert backend.num_characters <= len(wanted.text) + 300_000


class RefusingInTurn(Refusing):
    """Holds the first until somebody else has asked for the same."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()
        self.may_go_on = threading.Event()

    def compile(self, wanted: StructuredOutput) -> CompiledForm:
        self.is_asked.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return super().compile(wanted)


def test_whoever_asks_for_the_same_meanwhile_is_told_of_the_own_field() -> None:
    backend = RefusingInTurn()
    cache = FormCache(backend)
    params: dict[str, str | None] = {}

    def ask(field: str) -> None:
        try:
            cache.get(form(OutputKind.REGEX, "a", field=field))
        except InvalidRequestError as error:
            params[field] = error.param

    threads = [threading.Thread(target=ask, args=(field,)) for field in ("first", "second", "third")]
    threads[0].start()
    assert backend.is_asked.wait(PATIENCE_S)
    for thread in threads[1:]:
        thread.start()
    backend.may_go_on.set()
    for thread in threads:
        thread.join()
    assert params == {field: field for field in ("first", "second", "third")}

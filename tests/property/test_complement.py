"""A schema and its complement share out all values between them: each is valid by exactly one. Where no keywords say that,
there is no complement."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headrace.engine.grammar.complement import complement

texts = st.text("ab]^-\\.\n", max_size=3)
numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -1.5])
scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | numbers | texts
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=3)
)
TYPES = ["null", "boolean", "object", "array", "number", "string"]
ALWAYS: list[Any] = [
    *(None, True, False, "", "a", "b", "ab", "aba", "]^-."),
    *(number / 2 for number in range(-8, 9)),
    *([0] * length for length in range(5)),
    *({}, {"p": 1}, {"p": "a", "q": []}, {"q": None, "r": 0.5}, {"p": True, "q": "ab", "r": {}}),
]
"""What lies on both sides of every bound that is drawn."""
lists_of_types = st.lists(st.sampled_from([*TYPES, "integer"]), min_size=1, unique=True).filter(
    lambda kinds: "integer" not in kinds or "number" in kinds  # numbers that are no integers have no name
)
flat = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(TYPES) | lists_of_types,
        "enum": st.lists(scalars, min_size=1, max_size=4),
        "const": scalars,
        "minimum": numbers,
        "maximum": numbers,
        "exclusiveMinimum": numbers,
        "exclusiveMaximum": numbers,
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(0, 3),
        "minItems": st.integers(0, 3),
        "maxItems": st.integers(0, 3),
        "required": st.lists(st.sampled_from("pqr"), max_size=2, unique=True),
        "title": st.just("Mill"),
    },
)
schemas: st.SearchStrategy[Any] = st.recursive(
    flat | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "not": inner,
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "properties": st.dictionaries(st.sampled_from("pq"), inner, max_size=2),
            "required": st.lists(st.sampled_from("pq"), max_size=1),
        },
    ),
    max_leaves=5,
)


UNSAYABLE: list[Any] = [
    {"type": "integer"},
    {"type": ["integer", "string"]},
    {"enum": [[], "a"]},
    {"const": {}},
    {"const": 2**60},
    {"minimum": 2**60},
    {"maxLength": 1.5},
    {"pattern": "a"},
    {"multipleOf": 2},
    {"oneOf": [{}]},
    {"items": {"type": "string"}},
    {"$ref": "#/$defs/a"},
]
around = st.sampled_from(
    [
        lambda inner: inner,
        lambda inner: {"allOf": [{"type": "null"}, inner]},
        lambda inner: {"anyOf": [inner, {"type": "null"}]},
        lambda inner: {"properties": {"p": inner}},
    ]
)


@given(schema=st.sampled_from(UNSAYABLE), wraps=st.lists(around, max_size=3))
def test_what_cannot_be_said_the_other_way_round_has_no_complement_wherever_it_stands(schema: Any, wraps: list[Any]) -> None:
    for wrap in wraps:
        schema = wrap(schema)
    assert complement(schema) is None


@settings(max_examples=400)
@given(schema=schemas, instances=st.lists(values, min_size=1, max_size=12))
def test_a_value_is_valid_by_a_schema_or_by_its_complement(schema: Any, instances: list[Any]) -> None:
    opposite = complement(schema)
    assert opposite is not None, "each of these keywords has an opposite, wherever it stands"
    one, other = Draft202012Validator(schema), Draft202012Validator(opposite)
    for instance in (*ALWAYS, *instances):
        assert one.is_valid(instance) is not other.is_valid(instance), (schema, opposite, instance)

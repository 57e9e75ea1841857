"""Arguments that a format writes one by one, each under its name: which there are, and what each may be.

Knows which schemas of a tool say no more than that. Does not know how any format writes a value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.server.tools.call_form import Format, any_text, one_of, regex, sequence, text, with_definitions
from headrace.server.tools.schemas import is_empty, resolved, types_of

NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
)
_OF_OBJECTS = NOTES | {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "strict"}
_OF_STRINGS = NOTES | {"type", "enum", "const", "minLength", "maxLength", "$defs", "definitions"}
_OF_PLAIN = NOTES | {"type", "$defs", "definitions", "nullable"}
_BARE_TYPES = frozenset({"string", "null", "boolean", "integer", "number"})
_LISTED = ("enum", "const")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    name: str
    schema: Any
    """Stands by itself."""
    types: frozenset[str]
    """What it may be; empty where the schema does not say."""
    is_required: bool

    @property
    def is_listed(self) -> bool:
        return isinstance(self.schema, Mapping) and any(key in self.schema for key in _LISTED)


def named_arguments(schema: Mapping[str, Any]) -> list[Argument] | None:
    """In the schema's order; None where the schema says more than what each argument may be, and which there must be.
    Arguments that it leaves open are left out."""
    properties = schema.get("properties", {} if schema.get("additionalProperties") is False else None)
    if properties is None and set(schema) <= NOTES | {"type"}:
        return None
    required = schema.get("required", [])
    if (
        not isinstance(properties, Mapping)
        or not _OF_OBJECTS.issuperset(schema)
        or any(r not in properties for r in required)
    ):
        return None
    found: list[Argument] = []
    for name, one in properties.items():
        alone = with_definitions(resolved(one, schema), schema)
        if alone is None:
            return None
        if alone is not False and not is_empty(alone):
            types = types_of(alone, alone if isinstance(alone, Mapping) else {})
            found.append(Argument(name=name, schema=alone, types=types, is_required=name in required))
        elif name in required:
            return None
    return found


def written_in_order(arguments: Sequence[Argument], write: Callable[[Argument], Format], separator: str) -> Format:
    """All that are required, then any of the others, each once, with a separator between."""
    required = [write(one) for one in arguments if one.is_required]
    optional = [write(one) for one in arguments if not one.is_required]
    further = [{"type": "optional", "content": sequence(text(separator), one)} for one in optional]
    if required:
        first, *others = required
        return sequence(first, *(sequence(text(separator), one) for one in others), *further)
    if not optional:
        return text("")
    return {"type": "optional", "content": one_of([sequence(one, *further[i + 1 :]) for i, one in enumerate(optional)])}


def bare_text(argument: Argument, excludes: Sequence[str]) -> Format | None:
    """A value that is written without quotes and may be a string; None where bare text cannot be held to its schema.
    `excludes`: what would end it."""
    schema = argument.schema if isinstance(argument.schema, Mapping) else {}
    if argument.types == {"string"} and "$ref" not in schema and _OF_STRINGS.issuperset(schema):
        if argument.is_listed:
            return _listed(schema, excludes)
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        if (least, most) == (0, ""):
            return any_text(excludes=excludes)
        if isinstance(least, int) and isinstance(most, int | str):
            return regex(rf"(.|\n){{{least},{most}}}") | {"excludes": list(excludes)}
    elif _is_plain(schema) and argument.types <= _BARE_TYPES:
        return any_text(excludes=excludes)
    return None


def _listed(schema: Mapping[str, Any], excludes: Sequence[str]) -> Format | None:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if ("enum" in schema and "const" in schema) or not isinstance(values, list):
        return None
    values = [value for value in values if isinstance(value, str)]  # the others are of another type than the schema's
    if not values or any(value != value.strip("\n") or any(mark in value for mark in excludes) for value in values):
        return None
    return one_of([text(value) for value in dict.fromkeys(values)])


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether it says nothing but types."""
    lists = [schema[key] for key in ("anyOf", "oneOf") if key in schema]
    if not all(isinstance(one, list) for one in lists):
        return False
    branches = [branch for one in lists for branch in one]
    alone = {key for key in schema if key not in ("anyOf", "oneOf")}
    return _OF_PLAIN.issuperset(alone) and all(
        branch is True or (isinstance(branch, Mapping) and "$ref" not in branch and _is_plain(branch)) for branch in branches
    )

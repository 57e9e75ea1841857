"""The tools of one request as parsers see them: names, and what each argument may be. Knows JSON schemas' types."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.server.parsing.python_text import python_value
from headrace.server.parsing.reader import NotAsExpected, Reader

_SCALARS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_NO_TYPES: frozenset[str] = frozenset()


class Tools:
    """By name, each with the schema of its arguments."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = dict(schemas)

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._schemas)

    def types(self, tool: str, argument: str) -> frozenset[str]:
        """What the schema says the argument may be; empty where it does not say."""
        properties = self._schemas.get(tool, {}).get("properties")
        schema = properties.get(argument) if isinstance(properties, Mapping) else None
        return _types(schema)


def _types(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return _NO_TYPES
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(one for one in named if isinstance(one, str))
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            found = [_types(branch) for branch in branches]
            return frozenset().union(*found) if all(found) else _NO_TYPES
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values and all(isinstance(value, str) for value in values):
        return frozenset({"string"})
    return _NO_TYPES


def json_of(text: str, types: frozenset[str]) -> str:
    """An argument that a format writes as bare text, as JSON: what it reads as, unless its schema wants a string.

    The text itself is kept where it is JSON, so that numbers stay as they were written.
    """
    bare = text.strip()
    if types == {"string"}:
        return _json_string(text)
    if bare.lower() in _SCALARS and bare[:1].isalpha():
        kind = "null" if bare.lower() in ("none", "null") else "boolean"
        if not types or kind in types or "string" not in types:
            return _SCALARS[bare.lower()]
    try:
        value = msgspec.json.decode(bare.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _json_string(text) if not types or "string" in types else _json_of_python(bare) or _json_string(text)
    if isinstance(value, str):  # in quotes of its own
        return bare if types and "string" not in types else _json_string(text)
    if types and "string" in types and not _kinds(value) & types:
        return _json_string(text)
    return bare


def _json_of_python(text: str) -> str:
    """What a Python literal is as JSON; empty where it is none. Models write lists so that are to be JSON."""
    reader, pieces = Reader(), list[str]()
    reader.feed(text)
    reader.end()
    try:
        for _ in python_value(reader, pieces.append):
            raise AssertionError("nothing is waited for beyond the end")
    except NotAsExpected:
        return ""
    return "" if reader.char else "".join(pieces)


def _kinds(value: Any) -> frozenset[str]:
    match value:
        case bool():
            return frozenset({"boolean"})
        case None:
            return frozenset({"null"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _json_string(text: str) -> str:
    return msgspec.json.encode(text).decode()

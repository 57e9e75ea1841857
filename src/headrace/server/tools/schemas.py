"""The tools of one request as parsers see them: names, and what each argument may be. Knows JSON schemas' types."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.server.parsing.python_text import python_value
from headrace.server.parsing.reader import NotAsExpected, Reader

_SCALARS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_NO_TYPES: frozenset[str] = frozenset()
_BESIDE_REFERENCES = frozenset({"$ref", "title", "description", "default", "examples", "$comment"})
_MAX_DEPTH = 20
"""References and branches that are followed."""


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

    def schema(self, tool: str) -> Mapping[str, Any]:
        """Of its arguments; empty where there is none."""
        return self._schemas.get(tool, {})

    def types(self, tool: str, argument: str) -> frozenset[str]:
        """What the schema says the argument may be; empty where it does not say."""
        root = self.schema(tool)
        return types_of(part_of(root, root, argument), root)


def part_of(schema: Any, root: Mapping[str, Any], name: str | None) -> Any:
    """What a schema inside `root` says of a property, or, without a name, of a list's items; None where nothing."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return None
    if name is None:
        return schema.get("items")
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """What a schema inside `root` says that a value may be; empty where it does not say."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return _NO_TYPES
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(one for one in named if isinstance(one, str))
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            found = [types_of(branch, root, depth + 1) for branch in branches]
            return frozenset().union(*found) if all(found) else _NO_TYPES
    for one in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        if found_there := types_of(one, root, depth + 1):
            return found_there
    if isinstance(target := schema.get("$ref"), str) and target.startswith("#/"):
        return types_of(_at(root, target), root, depth + 1)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    return frozenset().union(*map(_kinds_of, values))


def is_empty(schema: Any) -> bool:
    """Whether it lists values of which none is of its type: nothing satisfies that."""
    if not isinstance(schema, Mapping) or "type" not in schema:
        return False
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else None
    return values is not None and not any(_kinds_of(value) & types_of(schema, {}) for value in values)


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema that does nothing but point elsewhere inside `root` points to."""
    for _ in range(_MAX_DEPTH):
        target = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(target, str) or not target.startswith("#/") or not _BESIDE_REFERENCES.issuperset(schema):
            break
        found = _at(root, target)
        if not isinstance(found, Mapping | bool):
            break
        schema = found
    return schema


def _at(root: Mapping[str, Any], pointer: str) -> Any:
    place: Any = root
    for step in pointer.removeprefix("#/").split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, Mapping) or step not in place:
            return None
        place = place[step]
    return place


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
    if types and "string" in types and not _kinds_of(value) & types:
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


def _kinds_of(value: Any) -> frozenset[str]:
    match value:
        case str():
            return frozenset({"string"})
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

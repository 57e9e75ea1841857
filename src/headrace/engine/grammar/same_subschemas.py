"""A JSON Schema in which what is said several times is said once: equal subschemas as references to one definition.

Knows where a subschema may stand elsewhere without a change of meaning. Does not know what any keyword asserts. A library
compiles a definition once, however often it is referred to, and the large schemas that people have (a pod's containers, its
init containers, its ephemeral ones) repeat themselves: of 120 kB some 20 are left.
"""

from collections.abc import Callable
from typing import Any

import msgspec

_OPEN = frozenset(
    {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
     "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
     "multipleOf", "$schema", "title", "description", "default", "example", "examples", "deprecated", "readOnly",
     "writeOnly", "nullable"}
)  # fmt: skip
"""A schema that holds nothing else, but for others' own `x-…`, is looked into: its parts are asked for by themselves. Beside
`allOf` and its like they would be put together with parts from elsewhere; such a schema is one piece."""
_PARTS = ("items", "additionalProperties")
_NAMED = "properties"
_HOLDERS = frozenset({_NAMED, *_PARTS})
_encode = msgspec.json.Encoder().encode
_PLACED = ('"$ref"', '"$dynamicRef"', '"$id"', '"$anchor"', '"$dynamicAnchor"', '"$defs"', '"definitions"')
"""Where one of these stands, it matters where others do."""
_LEAST = 40
"""Characters of a subschema that is worth a definition."""
_LEAST_SHARE = 0.2
"""Of a schema's characters: where less is said before, it is left as it is."""


def said_once(schema: dict[str, Any], written: str) -> dict[str, Any]:
    """The schema with definitions, or itself where it hardly repeats itself. `written`: the same as JSON."""
    if any(name in written for name in _PLACED):
        return schema
    try:
        classes = _Classes(schema)
        return classes.schema() if classes.num_repeated >= _LEAST_SHARE * len(written) else schema
    except (UnicodeError, RecursionError):  # halves of surrogate pairs; deeper than anybody compiles
        return schema


class _Classes:
    """Subschemas sorted by what they say, order of keywords included: properties are written in their order."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.num_repeated = 0
        """Characters that are said before."""
        self._pieces: dict[bytes, int] = {}
        self._wholes: dict[bytes, int] = {}
        """By their JSON, those that have parts apart from those that are one piece."""
        self._schemas: list[dict[str, Any]] = []
        """One of each class; where it has parts, their classes stand for them."""
        self._parts: list[list[int]] = []
        """Their classes, in order; none of a schema that is one piece."""
        self._sizes: list[int] = []
        self._root = self._class_of(schema)
        self._num_uses = [0] * len(self._schemas)
        self._count(self._root)
        self._definitions: dict[str, Any] = {}

    def schema(self) -> dict[str, Any]:
        return {**self._written(self._root), "$defs": self._definitions}

    def _class_of(self, schema: dict[str, Any]) -> int:
        parts: list[int] = []
        known = self._pieces
        if not _HOLDERS.isdisjoint(schema) and _has_parts(schema):
            schema = _with_parts(schema, dict, self._class_of, parts)
            known = self._wholes
        text = _encode(schema)
        if (found := known.get(text)) is None:
            found = known[text] = len(self._schemas)
            self._schemas.append(schema)
            self._parts.append(parts)
            self._sizes.append(len(text) + sum([self._sizes[part] for part in parts]))
        return found

    def _count(self, place: int) -> None:
        """In how many places of different subschemas it stands."""
        self._num_uses[place] += 1
        if self._num_uses[place] > 1:
            self.num_repeated += self._sizes[place] if self._sizes[place] >= _LEAST else 0
            return
        for part in self._parts[place]:
            self._count(part)

    def _written(self, place: int) -> dict[str, Any]:
        schema = self._schemas[place]
        return _with_parts(schema, int, self._reference, []) if self._parts[place] else schema

    def _reference(self, place: int) -> dict[str, Any]:
        if self._num_uses[place] == 1 or self._sizes[place] < _LEAST:
            return self._written(place)
        name = f"same{place}"
        if name not in self._definitions:
            self._definitions[name] = self._written(place)
        return {"$ref": f"#/$defs/{name}"}


def _has_parts(schema: dict[str, Any]) -> bool:
    """Whether the subschemas that stand in it can be looked at by themselves."""
    if not _OPEN.issuperset(schema) and not all(name in _OPEN or name.startswith("x-") for name in schema):
        return False
    named = schema.get(_NAMED, {})
    others = [schema[name] for name in _PARTS if name in schema]
    return isinstance(named, dict) and all(isinstance(part, dict | bool) for part in (*others, *named.values()))


def _with_parts(schema: dict[str, Any], kind: type, put: Callable[[Any], Any], made: list[Any]) -> dict[str, Any]:
    """With something else for each part of this kind, all of which are also `made`; true and false stay."""

    def one(part: Any) -> Any:
        if type(part) is not kind:
            return part
        made.append(new := put(part))
        return new

    changed = dict(schema)
    if _NAMED in schema:
        changed[_NAMED] = {name: one(part) for name, part in schema[_NAMED].items()}
    for name in _PARTS:
        if name in schema:
            changed[name] = one(schema[name])
    return changed

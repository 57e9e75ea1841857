"""Arguments in a notation that is not JSON all the way down: what values may be, put as that notation writes them.

Knows which schemas can be held to so. Does not know any format's marks: a `Notation` has them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.grammar.json_schema import DEFINITIONS
from headrace.server.tools.call_form import (
    Format,
    json_value,
    one_of,
    sequence,
    text,
    with_definitions,
)
from headrace.server.tools.named_arguments import NOTES, Argument, named_arguments, written_in_order
from headrace.server.tools.schemas import resolved, types_of

_SCALARS = frozenset({"integer", "number", "boolean", "null"})
_MAX_DEPTH = 8
_MAX_ITEMS = 32
"""Of lists that a form counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """How a format writes values. Numbers, truth values and null are as JSON has them."""

    is_key: Callable[[str], bool]
    """Whether a name can be written."""
    string: Callable[[Argument], Format | None]
    """What may be a string; None where that cannot be held to its schema."""
    bare_strings: bool
    """Nothing tells a string from other values, so that what may be one is `string`'s matter altogether."""
    pair: Callable[[str, Format], Format]
    item: Callable[[Format], Format]
    separator: str
    """Between pairs, and between items."""
    braces: tuple[str, str]
    brackets: tuple[str, str]

    def members(self, schema: Mapping[str, Any], depth: int = 0) -> Format | None:
        """What stands between the braces of an object of this schema."""
        given = named_arguments(schema)
        if given is None or not all(self.is_key(one.name) for one in given):
            return None
        values = {one.name: self._value(one, depth + 1) for one in given}
        pairs = {name: self.pair(name, value) for name, value in values.items() if value is not None}
        return written_in_order(given, lambda one: pairs[one.name], self.separator) if len(pairs) == len(given) else None

    def _value(self, argument: Argument, depth: int) -> Format | None:
        schema, kinds = argument.schema, argument.types
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        if kinds and kinds <= _SCALARS:
            return json_value(schema)
        if kinds == {"string"} or (self.bare_strings and "string" in kinds):
            return self.string(argument)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and NOTES.issuperset(set(schema) - {key, *DEFINITIONS}):
                return self._any([_part(branch, schema) for branch in schema[key]], depth)
        if isinstance(schema.get("type"), list) and NOTES.issuperset(set(schema) - {"type", *DEFINITIONS}):
            return self._any([_part({"type": kind}, {}) for kind in schema["type"]], depth)
        if kinds == {"object"}:
            members = self.members(schema, depth)
            return None if members is None else sequence(text(self.braces[0]), members, text(self.braces[1]))
        return self._list(schema, depth) if kinds == {"array"} else None

    def _any(self, branches: Sequence[Argument | None], depth: int) -> Format | None:
        forms = [None if branch is None else self._value(branch, depth + 1) for branch in branches]
        known = [form for form in forms if form is not None]
        return one_of(known) if known and len(known) == len(forms) else None

    def _list(self, schema: Mapping[str, Any], depth: int) -> Format | None:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if not NOTES.issuperset(set(schema) - {"type", "items", "minItems", "maxItems", *DEFINITIONS}):
            return None
        part = _part(schema.get("items"), schema)
        value = None if part is None else self._value(part, depth + 1)
        if (
            value is None
            or not (_is_count(least) and (most is None or _is_count(most)))
            or max(least, most or 0) > _MAX_ITEMS
            or (most is not None and least > most)
        ):
            return None
        if most == 0:
            return text("".join(self.brackets))
        one = self.item(value)
        next_one = sequence(text(self.separator), one)
        tail: Format = {"type": "star", "content": next_one} if most is None else text("")
        for _ in range(0 if most is None else most - max(least, 1)):
            tail = {"type": "optional", "content": sequence(next_one, tail)}
        items = sequence(one, *[next_one] * (least - 1), tail)
        listed = items if least else {"type": "optional", "content": items}
        return sequence(text(self.brackets[0]), listed, text(self.brackets[1]))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _part(schema: Any, root: Mapping[str, Any]) -> Argument | None:
    """A schema inside another, as one that stands by itself."""
    alone = with_definitions(resolved(schema, root), root)
    return Argument(name="", schema=alone, types=types_of(alone, root), is_required=True) if alone is not None else None

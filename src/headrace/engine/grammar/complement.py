"""The complement of a JSON Schema: what is valid by it exactly where the schema is not satisfied.

Knows the keywords whose complement other keywords can say. For the others there is none: better no form than one that admits
too much or too little.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Schema = bool | dict[str, Any]

_TYPES = ("null", "boolean", "object", "array", "number", "string")
_ANNOTATIONS = frozenset(
    {"title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema"}
)
_MAX_TEXT = 2_000
"""Characters of strings that a complement spells out."""

_OPPOSITES = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}
"""By keyword: of values of this type, those that this keyword admits at the same bound, or one further on."""


def complement(schema: Any) -> Schema | None:
    """None where no keywords say it exactly."""
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict):
        return None
    ways: list[Schema] = []
    for name, value in schema.items():
        if name in _ANNOTATIONS:
            continue
        way = _against(name, value)
        if way is None:
            return None
        ways.append(way)
    return any_of(ways)


def any_of(ways: Sequence[Schema]) -> Schema:
    possible = [way for way in ways if way is not False]
    if not possible:
        return False
    if True in possible:
        return True
    return possible[0] if len(possible) == 1 else {"anyOf": possible}


def _against(name: str, value: Any) -> Schema | None:
    """What one keyword does not admit."""
    match name:
        case "type":
            return _other_types([value] if isinstance(value, str) else value)
        case "enum" if isinstance(value, list):
            return _other_values(value)
        case "const":
            return _other_values([value])
        case "not":
            return value if isinstance(value, bool | dict) else None
        case "allOf" | "anyOf" if isinstance(value, list):
            parts = [complement(one) for one in value]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            return any_of(known) if name == "allOf" else {"allOf": known}
        case "required" if isinstance(value, list):
            return any_of([_object(properties={one: False}) for one in value])
        case "properties" if isinstance(value, dict):
            wrong = {key: complement(one) for key, one in value.items()}
            if None in wrong.values():
                return None
            return any_of([_object(properties={key: one}, required=[key]) for key, one in wrong.items() if one is not False])
    if name in _OPPOSITES:
        return _beyond(name, value)
    return None


def _object(**keywords: Any) -> Schema:
    return {"type": "object", **keywords}


def _other_types(types: Any) -> Schema | None:
    if not isinstance(types, list) or ("integer" in types and "number" not in types):
        return None  # numbers that are no integers have no name
    others = [kind for kind in _TYPES if kind not in types]
    return {"type": others} if others else False


def _beyond(name: str, value: Any) -> Schema | None:
    kind, opposite, step = _OPPOSITES[name]
    if not _is_exact(value):
        return None
    if not step:
        return {"type": kind, opposite: value}
    if value != int(value):
        return None
    bound = int(value) + step
    return {"type": kind, opposite: bound} if bound >= 0 else False


def _other_values(values: Sequence[Any]) -> Schema | None:
    if any(isinstance(value, list | dict) for value in values):
        return None
    if not all(_is_exact(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)):
        return None
    texts = [value for value in values if isinstance(value, str)]
    truths = {value for value in values if isinstance(value, bool)}
    numbers = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    if sum(map(len, texts)) > _MAX_TEXT:
        return None
    ways: list[Schema] = [{"type": kind} for kind in ("object", "array")]
    ways += [] if None in values else [{"type": "null"}]
    ways += [{"const": truth} for truth in (True, False) if truth not in truths]
    ways.append({"type": "string", "pattern": f"^(?:{_other_texts(texts)})$"} if texts else {"type": "string"})
    if numbers:
        ways.append({"type": "number", "exclusiveMaximum": numbers[0]})
        ways += [{"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairwise(numbers)]
        ways.append({"type": "number", "exclusiveMinimum": numbers[-1]})
    else:
        ways.append({"type": "number"})
    return {"anyOf": ways}


def _is_exact(value: Any) -> bool:
    """Whether it is a number that bounds are exact for."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**53


def _other_texts(texts: Sequence[str]) -> str:
    """A pattern for all texts but these: what follows the beginning that they share may end early, go on otherwise, or go on
    as one of them does and then be another."""
    nexts = dict.fromkeys(text[0] for text in texts if text)
    ways = [] if "" in texts else [""]
    ways.append(f"[^{''.join(map(_in_class, nexts))}](?:.|\\n)*" if nexts else "(?:.|\\n)+")
    for char in nexts:
        rest = [text[1:] for text in texts if text[:1] == char]
        ways.append(f"{re.escape(char)}(?:{_other_texts(rest)})")
    return "|".join(ways)


def _in_class(char: str) -> str:
    return f"\\{char}" if char in r"\]^[-&~" else char

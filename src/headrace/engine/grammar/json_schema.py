"""A client's JSON Schema made ready for a grammar library: what the library would not enforce exactly is put exactly, or
refused by name.

Knows the keywords of draft 2020-12 and of the drafts before it, and the departures of llguidance from them that the public
test suite shows (benchmarks/json_schema_suite.py). llguidance itself refuses the keywords that it does not implement.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.complement import any_of, complement
from headrace.engine.grammar.same_subschemas import said_once
from headrace.engine.mind.structured_output import StructuredOutput

Schema = bool | dict[str, Any]

_MAX_DEPTH = 200
"""Levels of a schema that are looked at; deeper ones are refused."""

_MAX_COMPLEMENTS = 6
"""So many `not` and `if` of a schema are put as alternatives: where they meet in one place they multiply."""

_OLD_KEYWORDS = {
    "$recursiveRef": "it is draft 2019-09's; use $ref",
    "$recursiveAnchor": "it is draft 2019-09's; use $ref",
    "additionalItems": "it was replaced by items beside prefixItems",
    "divisibleBy": "it is draft 3's; use multipleOf",
    "disallow": "it is draft 3's",
    "extends": "it is draft 3's; use allOf",
    "x-guidance": "it would change how other keywords are enforced",
}
"""Keywords that would be passed over, though they assert something, or that change what is enforced."""

_SCHEMAS = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames",
            "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", *DEFINITIONS, "dependentSchemas")

_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas", "contains")
"""Keywords by which other schemas evaluate properties and items of the same instance."""

_NOTES = ("description", "title", "$comment")
"""Words for readers: left out, since a large schema is mostly these."""

_WORTH_SHARING = 5_000
"""Characters of a schema in which it pays to look for what is said several times."""

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

_LEAF = frozenset({"type", "enum", "const", "minimum", "maximum"})
"""A schema that holds nothing else is passed on as it is; most do."""

_PLAIN = _LEAF.union(_NOTES, ("properties", "required", "additionalProperties"))
"""Of a schema that holds nothing else only what is nested needs a look."""

# Dates that exist. llguidance's own format admits 30 and 29 February in every year.
_YEAR = "[0-9]{4}"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
# A leap second exists only at 23:59:60 UTC. At other offsets it is left out: nobody needs it generated.
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?"
_OFFSET = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = f"(?:{_CLOCK}{_OFFSET}|23:59:60(?:\\.[0-9]+)?(?:[Zz]|[+-]00:00))"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    # llguidance has none of these.
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
}

# ECMA-262's white space, which patterns are written in, differs from Unicode's by U+FEFF and U+0085.
_ECMA_SPACE = r"\t\n\x0b\x0c\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def read_json_schema(wanted: StructuredOutput) -> str:
    """The schema to compile, as JSON. Raises InvalidRequestError naming the keyword and its place."""
    return _written(_read(wanted))


def schema_for_llguidance(wanted: StructuredOutput) -> str:
    """The same, and how white space is written, in llguidance's own keyword."""
    return _written(_read_for_llguidance(wanted))


def schemas_for_llguidance(wanted: StructuredOutput) -> Iterator[str]:
    """The same, all with one meaning, the one that is compiled fastest first. It may be refused where the last would not be:
    a definition that nothing satisfies is an error, though it may be that of a property that may be left out."""
    schema = _read_for_llguidance(wanted)
    written = _written(schema)
    if len(written) >= _WORTH_SHARING and (shared := said_once(schema, written)) is not schema:
        yield _written(shared)
    yield written


def parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas that stand in a schema, each with the pointer that leads to it; definitions first."""
    if not isinstance(schema, dict):
        return
    for name in sorted(schema, key=lambda name: name not in DEFINITIONS):
        value = schema[name]
        if name in _SCHEMAS:
            yield f"/{name}", value
        elif name in _LISTS and isinstance(value, list):
            yield from ((f"/{name}/{i}", one) for i, one in enumerate(value))
        elif name in _MAPS and isinstance(value, dict):
            yield from ((f"/{name}/{_pointed(key)}", one) for key, one in value.items())


def num_subschemas(schema: Any) -> int:
    """Itself included."""
    return 1 + sum(num_subschemas(part) for _, part in parts(schema))


def _pointed(name: str) -> str:
    """As a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _read_for_llguidance(wanted: StructuredOutput) -> dict[str, Any]:
    schema, whitespace = _read(wanted), _whitespace(wanted)
    return schema | {"x-guidance": whitespace} if whitespace else schema


def _read(wanted: StructuredOutput) -> dict[str, Any]:
    try:
        schema = json.loads(wanted.text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{wanted.field} is not valid JSON: {error}", param=wanted.field) from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"{wanted.field} must be a JSON Schema: an object, or true or false", param=wanted.field)
    if schema is False:
        raise InvalidRequestError(f"{wanted.field} cannot be enforced: nothing satisfies false", param=wanted.field)
    read: dict[str, Any] = _Reader(wanted).read({} if schema is True else schema, "", 0)
    return read


def _whitespace(wanted: StructuredOutput) -> dict[str, Any]:
    if wanted.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {} if wanted.whitespace_pattern is None else {"whitespace_pattern": wanted.whitespace_pattern}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number that JSON has")
    return number


def _written(schema: Any) -> str:
    try:
        return msgspec.json.encode(schema).decode()
    except UnicodeError:  # halves of surrogate pairs
        return json.dumps(schema, ensure_ascii=False)


class _Reader:
    def __init__(self, wanted: StructuredOutput) -> None:
        self._field = wanted.field
        self._closes_objects = wanted.disable_additional_properties
        self._num_complements = 0

    def read(self, schema: Any, path: str, depth: int) -> Any:
        """The schema and all in it, keywords in their order: llguidance writes properties in the order given."""
        if not isinstance(schema, dict):
            return schema
        if not self._closes_objects and _LEAF.issuperset(schema):
            return schema
        if depth > _MAX_DEPTH:
            raise InvalidRequestError(f"{self._field} is nested too deeply", param=self._field)
        if _PLAIN.issuperset(schema) and isinstance(schema.get("required", []), list):
            read = dict(schema)
            for name in ("properties", "additionalProperties"):
                if name in read:
                    read[name] = self._keyword(name, read[name], path, depth)
        else:
            self._check(schema, path)
            schema = _without_idle_keywords(schema)
            read = {name: self._keyword(name, value, path, depth) for name, value in schema.items()}
            _put_format(read)
            _put_dependents(read)
            _put_property_names(read)
            self._put_complements(read)
        for name in _NOTES:
            read.pop(name, None)
        if self._closes_objects and ("properties" in read or read.get("type") == "object"):
            read.setdefault("additionalProperties", False)
        return read

    def _keyword(self, name: str, value: Any, path: str, depth: int) -> Any:
        place = f"{path}/{name}"
        if name in _SCHEMAS:
            return self.read(value, place, depth + 1)
        if name in _LISTS and isinstance(value, list):
            return [self.read(one, f"{place}/{i}", depth + 1) for i, one in enumerate(value)]
        if name == "patternProperties" and isinstance(value, dict):
            return {_ecma(key): self.read(one, f"{place}/{key}", depth + 1) for key, one in value.items()}
        if name in _MAPS and isinstance(value, dict):
            return {key: self.read(one, f"{place}/{key}", depth + 1) for key, one in value.items()}
        if name == "dependencies" and isinstance(value, dict):
            return {key: one if isinstance(one, list) else self.read(one, place, depth + 1) for key, one in value.items()}
        if name == "pattern" and isinstance(value, str):
            return _ecma(value)
        if name in _COUNTS and isinstance(value, float) and value.is_integer():
            return int(value)
        return value

    def _put_complements(self, schema: dict[str, Any]) -> None:
        """What must not be, and what depends on something, as alternatives; where the opposite can be said exactly."""
        if "not" not in schema and "if" not in schema:
            return
        for put in (_without_not, _without_if):
            if self._num_complements < _MAX_COMPLEMENTS and (needed := put(schema)) is not None:
                self._num_complements += 1
                schema["allOf"] = [*schema.get("allOf", ()), needed]

    def _check(self, schema: Mapping[str, Any], path: str) -> None:
        for name, reason in _OLD_KEYWORDS.items():
            if name in schema:
                self._refuse(name, path, reason)
        if isinstance(schema.get("items"), list):
            self._refuse("items", path, "a list of schemas is an older draft's; use prefixItems")
        for name in ("exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(schema.get(name), bool):
                self._refuse(name, path, "true and false are draft 4's; give the number")
        if "required" in schema and not isinstance(schema["required"], list):
            self._refuse("required", path, "it is a list of names")
        least = schema.get("minProperties")
        required = schema.get("required")
        num_required = len(set(required)) if isinstance(required, list) else 0
        if (
            isinstance(least, int | float)
            and least > max(num_required, 1)
            and schema.get("additionalProperties") is not False
        ):
            # The same further name could be written twice, which makes one property.
            self._refuse("minProperties", path, "above 1 it is enforced only where the properties are all named in required")

    def _refuse(self, name: str, path: str, reason: str) -> None:
        place = f" at {path}" if path else ""
        raise InvalidRequestError(
            f"{self._field} cannot be enforced: the keyword {name}{place} is not supported: {reason}", param=self._field
        )


def _without_idle_keywords(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without keywords that assert nothing where they stand, and with others put more simply, without change of meaning."""
    kept = dict(schema)
    if "if" not in kept:
        kept.pop("then", None)
        kept.pop("else", None)
    elif "then" not in kept and "else" not in kept:
        del kept["if"]
    if "contains" not in kept:
        kept.pop("minContains", None)
        kept.pop("maxContains", None)
    if kept.get("uniqueItems") is False:
        del kept["uniqueItems"]
    for unevaluated, rest in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if unevaluated in kept and rest in kept:
            del kept[unevaluated]  # everything is evaluated
        elif unevaluated in kept and not any(name in schema for name in _IN_PLACE):
            kept = {rest if name == unevaluated else name: value for name, value in kept.items()}
    return kept


def _put_format(schema: dict[str, Any]) -> None:
    """Formats whose own implementation is none, or admits what is not valid, as patterns."""
    name = schema.get("format")
    pattern = _FORMATS.get(name) if isinstance(name, str) else None
    if pattern is None:
        return
    del schema["format"]
    if "pattern" in schema:
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": pattern}]
    else:
        schema["pattern"] = pattern


def _put_dependents(schema: dict[str, Any]) -> None:
    """Where there is an `a`, there is something else: there is no `a`, or both."""
    needs = _dependents(schema, "dependentRequired", list)
    needs += _dependents(schema, "dependentSchemas", dict | bool)
    needs += _dependents(schema, "dependencies", list | dict | bool)  # older drafts' name for both
    cases = [
        {"anyOf": [{"properties": {name: False}}, {"allOf": [{"required": [name]}, needed]}]}
        for name, needed in needs
        if needed not in ({}, True)
    ]
    if cases:
        schema["allOf"] = [*schema.get("allOf", ()), *cases]


def _dependents(schema: dict[str, Any], keyword: str, kind: Any) -> list[tuple[str, Any]]:
    """Takes the keyword out of the schema, if it is as it should be; lists of names as the schemas that demand them."""
    given = schema.get(keyword)
    if not isinstance(given, dict) or not all(isinstance(needed, kind) for needed in given.values()):
        return []
    del schema[keyword]
    return [
        (name, ({"required": needed} if needed else {}) if isinstance(needed, list) else needed)
        for name, needed in given.items()
    ]


def _without_not(schema: dict[str, Any]) -> Schema | None:
    """Takes `not` out of the schema and returns what says the same; None where nothing does."""
    if "not" not in schema or (opposite := complement(schema["not"])) is None:
        return None
    del schema["not"]
    return opposite


def _without_if(schema: dict[str, Any]) -> Schema | None:
    """The same of `if`, `then` and `else`. What they would have evaluated is lost: not beside `unevaluated…`."""
    if "if" not in schema or any(name in schema for name in ("unevaluatedProperties", "unevaluatedItems")):
        return None
    condition, then, otherwise = schema["if"], schema.get("then", True), schema.get("else", True)
    if not all(isinstance(one, dict | bool) for one in (condition, then, otherwise)):
        return None
    if then is True:
        needed = any_of([condition, otherwise])
    elif (opposite := complement(condition)) is None:
        return None
    elif otherwise is True:
        needed = any_of([opposite, then])
    else:
        needed = any_of([{"allOf": [condition, then]}, {"allOf": [opposite, otherwise]}])
    for name in ("if", "then", "else"):
        schema.pop(name, None)
    return needed


def _put_property_names(schema: dict[str, Any]) -> None:
    """What every name must be, as a pattern outside of which there are no properties; where the schema names none itself,
    and a pattern can say it."""
    names = schema.get("propertyNames")
    if names is True or names == {}:
        del schema["propertyNames"]
    if not isinstance(names, dict) or not names or any(name in schema for name in ("properties", "patternProperties")):
        return
    rest = schema.get("additionalProperties", True)
    if (listed := _listed_names(names)) is not None:
        del schema["propertyNames"]
        schema["properties"] = dict.fromkeys(listed, rest)
        schema["additionalProperties"] = False
        return
    if set(names) == {"pattern"} and isinstance(names["pattern"], str):
        pattern = names["pattern"]
    elif set(names) <= {"minLength", "maxLength"} and all(type(bound) is int for bound in names.values()):
        pattern = rf"^(?:.|\n){{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    else:
        return
    del schema["propertyNames"]
    schema["patternProperties"] = {pattern: rest}
    schema["additionalProperties"] = False


def _listed_names(names: Mapping[str, Any]) -> list[str] | None:
    """The only names that there may be, where a schema of names lists them."""
    keywords = {name: value for name, value in names.items() if (name, value) != ("type", "string")}
    if set(keywords) == {"const"}:
        listed = [keywords["const"]]
    elif set(keywords) == {"enum"} and isinstance(keywords["enum"], list):
        listed = keywords["enum"]
    else:
        return None
    return [one for one in listed if isinstance(one, str)]


def _ecma(pattern: str) -> str:
    """A pattern with ECMA-262's white space spelt out, for a library that knows Unicode's."""
    replacements = {"s": f"[{_ECMA_SPACE}]", "S": f"[^{_ECMA_SPACE}]"}
    return _ESCAPED.sub(lambda match: replacements.get(match[1], match[0]), pattern)

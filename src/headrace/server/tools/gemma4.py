"""Gemma 4, and FunctionGemma before it: a notation like JSON's, with bare keys and marks for quotes.

    <|tool_call>call:turn_wheel{rpm:3,way:<|"|>left<|"|>}<tool_call|>
    <start_function_call>call:turn_wheel{rpm:3,way:<escape>left<escape>}<end_function_call>

Within quotes nothing is escaped.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.server.parsing.json_text import escaped, json_scalar
from headrace.server.parsing.reader import Markers, NotAsExpected, Reading, TextEnded
from headrace.server.tools.call_form import (
    DEFINITIONS,
    CallForm,
    CallRequest,
    Format,
    json_value,
    one_of,
    sequence,
    tagged,
    text,
    with_definitions,
)
from headrace.server.tools.named_arguments import NOTES, Argument, bare_text, named_arguments, written_in_order
from headrace.server.tools.parser import MAX_NAME, ToolParser
from headrace.server.tools.schemas import resolved, types_of

_SPELLINGS = {
    "<|tool_call>": ("<tool_call|>", '<|"|>'),
    "<start_function_call>": ("<end_function_call>", "<escape>"),
}
"""By what begins a call: what ends it, and what stands for a quote."""

_CALL = "call:"
_KEY_RUN = re.compile(r"[^:{}\[\],<>\n\"]+")
_WORDS = {"None": "null", "True": "true", "False": "false"}
_BARE_RUN = re.compile(r"[A-Za-z]+")
_SCALARS = frozenset({"integer", "number", "boolean", "null"})
_MAX_DEPTH = 64
_MAX_FORM_DEPTH = 8
_MAX_ITEMS = 32
"""Of lists that a form counts."""


class Gemma4Parser(ToolParser):
    markers = tuple(_SPELLINGS)
    shown_tokens = tuple(mark for pair in _SPELLINGS.values() for mark in pair)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        begin = next((mark for mark in _SPELLINGS if mark in asked.template), cls.markers[0])
        end, quote = _SPELLINGS[begin]
        calls = []
        for name, schema in asked.schemas.items():
            pairs = _object_form(schema, quote)
            if pairs is None:
                return None
            calls.append(sequence(text(f"{_CALL}{name}{{"), pairs, text(f"}}{end}")))
        return CallForm(begin=begin, calls=one_of(calls), separator="")

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        end, quote = _SPELLINGS[marker]
        yield from reader.space()
        yield from reader.expect(_CALL)
        name = yield from self._name_before_brace()
        self._commit(name)
        yield from self._object(quote, 0)
        yield from reader.space()
        if not (yield from reader.at_end()):
            yield from reader.expect(end)

    def _name_before_brace(self) -> Reading[str]:
        name = yield from self._name()
        yield from self.reader.space()
        if (yield from self.reader.peek()) != "{":
            raise NotAsExpected
        return name

    def _value(self, quote: str, depth: int) -> Reading[None]:
        reader = self.reader
        if depth > _MAX_DEPTH:
            raise NotAsExpected
        if (yield from reader.is_next(quote)):
            yield from reader.expect(quote)
            yield from self._string(quote)
            return
        char = yield from reader.peek()
        if char == "{":
            yield from self._object(quote, depth)
        elif char == "[":
            yield from self._list(quote, depth)
        elif char in "NTF":
            word = yield from reader.word(_BARE_RUN, MAX_NAME)
            meant = next((one for one in _WORDS if one.startswith(word)), "")
            if not meant or (reader.char and word != meant):
                raise NotAsExpected
            self._write_arguments(_WORDS[meant][: None if word == meant else len(word)])
        else:
            yield from json_scalar(reader, self._write_arguments)

    def _string(self, quote: str) -> Reading[None]:
        self._write_arguments('"')
        if not (yield from self.reader.until(Markers((quote,)), lambda part: self._write_arguments(escaped(part)))):
            raise TextEnded
        self._write_arguments('"')

    def _object(self, quote: str, depth: int) -> Reading[None]:
        reader = self.reader
        yield from reader.expect("{")
        self._write_arguments("{")
        is_first = True
        while (yield from reader.another("}", is_first=is_first)):
            is_quoted = yield from reader.literal(quote)
            yield from self._argument_name(_KEY_RUN, f"{quote}:" if is_quoted else ":", is_first=is_first)
            yield from reader.space()
            yield from self._value(quote, depth + 1)
            is_first = False
        self._write_arguments("}")

    def _list(self, quote: str, depth: int) -> Reading[None]:
        reader = self.reader
        yield from reader.expect("[")
        self._write_arguments("[")
        is_first = True
        while (yield from reader.another("]", is_first=is_first)):
            if not is_first:
                self._write_arguments(", ")
            yield from self._value(quote, depth + 1)
            is_first = False
        self._write_arguments("]")


# The form of a call


def _object_form(schema: Mapping[str, Any], quote: str, depth: int = 0) -> Format | None:
    """What stands between the braces."""
    given = named_arguments(schema)
    if given is None or not all(_KEY_RUN.fullmatch(one.name) and one.name == one.name.strip() for one in given):
        return None
    values = {one.name: _value_form(one, quote, depth + 1) for one in given}
    pairs = {name: sequence(text(f"{name}:"), value) for name, value in values.items() if value is not None}
    return written_in_order(given, lambda one: pairs[one.name], ",") if len(pairs) == len(given) else None


def _value_form(argument: Argument, quote: str, depth: int) -> Format | None:
    schema, kinds = argument.schema, argument.types
    if not isinstance(schema, Mapping) or depth > _MAX_FORM_DEPTH:
        return None
    if kinds and kinds <= _SCALARS:
        return json_value(schema)
    if kinds == {"string"}:
        words = bare_text(argument, [quote])
        return None if words is None else tagged(quote, words, quote)
    for key in ("anyOf", "oneOf"):
        if key in schema and NOTES.issuperset(set(schema) - {key, *DEFINITIONS}):
            return _any_form([_part(branch, schema) for branch in schema[key]], quote, depth)
    if isinstance(schema.get("type"), list) and NOTES.issuperset(set(schema) - {"type", *DEFINITIONS}):
        return _any_form([_part({"type": kind}, {}) for kind in schema["type"]], quote, depth)
    if kinds == {"object"}:
        pairs = _object_form(schema, quote, depth)
        return None if pairs is None else sequence(text("{"), pairs, text("}"))
    return _list_form(schema, quote, depth) if kinds == {"array"} else None


def _any_form(branches: Sequence[Argument | None], quote: str, depth: int) -> Format | None:
    forms = [None if branch is None else _value_form(branch, quote, depth + 1) for branch in branches]
    known = [form for form in forms if form is not None]
    return one_of(known) if known and len(known) == len(forms) else None


def _list_form(schema: Mapping[str, Any], quote: str, depth: int) -> Format | None:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if not NOTES.issuperset(set(schema) - {"type", "items", "minItems", "maxItems", *DEFINITIONS}):
        return None
    item = _part(schema.get("items"), schema)
    one = None if item is None else _value_form(item, quote, depth + 1)
    if one is None or not isinstance(least, int) or not isinstance(most, int | None) or max(least, most or 0) > _MAX_ITEMS:
        return None
    if most == 0:
        return text("[]")
    next_one = sequence(text(","), one)
    tail: Format = {"type": "star", "content": next_one} if most is None else text("")
    for _ in range(0 if most is None else most - max(least, 1)):
        tail = {"type": "optional", "content": sequence(next_one, tail)}
    items = sequence(one, *[next_one] * (least - 1), tail)
    return sequence(text("["), items if least else {"type": "optional", "content": items}, text("]"))


def _part(schema: Any, root: Mapping[str, Any]) -> Argument | None:
    """A schema inside another, as one that stands by itself."""
    alone = with_definitions(resolved(schema, root), root)
    return Argument(name="", schema=alone, types=types_of(alone, root), is_required=True) if alone is not None else None

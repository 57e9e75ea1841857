"""Gemma 4, and FunctionGemma before it: a notation like JSON's, with bare keys and marks for quotes.

    <|tool_call>call:turn_wheel{rpm:3,way:<|"|>left<|"|>}<tool_call|>
    <start_function_call>call:turn_wheel{rpm:3,way:<escape>left<escape>}<end_function_call>

Within quotes nothing is escaped.
"""

import re

from headrace.server.parsing.json_text import escaped, json_scalar
from headrace.server.parsing.reader import Markers, NotAsExpected, Reading, TextEnded
from headrace.server.tools.call_form import CallForm, CallRequest, Format, one_of, sequence, tagged, text
from headrace.server.tools.named_arguments import Argument, bare_text
from headrace.server.tools.nested_arguments import Notation
from headrace.server.tools.parser import MAX_NAME, ToolParser

_SPELLINGS = {
    "<|tool_call>": ("<tool_call|>", '<|"|>'),
    "<start_function_call>": ("<end_function_call>", "<escape>"),
}
"""By what begins a call: what ends it, and what stands for a quote."""

_CALL = "call:"
_KEY_RUN = re.compile(r"[^:{}\[\],<>\n\"]+")
_WORDS = {"None": "null", "True": "true", "False": "false"}
_BARE_RUN = re.compile(r"[A-Za-z]+")
_MAX_DEPTH = 64


class Gemma4Parser(ToolParser):
    markers = tuple(_SPELLINGS)
    shown_tokens = tuple(mark for pair in _SPELLINGS.values() for mark in pair)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        begin = next((mark for mark in _SPELLINGS if mark in asked.template), cls.markers[0])
        end, quote = _SPELLINGS[begin]
        notation, calls = _notation(quote), []
        for name, schema in asked.schemas.items():
            pairs = notation.members(schema)
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


def _notation(quote: str) -> Notation:
    def string(argument: Argument) -> Format | None:
        words = bare_text(argument, [quote])
        return None if words is None else tagged(quote, words, quote)

    return Notation(
        is_key=lambda name: _KEY_RUN.fullmatch(name) is not None and name == name.strip(),
        string=string,
        bare_strings=False,
        pair=lambda name, value: sequence(text(f"{name}:"), value),
        item=lambda value: value,
        separator=",",
        braces=("{", "}"),
        brackets=("[", "]"),
    )

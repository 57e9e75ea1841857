"""Calls written as Python: Llama 3.2 and 4 when told so, and others.

    [turn_wheel(rpm=3, way="left"), stop_wheel()]

Nothing announces them, so such a list is a call only at the beginning of a line, and only of a tool that the request gave.
LFM2 puts them between marks: `<|tool_call_start|>[…]<|tool_call_end|>`.
"""

import re
from typing import ClassVar

from headrace.server.parsing.python_text import python_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.call_form import (
    CallForm,
    CallRequest,
    Format,
    json_value,
    one_of,
    sequence,
    text,
)
from headrace.server.tools.named_arguments import Argument, named_arguments, written_in_order
from headrace.server.tools.unmarked import UnmarkedCallParser

_KEYWORD = re.compile(r"\w+")


class PythonicParser(UnmarkedCallParser):
    markers = ("<|tool_call_start|>", "<|python_start|>", "<|python_tag|>")
    closers: ClassVar[tuple[str, ...]] = ("<|tool_call_end|>", "<|python_end|>")
    shown_tokens = closers
    beginnings = "["

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = []
        for name, schema in asked.schemas.items():
            given = named_arguments(schema)
            if given is None or not all(_KEYWORD.fullmatch(one.name) for one in given):
                return None
            calls.append(sequence(text(f"{name}("), written_in_order(given, _keyword, ", "), text(")")))
        several = asked.several(one_of(calls), ", ")
        for begin, end in zip(cls.markers, cls.closers, strict=False):
            if begin in asked.template:
                return CallForm(begin=begin, calls=sequence(text("["), several, text(f"]{end}")))
        listed = sequence(text("["), several, text("]"))
        return CallForm(calls=listed, free=cls._free(listed))

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        yield from self._list_of(self._call)
        if marker:
            yield from reader.space()
            yield from reader.any_of(self.closers)

    def _call(self) -> Reading[None]:
        reader = self.reader
        name = yield from self._name()
        yield from reader.expect("(")
        if name not in self.tools:
            raise NotAsExpected
        self._commit(name)
        self._write_arguments("{")
        is_first = True
        while (yield from reader.another(")", is_first=is_first, may_trail=True)):
            yield from self._argument_name(_KEYWORD, "=", is_first=is_first)
            yield from reader.space()
            yield from python_value(reader, self._write_arguments)
            is_first = False
        self._write_arguments("}")


def _keyword(argument: Argument) -> Format:
    """`name=value`. A value is as JSON has it, but for words that stand alone: inside of others both spellings are read."""
    words = {"boolean": [text("True"), text("False")], "null": [text("None")]}
    kinds = argument.types
    is_word = len(kinds) == 1 and not argument.is_listed
    value = one_of(words[kind]) if is_word and (kind := next(iter(kinds))) in words else json_value(argument.schema)
    return sequence(text(f"{argument.name}="), value)

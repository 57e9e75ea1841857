"""Kimi K2: special tokens around a section and around each call, which the model itself numbers.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.turn_wheel:0<|tool_call_argument_begin|>{"rpm": 3}
    <|tool_call_end|><|tool_calls_section_end|>

The number is part of the call's id, and its template expects the id back.
"""

from headrace.server.parsing.json_text import json_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.parser import ToolParser

_SECTION = "<|tool_calls_section_begin|>"
_SECTION_END = "<|tool_calls_section_end|>"
_CALL = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_CALL_END = "<|tool_call_end|>"


class KimiK2Parser(ToolParser):
    markers = (_SECTION,)
    shown_tokens = (_SECTION_END, _CALL, _ARGUMENTS, _CALL_END)

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        yield from reader.expect(_CALL)
        while True:
            yield from self._call()
            yield from reader.space()
            if (yield from reader.at_end()) or (yield from reader.literal(_SECTION_END)):
                return
            if not (yield from reader.literal(_CALL)):
                raise NotAsExpected
            self._next_call()

    def _call(self) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        call_id = yield from self._name()
        yield from reader.space()
        yield from reader.expect(_ARGUMENTS)
        yield from reader.space()
        if (yield from reader.peek()) != "{":
            raise NotAsExpected
        name = call_id.removeprefix("functions.")
        stem, _, number = name.rpartition(":")
        is_numbered = bool(stem) and number.isdigit()
        self._commit(stem if is_numbered else name, call_id if is_numbered else None)
        yield from json_value(reader, self._write_arguments)
        yield from reader.space()
        yield from reader.expect(_CALL_END)
        reader.settle()

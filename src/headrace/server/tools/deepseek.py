"""DeepSeek V3, R1 and V3.1: special tokens around a section and around each call.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>turn_wheel
    ```json
    {"rpm": 3}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 writes `<｜tool▁call▁begin｜>turn_wheel<｜tool▁sep｜>{"rpm": 3}<｜tool▁call▁end｜>`.
"""

from headrace.server.parsing.json_text import json_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.parser import ToolParser

_SECTION = "<｜tool▁calls▁begin｜>"
_SECTION_END = "<｜tool▁calls▁end｜>"
_CALL = "<｜tool▁call▁begin｜>"
_CALL_END = "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"


class DeepSeekParser(ToolParser):
    markers = (_SECTION, _CALL)
    shown_tokens = (_SECTION_END, _CALL_END, _SEPARATOR)

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        if marker == _SECTION:
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
        name = yield from self._name()
        yield from reader.space()
        yield from reader.expect(_SEPARATOR)
        yield from reader.space()
        if (yield from reader.peek()) != "{":  # what came before was the call's type
            name = yield from self._name()
            yield from reader.space()
            if (yield from reader.literal(_FENCE)):
                yield from reader.literal("json")
                yield from reader.space()
            if (yield from reader.peek()) != "{":
                raise NotAsExpected
        self._commit(name)
        yield from json_value(reader, self._write_arguments)
        yield from reader.space()
        yield from reader.literal(_FENCE)
        yield from reader.space()
        yield from reader.expect(_CALL_END)
        reader.settle()

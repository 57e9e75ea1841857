"""Mistral: `[TOOL_CALLS]`, then calls in either of two forms.

    [TOOL_CALLS][{"name": "turn_wheel", "arguments": {"rpm": 3}, "id": "9aXb3cD4e"}]
    [TOOL_CALLS]turn_wheel[ARGS]{"rpm": 3}[TOOL_CALLS]stop_wheel[CALL_ID]9aXb3cD4e[ARGS]{}

Its templates take no ids but those of nine letters and digits.
"""

import re

from headrace.server.parsing.json_text import json_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.json_calls import JsonCallParser

_MARKER = "[TOOL_CALLS]"
_CALL_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
_ID_RUN = re.compile(r"[A-Za-z0-9]+")
_ID_LENGTH = 9


class MistralParser(JsonCallParser):
    markers = (_MARKER,)
    shown_tokens = (_CALL_ID, _ARGUMENTS)

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        if (yield from reader.peek()) in "[{":
            yield from super()._calls(marker)
            return
        name = yield from self._name()
        yield from reader.space()
        call_id = ""
        if (yield from reader.literal(_CALL_ID)):
            call_id = yield from reader.word(_ID_RUN, 64)
        yield from reader.literal(_ARGUMENTS)
        yield from reader.space()
        if (yield from reader.peek()) != "{":
            raise NotAsExpected
        self._commit(name, call_id if len(call_id) == _ID_LENGTH else None)
        yield from json_value(reader, self._write_arguments)

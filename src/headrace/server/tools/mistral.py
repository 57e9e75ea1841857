"""Mistral: `[TOOL_CALLS]`, then calls in either of two forms.

    [TOOL_CALLS][{"name": "turn_wheel", "arguments": {"rpm": 3}, "id": "9aXb3cD4e"}]
    [TOOL_CALLS]turn_wheel[ARGS]{"rpm": 3}[TOOL_CALLS]stop_wheel[CALL_ID]9aXb3cD4e[ARGS]{}

Its templates take no ids but those of nine letters and digits.
"""

import re

from headrace.server.parsing.json_text import json_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.call_form import (
    CallForm,
    CallRequest,
    arguments,
    each_tool,
    json_object,
    one_of,
    regex,
    sequence,
    text,
)
from headrace.server.tools.json_calls import JsonCallParser

_MARKER = "[TOOL_CALLS]"
_CALL_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
_ID_RUN = re.compile(r"[A-Za-z0-9]+")
_ID_LENGTH = 9


class MistralParser(JsonCallParser):
    markers = (_MARKER,)
    shown_tokens = (_CALL_ID, _ARGUMENTS)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        if _ARGUMENTS not in asked.template:
            calls = asked.several(json_object(asked.schemas), ", ")
            return CallForm(begin=_MARKER, calls=sequence(text("["), calls, text("]")))
        if _CALL_ID not in asked.template:
            return CallForm(begin=_MARKER, calls=each_tool(asked.schemas, "", _ARGUMENTS, ""), separator="")
        new_id = regex(f"[A-Za-z0-9]{{{_ID_LENGTH}}}")
        named = [
            sequence(text(name + _CALL_ID), new_id, text(_ARGUMENTS), arguments(schema))
            for name, schema in asked.schemas.items()
        ]
        return CallForm(begin=_MARKER, calls=one_of(named), separator="")

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

"""Apertus: a list of objects between marks, each with the tool's name as its only key.

<|tools_prefix|>[{"turn_wheel": {"rpm": 3}}]<|tools_suffix|>
"""

from headrace.server.parsing.json_text import json_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.call_form import CallForm, CallRequest, each_tool, sequence, text
from headrace.server.tools.parser import ToolParser

_SUFFIX = "<|tools_suffix|>"


class ApertusParser(ToolParser):
    markers = ("<|tools_prefix|>",)
    shown_tokens = (_SUFFIX,)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = asked.several(each_tool(asked.schemas, '{"', '": ', "}"), ", ")
        return CallForm(begin="<|tools_prefix|>", calls=sequence(text("["), calls, text(f"]{_SUFFIX}")))

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        yield from self._list_of(self._call)
        yield from reader.space()
        if not (yield from reader.at_end()):
            yield from reader.literal(_SUFFIX)

    def _call(self) -> Reading[None]:
        reader = self.reader
        yield from reader.expect("{")
        yield from reader.space()
        yield from reader.expect('"')
        name = yield from self._name()
        yield from reader.expect('"')
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        if (yield from reader.peek()) != "{":
            raise NotAsExpected
        self._commit(name)
        yield from json_value(reader, self._write_arguments)
        yield from reader.space()
        yield from reader.expect("}")
        reader.settle()

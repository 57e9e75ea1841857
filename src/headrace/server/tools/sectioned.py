"""Calls between marks of their own inside a section that has marks, too: what DeepSeek's and Kimi's formats have in common.

Knows sections. Does not know what stands in a call.
"""

from typing import ClassVar

from headrace.server.parsing.json_text import json_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.parser import ToolParser


class SectionedCallParser(ToolParser):
    section: ClassVar[str]
    section_end: ClassVar[str]
    call: ClassVar[str]
    call_end: ClassVar[str]

    def _calls(self, marker: str) -> Reading[None]:
        """A section, or the rest of one that began with a call."""
        reader = self.reader
        if marker == self.section:
            yield from reader.space()
            yield from reader.expect(self.call)
        while True:
            yield from reader.space()
            yield from self._call()
            reader.settle()
            yield from reader.space()
            if (yield from reader.at_end()) or (yield from reader.literal(self.section_end)):
                return
            if not (yield from reader.literal(self.call)):
                raise NotAsExpected
            self._next_call()

    def _call(self) -> Reading[None]:
        """What stands behind a call's first mark, its last included."""
        raise AssertionError(f"{type(self).__name__} reads no calls")

    def _arguments(self, name: str, call_id: str | None = None) -> Reading[None]:
        """A JSON object, with which it is certain that this is a call."""
        if (yield from self.reader.peek()) != "{":
            raise NotAsExpected
        self._commit(name, call_id)
        yield from json_value(self.reader, self._write_arguments)
        yield from self.reader.space()

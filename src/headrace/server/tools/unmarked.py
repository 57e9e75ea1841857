"""Calls that nothing announces: they stand at the beginning of a line, and name a tool that the request gave.

Knows where such calls may begin. Does not know what they look like.
"""

import re
from typing import ClassVar

from headrace.server.parsing.reader import SPACE, Markers, Reading
from headrace.server.tools.call_form import Format, sequence
from headrace.server.tools.parser import ToolParser

_LINE_END = "\n"


class UnmarkedCallParser(ToolParser):
    """Tries to read a call wherever a line begins like one. Marks, where a format has some, are looked for everywhere."""

    beginnings: ClassVar[str] = ""
    """Characters that a call may begin with."""

    @classmethod
    def _free(cls, calls: Format) -> Format:
        """Lines that do not begin like a call, then calls or nothing."""
        begins = re.escape(cls.beginnings)
        line = rf"[ \t\r]*([^ \t\r\n{begins}][^\n]*)?"
        lines = {"type": "regex", "pattern": rf"({line}\n)*", "excludes": list(cls.markers)}
        words = {"type": "regex", "pattern": rf"({line}\n)*{line}", "excludes": list(cls.markers)}
        return {"type": "or", "elements": [sequence(lines, calls), words]}

    def _parse(self) -> Reading[None]:
        reader = self.reader
        stops = Markers((_LINE_END, *self.markers))
        may_begin = True
        while True:
            if may_begin:
                if space := reader.run(SPACE):
                    self.sink.content(space)
                if reader.char and reader.char in self.beginnings:
                    self._begin_attempt()
                    may_begin = _ends_line((yield from self._try(self._calls(""))))
                    continue
            text, found = reader.take_before(stops)
            if text:
                self.sink.content(text)
                may_begin = False
            if found:
                self._begin_attempt()
                marker = reader.take_marker(stops)
                if marker == _LINE_END:
                    self.sink.content(reader.withdraw())
                    may_begin = True
                else:
                    may_begin = _ends_line((yield from self._try(self._calls(marker))))
            elif reader.ended:
                return
            else:
                yield


def _ends_line(given_back: str | None) -> bool:
    """Whether a call may follow what an attempt left as text."""
    return given_back is None or given_back.rstrip(" \t").endswith(_LINE_END)

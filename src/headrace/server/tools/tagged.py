"""Calls whose arguments stand each in marks of its own, as bare text: what such formats have in common.

Knows how bare text becomes a JSON argument: as the tool's schema types it. A string is written on as it comes; anything else
waits until it is complete, because `12` may become `12 monkeys`.
"""

from headrace.server.parsing.json_text import escaped
from headrace.server.parsing.reader import Markers, Reading, TextEnded, Write
from headrace.server.tools.parser import ToolParser
from headrace.server.tools.schemas import json_of

_STRING = frozenset({"string"})


class TaggedArgumentParser(ToolParser):
    """Reads values in marks."""

    trims_line_breaks = False
    """One line break at each end of a value is the format's."""

    def _argument(self, tool: str, name: str, end: Markers, followers: tuple[str, ...]) -> Reading[None]:
        """A value up to its end mark, as an argument of the call."""
        types = self.tools.types(tool, name)
        if types == _STRING:
            self._write_arguments('"')
            trimmed = _Trimmed(lambda text: self._write_arguments(escaped(text)), trims=self.trims_line_breaks)
            yield from self._value(end, followers, trimmed.write)
            self._write_arguments('"')
            return
        pieces: list[str] = []
        trimmed = _Trimmed(pieces.append, trims=self.trims_line_breaks)
        try:
            yield from self._value(end, followers, trimmed.write)
        except TextEnded:
            self._write_arguments("".join(pieces))
            raise
        self._write_arguments(json_of("".join(pieces), types))

    def _value(self, end: Markers, followers: tuple[str, ...], write: Write) -> Reading[None]:
        """The text before an end mark; one that nothing of the format follows is part of the text."""
        reader = self.reader
        while True:
            marker = yield from reader.until(end, write)
            if not marker:
                raise TextEnded
            space = yield from reader.space()
            if (yield from reader.at_end()):
                return
            for follower in followers:
                if (yield from reader.is_next(follower)):
                    return
            write(marker + space)


class _Trimmed:
    """Passes text on without the line break that begins it and the one that ends it."""

    def __init__(self, write: Write, *, trims: bool) -> None:
        self._write = write
        self._trims = trims
        self._has_begun = False
        self._held = ""

    def write(self, text: str) -> None:
        if not self._trims:
            self._write(text)
            return
        if not self._has_begun:
            self._has_begun = True
            text = text.removeprefix("\n")
        text = self._held + text
        shown = text.removesuffix("\n")
        self._held = text[len(shown) :]
        if shown:
            self._write(shown)

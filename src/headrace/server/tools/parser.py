"""What parsers of tool calls have in common: looking for a call, trying to read one, and giving back what is none.

Knows attempts. Does not know any format: each has a file of its own. What is read in an attempt is owed: it becomes events,
or is markup of a call that has been shown, or goes back into the text. Nothing else can happen to it.
"""

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from headrace.server.parsing.events import Event, Sink
from headrace.server.parsing.json_text import escaped
from headrace.server.parsing.reader import Markers, NotAsExpected, Reader, Reading, TextEnded, Write
from headrace.server.tools.call_form import CallForm, CallRequest
from headrace.server.tools.schemas import Tools

NAME = re.compile(r"[A-Za-z0-9_.:/\-]+")
"""What names of tools are made of; requests are held to it."""
MAX_NAME = 128


class ToolParser:
    """One answer's text to events. `push` it what comes, then `finish`."""

    markers: ClassVar[tuple[str, ...]] = ()
    """What a call may begin with. None may be part of another."""
    shown_tokens: ClassVar[tuple[str, ...]] = ()
    """Further special tokens that the parser must see in the text."""

    def __init__(self, tools: Tools, new_call_id: Callable[[], str]) -> None:
        self.tools = tools
        self.reader = Reader()
        self.sink = Sink(new_call_id)
        self._is_owed = False
        """What the open attempt has read is text, unless it still becomes a call."""
        self._work = self._parse()

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        """How calls of these tools are written, as this template shows; None where the format cannot be held to them."""
        return None

    def push(self, text: str) -> list[Event]:
        if text:
            self.reader.feed(text)
            next(self._work)
        return self.sink.take()

    def finish(self) -> list[Event]:
        self.reader.end()
        for _ in self._work:
            raise AssertionError("a parser must not wait beyond the end")
        self.sink.finish()
        return self.sink.take()

    def _parse(self) -> Reading[None]:
        """The whole text. Formats without markers have their own."""
        markers = Markers(self.markers)
        while True:
            text, found = self.reader.take_before(markers)
            if text:
                self.sink.content(text)
            if found:
                self._begin_attempt()
                yield from self._try(self._calls(self.reader.take_marker(markers)))
            elif self.reader.ended:
                return
            else:
                yield

    def _calls(self, marker: str) -> Reading[None]:
        """Reads what follows a marker: one or more calls and their end. Raises NotAsExpected where that is not there."""
        raise AssertionError(f"{type(self).__name__} reads nothing after {marker!r}")

    # Attempts

    def _begin_attempt(self) -> None:
        self.reader.attempt()
        self._is_owed = True

    def _try(self, reading: Reading[None]) -> Reading[str | None]:
        """Carries out an attempt. None if it went well, else the text that it gave back."""
        try:
            yield from reading
        except TextEnded:
            text = self.reader.withdraw()
            if self._is_owed:
                self.sink.content(text)
            return text
        except NotAsExpected:
            text = self.reader.withdraw()
            self.sink.content(text)
            return text
        self.reader.withdraw()
        self.sink.markup()
        return None

    def _commit(self, name: str, call_id: str | None = None) -> None:
        """What was read is a call, beyond doubt."""
        self.sink.call(name, call_id)
        self.reader.settle()
        self._is_owed = False

    def _write_arguments(self, text: str) -> None:
        """Arguments of the call committed last, as they are read."""
        self.sink.arguments(text)
        self.reader.settle()

    def _argument_name(self, pattern: re.Pattern[str], end: str, *, is_first: bool) -> Reading[str]:
        """Reads an argument's name and what ends it, and writes it; its beginning too, where the text ends first."""
        name = (yield from self.reader.word(pattern, MAX_NAME)).strip()
        beginning = f'{"" if is_first else ", "}"{escaped(name)}'
        if not name:
            raise NotAsExpected
        try:
            yield from self.reader.space()
            yield from self.reader.expect(end)
        except TextEnded:
            self._write_arguments(beginning)
            raise
        self._write_arguments(f'{beginning}": ')
        return name

    def _list_of(self, call: Callable[[], Reading[None]]) -> Reading[None]:
        """One call or more in brackets."""
        reader = self.reader
        yield from reader.expect("[")
        yield from reader.space()
        yield from call()
        while (yield from reader.another("]", is_first=False)):
            self._next_call()
            yield from call()
        reader.settle()

    def _message(self, ends: Markers, closers: Sequence[str], write: Write) -> Reading[None]:
        """Writes the text up to a mark that ends it. The mark is read if it closes; one that begins something else stays."""
        reader = self.reader
        while True:
            text, found = reader.take_before(ends)
            if text:
                write(text)
            if found:
                yield from reader.any_of(closers)
                return
            if reader.ended:
                return
            yield

    def _next_call(self) -> None:
        """A further call may begin here: what is read from now on is owed again."""
        self._is_owed = True

    def _name(self) -> Reading[str]:
        """Reads a tool's name. Raises NotAsExpected where there is none."""
        name = yield from self.reader.word(NAME, MAX_NAME)
        yield from self.reader.peek()  # a name that the text's end cut off is none
        if not name:
            raise NotAsExpected
        return name

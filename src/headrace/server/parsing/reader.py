"""A text that arrives in pieces, read as if it were all there.

Knows characters, and what has been read but not yet accounted for. Does not know formats. Parsers are generators over it:
where they need more text than there is, they yield, and go on when they are resumed. So no text is looked at twice,
wherever it was cut, and what a parser finds cannot depend on the cuts.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Yields where it waits for more text; returns what it read."""

Write = Callable[[str], None]

SPACE = re.compile(r"[ \t\r\n]+")


class NotAsExpected(Exception):
    """What stands here is not what the format demands: the attempt to read a call has failed."""


class TextEnded(NotAsExpected):
    """The text ended where the format demands more."""


class Markers:
    """Strings that mean something to a format. None may be part of another: where one ends is then never in doubt."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        for one in strings:
            assert one and not any(one in other for other in strings if other != one), f"{one!r} is part of another marker"
        self._pattern = re.compile("|".join(map(re.escape, strings)) or "(?!)")
        self._longest = max(map(len, strings), default=0)
        self._beginnings = frozenset(one[:length] for one in strings for length in range(1, len(one)))

    def find(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def num_begun(self, text: str, start: int) -> int:
        """How many characters at the end of the text may begin a marker."""
        for place in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[place:] in self._beginnings:
                return len(text) - place
        return 0


class Reader:
    """`feed` it what comes, `end` it, and let generators read.

    While an attempt is open, what is read is also kept, so that `withdraw` can give it back as plain text; `settle` says
    that it has been accounted for.
    """

    def __init__(self) -> None:
        self._text = ""
        self._place = 0
        self._kept: list[str] | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        assert not self.ended, "nothing follows the end"
        self._text = self._text[self._place :] + text
        self._place = 0

    def end(self) -> None:
        self.ended = True

    # Attempts

    def attempt(self) -> None:
        self._kept = []

    def settle(self) -> None:
        """What was read so far needs no giving back."""
        if self._kept:
            self._kept.clear()

    def withdraw(self) -> str:
        """Ends the attempt. What was read since it was last settled."""
        text = "".join(self._kept or ())
        self._kept = None
        return text

    # What is there now

    @property
    def char(self) -> str:
        """The next character; empty where it has not come yet, or never will."""
        return self._text[self._place : self._place + 1]

    def take(self, num_chars: int = 1) -> str:
        start = self._place
        self._place = min(start + num_chars, len(self._text))
        taken = self._text[start : self._place]
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def run(self, pattern: re.Pattern[str], max_chars: int | None = None) -> str:
        """Reads as much as there is now of what the pattern matches here, and no more than this."""
        end = len(self._text) if max_chars is None else self._place + max_chars
        match = pattern.match(self._text, self._place, end)
        return self.take(match.end() - self._place) if match else ""

    def take_before(self, markers: Markers) -> tuple[str, bool]:
        """Reads what stands before the next marker, and whether the marker itself follows; of what may still become a
        marker, nothing."""
        found = markers.find(self._text, self._place)
        if found is not None:
            return self.take(found.start() - self._place), True
        num_held = 0 if self.ended else markers.num_begun(self._text, self._place)
        return self.take(len(self._text) - self._place - num_held), False

    def take_marker(self, markers: Markers) -> str:
        """Reads the marker that stands here."""
        found = markers.find(self._text, self._place)
        assert found is not None and found.start() == self._place, "take_before said so"
        return self.take(len(found.group()))

    # What must be waited for

    def more(self) -> Reading[None]:
        """Waits until there is more text. Raises TextEnded where there never will be."""
        if self.ended:
            raise TextEnded
        yield

    def peek(self) -> Reading[str]:
        """The next character, which stays. Raises TextEnded."""
        while not (char := self.char):
            yield from self.more()
        return char

    def at_end(self) -> Reading[bool]:
        while not self.char:
            if self.ended:
                return True
            yield
        return False

    def space(self) -> Reading[str]:
        """Reads white space, if there is any; the end of the text may follow."""
        pieces: list[str] = []
        while True:
            pieces.append(self.run(SPACE))
            if self.char or self.ended:
                return "".join(pieces)
            yield

    def is_next(self, literal: str) -> Reading[bool]:
        """Whether this stands here; it stays."""
        while True:
            there = self._text[self._place : self._place + len(literal)]
            if there == literal:
                return True
            if self.ended or not literal.startswith(there):
                return False
            yield

    def literal(self, literal: str) -> Reading[bool]:
        """Reads this, if it stands here."""
        found = yield from self.is_next(literal)
        if found:
            self.take(len(literal))
        return found

    def expect(self, literal: str) -> Reading[None]:
        """Reads this. Raises NotAsExpected, having read what of it there was."""
        for expected in literal:
            if (yield from self.peek()) != expected:
                raise NotAsExpected
            self.take()

    def any_of(self, literals: Sequence[str]) -> Reading[str]:
        """Reads the first of these that stands here, and says which; empty if none does."""
        for literal in literals:
            if (yield from self.literal(literal)):
                return literal
        return ""

    def another(self, end: str, *, is_first: bool, may_trail: bool = False) -> Reading[bool]:
        """Whether another thing follows in a row with commas between. Reads the comma before it, or `end`, the character
        that ends the row. `may_trail`: a comma may stand before the end."""
        yield from self.space()
        char = yield from self.peek()
        if char != end and not is_first:
            yield from self.expect(",")
            yield from self.space()
            char = (yield from self.peek()) if may_trail else ""
        if char != end:
            return True
        self.take()
        return False

    def until(self, markers: Markers, write: Write) -> Reading[str]:
        """Writes the text before the next marker as it comes, reads the marker and says which it was; empty where the text
        ends without one."""
        while True:
            text, found = self.take_before(markers)
            if text:
                write(text)
            if found:
                return self.take_marker(markers)
            if self.ended:
                return ""
            yield

    def word(self, pattern: re.Pattern[str], max_chars: int) -> Reading[str]:
        """Reads what the pattern, a run of characters, matches here: up to what does not match, the end of the text, or so
        many characters."""
        pieces: list[str] = []
        num_left = max_chars
        while True:
            piece = self.run(pattern, num_left)
            pieces.append(piece)
            num_left -= len(piece)
            if self.char or self.ended or not num_left:
                return "".join(pieces)
            yield

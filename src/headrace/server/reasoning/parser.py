"""What a model thinks before it speaks, told apart from what it says.

Knows marks around reasoning. They count only where an answer begins: a mark further on is text. Reasoning that the text's
end cuts off is still reasoning.
"""

from collections.abc import Sequence

from headrace.server.parsing.events import Event, Sink
from headrace.server.parsing.reader import Markers, Reader, Reading

_ANYTHING = Markers(())


def _no_calls() -> str:
    raise AssertionError("there are no calls in reasoning")


class ReasoningParser:
    """One answer's text to reasoning and content. `push` it what comes, then `finish`."""

    def __init__(
        self,
        opening: Sequence[str],
        closing: Sequence[str],
        *,
        is_open: bool,
        may_begin_closed: bool = False,
        ended_by: Sequence[str] = (),
        wrapper: tuple[str, str] | None = None,
    ) -> None:
        """`is_open`: the prompt has begun the reasoning already. `may_begin_closed`: the answer may begin with what ends
        reasoning, without any. `ended_by`: what ends it too, and belongs to the content.
        `wrapper`: marks around the content that follows reasoning."""
        self._opening = tuple(opening)
        self._closing = tuple(closing)
        self._ends = Markers((*closing, *ended_by))
        self._is_open = is_open
        self._may_begin_closed = may_begin_closed
        self._wrapper = wrapper
        self._reader = Reader()
        self._sink = Sink(_no_calls)
        self._work = self._parse()

    def push(self, text: str) -> list[Event]:
        if text:
            self._reader.feed(text)
            next(self._work)
        return self._sink.take()

    def finish(self) -> list[Event]:
        self._reader.end()
        for _ in self._work:
            raise AssertionError("a parser must not wait beyond the end")
        self._sink.finish()
        return self._sink.take()

    def _parse(self) -> Reading[None]:
        reader, sink = self._reader, self._sink
        space = yield from reader.space()
        opened = yield from reader.any_of(self._opening)
        if not opened and not self._is_open:
            if self._may_begin_closed and (yield from reader.any_of(self._closing)):
                sink.markup()
            else:
                sink.content(space)
            yield from reader.until(_ANYTHING, sink.content)
            return
        sink.markup()
        end = yield from reader.until(self._ends, sink.reasoning)
        sink.markup()
        if end and end not in self._closing:
            sink.content(end)
        elif end and self._wrapper is not None:
            yield from self._wrapped(*self._wrapper)
        yield from reader.until(_ANYTHING, sink.content)

    def _wrapped(self, opening: str, closing: str) -> Reading[None]:
        """Content in marks of its own. The closing one counts only at the very end."""
        reader, sink = self._reader, self._sink
        sink.content((yield from reader.space()))
        if not (yield from reader.literal(opening)):
            return
        sink.markup()
        closings = Markers((closing,))
        while marker := (yield from reader.until(closings, sink.content)):
            space = yield from reader.space()
            if (yield from reader.at_end()):
                sink.markup()
                return
            sink.content(marker + space)

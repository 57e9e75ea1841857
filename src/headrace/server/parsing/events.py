"""What an answer's text turns out to be: words, reasoning, calls of tools. Knows no format and no wire."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """Words for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought before it spoke."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its arguments follow in pieces."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


Words = Content | Reasoning
Event = Content | Reasoning | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    """One call, put together."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Parsed:
    """An answer, put together from its events: what a reader of the whole sees, and what a stream must add up to."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallStart(index, id_, name):
                    assert index == len(self.calls), "calls are numbered as they come"
                    self.calls.append(Call(id_, name))
                case CallArguments(index, text):
                    self.calls[index].arguments += text


class Sink:
    """Collects events, joins neighbours of a kind, and numbers calls.

    White space next to a call or to reasoning's marks belongs to the markup: it is held back until it is known what follows
    it, and shown only between words of one kind.
    """

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._events: list[Event] = []
        self._growing: type[Event] | None = None
        """The kind of the event that still grows, out of `_texts`."""
        self._texts: list[str] = []
        self._kind: type[Words] = Content
        self._space: list[str] = []
        """White space behind the last words of `_kind`, or before the first."""
        self._has_words = {Content: False, Reasoning: False}
        self._has_markup = False
        self._is_after_markup = False
        self.num_calls = 0

    def content(self, text: str) -> None:
        self._words(Content, text)

    def reasoning(self, text: str) -> None:
        self._words(Reasoning, text)

    def markup(self) -> None:
        """Marks stand here: white space next to them is theirs."""
        self._has_markup = self._is_after_markup = True
        if not self._has_words[self._kind]:
            self._space.clear()

    def new_part(self) -> None:
        """What follows is a message of its own, so that words do not run together with those before."""
        self.markup()
        self._space = ["\n"] if self._has_words[self._kind] else []

    def call(self, name: str, call_id: str | None = None) -> None:
        self.markup()
        self._close()
        self._events.append(CallStart(self.num_calls, call_id or self._new_call_id(), name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        assert self.num_calls, "arguments belong to a call"
        if text:
            self._grow(CallArguments, text)

    def take(self) -> list[Event]:
        self._close()
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """Nothing follows: white space at the end is shown unless marks stand before it."""
        if self._space and not self._is_after_markup:
            self._grow(self._kind, "".join(self._space))
        self._space.clear()

    def _words(self, kind: type[Words], text: str) -> None:
        if kind is not self._kind:
            self._kind = kind
            self._space = ["\n"] if self._has_words[kind] else []
        words = text.rstrip()
        if not words:
            if text and (self._has_words[kind] or not self._has_markup):
                self._space.append(text)
            return
        shown = "".join(self._space) + words
        if self._has_markup and not self._has_words[kind]:
            shown = shown.lstrip()
        self._has_words[kind] = True
        self._is_after_markup = False
        self._space = [text[len(words) :]]
        self._grow(kind, shown)

    def _grow(self, kind: type[Event], text: str) -> None:
        if self._growing is not kind:
            self._close()
            self._growing = kind
        self._texts.append(text)

    def _close(self) -> None:
        text, self._texts = "".join(self._texts), []
        if self._growing is CallArguments:
            self._events.append(CallArguments(self.num_calls - 1, text))
        elif self._growing is not None:
            self._events.append(self._growing(text))  # type: ignore[call-arg,arg-type]
        self._growing = None

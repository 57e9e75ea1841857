"""Calls whose arguments stand each in marks of its own, as bare text: what such formats have in common.

Knows how bare text becomes a JSON argument: as the tool's schema types it. A string is written on as it comes; anything else
waits until it is complete, because `12` may become `12 monkeys`.
"""

from collections.abc import Callable
from typing import ClassVar

from headrace.server.parsing.json_text import escaped
from headrace.server.parsing.reader import Markers, Reading, TextEnded, Write
from headrace.server.tools.call_form import CallRequest, Format, json_value, one_of, sequence, text
from headrace.server.tools.named_arguments import Argument, bare_text, named_arguments
from headrace.server.tools.parser import MAX_NAME, ToolParser
from headrace.server.tools.schemas import Tools, json_of

Frame = Callable[[str], tuple[str, str]]
"""What stands before and behind the arguments of a call, by the tool's name."""

_STRING = frozenset({"string"})


class TaggedArgumentParser(ToolParser):
    """Reads values in marks."""

    value_end: ClassVar[str]

    def __init__(self, tools: Tools, new_call_id: Callable[[], str]) -> None:
        super().__init__(tools, new_call_id)
        self.trims_line_breaks = False
        """One line break at each end of a value is the format's."""

    @classmethod
    def _tagged(cls, asked: CallRequest, write: Callable[[Argument, Format], Format], frame: Frame) -> Format | None:
        """Calls of these tools: arguments in the schemas' order, each by `write`, a tool's all in its `frame`."""
        calls = []
        for name, schema in asked.schemas.items():
            given = named_arguments(schema)
            values = [cls._written(one) for one in given or ()]
            if given is None or not all(_is_usable(one.name) for one in given):
                return None
            parts: list[Format] = []
            for one, value in zip(given, values, strict=True):
                if value is None:
                    return None
                written = write(one, value)
                parts.append(written if one.is_required else {"type": "optional", "content": written})
            begin, end = frame(name)
            calls.append(sequence(text(begin), *parts, text(end)))
        return one_of(calls)

    @classmethod
    def _written(cls, argument: Argument) -> Format | None:
        """A value as bare text that is read back as what the schema demands; None where that cannot be had."""
        if argument.types and "string" not in argument.types:
            return json_value(argument.schema)
        return bare_text(argument, [cls.value_end])

    def _argument(
        self, tool: str, name: str, end: Markers, followers: tuple[str, ...], types: frozenset[str] | None = None
    ) -> Reading[None]:
        """A value up to its end mark, as an argument of the call. `types`: where the text itself says what it is."""
        types = self.tools.types(tool, name) if types is None else types
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


def _is_usable(name: str) -> bool:
    """Whether an argument's name is read back as it was written."""
    return bool(name) and name == name.strip() and not set(name) & set('<>\n"') and len(name) <= MAX_NAME


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

"""Calls written as JSON objects: `{"name": …, "arguments": {…}}`, alone, in a list, one after the other, in marks or not.

Knows such objects in every spelling that models use. Which marks stand around them is the formats' matter. A call is shown
from the moment its name and the beginning of its arguments are known; arguments that come before the name wait for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from headrace.server.parsing.json_text import json_scalar, json_string_text, json_value
from headrace.server.parsing.reader import NotAsExpected, Reading
from headrace.server.tools.parser import MAX_NAME, NAME, ToolParser

_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_ID_KEYS = ("id", "tool_call_id")
_FUNCTION = "function"
_TYPE = "type"
_KEYS = (*_NAME_KEYS, *_ARGUMENT_KEYS, *_ID_KEYS, _FUNCTION, _TYPE)
_MAX_KEY = 32


@dataclass(slots=True)
class _Call:
    """One call, while it is read."""

    name: str = ""
    id: str | None = None
    early_arguments: list[str] = field(default_factory=list)
    """Read before the name."""
    has_arguments: bool = False
    is_committed: bool = False


class JsonCallParser(ToolParser):
    """Reads call objects; formats say what stands around them."""

    closers: ClassVar[tuple[str, ...]] = ()
    """What may stand behind the last call; an answer may also do without."""
    known_names_only: ClassVar[bool] = False
    """Without marks of its own, an object is a call only if it names a tool."""

    keeps_ids: ClassVar[bool] = True
    """The ids that the model gives are those of its calls."""

    def _calls(self, marker: str) -> Reading[None]:
        """Call objects, singly or in lists, and the closing mark behind them."""
        reader = self.reader
        while True:
            yield from reader.space()
            if (yield from reader.peek()) == "[":
                yield from self._list_of(self._object)
            else:
                yield from self._object()
            if (yield from self._is_last()):
                return
            self._next_call()

    def _is_last(self) -> Reading[bool]:
        """Whether nothing more of this follows a call. Raises NotAsExpected where text follows: it is given back."""
        reader = self.reader
        yield from reader.space()
        if (yield from reader.at_end()) or (yield from reader.any_of(self.closers)):
            return True
        if (yield from reader.any_of((",", ";"))):
            yield from reader.space()
        if (yield from reader.at_end()):
            return True
        if reader.char not in "[{":
            raise NotAsExpected
        return False

    def _object(self) -> Reading[None]:
        call = _Call()
        yield from self._members(call, is_nested=False)
        if not call.is_committed:
            if not call.name:
                raise NotAsExpected
            self._commit_call(call)
        if not call.has_arguments:
            self._write_arguments("{}")
        self.reader.settle()

    def _members(self, call: _Call, *, is_nested: bool) -> Reading[None]:
        reader = self.reader
        yield from reader.expect("{")
        is_first = True
        while (yield from reader.another("}", is_first=is_first)):
            is_first = False
            key = yield from self._one_of(_KEYS)
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            yield from self._value(call, key, is_nested=is_nested)

    def _value(self, call: _Call, key: str, *, is_nested: bool) -> Reading[None]:
        reader = self.reader
        char = yield from reader.peek()
        if (key in _NAME_KEYS or key == _FUNCTION) and char == '"' and not call.name:
            yield from self._read_name(call)
        elif key in _ARGUMENT_KEYS and not call.has_arguments:
            yield from self._read_arguments(call)
        elif key == _FUNCTION and not is_nested:
            yield from self._members(call, is_nested=True)
        elif key == _TYPE and char == '"':
            yield from self._one_of((_FUNCTION,))
        elif key in _ID_KEYS:
            pieces: list[str] = []
            yield from (json_string_text if char == '"' else json_scalar)(reader, pieces.append)
            call.id = "".join(pieces) if char == '"' and self.keeps_ids else None
        else:
            raise NotAsExpected

    def _read_name(self, call: _Call) -> Reading[None]:
        yield from self.reader.expect('"')
        name = yield from self.reader.word(NAME, MAX_NAME)
        yield from self.reader.expect('"')
        if not name or (self.known_names_only and name not in self.tools):
            raise NotAsExpected
        call.name = name
        if call.has_arguments:
            self._commit_call(call)

    def _read_arguments(self, call: _Call) -> Reading[None]:
        reader = self.reader
        char = yield from reader.peek()
        if char == "n":
            yield from reader.expect("null")
            call.early_arguments.append("{}")
        elif char not in '{"':
            raise NotAsExpected
        if call.name:
            self._commit_call(call)
        write = self._write_arguments if call.is_committed else call.early_arguments.append
        if char == "{":
            yield from json_value(reader, write)
        elif char == '"':
            yield from json_string_text(reader, write)
        call.has_arguments = True

    def _commit_call(self, call: _Call) -> None:
        self._commit(call.name, call.id)
        self._write_arguments("".join(call.early_arguments))
        call.is_committed = True

    def _one_of(self, strings: Sequence[str]) -> Reading[str]:
        """Reads one of these, as a string. The beginning of another is noticed even where the text ends within it."""
        yield from self.reader.expect('"')
        text = yield from self.reader.word(NAME, _MAX_KEY)
        if not any(one.startswith(text) for one in strings):
            raise NotAsExpected
        yield from self.reader.expect('"')
        if text not in strings:
            raise NotAsExpected
        return text

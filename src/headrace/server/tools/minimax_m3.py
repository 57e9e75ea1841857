"""MiniMax M3: invocations whose arguments are tags all the way down, each tag behind a mark of the maker's.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="turn_wheel">]<]minimax[>[<rpm>3]<]minimax[>[</rpm>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

An object holds a tag for each of its keys, a list one `<item>` for each of its items. Which of the two it is, and whether
text is a string, the tool's schema says; where it does not, lists are told by their tag. A key whose value would be null is
left out.
"""

import re
from typing import Any

from headrace.server.parsing.json_text import escaped
from headrace.server.parsing.reader import Markers, NotAsExpected, Reading, TextEnded, Write
from headrace.server.tools.call_form import CallForm, CallRequest, Format, one_of, sequence, text
from headrace.server.tools.named_arguments import Argument, bare_text
from headrace.server.tools.nested_arguments import Notation
from headrace.server.tools.parser import ToolParser
from headrace.server.tools.schemas import json_of, part_of, types_of

_MARK = "]<]minimax[>["
_INVOKE = f'{_MARK}<invoke name="'
_ITEM = f"{_MARK}<item>"
_KEY_RUN = re.compile(r"[^<>\n]+")
_TEXT_END = Markers((_MARK,))
_NESTED = frozenset({"array", "object"})
_MAX_DEPTH = 64


def _tag(name: str, value: Format) -> Format:
    return sequence(text(f"{_MARK}<{name}>"), value, text(f"{_MARK}</{name}>"))


def _string(argument: Argument) -> Format | None:
    return bare_text(argument, [_MARK])


_NOTATION = Notation(
    is_key=lambda name: _KEY_RUN.fullmatch(name) is not None and name == name.strip() and not name.startswith("/"),
    string=_string,
    bare_strings=True,
    pair=_tag,
    item=lambda value: _tag("item", value),
    separator="",
    braces=("", ""),
    brackets=("", ""),
)


class MiniMaxM3Parser(ToolParser):
    markers = (f"{_MARK}<tool_call>",)
    shown_tokens = (_MARK,)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = []
        for name, schema in asked.schemas.items():
            members = _NOTATION.members(schema)
            if members is None:
                return None
            calls.append(sequence(text(f'{_INVOKE}{name}">'), members, text(f"{_MARK}</invoke>\n")))
        several = asked.several(one_of(calls), "")
        return CallForm(begin=cls.markers[0], calls=sequence(text("\n"), several, text(f"{_MARK}</tool_call>")))

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        yield from reader.expect(_INVOKE)
        while True:
            name = yield from self._name()
            yield from reader.expect('">')
            self._commit(name)
            yield from self._object(self.tools.schema(name), self.tools.schema(name), "invoke", 0)
            yield from reader.space()
            if (yield from reader.at_end()) or (yield from reader.literal(f"{_MARK}</tool_call>")):
                return
            if not (yield from reader.literal(_INVOKE)):
                raise NotAsExpected
            self._next_call()

    def _object(self, schema: Any, root: Any, tag: str, depth: int) -> Reading[None]:
        """Keys and values, up to the end of the tag that they stand in."""
        reader = self.reader
        self._write_arguments("{")
        is_first = True
        yield from reader.space()
        while not (yield from reader.literal(f"{_MARK}</{tag}>")):
            yield from reader.expect(f"{_MARK}<")
            if (first := (yield from reader.peek())) == "/" or first.isspace():
                raise NotAsExpected
            name = yield from self._argument_name(_KEY_RUN, ">", is_first=is_first)
            yield from self._value(part_of(schema, root, name), root, name, depth + 1)
            is_first = False
            yield from reader.space()
        self._write_arguments("}")

    def _list(self, schema: Any, root: Any, tag: str, depth: int) -> Reading[None]:
        reader = self.reader
        self._write_arguments("[")
        is_first = True
        yield from reader.space()
        while not (yield from reader.literal(f"{_MARK}</{tag}>")):
            yield from reader.expect(_ITEM)
            if not is_first:
                self._write_arguments(", ")
            yield from self._value(part_of(schema, root, None), root, "item", depth + 1)
            is_first = False
            yield from reader.space()
        self._write_arguments("]")

    def _value(self, schema: Any, root: Any, tag: str, depth: int) -> Reading[None]:
        """What stands in a tag, and the tag's end."""
        if depth > _MAX_DEPTH:
            raise NotAsExpected
        types = types_of(schema, root)
        if types == {"string"}:
            self._write_arguments('"')
            yield from self._text(tag, lambda part: self._write_arguments(escaped(part)))
            self._write_arguments('"')
        elif (yield from self._is_nested(types)):
            is_list = yield from self._is_list(types)
            yield from (self._list if is_list else self._object)(schema, root, tag, depth)
        else:
            yield from self._scalar(types, tag)

    def _is_nested(self, types: frozenset[str]) -> Reading[bool]:
        if types and types <= _NESTED:
            yield from self.reader.space()
        begins = yield from self.reader.is_next(f"{_MARK}<")
        return begins and not (yield from self.reader.is_next(f"{_MARK}</"))

    def _is_list(self, types: frozenset[str]) -> Reading[bool]:
        if len(types & _NESTED) == 1:
            return "array" in types
        return (yield from self.reader.is_next(_ITEM))

    def _scalar(self, types: frozenset[str], tag: str) -> Reading[None]:
        """It waits until it is complete: `12` may become `12 monkeys`."""
        pieces: list[str] = []
        try:
            yield from self._text(tag, pieces.append)
        except TextEnded:
            self._write_arguments("".join(pieces))
            raise
        said = "".join(pieces)
        if not said.strip() and types & _NESTED and "string" not in types:
            self._write_arguments("[]" if "array" in types else "{}")
        else:
            self._write_arguments(json_of(said, types))

    def _text(self, tag: str, write: Write) -> Reading[None]:
        if not (yield from self.reader.until(_TEXT_END, write)):
            raise TextEnded
        yield from self.reader.expect(f"</{tag}>")

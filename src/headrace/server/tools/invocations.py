"""Calls as invocations with named parameters, in a block of their own: DeepSeek V3.2 and V4, whose tags carry a special
token and whose parameters say whether they are strings, and MiniMax M2.

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="turn_wheel">
    <｜DSML｜parameter name="rpm" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

MiniMax writes `<minimax:tool_call>`, `<invoke name="turn_wheel">` and `<parameter name="rpm">3</parameter>`.
"""

import re
from typing import ClassVar

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.call_form import CallForm, CallRequest, Format, json_value, one_of, sequence, text
from headrace.server.tools.named_arguments import Argument
from headrace.server.tools.tagged import TaggedArgumentParser

_NAME_RUN = re.compile(r'[^"<>\n]+')
_STRING, _NO_STRING = ' string="true">', ' string="false">'
_IS_STRING = frozenset({"string"})
_IS_JSON = frozenset({"json"})
"""Whatever it is, it is no string."""


class InvocationParser(TaggedArgumentParser):
    prefix: ClassVar[str]
    """Of the names of tags."""
    closers: ClassVar[tuple[str, ...]]

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        begin = f'<{self.prefix}invoke name="'
        yield from reader.space()
        yield from reader.expect(begin)
        while True:
            yield from self._invocation()
            yield from reader.space()
            if (yield from reader.at_end()) or (yield from reader.any_of(self.closers)):
                return
            if not (yield from reader.literal(begin)):
                raise NotAsExpected
            self._next_call()

    def _invocation(self) -> Reading[None]:
        reader = self.reader
        name = yield from self._name()
        yield from reader.expect('">')
        self._commit(name)
        self._write_arguments("{")
        parameter, end = f"<{self.prefix}parameter", f"</{self.prefix}invoke>"
        value_end = Markers((self.value_end,))
        is_first = True
        while True:
            yield from reader.space()
            if (yield from reader.literal(end)):
                break
            yield from reader.expect(f'{parameter} name="')
            argument = yield from self._argument_name(_NAME_RUN, '"', is_first=is_first)
            types = yield from self._told_types()
            yield from self._argument(name, argument, value_end, (parameter, end), types)
            is_first = False
        self._write_arguments("}")

    def _told_types(self) -> Reading[frozenset[str] | None]:
        """What the tag itself says of the value, up to the tag's end."""
        reader = self.reader
        if (yield from reader.literal(_STRING)):
            return _IS_STRING
        if (yield from reader.literal(_NO_STRING)):
            return _IS_JSON
        yield from reader.expect(">")
        return None

    @classmethod
    def _block(cls, asked: CallRequest, begin: str) -> CallForm | None:
        invoke = f'<{cls.prefix}invoke name="'
        calls = cls._tagged(asked, cls._parameter, lambda name: (f'{invoke}{name}">\n', f"</{cls.prefix}invoke>\n"))
        if calls is None:
            return None
        return CallForm(begin=begin, calls=sequence(text("\n"), asked.several(calls, ""), text(begin.replace("<", "</"))))

    @classmethod
    def _parameter(cls, argument: Argument, value: Format) -> Format:
        return sequence(
            text(f'<{cls.prefix}parameter name="{argument.name}"'),
            cls._told_value(argument, value),
            text(f"{cls.value_end}\n"),
        )

    @classmethod
    def _told_value(cls, argument: Argument, value: Format) -> Format:
        return sequence(text(">"), value)


class DsmlParser(InvocationParser):
    prefix = "｜DSML｜"
    markers = (f"<{prefix}tool_calls>", f"<{prefix}function_calls>")
    closers = tuple(marker.replace("<", "</") for marker in markers)
    shown_tokens = (prefix, *closers)
    value_end = f"</{prefix}parameter>"

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        return cls._block(asked, cls.markers["function_calls>" in asked.template])

    @classmethod
    def _told_value(cls, argument: Argument, value: Format) -> Format:
        if argument.types and "string" not in argument.types:
            return sequence(text(_NO_STRING), value)
        written = sequence(text(_STRING), value)
        null = sequence(text(_NO_STRING), json_value({"type": "null"}))
        return one_of([written, null]) if "null" in argument.types else written


class MiniMaxM2Parser(InvocationParser):
    prefix = ""
    markers = ("<minimax:tool_call>",)
    closers = ("</minimax:tool_call>",)
    shown_tokens = closers
    value_end = "</parameter>"

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        return cls._block(asked, cls.markers[0])

"""GLM 4.5 and later, and Ling, Laguna, Spark after it: keys and values in tags of their own. Hunyuan 3 puts such calls into
a section, and a mark behind the name; its tags say where the weights are from.

    <tool_call>turn_wheel
    <arg_key>rpm</arg_key>
    <arg_value>3</arg_value>
    </tool_call>

    <tool_calls:opensource>
    <tool_call:opensource>turn_wheel<tool_sep:opensource>
    <arg_key:opensource>rpm</arg_key:opensource>
    <arg_value:opensource>3</arg_value:opensource>
    </tool_call:opensource>
    </tool_calls:opensource>
"""

import re
from typing import ClassVar

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.call_form import CallForm, CallRequest, Format, sequence, text
from headrace.server.tools.sectioned import SectionedCallParser
from headrace.server.tools.tagged import TaggedArgumentParser

_KEY_RUN = re.compile(r"[^<\n]+")


class KeyValueParser(TaggedArgumentParser):
    """Reads calls that write keys and values in turns."""

    call_end: ClassVar[str]
    name_end: ClassVar[str] = ""
    """Behind the tool's name."""
    key: ClassVar[tuple[str, str]]
    """Before and behind an argument's name."""
    value: ClassVar[str]

    @classmethod
    def _written_calls(cls, asked: CallRequest, line_break: str) -> Format | None:
        """What stands behind a call's first mark, its last included. `line_break`: behind each part."""
        key, key_end = cls.key
        return cls._tagged(
            asked,
            lambda one, value: sequence(
                text(f"{key}{one.name}{key_end}{line_break}{cls.value}"), value, text(f"{cls.value_end}{line_break}")
            ),
            lambda name: (f"{name}{cls.name_end}{line_break}", cls.call_end),
        )

    def _call_behind_mark(self) -> Reading[None]:
        reader = self.reader
        key, key_end = self.key
        ends = Markers((self.value_end,))
        yield from reader.space()
        name = yield from self._name()
        yield from reader.space()
        yield from reader.expect(self.name_end)
        yield from reader.space()
        if not ((yield from reader.is_next(key)) or (yield from reader.is_next(self.call_end))):
            raise NotAsExpected
        self._commit(name)
        self._write_arguments("{")
        is_first = True
        while not (yield from reader.literal(self.call_end)):
            yield from reader.expect(key)
            argument = yield from self._argument_name(_KEY_RUN, key_end, is_first=is_first)
            yield from reader.space()
            yield from reader.expect(self.value)
            yield from self._argument(name, argument, ends, (key, self.call_end))
            is_first = False
            yield from reader.space()
        self._write_arguments("}")


class GlmParser(KeyValueParser):
    call_end = "</tool_call>"
    key = ("<arg_key>", "</arg_key>")
    value, value_end = "<arg_value>", "</arg_value>"
    markers = ("<tool_call>",)
    shown_tokens = (call_end, *key, value, value_end)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        # GLM writes each key and each value on a line of its own; those after it mostly do not.
        line_break = "\n" if f"{cls.key[1]}\n{cls.value}" in asked.template else ""
        calls = cls._written_calls(asked, line_break)
        return None if calls is None else CallForm(begin=cls.markers[0], calls=calls, separator="\n")

    def _calls(self, marker: str) -> Reading[None]:
        yield from self._call_behind_mark()


class HunyuanParser(SectionedCallParser, KeyValueParser):
    section, section_end = "<tool_calls:opensource>", "</tool_calls:opensource>"
    call, call_end = "<tool_call:opensource>", "</tool_call:opensource>"
    name_end = "<tool_sep:opensource>"
    key = ("<arg_key:opensource>", "</arg_key:opensource>")
    value, value_end = "<arg_value:opensource>", "</arg_value:opensource>"
    markers = (section, call)
    shown_tokens = (section_end, call_end, name_end, *key, value, value_end)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = cls._written_calls(asked, "\n")
        if calls is None:
            return None
        several = asked.several(sequence(text(cls.call), calls, text("\n")), "")
        return CallForm(begin=cls.section, calls=sequence(text("\n"), several, text(cls.section_end)))

    def _call(self) -> Reading[None]:
        yield from self._call_behind_mark()

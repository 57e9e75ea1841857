"""Qwen3-Coder, and Qwen 3.5, Step 3.5, Seed-OSS after it: arguments in tags, values as bare text.

    <tool_call>
    <function=turn_wheel>
    <parameter=rpm>
    3
    </parameter>
    </function>
    </tool_call>

Models leave out the outer tag at times. Seed-OSS calls it `<seed:tool_call>` and writes values without line breaks around
them.
"""

import re

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.call_form import CallForm, CallRequest, sequence, text
from headrace.server.tools.tagged import TaggedArgumentParser

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_SEED_TAG = "<seed:tool_call>"
_TAGS = ("<tool_call>", _SEED_TAG)
_END_TAGS = ("</tool_call>", "</seed:tool_call>")
_NAME_RUN = re.compile(r"[^<>\n]+")
_VALUE_END = Markers((_PARAMETER_END,))


class Qwen3CoderParser(TaggedArgumentParser):
    markers = (*_TAGS, _FUNCTION)
    shown_tokens = _END_TAGS
    value_end = _PARAMETER_END

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        tag, end_tag = next((pair for pair in zip(_TAGS, _END_TAGS, strict=True) if pair[0] in asked.template), ("", ""))
        line_break = "" if tag == _SEED_TAG else "\n"
        calls = cls._tagged(
            asked,
            lambda one, value: sequence(
                text(f"{_PARAMETER}{one.name}>{line_break}"), value, text(f"{line_break}{_PARAMETER_END}\n")
            ),
            lambda name: (f"{name}>\n", f"{_FUNCTION_END}\n{end_tag}".rstrip("\n")),
        )
        if calls is None:
            return None
        if not tag:
            return CallForm(begin=_FUNCTION, calls=calls, separator="\n")
        return CallForm(begin=tag, calls=sequence(text(f"\n{_FUNCTION}"), calls), separator="\n")

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        self.trims_line_breaks = marker != _SEED_TAG
        if marker != _FUNCTION:
            yield from reader.space()
            yield from reader.expect(_FUNCTION)
        while True:
            yield from self._function()
            yield from reader.space()
            if (yield from reader.at_end()) or (yield from reader.any_of(_END_TAGS)):
                return
            if not (yield from reader.literal(_FUNCTION)):
                raise NotAsExpected
            self._next_call()

    def _function(self) -> Reading[None]:
        reader = self.reader
        name = yield from self._name()
        yield from reader.expect(">")
        self._commit(name)
        self._write_arguments("{")
        is_first = True
        while True:
            yield from reader.space()
            if (yield from reader.literal(_FUNCTION_END)):
                break
            yield from reader.expect(_PARAMETER)
            argument = yield from self._argument_name(_NAME_RUN, ">", is_first=is_first)
            yield from self._argument(name, argument, _VALUE_END, (_PARAMETER, _FUNCTION_END, *_END_TAGS))
            is_first = False
        self._write_arguments("}")

"""Qwen3-Coder, and Qwen 3.5, Step 3.5, Seed-OSS after it: arguments in tags, values as bare text.

    <tool_call>
    <function=turn_wheel>
    <parameter=rpm>
    3
    </parameter>
    </function>
    </tool_call>

Models leave out the outer tag at times.
"""

import re

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.tagged import TaggedArgumentParser

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_TAGS = ("<tool_call>", "<seed:tool_call>")
_END_TAGS = ("</tool_call>", "</seed:tool_call>")
_NAME_RUN = re.compile(r"[^<>\n]+")
_VALUE_END = Markers((_PARAMETER_END,))


class Qwen3CoderParser(TaggedArgumentParser):
    markers = (*_TAGS, _FUNCTION)
    shown_tokens = _END_TAGS
    trims_line_breaks = True

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
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

"""GLM 4.5 and later, and Ling, Laguna, Spark after it: keys and values in tags of their own.

<tool_call>turn_wheel
<arg_key>rpm</arg_key>
<arg_value>3</arg_value>
</tool_call>
"""

import re

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.call_form import CallForm, CallRequest, sequence, text
from headrace.server.tools.tagged import TaggedArgumentParser

_CALL = "<tool_call>"
_CALL_END = "</tool_call>"
_KEY = "<arg_key>"
_KEY_END = "</arg_key>"
_VALUE = "<arg_value>"
_VALUE_END = "</arg_value>"
_VALUE_ENDS = Markers((_VALUE_END,))
_KEY_RUN = re.compile(r"[^<\n]+")


class GlmParser(TaggedArgumentParser):
    markers = (_CALL,)
    shown_tokens = (_CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END)

    value_end = _VALUE_END

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        # GLM writes each key and each value on a line of its own; those after it mostly do not.
        line_break = "\n" if f"{_KEY_END}\n{_VALUE}" in asked.template else ""
        calls = cls._tagged(
            asked,
            lambda one, value: sequence(
                text(f"{_KEY}{one.name}{_KEY_END}{line_break}{_VALUE}"), value, text(f"{_VALUE_END}{line_break}")
            ),
            lambda name: (f"{name}{line_break}", _CALL_END),
        )
        return None if calls is None else CallForm(begin=_CALL, calls=calls, separator="\n")

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        name = yield from self._name()
        yield from reader.space()
        if not ((yield from reader.is_next(_KEY)) or (yield from reader.is_next(_CALL_END))):
            raise NotAsExpected
        self._commit(name)
        self._write_arguments("{")
        is_first = True
        while not (yield from reader.literal(_CALL_END)):
            yield from reader.expect(_KEY)
            argument = yield from self._argument_name(_KEY_RUN, _KEY_END, is_first=is_first)
            yield from reader.space()
            yield from reader.expect(_VALUE)
            yield from self._argument(name, argument, _VALUE_ENDS, (_KEY, _CALL_END))
            is_first = False
            yield from reader.space()
        self._write_arguments("}")

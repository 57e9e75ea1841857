"""Kimi K2: special tokens around a section and around each call, which the model itself numbers.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.turn_wheel:0<|tool_call_argument_begin|>{"rpm": 3}
    <|tool_call_end|><|tool_calls_section_end|>

The number is part of the call's id, and its template expects the id back.
"""

from headrace.server.parsing.reader import Reading
from headrace.server.tools.call_form import CallForm, CallRequest, arguments, one_of, regex, sequence, text
from headrace.server.tools.sectioned import SectionedCallParser

_ARGUMENTS = "<|tool_call_argument_begin|>"
_FUNCTIONS = "functions."


class KimiK2Parser(SectionedCallParser):
    section = "<|tool_calls_section_begin|>"
    section_end = "<|tool_calls_section_end|>"
    call = "<|tool_call_begin|>"
    call_end = "<|tool_call_end|>"
    markers = (section,)
    shown_tokens = (section_end, call, _ARGUMENTS, call_end)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        """Calls are numbered over the whole conversation, so any number may come."""
        calls = [
            sequence(
                text(f"{cls.call}{_FUNCTIONS}{name}:"),
                regex("[0-9]{1,4}"),
                text(_ARGUMENTS),
                arguments(schema),
                text(cls.call_end),
            )
            for name, schema in asked.schemas.items()
        ]
        return CallForm(begin=cls.section, calls=sequence(asked.several(one_of(calls), ""), text(cls.section_end)))

    def _call(self) -> Reading[None]:
        reader = self.reader
        call_id = yield from self._name()
        yield from reader.space()
        yield from reader.expect(_ARGUMENTS)
        yield from reader.space()
        name = call_id.removeprefix(_FUNCTIONS)
        stem, _, number = name.rpartition(":")
        is_numbered = bool(stem) and number.isdigit()
        yield from self._arguments(stem if is_numbered else name, call_id if is_numbered else None)
        yield from reader.expect(self.call_end)

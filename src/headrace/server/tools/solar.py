"""Solar Open: every message says by a mark what it is, reasoning and answer as well as calls.

    <|think|>The user wants …<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>turn_wheel
    <|tool_call:args|>{"rpm": 3}<|tool_call:end|><|calls|>

The prompt ends with `<|begin|>assistant`. The model makes up its calls' ids, and its template expects them back.
"""

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.call_form import (
    CallForm,
    CallRequest,
    any_text,
    arguments,
    one_of,
    regex,
    sequence,
    tagged,
    text,
)
from headrace.server.tools.sectioned import SectionedCallParser

_BEGIN = "<|begin|>"
_ASSISTANT = "assistant"
_THINK = "<|think|>"
_CONTENT = "<|content|>"
_CALLS = "<|tool_calls|>"
_END = "<|end|>"
_NAME = "<|tool_call:name|>"
_ARGUMENTS = "<|tool_call:args|>"
_BODY_END = Markers((_END, _BEGIN, _THINK, _CONTENT, _CALLS))


class SolarParser(SectionedCallParser):
    section = _CALLS
    section_end = "<|calls|>"
    call = "<|tool_call:begin|>"
    call_end = "<|tool_call:end|>"
    markers = (_BEGIN, _THINK, _CONTENT, _CALLS)
    shown_tokens = (_END, section_end, call, _NAME, _ARGUMENTS, call_end)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = [
            sequence(
                text(cls.call),
                regex("[a-z0-9]{10}"),
                text(f"{_NAME}{name}{_ARGUMENTS}"),
                arguments(schema),
                text(cls.call_end),
            )
            for name, schema in asked.schemas.items()
        ]
        section = sequence(asked.several(one_of(calls), ""), text(cls.section_end))
        words = any_text(excludes=_BODY_END.strings)
        thought = sequence(tagged(_THINK, words, _END), text(_BEGIN + _ASSISTANT))
        said = one_of([sequence(text(_CALLS), section), sequence(text(_CONTENT), words)])
        free = sequence({"type": "optional", "content": thought}, said)
        return CallForm(begin=_CALLS, calls=section, prelude=thought, answer_begin=_CONTENT, free=free)

    def _calls(self, marker: str) -> Reading[None]:
        """A message."""
        reader = self.reader
        if marker == _BEGIN:
            yield from reader.expect(_ASSISTANT)
            marker = yield from reader.any_of((_THINK, _CONTENT, _CALLS))
            yield from reader.peek()
        if marker == _CALLS:
            if not self.tools:
                raise NotAsExpected
            yield from super()._calls(marker)
        elif marker:
            reader.withdraw()
            self.sink.new_part()
            yield from self._message(_BODY_END, (_END,), self.sink.reasoning if marker == _THINK else self.sink.content)
        else:
            raise NotAsExpected

    def _call(self) -> Reading[None]:
        reader = self.reader
        call_id = yield from self._name()
        yield from reader.expect(_NAME)
        name = yield from self._name()
        yield from reader.expect(_ARGUMENTS)
        yield from reader.space()
        yield from self._arguments(name, call_id)
        yield from reader.expect(self.call_end)

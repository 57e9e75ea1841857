"""DeepSeek V3, R1 and V3.1: special tokens around a section and around each call.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>turn_wheel
    ```json
    {"rpm": 3}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 writes `<｜tool▁call▁begin｜>turn_wheel<｜tool▁sep｜>{"rpm": 3}<｜tool▁call▁end｜>`.
"""

from headrace.server.parsing.reader import Reading
from headrace.server.tools.call_form import CallForm, CallRequest, each_tool, sequence, text
from headrace.server.tools.sectioned import SectionedCallParser

_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"


class DeepSeekParser(SectionedCallParser):
    section = "<｜tool▁calls▁begin｜>"
    section_end = "<｜tool▁calls▁end｜>"
    call = "<｜tool▁call▁begin｜>"
    call_end = "<｜tool▁call▁end｜>"
    markers = (section, call)
    shown_tokens = (section_end, call_end, _SEPARATOR)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        if f"{_FENCE}json" in asked.template:
            begin, middle, end = f"{cls.call}function{_SEPARATOR}", f"\n{_FENCE}json\n", f"\n{_FENCE}{cls.call_end}"
            calls = asked.several(each_tool(asked.schemas, begin, middle, end), "\n")
        else:
            calls = asked.several(each_tool(asked.schemas, cls.call, _SEPARATOR, cls.call_end), "")
        return CallForm(begin=cls.section, calls=sequence(calls, text(cls.section_end)))

    def _call(self) -> Reading[None]:
        reader = self.reader
        name = yield from self._name()
        yield from reader.space()
        yield from reader.expect(_SEPARATOR)
        yield from reader.space()
        if (yield from reader.peek()) != "{":  # what came before was the call's type
            name = yield from self._name()
            yield from reader.space()
            if (yield from reader.literal(_FENCE)):
                yield from reader.literal("json")
                yield from reader.space()
        yield from self._arguments(name)
        yield from reader.literal(_FENCE)
        yield from reader.space()
        yield from reader.expect(self.call_end)

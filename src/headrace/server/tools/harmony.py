"""gpt-oss: everything it says is a message on a channel, so that reasoning, answer and calls are told apart in one pass.

    <|channel|>analysis<|message|>The user wants …<|end|><|start|>assistant<|channel|>commentary to=functions.turn_wheel
    <|constrain|>json<|message|>{"rpm": 3}<|call|>

The prompt ends where the first message's header begins. `analysis` is reasoning, `final` the answer; `commentary` is for
tools if it is addressed to one, else for the reader. What the header does not explain is text.
"""

import re

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.call_form import CallForm, CallRequest, any_text, each_tool, one_of, sequence, tagged, text
from headrace.server.tools.parser import NAME, ToolParser

_START = "<|start|>"
_CHANNEL = "<|channel|>"
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER_RUN = re.compile(r"[^<]+")
_MAX_HEADER = 256
_HEADER_MARKS = (_CHANNEL, "<|constrain|>")
_BODY_END = Markers((*_ENDS, _START, _CHANNEL))
_HEADER = re.compile(
    r"(?:assistant)?\s*(?:to=(?P<early_recipient>\S+))?\s*<channel>\s*(?P<channel>analysis|commentary|final)"
    r"(?:\s+to=(?P<recipient>\S+))?(?:\s+(?:json|code|text))?"
)
_FUNCTIONS = "functions."
_MAX_HEADER_PARTS = 8


class HarmonyParser(ToolParser):
    markers = (_START, _CHANNEL)
    shown_tokens = (_START, _CHANNEL, _MESSAGE, *_ENDS, "<|constrain|>")

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        """What ends a call ends the answer, so there is one."""
        calls = each_tool(asked.schemas, f"commentary to={_FUNCTIONS}", f" <|constrain|>json{_MESSAGE}", "")
        # Words end where a mark stands, spelt out or not: what follows would be read as a message.
        words = any_text(excludes=_BODY_END.strings)
        next_begins = text(f"{_START}assistant")
        thought = sequence(tagged(f"{_CHANNEL}analysis{_MESSAGE}", words, "<|end|>"), next_begins)
        said = sequence(tagged(f"{_CHANNEL}commentary{_MESSAGE}", words, "<|end|>"), next_begins)
        final = sequence(text(f"final{_MESSAGE}"), words)
        free = sequence({"type": "star", "content": one_of([thought, said])}, text(_CHANNEL), one_of([calls, final]))
        return CallForm(begin=_CHANNEL, calls=calls, prelude=thought, answer_begin=f"{_CHANNEL}final{_MESSAGE}", free=free)

    def _parse(self) -> Reading[None]:
        reader = self.reader
        # The prompt holds `<|start|>assistant`: an address may follow before the first channel.
        if (yield from reader.is_next(" to=")):
            self._begin_attempt()
            yield from self._try(self._calls(""))
        yield from super()._parse()

    def _calls(self, marker: str) -> Reading[None]:
        """A message: its header, then its body."""
        channel, recipient = yield from self._header(marker)
        if recipient:
            yield from self._call(recipient)
        else:
            self.reader.withdraw()
            self.sink.new_part()
            write = self.sink.reasoning if channel == "analysis" else self.sink.content
            yield from self._message(_BODY_END, _ENDS, write)

    def _header(self, marker: str) -> Reading[tuple[str, str]]:
        """The channel, and the tool that is addressed, if one is."""
        reader = self.reader
        pieces = [" <channel>" if marker == _CHANNEL else ""]
        while True:
            pieces.append((yield from reader.word(_HEADER_RUN, _MAX_HEADER)))
            if (yield from reader.literal(_MESSAGE)):
                break
            mark = yield from reader.any_of(_HEADER_MARKS)
            yield from reader.peek()
            if not mark or len(pieces) > _MAX_HEADER_PARTS:
                raise NotAsExpected
            pieces.append(" <channel>" if mark == _CHANNEL else " ")
        header = _HEADER.fullmatch("".join(pieces).strip())
        if header is None:
            raise NotAsExpected
        return header["channel"], header["early_recipient"] or header["recipient"] or ""

    def _call(self, recipient: str) -> Reading[None]:
        name = recipient.removeprefix(_FUNCTIONS)
        is_known = bool(self.tools) if recipient.startswith(_FUNCTIONS) else name in self.tools
        if not is_known or not NAME.fullmatch(name):
            raise NotAsExpected
        self._commit(name)
        yield from self._message(_BODY_END, _ENDS, self._write_arguments)

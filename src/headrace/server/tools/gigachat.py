"""GigaChat 3: one call to an answer, behind a mark in 3.1, and in 3.0 as a message of a role of its own. The end of the
assistant's message stands before it, be that message empty.

<|function_call|>{"name": "turn_wheel", "arguments": {"rpm": 3}}

<|message_sep|>

function call<|role_sep|>
{"name": "turn_wheel", "arguments": {"rpm": 3}}
"""

from headrace.server.parsing.reader import Reading
from headrace.server.tools.call_form import CallForm, CallRequest, json_object
from headrace.server.tools.json_calls import JsonCallParser

_MARK = "<|function_call|>"
_MESSAGE_END = "<|message_sep|>"
_ROLE = "function call<|role_sep|>"


class GigaChatParser(JsonCallParser):
    markers = (_MARK, _MESSAGE_END, _ROLE)
    shown_tokens = ("<|role_sep|>\n",)
    """3.0's tokens end in their line breaks."""

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        call = json_object(asked.schemas)
        if _MARK in asked.template:
            return CallForm(begin=_MARK, calls=call)
        return CallForm(begin=f"{_MESSAGE_END}\n\n{_ROLE}\n", calls=call)

    def _calls(self, marker: str) -> Reading[None]:
        if marker == _MESSAGE_END:
            yield from self.reader.space()
            yield from self.reader.expect(_ROLE)
        yield from super()._calls(marker)

"""GigaChat 3: one call to an answer, behind a mark in 3.1, and before that as a message of a role of its own.

<|function_call|>{"name": "turn_wheel", "arguments": {"rpm": 3}}

function call<|role_sep|>
{"name": "turn_wheel", "arguments": {"rpm": 3}}
"""

from headrace.server.tools.call_form import CallForm, CallRequest, json_object, sequence, text
from headrace.server.tools.json_calls import JsonCallParser

_MARK = "<|function_call|>"
_ROLE = "function call<|role_sep|>"


class GigaChatParser(JsonCallParser):
    markers = (_MARK, _ROLE)
    shown_tokens = ("<|role_sep|>",)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        call = json_object(asked.schemas)
        if _MARK in asked.template:
            return CallForm(begin=_MARK, calls=call)
        return CallForm(begin=_ROLE, calls=sequence(text("\n"), call))

"""Cohere's Command R7B, A and after: a list of calls between marks, behind its plan.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "turn_wheel", "parameters": {"rpm": 3}}
    ]<|END_ACTION|>

It numbers its calls from 0 in every turn. Such a number is no id of a conversation, so that each call gets one of its own.
"""

from headrace.server.tools.call_form import CallForm, CallRequest, each_tool, regex, sequence, text
from headrace.server.tools.json_calls import JsonCallParser


class CohereParser(JsonCallParser):
    markers = ("<|START_ACTION|>",)
    closers = ("<|END_ACTION|>",)
    shown_tokens = closers
    keeps_ids = False

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        number = sequence(text('{"tool_call_id": "'), regex("[0-9]{1,3}"), text('", '))
        call = sequence(number, each_tool(asked.schemas, '"tool_name": "', '", "parameters": ', "}"))
        listed = sequence(text("[\n    "), asked.several(call, ",\n    "), text("\n]<|END_ACTION|>"))
        return CallForm(begin="<|START_ACTION|>", calls=listed)

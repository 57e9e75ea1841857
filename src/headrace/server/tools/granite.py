"""Granite 3: a mark, then a list of calls, and nothing behind it.

    <|tool_call|>[{"name": "turn_wheel", "arguments": {"rpm": 3}}]

Its 3.1 writes the mark as `<tool_call>`; its code model writes `<function_call>` before each object.
"""

from headrace.server.tools.call_form import CallForm, CallRequest, json_object, sequence, text
from headrace.server.tools.json_calls import JsonCallParser


class GraniteParser(JsonCallParser):
    markers = ("<|tool_call|>", "<tool_call>", "<function_call>")
    closers = ("</tool_call>", "</function_call>")

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        call = json_object(asked.schemas)
        if "<function_call>" in asked.template:
            return CallForm(begin="<function_call>", calls=sequence(text(" "), call), separator="\n")
        begin = (
            "<tool_call>" if "<|tool_call|>" not in asked.template and "<tool_call>" in asked.template else "<|tool_call|>"
        )
        return CallForm(begin=begin, calls=sequence(text("["), asked.several(call, ", "), text("]")))

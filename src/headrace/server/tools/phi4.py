"""Phi-4-mini: a list of calls behind a word, or between marks.

functools[{"name": "turn_wheel", "arguments": {"rpm": 3}}]
<|tool_call|>[{"name": "turn_wheel", "arguments": {"rpm": 3}}]<|/tool_call|>
"""

from headrace.server.tools.call_form import CallForm, CallRequest, json_object, sequence, text
from headrace.server.tools.json_calls import JsonCallParser


class Phi4Parser(JsonCallParser):
    markers = ("functools", "<|tool_call|>")
    closers = ("<|/tool_call|>",)
    shown_tokens = ("<|/tool_call|>",)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        begin, end = ("functools", "") if "functools[" in asked.template else ("<|tool_call|>", "<|/tool_call|>")
        calls = asked.several(json_object(asked.schemas), ", ")
        return CallForm(begin=begin, calls=sequence(text("["), calls, text(f"]{end}")))

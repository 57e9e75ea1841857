"""Hermes, and those who took its marks: Qwen 2.5 and 3, QwQ, Granite 4, MiMo, Nemotron, MiniMax-M1, Apriel.

    <tool_call>
    {"name": "turn_wheel", "arguments": {"rpm": 3}}
    </tool_call>

The marks differ in spelling, and some put a list or several objects between one pair.
"""

from headrace.server.tools.call_form import CallForm, CallRequest, json_object, sequence, text
from headrace.server.tools.json_calls import JsonCallParser


class HermesParser(JsonCallParser):
    markers = ("<tool_call>", "<tool_calls>", "<TOOLCALL>")
    closers = ("</tool_call>", "</tool_calls>", "</TOOLCALL>")

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        call = json_object(asked.schemas)
        for begin in ("<TOOLCALL>", "<tool_calls>"):
            end = begin.replace("<", "</")
            if f"{begin}[" in asked.template:
                return CallForm(begin=begin, calls=sequence(text("["), asked.several(call, ", "), text(f"]{end}")))
            if begin in asked.template:
                return CallForm(begin=begin, calls=sequence(text("\n"), asked.several(call, "\n"), text(f"\n{end}")))
        return CallForm(begin="<tool_call>", calls=sequence(text("\n"), call, text("\n</tool_call>")), separator="\n")

"""Hermes, and those who took its marks: Qwen 2.5 and 3, QwQ, Granite 4, MiMo, Nemotron, MiniMax-M1, Apriel.

    <tool_call>
    {"name": "turn_wheel", "arguments": {"rpm": 3}}
    </tool_call>

The marks differ in spelling, and some put a list or several objects between one pair.
"""

from headrace.server.tools.json_calls import JsonCallParser


class HermesParser(JsonCallParser):
    markers = ("<tool_call>", "<tool_calls>", "<TOOLCALL>")
    closers = ("</tool_call>", "</tool_calls>", "</TOOLCALL>")

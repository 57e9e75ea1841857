"""Phi-4-mini: a list of calls behind a word, or between marks.

functools[{"name": "turn_wheel", "arguments": {"rpm": 3}}]
<|tool_call|>[{"name": "turn_wheel", "arguments": {"rpm": 3}}]<|/tool_call|>
"""

from headrace.server.tools.json_calls import JsonCallParser


class Phi4Parser(JsonCallParser):
    markers = ("functools", "<|tool_call|>")
    closers = ("<|/tool_call|>",)
    shown_tokens = ("<|/tool_call|>",)

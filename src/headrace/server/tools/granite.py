"""Granite 3: a mark, then a list of calls, and nothing behind it.

    <|tool_call|>[{"name": "turn_wheel", "arguments": {"rpm": 3}}]

Its 3.1 writes the mark as `<tool_call>`; its code model writes `<function_call>` before each object.
"""

from headrace.server.tools.json_calls import JsonCallParser


class GraniteParser(JsonCallParser):
    markers = ("<|tool_call|>", "<tool_call>", "<function_call>")
    closers = ("</tool_call>", "</function_call>")

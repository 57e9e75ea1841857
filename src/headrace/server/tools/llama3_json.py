"""Llama 3.1 to 4, told to call by JSON: bare objects, several with a semicolon between, at times behind a mark.

{"name": "turn_wheel", "parameters": {"rpm": 3}}
<|python_tag|>{"name": "turn_wheel", "parameters": {"rpm": 3}}; {"name": "stop_wheel", "parameters": {}}
"""

from headrace.server.tools.call_form import CallForm, CallRequest, json_object
from headrace.server.tools.json_calls import JsonCallParser
from headrace.server.tools.unmarked import UnmarkedCallParser


class Llama3JsonParser(UnmarkedCallParser, JsonCallParser):
    markers = ("<|python_tag|>",)
    beginnings = "{["
    known_names_only = True

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        call = json_object(asked.schemas, arguments_key="parameters")
        return CallForm(calls=call, separator="; ", free=cls._free(asked.several(call, "; ")))

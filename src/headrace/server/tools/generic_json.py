"""Any model that writes calls as JSON: an object or a list of them that names a tool, at the beginning of a line.

The choice where a template speaks of tools and shows no format that has a parser of its own. It also takes the commonest
marks, which models fall back to.
"""

from headrace.server.tools.call_form import CallForm, CallRequest, json_object, sequence, text
from headrace.server.tools.json_calls import JsonCallParser
from headrace.server.tools.unmarked import UnmarkedCallParser


class GenericJsonParser(UnmarkedCallParser, JsonCallParser):
    markers = ("<tool_call>", "<tool_calls>")
    closers = ("</tool_call>", "</tool_calls>")
    beginnings = "{["
    known_names_only = True

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = sequence(text("["), asked.several(json_object(asked.schemas), ", "), text("]"))
        return CallForm(calls=calls, free=cls._free(calls))

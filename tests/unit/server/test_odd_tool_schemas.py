"""Whatever stands in a tool's schema, in whatever format calls are written: there is a form, or a refusal that names it.
Every keyword is tried with what no schema has there, beside every type; none of it may be a fault of the server's.
"""

import contextlib
from itertools import product
from typing import Any

import msgspec
import pytest

from headrace.base.errors import InvalidRequestError
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.protocol.openai import ChatCompletionRequest
from headrace.server.tools.answer_form import answer_form
from headrace.server.tools.formats import FORMATS
from headrace.server.tools.request import tool_use

KEYWORDS = (
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength",
    "maxLength", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "nullable", "title", "pattern", "minimum",
    "default",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, 5, -1, 1.5, "string", "a\n", "<", [], {}, ["a", 5], [5], ["string", "null"], [None], {"a": 5}, ["x"], [{}],
    [[]], {"a": {}}, {"a": True}, "#/$defs/a", "#/", "#",
)  # fmt: skip
BASES: tuple[dict[str, Any], ...] = (
    {}, {"type": "string"}, {"type": "array"}, {"type": "object"}, {"type": "integer"}, {"type": ["string", "null"]},
    {"type": "array", "items": {"type": "string"}},
)  # fmt: skip
OWN_NOTATIONS = ("glm", "qwen3_coder", "minimax_m3", "gemma4", "dsml", "pythonic", "hermes", "generic_json")
"""Formats that write arguments each in a way of its own; the others write them as one of these does."""


def form_of(format_name: str, schema: Any, **fields: Any) -> StructuredOutput | None:
    function = {"name": "f", "parameters": schema, "strict": True}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": function}]}
    use = tool_use(msgspec.convert(body | {"tool_choice": "required"} | fields, ChatCompletionRequest), None)
    return answer_form(use, FORMATS[format_name], "", enforces_tags=True)[1]


def with_argument(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("format_name", OWN_NOTATIONS)
def test_an_odd_schema_makes_a_form_or_is_refused(format_name: str) -> None:
    for base, keyword, value in product(BASES, KEYWORDS, ODD):
        schema = with_argument(base | {keyword: value})
        for asked in (schema, with_argument(schema)):
            with contextlib.suppress(InvalidRequestError):
                form_of(format_name, asked)


@pytest.mark.parametrize("format_name", ["glm", "minimax_m3", "gemma4"])
def test_of_listed_values_those_of_another_type_are_no_choice(format_name: str) -> None:
    form = form_of(format_name, with_argument({"type": "string", "enum": ["left", 5, None]}))
    assert form is not None
    assert "left" in form.text
    assert "null" not in form.text


def test_a_list_that_cannot_be_has_no_form_of_its_own() -> None:
    impossible = with_argument({"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 1})
    form = form_of("minimax_m3", impossible)
    assert form is not None
    assert form.kind == "json_schema", "plain JSON, which the engine then refuses"

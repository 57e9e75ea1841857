"""Lark's notation as llguidance reads it, with JSON Schemas in it (`%json {…}`) that a client wrote.

Knows where such a schema stands. Does not know the notation beyond that, which the library reads itself. A schema there is
held to what every other schema is: nothing in it is passed over.
"""

import json
import re
from collections.abc import Iterator

import msgspec

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.json_schema import schema_for_llguidance
from headrace.engine.mind.structured_output import StructuredOutput

_TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|#[^\n]*|/(?:[^/\\]|\\.)+/|(?P<json>%json\s*)(?=[{\[])')
"""What a schema does not begin in: strings, comments, regular expressions."""
_decoder = json.JSONDecoder()


def checked_lark(wanted: StructuredOutput) -> str:
    """The grammar with its schemas made ready. Raises InvalidRequestError as reading a schema does."""
    return "".join(_pieces(wanted)) if "%json" in wanted.text else wanted.text


def _pieces(wanted: StructuredOutput) -> Iterator[str]:
    text, place = wanted.text, 0
    while (found := _next_schema(text, place)) is not None:
        yield text[place : found.end()]
        try:
            _, place = _decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"{wanted.field}: what follows %json is not valid JSON: {error}", param=wanted.field
            ) from None
        yield schema_for_llguidance(msgspec.structs.replace(wanted, text=text[found.end() : place]))
    yield text[place:]


def _next_schema(text: str, place: int) -> re.Match[str] | None:
    return next((found for found in _TOKENS.finditer(text, place) if found["json"]), None)

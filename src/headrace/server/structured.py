"""The form of an answer, as clients ask for it: `response_format` and `structured_outputs`, read into a StructuredOutput.

Knows the fields and which exclude one another. Does not know what can be compiled: the engine says so, before the request is
admitted.
"""

from typing import Any, NamedTuple

import msgspec

from headrace.base.errors import InvalidRequestError
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput
from headrace.protocol.openai import GenerationFields, ResponseFormat, StructuredOutputs, Unread

_ANY_OBJECT = '{"type":"object"}'
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class KnownText(NamedTuple):
    """A schema that was left out of a body."""

    mark: bytes
    """What stands in its place, as JSON."""
    text: str


def structured_output(request: GenerationFields, known: KnownText | None = None) -> StructuredOutput | None:
    """What the request asks for; None for free text. Raises InvalidRequestError where it contradicts itself."""
    by_format = None if request.response_format is None else _of_response_format(request.response_format, known)
    by_options = None if request.structured_outputs is None else _of_structured_outputs(request.structured_outputs, known)
    if by_format is not None and by_options is not None:
        raise InvalidRequestError(
            "response_format and structured_outputs exclude one another: give one of them", param="structured_outputs"
        )
    wanted = by_format or by_options
    if wanted is not None and request.ignore_eos:
        raise InvalidRequestError(
            f"ignore_eos contradicts {wanted.field}: an answer of a form ends where the form does", param="ignore_eos"
        )
    return wanted


def _of_response_format(asked: ResponseFormat, known: KnownText | None) -> StructuredOutput | None:
    match asked.type:
        case "text":
            return None
        case "json_object":
            if not _is_given(asked.schema):
                return StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=_ANY_OBJECT, field="response_format")
            field = "response_format.schema"
            return StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=_as_sent(asked.schema, field, known), field=field)
        case "json_schema":
            if asked.json_schema is None or not _is_given(asked.json_schema.schema):
                path = "response_format.json_schema" + ("" if asked.json_schema is None else ".schema")
                raise InvalidRequestError(f"{path} is required where the type is json_schema", param=path)
            field = "response_format.json_schema.schema"
            text = _as_sent(asked.json_schema.schema, field, known)
            return StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=text, field=field)
        case "structural_tag":
            parts = {"structures": asked.structures, "triggers": asked.triggers, "format": asked.format}
            given = {name: value for name, value in parts.items() if value is not None}
            return StructuredOutput(kind=OutputKind.STRUCTURAL_TAG, text=_json(given), field="response_format")


def _of_structured_outputs(asked: StructuredOutputs, known: KnownText | None) -> StructuredOutput | None:
    given = [name for name in _KINDS if _is_given(getattr(asked, name))]
    if len(given) != 1:
        raise InvalidRequestError(
            f"structured_outputs must hold exactly one of {', '.join(_KINDS)}"
            + (f", not {' and '.join(given)}" if given else ""),
            param="structured_outputs",
        )
    name = given[0]
    kind, text = _kind_and_text(name, asked, known)
    return StructuredOutput(
        kind=kind,
        text=text,
        field=f"structured_outputs.{name}",
        disable_any_whitespace=bool(asked.disable_any_whitespace),
        whitespace_pattern=asked.whitespace_pattern,
        disable_additional_properties=bool(asked.disable_additional_properties),
    )


def _kind_and_text(name: str, asked: StructuredOutputs, known: KnownText | None) -> tuple[OutputKind, str]:
    match name:
        case "json":
            return OutputKind.JSON_SCHEMA, _as_sent(asked.json, "structured_outputs.json", known)
        case "json_object":
            return OutputKind.JSON_SCHEMA, _ANY_OBJECT
        case "regex":
            return OutputKind.REGEX, asked.regex or ""
        case "choice":
            if not asked.choice:
                raise InvalidRequestError("structured_outputs.choice holds no choices", param="structured_outputs.choice")
            return OutputKind.CHOICE, _json(asked.choice)
        case "grammar":
            return OutputKind.GRAMMAR, asked.grammar or ""
    return OutputKind.STRUCTURAL_TAG, _as_sent(asked.structural_tag, "structured_outputs.structural_tag", known)


def _is_given(value: Any) -> bool:
    """What is null, or a switch that is off, asks for nothing."""
    if isinstance(value, Unread):
        return bytes(value) not in (b"", b"null")
    return value is not None and value is not False


def _as_sent(value: Unread, field: str, known: KnownText | None) -> str:
    """A JSON value as its client wrote it, unread; of a string, the JSON text that it holds."""
    raw = bytes(value)
    if known is not None and raw == known.mark:
        return known.text
    try:
        return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{field} is not valid JSON: {error}", param=field, code="invalid_json") from None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

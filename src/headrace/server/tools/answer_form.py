"""The form that an answer must have because of tools: where it must call, where calls must fit their schemas, and where it
is either a call or of the form that the request asks for.

Knows what each of these demands of a format of calls. Does not know how any format spells a call.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.gbnf import is_gbnf
from headrace.engine.mind.structured_output import OutputKind, SchemaSource, StructuredOutput
from headrace.server.tools.call_form import ANY_ARGUMENTS, CallForm, CallRequest, Format, json_value, one_of, regex, text
from headrace.server.tools.formats import FORMATS, ToolFormat
from headrace.server.tools.request import ToolUse, calls_schema

_GENERIC = FORMATS["generic_json"]


def answer_form(
    use: ToolUse, known: ToolFormat | None, template: str, *, enforces_tags: bool
) -> tuple[ToolFormat | None, StructuredOutput | None]:
    """The format to read calls by, and the form of the answer, if it must have one.

    `known`: the model's own format; `template` shows how the model spells it. `enforces_tags`: structural tags can be
    enforced. Raises InvalidRequestError, naming the field, where the format leaves no way.
    """
    if use.tools is None:
        return known, use.form
    if use.must_call:
        return _must_call(use, known, template, enforces_tags=enforces_tags)
    if use.form is None and not use.strict:
        return known, None
    if not enforces_tags:
        raise _refusal(use, "the backend of structured output that is chosen here enforces no structural tags")
    call_form, asked = _call_form(use, known or _GENERIC, template)
    sources = _sources(use, [name for name, schema in asked.schemas.items() if schema is not ANY_ARGUMENTS])
    if use.form is None:
        return known, _tag(call_form.may((known or _GENERIC).parser.markers), "tools", sources)
    if not call_form.is_told_apart:
        raise _refusal(
            use, "this model announces its calls by nothing, so that an answer of the form could be taken for one"
        )
    said = call_form.or_answer(_format_of(use.form), asked)
    if use.form.kind is OutputKind.JSON_SCHEMA:
        sources = (*sources, SchemaSource(field=use.form.field, text=use.form.text))
    return known, _tag(said, use.form.field, sources, use.form)


def _must_call(
    use: ToolUse, known: ToolFormat | None, template: str, *, enforces_tags: bool
) -> tuple[ToolFormat | None, StructuredOutput]:
    """In the model's own format if that can be held to the schemas, else as plain JSON."""
    sources = _sources(use, use.schemas)
    if known is not None and enforces_tags and known is not _GENERIC:
        asked = CallRequest(schemas=use.schemas, template=template, is_limited_to_one=use.is_limited_to_one)
        if (call_form := known.parser.form(asked)) is not None:
            return known, _tag(call_form.must(asked), "tools", sources)
    text = msgspec.json.encode(calls_schema(use.schemas, is_limited_to_one=use.is_limited_to_one)).decode()
    form = StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=text, field="tools", sources=sources)
    return None if known is None else replace(_GENERIC, short_ids=known.short_ids), form


def _call_form(use: ToolUse, known: ToolFormat, template: str) -> tuple[CallForm, CallRequest]:
    """Tools that are not strict may be called with any arguments, where the format can say so."""
    # An option that closes all objects would leave `any arguments` none.
    is_open = use.form is None or not use.form.disable_additional_properties
    loose = {name: schema if name in use.strict else ANY_ARGUMENTS for name, schema in use.schemas.items()}
    for schemas in (loose, use.schemas) if is_open else (use.schemas,):
        asked = CallRequest(schemas=schemas, template=template, is_limited_to_one=use.is_limited_to_one)
        if (call_form := known.parser.form(asked)) is not None:
            return call_form, asked
    tool = _not_held(use, known, template)
    reason = f"the model writes arguments one by one, as bare text, which cannot be held to the schema of {tool!r}"
    raise _refusal(use, reason, tool)


def _not_held(use: ToolUse, known: ToolFormat, template: str) -> str:
    """The first tool whose schema the format cannot hold calls to, those that must be first."""
    names = sorted(use.schemas, key=lambda name: name not in use.strict)
    asked = (CallRequest(schemas={name: use.schemas[name]}, template=template) for name in names)
    return next((name for name, alone in zip(names, asked, strict=True) if known.parser.form(alone) is None), names[0])


def _refusal(use: ToolUse, reason: str, tool: str = "") -> InvalidRequestError:
    """`tool`: the one at fault, where it is one."""
    if use.form is not None:
        return InvalidRequestError(
            f"{use.form.field} is not supported together with tools here: {reason}; leave tools out, or tell the model to "
            "call none by tool_choice 'none'",
            param=use.form.field,
            code="unsupported_parameter",
        )
    place = use.places[tool] if tool in use.strict else min(use.places[name] for name in use.strict)
    param = f"tools[{place}].function.strict"
    return InvalidRequestError(
        f"{param} is not supported here with tool_choice 'auto': {reason}; 'required', or a named tool, holds calls to the "
        "schema",
        param=param,
        code="unsupported_parameter",
    )


def _sources(use: ToolUse, names: Collection[str]) -> tuple[SchemaSource, ...]:
    """What a refusal of a form of calls names: the tools that are held to their schemas."""
    return tuple(
        SchemaSource(
            field=f"tools[{use.places[name]}].function.parameters", text=msgspec.json.encode(schema).decode(), tool=name
        )
        for name, schema in use.schemas.items()
        if name in names
    )


def _tag(
    form: Format, field: str, sources: tuple[SchemaSource, ...], options: StructuredOutput | None = None
) -> StructuredOutput:
    """`options`: whose white space and closed objects are kept."""
    described = msgspec.json.encode({"type": "structural_tag", "format": form}).decode()
    like = options or StructuredOutput(kind=OutputKind.STRUCTURAL_TAG, text="")
    return msgspec.structs.replace(like, kind=OutputKind.STRUCTURAL_TAG, text=described, field=field, sources=sources)


def _format_of(form: StructuredOutput) -> Format:
    """A form as a format of a structural tag."""
    match form.kind:
        case OutputKind.JSON_SCHEMA:
            return json_value(_parsed(form))
        case OutputKind.REGEX:
            return regex(form.text)
        case OutputKind.CHOICE:
            return one_of([text(choice) for choice in json.loads(form.text)])
        case OutputKind.GRAMMAR if is_gbnf(form.text):
            return {"type": "grammar", "grammar": form.text}
        case OutputKind.STRUCTURAL_TAG if isinstance(described := _parsed(form), Mapping) and "format" in described:
            return dict(described["format"]) if isinstance(described["format"], Mapping) else {}
    raise InvalidRequestError(
        f"{form.field} is not supported together with tools: a JSON Schema, a regular expression, choices, GBNF "
        "or a structural tag with a format is",
        param=form.field,
        code="unsupported_parameter",
    )


def _parsed(form: StructuredOutput) -> Any:
    try:
        return json.loads(form.text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{form.field} is not valid JSON: {error}", param=form.field) from None

"""What a request says of tools: checked, as the template sees them, and as a schema of plain calls.

Knows the fields `tools`, `tool_choice` and `parallel_tool_calls`. Does not know how calls are written or read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import InvalidRequestError
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.protocol.openai import ChatCompletionRequest, FunctionDefinition, NamedToolChoice, ToolDefinition
from headrace.server.echo import shortened, suggestion
from headrace.server.tools.parser import MAX_NAME, NAME
from headrace.server.tools.schemas import Tools

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """How one request uses tools."""

    for_template: list[dict[str, Any]] | None = None
    """As chat templates know them; None: the model is not told of any."""
    tools: Tools | None = None
    """What calls may name; None: nothing in the answer is a call."""
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the arguments of what may be called, by name."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Where each stands in the request."""
    strict: Collection[str] = ()
    """Those that must be called as their schemas say."""
    must_call: bool = False
    is_limited_to_one: bool = False
    form: StructuredOutput | None = None
    """What an answer that does not call must be."""


def tool_use(request: ChatCompletionRequest, form: StructuredOutput | None) -> ToolUse:
    """`form`: what the request asks of the answer apart from tools.

    Raises InvalidRequestError where the fields contradict one another, or a tool is none.
    """
    choice = request.tool_choice
    for_template = template_tools(request.tools)
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice asks for a call, and there are no tools", param="tool_choice")
        return ToolUse(form=form)
    schemas = {tool.function.name: tool.function.parameters or _NO_ARGUMENTS for tool in request.tools}
    if choice == "none":
        return ToolUse(form=form)
    is_limited = request.parallel_tool_calls is False
    if isinstance(choice, NamedToolChoice):
        name = choice.function.name
        if name not in schemas:
            raise InvalidRequestError(
                f"tool_choice names {shortened(name)!r}, which is none of the tools{suggestion(name, schemas)}",
                param="tool_choice.function.name",
            )
        schemas = {name: schemas[name]}
        is_limited = True
    return ToolUse(
        for_template=for_template,
        tools=Tools(schemas),
        schemas=schemas,
        places={tool.function.name: i for i, tool in enumerate(request.tools)},
        strict=frozenset(tool.function.name for tool in request.tools if tool.function.strict),
        must_call=choice == "required" or isinstance(choice, NamedToolChoice),
        is_limited_to_one=is_limited,
        form=form,
    )


def template_tools(tools: Sequence[ToolDefinition] | None) -> list[dict[str, Any]] | None:
    """Tools as chat templates know them. `strict` is for the server alone. Raises InvalidRequestError where one is none."""
    if not tools:
        return None
    names: dict[str, int] = {}
    for i, tool in enumerate(tools):
        _check_function(tool.function, f"tools[{i}].function")
        first = names.setdefault(tool.function.name, i)
        if first != i:
            raise InvalidRequestError(
                f"tools[{i}].function.name is the same as that of tools[{first}]: {tool.function.name!r}",
                param=f"tools[{i}].function.name",
            )
    return [{"type": tool.type, "function": _as_template_knows(tool.function)} for tool in tools]


def _as_template_knows(function: FunctionDefinition) -> dict[str, Any]:
    known = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {key: value for key, value in known.items() if value is not None}


def _check_function(function: FunctionDefinition, path: str) -> None:
    if not NAME.fullmatch(function.name) or len(function.name) > MAX_NAME:
        raise InvalidRequestError(
            f"{path}.name must be 1 to {MAX_NAME} letters, digits and `_ . - : /`, not {shortened(function.name)!r}",
            param=f"{path}.name",
        )
    schema = function.parameters
    if schema is None:
        return
    kind = schema.get("type", "object")
    if kind != "object":
        raise InvalidRequestError(
            f"{path}.parameters must be a schema of type 'object', not {shortened(str(kind))!r}",
            param=f"{path}.parameters.type",
        )
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(one, dict | bool) for one in properties.values()):
        raise InvalidRequestError(
            f"{path}.parameters.properties must be an object of schemas", param=f"{path}.parameters.properties"
        )
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise InvalidRequestError(f"{path}.parameters.required must be a list of names", param=f"{path}.parameters.required")


# The form of an answer that must call


def calls_schema(schemas: Mapping[str, Mapping[str, Any]], *, is_limited_to_one: bool) -> dict[str, Any]:
    """A list of calls: what constrained decoding makes the model write where it must call."""
    definitions: dict[str, Any] = {}
    calls = []
    for name, schema in schemas.items():
        arguments: Any = schema
        if _has_references(schema):
            # They point at places in the tool's own schema, which becomes part of a larger one.
            place = "#/$defs/" + name.replace("~", "~0").replace("/", "~1")
            definitions[name] = _moved(schema, place)
            arguments = {"$ref": place}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": arguments},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    form: dict[str, Any] = {"type": "array", "minItems": 1, "items": calls[0] if len(calls) == 1 else {"anyOf": calls}}
    if is_limited_to_one:
        form["maxItems"] = 1
    return form | ({"$defs": definitions} if definitions else {})


def _has_references(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return isinstance(schema.get("$ref"), str) or any(map(_has_references, schema.values()))
    return isinstance(schema, list) and any(map(_has_references, schema))


def _moved(schema: Any, place: str) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: place + value.removeprefix("#")
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    return [_moved(one, place) for one in schema] if isinstance(schema, list) else schema

"""A refusal that says where: in which of the schemas that a form was made of, and in which part of that one.

Knows where schemas hold schemas, and that a backend can be asked again. Does not know why a backend refuses anything. To ask
takes time only of a request that is refused, and no more than compiling a long schema does.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.json_schema import DEFINITIONS, parts, read_json_schema
from headrace.engine.grammar.protocol import TOO_LARGE, CompiledForm, GrammarBackend
from headrace.engine.mind.structured_output import OutputKind, SchemaSource, StructuredOutput

_NO_SCHEMA = "schema must be an object or boolean"
_MAX_CHARACTERS = 300_000
"""Of all parts that are tried: a third of a second."""


class LocatingBackend:
    """Implements `protocol.GrammarBackend` by another, whose refusals it completes."""

    def __init__(self, backend: GrammarBackend) -> None:
        self._backend = backend

    def compile(self, wanted: StructuredOutput) -> CompiledForm:
        try:
            return self._backend.compile(wanted)
        except InvalidRequestError as error:
            raise self._located(wanted, error) from None

    def _located(self, wanted: StructuredOutput, error: InvalidRequestError) -> InvalidRequestError:
        for source in wanted.sources or _sources_in_tag(wanted):
            part = _part(wanted, source.text, source.field)
            if (refusal := self.refusal(part)) is not None:
                return _of_tool(source, self._with_place(part, refusal))
        return self._with_place(wanted, error)

    def refusal(self, wanted: StructuredOutput) -> InvalidRequestError | None:
        """Without a place."""
        try:
            self._backend.compile(wanted)
        except InvalidRequestError as error:
            return error
        return None

    def _with_place(self, wanted: StructuredOutput, error: InvalidRequestError) -> InvalidRequestError:
        if wanted.kind is not OutputKind.JSON_SCHEMA or TOO_LARGE in str(error) or not _can_be_read(wanted):
            return error  # it is so as a whole, and takes long; whoever reads a schema says the place
        place = _Search(self, wanted, str(error)).place()
        return InvalidRequestError(f"{error} (at {place})", param=error.param, code=error.code) if place else error


class _Search:
    """For the smallest part of a schema that is refused alone, and for the same reason as the whole."""

    def __init__(self, backend: LocatingBackend, wanted: StructuredOutput, reason: str) -> None:
        self._backend = backend
        self._wanted = wanted
        self._reason = reason
        self._root = json.loads(wanted.text)
        self._num_characters = 0

    def place(self) -> str:
        """As a pointer; empty for the schema itself."""
        schema, place = self._root, ""
        while (inner := next((part for part in parts(schema) if self._is_refused(part[1])), None)) is not None:
            place, schema = place + inner[0], inner[1]
        return place

    def _is_refused(self, schema: Any) -> bool:
        if not isinstance(schema, Mapping | bool):
            return _NO_SCHEMA in self._reason
        text = json.dumps(self._with_definitions(schema), ensure_ascii=False)
        self._num_characters += len(text)
        if self._num_characters > _MAX_CHARACTERS:
            return False
        refusal = self._backend.refusal(_part(self._wanted, text, self._wanted.field))
        return refusal is not None and str(refusal) == self._reason

    def _with_definitions(self, schema: Any) -> Any:
        """What a part refers to stands in the whole, as a rule as a definition."""
        if not isinstance(schema, Mapping) or not isinstance(self._root, Mapping) or '"$ref"' not in json.dumps(schema):
            return schema
        return {name: self._root[name] for name in DEFINITIONS if name in self._root} | dict(schema)


def _can_be_read(wanted: StructuredOutput) -> bool:
    try:
        read_json_schema(wanted)
    except InvalidRequestError:
        return False
    return True


def _part(wanted: StructuredOutput, text: str, field: str) -> StructuredOutput:
    return msgspec.structs.replace(wanted, kind=OutputKind.JSON_SCHEMA, text=text, field=field, sources=())


def _of_tool(source: SchemaSource, refusal: InvalidRequestError) -> InvalidRequestError:
    if not source.tool:
        return refusal
    said = str(refusal).replace(source.field, f"{source.field} (the tool {source.tool!r})", 1)
    return InvalidRequestError(said, param=refusal.param, code=refusal.code)


def _sources_in_tag(wanted: StructuredOutput) -> Iterator[SchemaSource]:
    """The schemas of a structural tag, each in its field."""
    if wanted.kind is OutputKind.STRUCTURAL_TAG:
        try:
            yield from _schemas_in(json.loads(wanted.text), wanted.field)
        except (ValueError, RecursionError):
            return


def _schemas_in(described: Any, field: str) -> Iterator[SchemaSource]:
    if isinstance(described, list):
        for i, one in enumerate(described):
            yield from _schemas_in(one, f"{field}[{i}]")
    elif isinstance(described, Mapping):
        for name, one in described.items():
            if name in ("json_schema", "schema"):
                yield SchemaSource(field=f"{field}.{name}", text=json.dumps(one, ensure_ascii=False))
            else:
                yield from _schemas_in(one, f"{field}.{name}")

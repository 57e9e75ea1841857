"""What calls look like in a model's own format, as formats of a structural tag: so that an answer that must call, or whose
calls must fit their schemas, is written as the model was trained to write it.

Knows how such formats are put together. Each format of calls says its own in its parser's file; `answer_form.py` makes the
form of an answer from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.grammar.json_schema import DEFINITIONS

Format = dict[str, Any]
"""One format of a structural tag, in the shape that XGrammar has given them."""

Schemas = Mapping[str, Mapping[str, Any]]
"""By the tool's name: what its arguments must be."""

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """What a form of calls is made for."""

    schemas: Schemas
    template: str
    """The source of the chat template, which shows how its model spells the format; empty where there is none."""
    is_limited_to_one: bool = False
    """Of the calls."""

    def several(self, one: "Format", separator: str) -> "Format":
        """One or more, if more are wanted."""
        if self.is_limited_to_one:
            return one
        return sequence(one, {"type": "star", "content": sequence(text(separator), one)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How an answer calls. What is announced is told from text by its beginning."""

    begin: str = ""
    """The mark that announces calls; empty where nothing does."""
    calls: Format
    """What follows the mark, to the end of the calls that it announces."""
    separator: str | None = None
    """Between such calls and the next mark; None: one mark announces all."""
    prelude: Format | None = None
    """What may stand before an answer of any kind: reasoning that is no other parser's matter."""
    answer_begin: str = ""
    """What stands before words for the reader."""
    free: Format | None = None
    """Words in which calls may stand, where they are not simply text up to `begin`."""

    @property
    def is_told_apart(self) -> bool:
        """Whether calls cannot be taken for an answer of another form."""
        return bool(self.begin or self.answer_begin)

    def must(self, asked: CallRequest) -> Format:
        """An answer that calls."""
        announced = sequence(text(self.begin), self.calls)
        return self._behind_prelude(announced if self.separator is None else asked.several(announced, self.separator))

    def may(self, marks: Sequence[str]) -> Format:
        """Words, and calls among them. `marks`: whatever may announce a call, none of which stands in words."""
        if self.free is not None:
            return self.free
        tag = tagged(self.begin, self.calls, "")
        others = [mark for mark in marks if mark != self.begin]
        return {"type": "triggered_tags", "triggers": [self.begin], "tags": [tag], "excludes": others}

    def or_answer(self, answer: Format, asked: CallRequest) -> Format:
        """Calls, or an answer of another form."""
        said = sequence(text(self.answer_begin), answer)
        return one_of([self.must(asked), self._behind_prelude(said)])

    def _behind_prelude(self, rest: Format) -> Format:
        return rest if self.prelude is None else sequence({"type": "optional", "content": self.prelude}, rest)


# Parts


def text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}


def any_text(*, excludes: Sequence[str] = ()) -> Format:
    return {"type": "any_text", "excludes": list(excludes)}


def tagged(begin: str, content: Format, end: str) -> Format:
    """Of text, the first `end` ends it."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def json_value(schema: Any) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def sequence(*parts: Format) -> Format:
    return {"type": "sequence", "elements": [part for part in parts if part != text("")]}


def one_of(options: Sequence[Format]) -> Format:
    return options[0] if len(options) == 1 else {"type": "or", "elements": list(options)}


def arguments(schema: Mapping[str, Any]) -> Format:
    """A tool's arguments as one JSON object. Nothing else is an argument list, whatever the schema leaves open."""
    return json_value(schema if schema.get("type") == "object" else {**schema, "type": "object"})


def each_tool(schemas: Schemas, begin: str, middle: str, end: str) -> Format:
    """`begin`, a tool's name, `middle`, its arguments as JSON, `end`."""
    return one_of([sequence(text(begin + name + middle), arguments(schema), text(end)) for name, schema in schemas.items()])


def json_object(schemas: Schemas, *, arguments_key: str = "arguments") -> Format:
    """A call as an object that names its tool first."""
    return each_tool(schemas, '{"name": "', f'", "{arguments_key}": ', "}")


def with_definitions(schema: Any, root: Mapping[str, Any]) -> Any | None:
    """A schema inside `root` as one that stands by itself; None where it points elsewhere than to definitions."""
    if not _points_to_definitions_only(schema):
        return None
    if not isinstance(schema, Mapping):
        return schema
    definitions = {name: root[name] for name in DEFINITIONS if name in root}
    if not all(map(_points_to_definitions_only, definitions.values())):
        return None
    return {**schema, **definitions}


def _points_to_definitions_only(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        target = schema.get("$ref")
        if isinstance(target, str) and not target.startswith(tuple(f"#/{name}/" for name in DEFINITIONS)):
            return False
        return "$dynamicRef" not in schema and all(map(_points_to_definitions_only, schema.values()))
    return not isinstance(schema, list) or all(map(_points_to_definitions_only, schema))

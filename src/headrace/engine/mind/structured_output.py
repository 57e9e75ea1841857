"""StructuredOutput: the form that an answer must have, as one request asked for it.

Knows kinds of form and their text. Does not know tokens, nor how a form is compiled or enforced: `engine/grammar/` does. The
mind carries it to the workers and decides nothing by it.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec


class OutputKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    """`text` is a JSON Schema (draft 2020-12)."""
    REGEX = "regex"
    """`text` is a regular expression that the whole answer matches."""
    CHOICE = "choice"
    """`text` is a JSON list of strings, one of which is the answer."""
    GRAMMAR = "grammar"
    """`text` is a grammar, in GBNF (rules are written `name ::=`) or in Lark's notation (`name:`)."""
    STRUCTURAL_TAG = "structural_tag"
    """`text` is a JSON object that says which tags the text may hold, and what stands in them."""


ContentKey: TypeAlias = tuple[OutputKind, str, bool, str | None, bool]


class SchemaSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON Schema that a form was made of, and where the client gave it."""

    field: str
    text: str
    tool: str = ""
    """The name of the tool that it belongs to, if to any."""


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: OutputKind
    text: str
    field: str = "structured_outputs"
    """The field in which the client asked for it: what a refusal names."""
    disable_any_whitespace: bool = False
    """JSON is written without spaces and line breaks."""
    whitespace_pattern: str | None = None
    """A regular expression for each run of whitespace in JSON; None: any that JSON allows."""
    disable_additional_properties: bool = False
    """Objects of a JSON Schema have no properties but those that it names."""
    begins_after: tuple[int, ...] = ()
    """Token ids after which the form begins: what stands before them, for example reasoning, is free, but the answer cannot
    end there. Empty: it begins with the answer."""

    sources: tuple[SchemaSource, ...] = ()
    """Where the server made `text` of several schemas: what a refusal names is one of these."""

    @property
    def num_characters(self) -> int:
        """Of all its texts."""
        return len(self.text) + sum(len(source.text) for source in self.sources)

    @property
    def content_key(self) -> ContentKey:
        """Equal where the compiled form is: all that decides it. Not a digest, since a text remembers its hash: a schema of
        100 kB is then read once, however often it is looked up."""
        return (
            self.kind,
            self.text,
            self.disable_any_whitespace,
            self.whitespace_pattern,
            self.disable_additional_properties,
        )

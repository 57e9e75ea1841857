"""Forms by XGrammar: a pushdown automaton compiled against the vocabulary ahead of time. An optional package.

Knows XGrammar's interface and which schemas it enforces: it passes over what it does not know, so a schema is taken only
where every keyword in it is known to be enforced. Does not know requests or sampling.
"""

import json
import re
from typing import Any

import numpy as np
import xgrammar

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.gbnf import is_gbnf
from headrace.engine.grammar.json_schema import read_json_schema
from headrace.engine.grammar.protocol import TokenMask, Vocabulary
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

_NUM_COMPILE_THREADS = 1
"""Forms are compiled beside a running engine, which needs the cores."""

_ANNOTATIONS = frozenset({"$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
                          "deprecated", "readOnly", "writeOnly"})  # fmt: skip
_OF_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
"""Beside a type these are enforced, and nothing else is."""

_ALONE = ("$ref", "anyOf", "enum", "const")
"""Each is enforced where it stands alone: what stands beside it would be passed over."""


_LOCAL = re.compile(r"#(/(\$defs|definitions)/[A-Za-z0-9_.-]+)?")


class XgrammarBackend:
    """Implements `protocol.GrammarBackend`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._num_mask_words = vocabulary.num_mask_words
        special = frozenset(vocabulary.special_token_ids)
        texts = [b"" if token_id in special else text for token_id, text in enumerate(vocabulary.token_bytes)]
        self._info = xgrammar.TokenizerInfo(
            texts,
            xgrammar.VocabType.RAW,
            vocab_size=len(texts),
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=_NUM_COMPILE_THREADS, cache_enabled=False)

    def compile(self, wanted: StructuredOutput) -> "XgrammarForm":
        try:
            return XgrammarForm(self._compile(wanted), self._num_mask_words)
        except (RuntimeError, ValueError) as error:  # its own errors are of these
            raise InvalidRequestError(f"{wanted.field} cannot be enforced: {error}", param=wanted.field) from None

    def _compile(self, wanted: StructuredOutput) -> "xgrammar.CompiledGrammar":
        match wanted.kind:
            case OutputKind.JSON_SCHEMA:
                if wanted.whitespace_pattern is not None:
                    raise _refusal(wanted, "whitespace_pattern is not supported by XGrammar")
                schema = read_json_schema(wanted)
                _check_schema(json.loads(schema), wanted)
                return self._compiler.compile_json_schema(
                    schema, any_whitespace=not wanted.disable_any_whitespace, strict_mode=False
                )
            case OutputKind.REGEX:
                if re.search(r"\(\?[=!<]|\\[bB]", wanted.text):
                    raise _refusal(wanted, "look-around is not supported")
                return self._compiler.compile_regex(wanted.text)
            case OutputKind.CHOICE:
                choices = " | ".join(json.dumps(choice) for choice in json.loads(wanted.text))
                return self._compiler.compile_grammar(f"root ::= {choices}\n")
            case OutputKind.GRAMMAR:
                if not is_gbnf(wanted.text):
                    raise _refusal(wanted, "XGrammar reads GBNF (rules are written `name ::= …`), not Lark's notation")
                return self._compiler.compile_grammar(wanted.text)
        raise _refusal(wanted, "structural tags are enforced by the backend llguidance only")


class XgrammarForm:
    def __init__(self, compiled: "xgrammar.CompiledGrammar", num_mask_words: int) -> None:
        self._compiled = compiled
        self.first_mask: TokenMask = np.zeros(num_mask_words, dtype=np.int32)
        self.matcher().fill(self.first_mask)

    def matcher(self) -> "XgrammarMatcher":
        return XgrammarMatcher(xgrammar.GrammarMatcher(self._compiled))


class XgrammarMatcher:
    def __init__(self, matcher: "xgrammar.GrammarMatcher") -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def fill(self, mask: TokenMask) -> None:
        if not self._matcher.fill_next_token_bitmask(mask.reshape(1, -1)):
            mask.fill(-1)  # it leaves a mask that bans nothing as it is

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def failure(self) -> str:
        return ""


def _check_schema(schema: Any, wanted: StructuredOutput, path: str = "") -> None:
    """Raises InvalidRequestError for the first keyword that XGrammar would not enforce where it stands."""
    if not isinstance(schema, dict):
        if schema is False:
            raise _refusal(wanted, f"nothing can satisfy false{_at(path)}")
        return
    for name in ("$defs", "definitions"):
        for key, one in schema.get(name, {}).items():
            _check_schema(one, wanted, f"{path}/{name}/{key}")
    asserting = [name for name in schema if name not in _ANNOTATIONS]
    if not asserting:
        return
    alone = [name for name in _ALONE if name in schema]
    if alone:
        if len(asserting) > 1:
            others = ", ".join(name for name in asserting if name != alone[0])
            raise _refusal(wanted, f"{others} beside {alone[0]}{_at(path)} is not supported by XGrammar")
        if not _LOCAL.fullmatch(schema.get("$ref", "#")):
            raise _refusal(wanted, f"$ref{_at(path)} leads elsewhere than to #/$defs: not supported by XGrammar")
        for i, one in enumerate(schema.get("anyOf", ())):
            _check_schema(one, wanted, f"{path}/anyOf/{i}")
        return
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _OF_TYPE:
        raise _refusal(wanted, f"a schema without one single type{_at(path)} is not supported by XGrammar")
    for name in asserting:
        if name != "type" and name not in _OF_TYPE[kind]:
            raise _refusal(wanted, f"the keyword {name}{_at(path)} beside the type {kind} is not supported by XGrammar")
    unnamed = [name for name in schema.get("required", ()) if name not in schema.get("properties", {})]
    if unnamed:
        raise _refusal(
            wanted, f"required{_at(path)} names {unnamed[0]!r}, which properties does not: not supported by XGrammar"
        )
    for key, one in schema.get("properties", {}).items():
        _check_schema(one, wanted, f"{path}/properties/{key}")
    for i, one in enumerate(schema.get("prefixItems", ())):
        _check_schema(one, wanted, f"{path}/prefixItems/{i}")
    for name in ("items", "additionalProperties"):
        if schema.get(name) is not False:
            _check_schema(schema.get(name), wanted, f"{path}/{name}")


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _refusal(wanted: StructuredOutput, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{wanted.field} cannot be enforced: {reason}", param=wanted.field)

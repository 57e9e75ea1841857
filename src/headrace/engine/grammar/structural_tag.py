"""Structural tags, free text in which some tags have a form, rewritten in Lark's notation as llguidance reads it.

Knows both shapes that clients send: `{"structures": [{"begin", "schema", "end"}], "triggers": []}`, and XGrammar's own,
`{"type": "structural_tag", "format": {…}}`, with those formats that have a meaning over text. Others are refused by name.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.gbnf import gbnf_to_lark, spelt
from headrace.engine.grammar.json_schema import schema_for_llguidance
from headrace.engine.mind.structured_output import StructuredOutput

_ANY_TEXT = r"/(.|\n)*/"
_MAX_DEPTH = 50


def structural_tag_to_lark(wanted: StructuredOutput, control_tokens: Mapping[str, int]) -> str:
    """`control_tokens`: ids by their text in brackets. A tag's text that is one of them, or holds one, means the token.

    Raises InvalidRequestError naming what cannot be enforced."""
    try:
        described = json.loads(wanted.text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{wanted.field} is not valid JSON: {error}", param=wanted.field) from None
    return _Writer(wanted, control_tokens).grammar(described)


class _Writer:
    def __init__(self, wanted: StructuredOutput, control_tokens: Mapping[str, int]) -> None:
        self._wanted = wanted
        self._control_tokens = control_tokens
        self._schemas: dict[str, str] = {}
        """The rule of each schema, so that one that stands in several places is compiled once."""
        self._rules: list[str] = []
        self._num_names = 0
        names = sorted(control_tokens, key=len, reverse=True)
        self._control = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def grammar(self, described: Any) -> str:
        if isinstance(described, dict) and "format" in described:
            body = self._format(described["format"], "format", 0)
        elif isinstance(described, dict) and "structures" in described:
            body = self._structures(described)
        else:
            raise self._wrong("", "it must hold format, or structures and triggers")
        return "\n".join(["%llguidance {}", f"start: {body}", *self._rules]) + "\n"

    def _structures(self, described: Mapping[str, Any]) -> str:
        triggers = self._list(described, "triggers", "")
        tags = []
        for i, one in enumerate(self._list(described, "structures", "")):
            path = f"structures[{i}]"
            if not isinstance(one, dict):
                raise self._wrong(path, "it must be an object")
            content = {"type": "json_schema", "json_schema": one.get("schema", True)}
            tags.append({"begin": one.get("begin"), "content": content, "end": one.get("end")})
        return self._triggered_tags({"triggers": triggers, "tags": tags}, "structures", 0)

    # One format each; all give an expression

    def _format(self, described: Any, path: str, depth: int) -> str:
        kinds: dict[str, Callable[[Mapping[str, Any], str, int], str]] = {
            "const_string": lambda one, at, _: self._text(self._string(one, "value", at)),
            "json_schema": lambda one, at, _: self._json(one, at),
            "any_text": lambda one, at, _: self._any_text(one, at),
            "regex": lambda one, at, _: self._without(_regex(self._string(one, "pattern", at)), self._excludes(one, at)),
            "grammar": lambda one, at, _: self._grammar(one, at),
            "sequence": lambda one, at, deep: " ".join(self._all(one, "elements", at, deep)) or '""',
            "or": lambda one, at, deep: "(" + " | ".join(self._all(one, "elements", at, deep)) + ")",
            "optional": lambda one, at, deep: f"({self._format(one.get('content'), f'{at}.content', deep)})?",
            "plus": lambda one, at, deep: f"({self._format(one.get('content'), f'{at}.content', deep)})+",
            "star": lambda one, at, deep: f"({self._format(one.get('content'), f'{at}.content', deep)})*",
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }
        if depth > _MAX_DEPTH:
            raise self._wrong(path, "it is nested too deeply")
        kind = described.get("type") if isinstance(described, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise self._wrong(path, f"the format {kind!r} is not supported; known are {', '.join(kinds)}")
        return kinds[kind](described, path, depth + 1)

    def _json(self, one: Mapping[str, Any], path: str) -> str:
        if one.get("style") not in (None, "json"):
            raise self._wrong(path, f"the style {one['style']!r} is not supported")
        schema = one.get("json_schema", True)
        part = msgspec.structs.replace(self._wanted, text=json.dumps(schema, ensure_ascii=False))
        read = schema_for_llguidance(part)
        if read not in self._schemas:
            self._schemas[read] = self._name()
            self._rules.append(f"{self._schemas[read]}: %json {read}")
        return self._schemas[read]

    def _any_text(self, one: Mapping[str, Any], path: str) -> str:
        return self._without(_ANY_TEXT, self._excludes(one, path))

    def _without(self, pattern: str, excludes: Sequence[str]) -> str:
        """A text that matches the pattern and holds none of these strings."""
        if not excludes:
            return pattern
        self._num_names += 1
        name = f"TEXT_{self._num_names}"
        held = "|".join("".join(map(spelt, one)) for one in excludes)
        holding = _regex(rf"(.|\n)*({held})(.|\n)*")
        self._rules.append(f"{name}: {pattern} & ~{holding}")
        return name

    def _excludes(self, one: Mapping[str, Any], path: str) -> list[str]:
        excludes = self._list(one, "excludes", path) if one.get("excludes") else []
        if not all(isinstance(text, str) and text for text in excludes):
            raise self._wrong(f"{path}.excludes", "it must be a list of strings that are not empty")
        return excludes

    def _grammar(self, one: Mapping[str, Any], path: str) -> str:
        if one.get("syntax") not in (None, "ebnf"):
            raise self._wrong(path, "only syntax 'ebnf' is supported")
        name = self._name()
        self._rules.append(gbnf_to_lark(self._string(one, "grammar", path), self._wanted.field, start=name))
        return name

    def _tag(self, one: Mapping[str, Any], path: str, depth: int, begun: str = "") -> str:
        """`begun`: the part of its beginning that has been written already."""
        begin = self._string(one, "begin", path)
        ends = one.get("end")
        ends = [ends] if isinstance(ends, str) else ends
        if not isinstance(ends, list) or not ends or not all(isinstance(end, str) for end in ends):
            raise self._wrong(f"{path}.end", "it must be a string or a list of strings")
        content = one.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text":
            body = "(" + " | ".join(self._text_until(end, content, path) for end in ends) + ")"
        else:
            end = "(" + " | ".join(self._text(end) for end in ends) + ")"
            body = f"{self._format(content, f'{path}.content', depth)} {end}"
        return f"({self._text(begin.removeprefix(begun))} {body})"

    def _text_until(self, end: str, content: Mapping[str, Any], path: str) -> str:
        """Text, and the end that follows where it first stands."""
        if not end or self._is_control(end):
            text = self._any_text(content, f"{path}.content")
            return f"{text} {self._text(end)}" if end else text
        excludes = [one for one in self._excludes(content, f"{path}.content") if one != end]
        name = self._name()
        # Lazy: as long a text as possible would take the beginning of its own end.
        self._rules.append(f"{name}[lazy]: {self._without(_ANY_TEXT, excludes)} {json.dumps(end, ensure_ascii=False)}")
        return name

    def _triggered_tags(self, one: Mapping[str, Any], path: str, depth: int) -> str:
        triggers = [str(trigger) for trigger in self._list(one, "triggers", path) if trigger]
        excludes = self._excludes(one, path)
        # A trigger's text is a trigger, even where it is also a control token that was meant.
        words = {"excludes": [*excludes, *triggers]}
        tags = []
        for i, tag in enumerate(self._list(one, "tags", path)):
            at = f"{path}.tags[{i}]"
            begin = self._string(tag, "begin", at) if isinstance(tag, dict) else ""
            trigger = max((t for t in triggers if begin.startswith(t)), key=len, default=None)
            if trigger is None:
                raise self._wrong(at, "its begin starts with none of the triggers")
            before = words if self._is_control(trigger) else {"excludes": excludes}
            tags.append(f"{self._text_until(trigger, before, at)} {self._tag(tag, at, depth, trigger)}")
        if not tags:
            raise self._wrong(f"{path}.tags", "it must hold at least one tag")
        name = self._name()
        self._rules.append(f"{name}: " + " | ".join(tags))
        if one.get("stop_after_first"):
            return name if one.get("at_least_one") else f"({name} | {self._any_text(words, path)})"
        return f"{name}{'+' if one.get('at_least_one') else '*'} {self._any_text(words, path)}"

    def _tags_with_separator(self, one: Mapping[str, Any], path: str, depth: int) -> str:
        tags = [self._tag(tag, f"{path}.tags[{i}]", depth) for i, tag in enumerate(self._list(one, "tags", path))]
        if not tags:
            raise self._wrong(f"{path}.tags", "it must hold at least one tag")
        name = self._name()
        self._rules.append(f"{name}: " + " | ".join(tags))
        more = "" if one.get("stop_after_first") else f" ({self._text(self._string(one, 'separator', path))} {name})*"
        return f"({name}{more})" if one.get("at_least_one") else f"({name}{more})?"

    # Parts

    def _all(self, one: Mapping[str, Any], key: str, path: str, depth: int) -> list[str]:
        return [self._format(part, f"{path}.{key}[{i}]", depth) for i, part in enumerate(self._list(one, key, path))]

    def _text(self, text: str) -> str:
        """A text, with the control tokens in it as tokens."""
        pieces = self._control.split(text) if self._control is not None else [text]
        written = [
            f"<[{self._control_tokens[piece]}]>" if piece in self._control_tokens else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        ]
        return " ".join(written) or '""'

    def _is_control(self, text: str) -> bool:
        """Whether a text begins with a control token."""
        return self._control is not None and self._control.match(text) is not None

    def _name(self) -> str:
        self._num_names += 1
        return f"part_{self._num_names}"

    def _string(self, one: Mapping[str, Any], key: str, path: str) -> str:
        value = one.get(key)
        if not isinstance(value, str):
            raise self._wrong(f"{path}.{key}", "it must be a string")
        return value

    def _list(self, one: Mapping[str, Any], key: str, path: str) -> list[Any]:
        value = one.get(key)
        if not isinstance(value, list):
            raise self._wrong(f"{path}.{key}".lstrip("."), "it must be a list")
        return value

    def _wrong(self, path: str, problem: str) -> InvalidRequestError:
        place = f"{self._wanted.field}.{path}" if path else self._wanted.field
        return InvalidRequestError(f"{place}: {problem}", param=place)


def _regex(pattern: str) -> str:
    """As Lark writes it: between slashes, those inside escaped."""
    return "/" + re.sub(r"\\.|/", lambda match: r"\/" if match[0] == "/" else match[0], pattern, flags=re.DOTALL) + "/"

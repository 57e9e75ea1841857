"""GBNF, the notation of llama.cpp's grammars, rewritten in Lark's, as llguidance reads it.

GBNF describes characters; llguidance reads lexemes, each as long as possible, then rules over them. A lexeme of several
characters could swallow what the next rule needs: every character of the original therefore becomes a lexeme of its own, and
the result admits exactly what the original does.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.protocol import TOO_LARGE

_MAX_CHARACTERS = 200_000
"""Of a grammar: to rewrite it takes a second, in which the interpreter does little else; libraries take no more symbols."""
_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t\r\n]*::=", re.MULTILINE)
_TOKENS = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<define>::=)
      | (?P<literal>"(?:[^"\\\n]|\\.)*")
      | (?P<chars>\[\^?(?:[^\]\\]|\\.)*\])
      | (?P<repeat>[*+?]|\{\s*\d*\s*(?:,\s*\d*\s*)?\})
      | (?P<control><[^<>\s\[\]]+>)
      | (?P<name>[A-Za-z0-9_-]+)
      | (?P<mark>[|().])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]", "-": "-", "^": "^", "/": "/"}


def is_gbnf(text: str) -> bool:
    """Rules are defined by `::=` there, and by `:` in Lark's notation."""
    return _RULE.search(text) is not None


def gbnf_to_lark(text: str, field: str, *, start: str = "start") -> str:
    """Rules of which `start` is the first; the others' names begin with it. Raises InvalidRequestError that names `field`
    where the text is no GBNF, or more than anybody needs."""
    if len(text) > _MAX_CHARACTERS:
        raise InvalidRequestError(
            f"{field} cannot be enforced: {TOO_LARGE} ({len(text)} characters): GBNF may have {_MAX_CHARACTERS}, since each "
            "character becomes a symbol of its own: leave parts out, or give Lark's notation, or choice for a list of texts",
            param=field,
        )
    try:
        return _rewritten(_Parser(text, field).rules(), field, start)
    except RecursionError:
        raise InvalidRequestError(f"{field}: the grammar is nested too deeply", param=field) from None


def _rewritten(rules: "dict[str, _Node]", field: str, start: str) -> str:
    if "root" not in rules:
        raise InvalidRequestError(f"{field}: the grammar has no rule named root", param=field)
    names = {name: f"{start}_{i}" for i, name in enumerate(rules)}  # Lark's names have no hyphens
    lines = [f"{start}: {names['root']}", *(f"{names[name]}: {_write(body, names)}" for name, body in rules.items())]
    return "\n".join(lines) + "\n"


# The grammar as a tree


@dataclass(frozen=True, slots=True)
class _Character:
    """One character, as a regular expression."""

    regex: str


@dataclass(frozen=True, slots=True)
class _Control:
    """A control token, by its text in angle brackets."""

    text: str


@dataclass(frozen=True, slots=True)
class _Reference:
    name: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Choice:
    options: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: "_Node"
    least: int
    most: int | None


_Node = _Character | _Control | _Reference | _Sequence | _Choice | _Repeat


class _Parser:
    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._tokens = list(self._split())
        self._next = 0

    def rules(self) -> dict[str, _Node]:
        rules: dict[str, _Node] = {}
        while self._next < len(self._tokens):
            kind, name, position = self._take()
            if kind != "name" or self._peek() != "define":
                raise self._wrong("a rule (name ::= …) is expected", position)
            self._next += 1
            if name in rules:
                raise self._wrong(f"the rule {name} is defined twice", position)
            rules[name] = self._choice()
        for name, position in self._references:
            if name not in rules:
                raise self._wrong(f"there is no rule named {name}", position)
        return rules

    def _split(self) -> Iterator[tuple[str, str, int]]:
        self._references: list[tuple[str, int]] = []
        position = 0
        while position < len(self._text):
            match = _TOKENS.match(self._text, position)
            if match is None:
                raise self._wrong("this is no part of a grammar", position)
            kind = match.lastgroup
            assert kind is not None
            if kind != "space":
                yield kind, match.group(), position
            position = match.end()

    def _peek(self, ahead: int = 0) -> str:
        index = self._next + ahead
        return self._tokens[index][0] if index < len(self._tokens) else ""

    def _is_mark(self, mark: str) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next][:2] == ("mark", mark)

    def _take(self) -> tuple[str, str, int]:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._is_mark("|"):
            self._next += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._next < len(self._tokens) and not self._is_mark("|") and not self._is_mark(")"):
            if self._peek() == "name" and self._peek(1) == "define":
                break  # the next rule begins
            parts.append(self._repeated(self._item()))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _item(self) -> _Node:
        kind, text, position = self._take()
        match kind:
            case "literal":
                return _Sequence(tuple(_Character(spelt(char)) for char in self._unescaped(text[1:-1], position)))
            case "chars":
                return _Character(self._class(text, position))
            case "control":
                return _Control(text)
            case "name":
                self._references.append((text, position))
                return _Reference(text)
            case "mark" if text == ".":
                return _Character(r"[\s\S]")
            case "mark" if text == "(":
                body = self._choice()
                if not self._is_mark(")"):
                    raise self._wrong("a parenthesis is not closed", position)
                self._next += 1
                return body
        raise self._wrong(f"{text!r} is out of place", position)

    def _repeated(self, body: _Node) -> _Node:
        while self._peek() == "repeat":
            _, text, position = self._take()
            least, most = self._bounds(text, position)
            body = _Repeat(body, least, most)
        return body

    def _bounds(self, text: str, position: int) -> tuple[int, int | None]:
        if text in ("*", "+", "?"):
            return (1 if text == "+" else 0), (1 if text == "?" else None)
        least, comma, most = text[1:-1].partition(",")
        low = int(least) if least.strip() else 0
        high = (int(most) if most.strip() else None) if comma else low
        if (not least.strip() and not comma) or (high is not None and high < low):
            raise self._wrong(f"{text} is no repetition", position)
        return low, high

    def _unescaped(self, text: str, position: int) -> Iterator[str]:
        for match in _ESCAPE.finditer(text):
            escaped, plain = match.groups()
            if plain is not None:
                yield plain
            elif len(escaped) > 1:
                code = int(escaped[1:], 16)
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    raise self._wrong(f"\\{escaped} is no character", position)
                yield chr(code)
            elif escaped in _ESCAPES:
                yield _ESCAPES[escaped]
            else:
                raise self._wrong(f"\\{escaped} is no escape", position)

    def _class(self, text: str, position: int) -> str:
        """As a regular expression's class. A hyphen between two characters makes a range, elsewhere it is itself."""
        is_negated = text.startswith("[^")
        inner = text[2 if is_negated else 1 : -1]
        pieces: list[str] = []
        chars = list(self._class_chars(inner, position))
        i = 0
        while i < len(chars):
            if i + 2 < len(chars) and chars[i + 1] == ("-", False):
                low, high = chars[i][0], chars[i + 2][0]
                if high < low:
                    raise self._wrong(f"the range {low}-{high} is empty", position)
                pieces.append(f"{spelt(low)}-{spelt(high)}")
                i += 3
            else:
                pieces.append(spelt(chars[i][0]))
                i += 1
        if not pieces:
            if is_negated:
                return r"[\s\S]"
            raise self._wrong("an empty class matches nothing", position)
        return f"[{'^' if is_negated else ''}{''.join(pieces)}]"

    def _class_chars(self, inner: str, position: int) -> Iterator[tuple[str, bool]]:
        """(character, whether it was escaped)."""
        for match in _ESCAPE.finditer(inner):
            yield next(self._unescaped(match.group(), position)), match.group(1) is not None

    def _wrong(self, problem: str, position: int) -> InvalidRequestError:
        line = self._text.count("\n", 0, position) + 1
        near = self._text[position : position + 40].split("\n")[0]
        return InvalidRequestError(f"{self._field}: {problem}, at line {line} near {near!r}", param=self._field)


# The tree as Lark


def _write(node: _Node, names: dict[str, str]) -> str:
    match node:
        case _Character(regex):
            return f"/{regex}/"
        case _Control(text):
            return text
        case _Reference(name):
            return names[name]
        case _Sequence(parts):
            return "(" + " ".join(_write(part, names) for part in parts) + ")" if parts else '""'
        case _Choice(options):
            return "(" + " | ".join(_write(option, names) for option in options) + ")"
        case _Repeat(body, least, most):
            return f"({_write(body, names)}){_quantifier(least, most)}"


def _quantifier(least: int, most: int | None) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (least, most) in known:
        return known[least, most]
    return f"{{{least},{'' if most is None else most}}}"


def spelt(char: str) -> str:
    """A character, spelt so that neither Lark nor the regular expression reads more into it."""
    return char if char.isalnum() and char.isascii() else f"\\u{{{ord(char):x}}}"

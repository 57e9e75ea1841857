"""What llguidance says is wrong, in words for whoever asked, who knows neither the library nor the grammar that was made of
the request.

Knows the library's messages and its limits. Does not know how anything is compiled.
"""

import json
import re

from headrace.engine.grammar.json_schema import num_subschemas
from headrace.engine.grammar.protocol import TOO_LARGE
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

MAX_ITEMS_IN_ROW = 8000
"""Of a parser at one place: an object of n optional properties has some 4 n."""
_MAX_STEPS = 50_000
"""The library's own limit for one schema."""
_MAX_EXPRESSIONS = 1_000_000
_LEAST_EXPRESSIONS, _EXPRESSIONS_OF_CHARACTER = 250_000, 50

_FORM = "the form is too large: "
_LONGEST_REASON = 500
_INNER_STATE = re.compile(r"\n<(?:state|grammar|non-verbose/|backtrace)>?|\n +while processing ")
"""What the library says of itself begins here."""
_SHOWN_GRAMMAR = re.compile(r"\n +\d+ \| ")
"""So it shows lines of a grammar: the client's own, or one that it has never seen."""
_WHERE_IN_GRAMMAR = re.compile(r"^at \d+\(\d+\): ")
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: (\[.*?\])")
_PLAIN_WORDS = {
    "oneOf constraints are not supported": "oneOf is enforced only where its schemas exclude one another, for example by a "
    "required property with another const in each; where more than one may hold, use anyOf",
    "recursion limit exceeded": "it is nested too deeply",
    "Failed to generate regex for integer range": "bounds of integers must lie within 64 bits, between "
    "-9223372036854775808 and 9223372036854775807, and leave a number between them",
    "Unable to determine if regex is empty": "whether any text satisfies all its patterns together cannot be found out: "
    "give fewer patterns for one text, or simpler ones",
}
"""By what the library says."""
_NUMBER = "Expected f64 for"
_TOO_MANY = "become too many when"
_TOO_LARGE = {
    re.compile(r"row has (\d+) items; max is (\d+)"): r"\1 ways to go on are open at one place, and at most \2 may be: give "
    "fewer optional properties or alternatives there",
    re.compile(r"Too many items \(limit (\d+)"): r"one token opens more than \1 ways to go on: give fewer alternatives, or "
    "such as begin differently",
    re.compile(r"grammar\) too big \(limit for this grammar: (\d+)"): r"its regular expressions are more than \1 steps of "
    "work before an answer begins: give fewer or smaller ones",
    re.compile("too many expressions constructed"): "its regular expressions become too many when they are followed: give "
    "smaller counts in braces, above all where one stands in another",
    re.compile(r"symbols\.len\(\) < u16::MAX"): "its grammar has more than 65000 symbols: leave parts out",
    re.compile(
        r"symbols\) too big \(limit for this grammar: (\d+)"
    ): r"its grammar has more than \1 symbols: leave parts out",
}
"""By how the library says so: the limit, and what helps."""


def max_expressions(wanted: StructuredOutput) -> int:
    """What regular expressions of a form may become before an answer begins. A million takes seconds of a thread, which a
    long form may need; a short one that comes to so much multiplies counts in braces."""
    return min(_MAX_EXPRESSIONS, _LEAST_EXPRESSIONS + _EXPRESSIONS_OF_CHARACTER * len(wanted.text))


def plain_reason(wanted: StructuredOutput, reason: str) -> str:
    """Of a form that is refused."""
    text = _first_line(reason)
    if wanted.kind is not OutputKind.GRAMMAR:
        text = _SHOWN_GRAMMAR.split(text)[0]
    if unknown := _UNKNOWN_KEYWORDS.search(text):
        *others, last = json.loads(unknown[1])
        return (
            f"the keywords {', '.join(others)} and {last} are not supported"
            if others
            else f"the keyword {last} is not supported"
        )
    limit = text.removeprefix(_FORM) if text.startswith(_FORM) else _limit(text, wanted)
    if limit is not None:
        limit = limit.replace(_TOO_MANY, f"become more than {max_expressions(wanted)} when")
        return f"{TOO_LARGE} ({len(wanted.text)} characters): {limit}"
    for theirs, ours in _PLAIN_WORDS.items():
        if theirs in text:
            return ours
    text = text.replace(_NUMBER, "expected a number for")
    return text if wanted.kind is OutputKind.GRAMMAR else _WHERE_IN_GRAMMAR.sub("", text)


def plain_failure(reason: str) -> str:
    """Of a form that cannot be followed any further."""
    text = _first_line(reason)
    limit = _limit(text)
    return text if limit is None else f"{_FORM}{limit}"


def _limit(text: str, wanted: StructuredOutput | None = None) -> str | None:
    if wanted is not None and "schema too large" in text:
        size = f"; it has {num_subschemas(json.loads(wanted.text))}" if wanted.kind is OutputKind.JSON_SCHEMA else ""
        return (
            f"reading it takes more than {_MAX_STEPS} steps, two or more for each subschema{size}: leave parts out, or "
            "refer to what is said several times by $ref"
        )
    found = ((shown, limit) for pattern, limit in _TOO_LARGE.items() if (shown := pattern.search(text)) is not None)
    return next((shown.expand(limit) for shown, limit in found), None)


def _first_line(reason: str) -> str:
    line = _INNER_STATE.split(reason.strip())[0].strip()
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"

"""A client's own words in a message to it: never too many of them. Knows words; imports nothing that carries them."""

from collections.abc import Iterable

from headrace.base.errors import nearest

_LONGEST_ECHO = 200


def shortened(text: str) -> str:
    """What a client sent, for use in a message: not all of it if it is long."""
    return text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}…"


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known name is near. Not for long words: comparing takes quadratic time."""
    return nearest(word, known) if len(word) <= _LONGEST_ECHO else ""

"""A Python literal that arrives in pieces, written on as JSON. Knows literals; not what they are for.

Strings, numbers, True, False, None, lists, tuples and dictionaries: what models write as arguments of a call.
"""

import re

from headrace.server.parsing.json_text import escaped
from headrace.server.parsing.reader import NotAsExpected, Reader, Reading, TextEnded, Write

_RUNS = {quote: re.compile(rf"[^\\{quote}]+") for quote in "'\""}
_TOKEN_RUN = re.compile(r"[\w.+\-]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX_RUN = re.compile(r"[0-9a-fA-F]+")
_MAX_TOKEN = 1_000
_MAX_DEPTH = 64


def python_value(reader: Reader, write: Write, depth: int = 0) -> Reading[None]:
    """Reads the literal that begins here. Raises NotAsExpected where none does."""
    char = yield from reader.peek()
    if depth > _MAX_DEPTH:
        raise NotAsExpected
    if char in _RUNS:
        yield from _string(reader, write)
    elif char in "[(":
        yield from _elements(reader, write, "[]", ")" if char == "(" else "]", depth)
    elif char == "{":
        yield from _elements(reader, write, "{}", "}", depth)
    else:
        yield from _token(reader, write)


def _elements(reader: Reader, write: Write, brackets: str, end: str, depth: int) -> Reading[None]:
    reader.take()
    write(brackets[0])
    is_first = True
    while (yield from reader.another(end, is_first=is_first, may_trail=True)):
        if not is_first:
            write(", ")
        is_first = False
        if end == "}":
            if (yield from reader.peek()) not in _RUNS:
                raise NotAsExpected
            yield from _string(reader, write)
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            write(": ")
        yield from python_value(reader, write, depth + 1)
    write(brackets[1])


def _token(reader: Reader, write: Write) -> Reading[None]:
    token = yield from reader.word(_TOKEN_RUN, _MAX_TOKEN)
    if reader.ended and not reader.char:
        write(_WORDS.get(token, token))  # cut off, perhaps within the token
        raise TextEnded
    if token not in _WORDS and not _NUMBER.fullmatch(token):
        raise NotAsExpected
    write(_WORDS.get(token, token))


def _string(reader: Reader, write: Write) -> Reading[None]:
    quote = reader.take()
    write('"')
    while True:
        if run := reader.run(_RUNS[quote]):
            write(escaped(run))
        char = yield from reader.peek()
        if char == quote:
            reader.take()
            write('"')
            return
        if char == "\\":
            reader.take()
            yield from _escape(reader, write)


def _escape(reader: Reader, write: Write) -> Reading[None]:
    """What follows a backslash."""
    try:
        char = yield from reader.peek()
    except TextEnded:
        write("\\\\")
        raise
    reader.take()
    num_digits = _HEX_DIGITS.get(char)
    if num_digits is None:
        write(escaped(_ESCAPES.get(char, char if char in "\\'\"" else f"\\{char}")))
        return
    digits = yield from reader.word(_HEX_RUN, num_digits)
    is_character = len(digits) == num_digits and int(digits, 16) < 0x110000 and not 0xD800 <= int(digits, 16) < 0xE000
    write(escaped(chr(int(digits, 16)) if is_character else f"\\{char}{digits}"))

"""JSON that arrives in pieces: one value copied through as it comes, or a string's text. Knows JSON; not what it is for.

A value is checked while it is copied, character by character where it has structure and in runs where it has none, so that a
bracket inside a string ends nothing. Where the text breaks JSON's rules the reader stops there: NotAsExpected. Models write
two things that JSON forbids and everybody understands: line breaks inside strings, and escapes of what needs none. Both are
written on as JSON has them.
"""

import json
import re

from headrace.server.parsing.reader import SPACE, NotAsExpected, Reader, Reading, TextEnded, Write

_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_TOKEN_RUN = re.compile(r"[\w.+\-]+")
_TOKEN = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_HEX_RUN = re.compile(r"[0-9a-fA-F]*")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MAX_TOKEN = 1_000
_MAX_DEPTH = 1_000


def escaped(text: str) -> str:
    """As it stands between a JSON string's quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_value(reader: Reader, write: Write) -> Reading[None]:
    """Copies the value that begins here."""
    open_brackets: list[str] = []
    while True:
        yield from _value_begins(reader, write, open_brackets)
        # Whatever closes here, and the comma that goes on.
        while open_brackets:
            yield from _space(reader, write)
            char = yield from reader.peek()
            if char == open_brackets[-1]:
                open_brackets.pop()
                write(reader.take())
            elif char == ",":
                write(reader.take())
                yield from _space(reader, write)
                if open_brackets[-1] == "}":
                    yield from _key(reader, write)
                break
            else:
                raise NotAsExpected
        else:
            return


def _value_begins(reader: Reader, write: Write, open_brackets: list[str]) -> Reading[None]:
    """A scalar, or brackets down to the first scalar or the first that are empty; the caller closes them."""
    while True:
        yield from _space(reader, write)
        char = yield from reader.peek()
        if char not in "{[":
            yield from json_scalar(reader, write)
            return
        if len(open_brackets) == _MAX_DEPTH:
            raise NotAsExpected
        write(reader.take())
        open_brackets.append("}" if char == "{" else "]")
        yield from _space(reader, write)
        if (yield from reader.peek()) == open_brackets[-1]:
            return
        if char == "{":
            yield from _key(reader, write)


def _key(reader: Reader, write: Write) -> Reading[None]:
    yield from json_string(reader, write)
    yield from _space(reader, write)
    if (yield from reader.peek()) != ":":
        raise NotAsExpected
    write(reader.take())


def _space(reader: Reader, write: Write) -> Reading[None]:
    while not reader.char or reader.char in " \t\r\n":
        if space := reader.run(SPACE):
            write(space)
        else:
            yield from reader.more()


def json_scalar(reader: Reader, write: Write) -> Reading[None]:
    """Copies a string, a number, true, false or null."""
    if (yield from reader.peek()) == '"':
        yield from json_string(reader, write)
        return
    token = yield from reader.word(_TOKEN_RUN, _MAX_TOKEN)
    if reader.ended and not reader.char:
        # Cut off, perhaps within the token: it was generated, so it is shown.
        write(token)
        return
    if not _TOKEN.fullmatch(token):
        raise NotAsExpected
    write(token)


def json_string(reader: Reader, write: Write) -> Reading[None]:
    """Copies a string with its quotes."""
    if (yield from reader.peek()) != '"':
        raise NotAsExpected
    write(reader.take())
    while True:
        if run := reader.run(_STRING_RUN):
            write(run)
        char = yield from reader.peek()
        if char == '"':
            write(reader.take())
            return
        if char == "\\":
            yield from _escape(reader, write)
        elif char < " ":
            write(escaped(reader.take()))


def _escape(reader: Reader, write: Write) -> Reading[None]:
    reader.take()
    try:
        char = yield from reader.peek()
        if char != "u":
            reader.take()
            write(f"\\{char}" if char in _ESCAPES else f"\\\\{escaped(char)}")
            return
        reader.take()
    except TextEnded:
        write("\\")
        raise
    digits = yield from reader.word(_HEX_RUN, 4)
    write(f"\\u{digits}")
    if len(digits) < 4 and reader.char:
        raise NotAsExpected


def json_string_text(reader: Reader, write: Write) -> Reading[None]:
    """Writes what the string that begins here says, without quotes and escapes."""
    pending: list[str] = []
    """The string's own JSON, while it cannot be read: inside an escape, or between the halves of a surrogate pair."""

    def decode(piece: str) -> None:
        pending.append(piece)
        text = "".join(pending)
        if not _is_open(text):
            write(_decoded(text))
            pending.clear()

    yield from reader.expect('"')
    while True:
        if run := reader.run(_STRING_RUN):
            decode(run)
        try:
            char = yield from reader.peek()
            if char == '"':
                reader.take()
                break
            if char == "\\":
                yield from _escape(reader, decode)
            elif char < " ":
                decode(escaped(reader.take()))
        except TextEnded:
            write(_decoded("".join(pending)))
            raise
    if pending:
        write(_decoded("".join(pending)))


_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


def _is_open(text: str) -> bool:
    return _HIGH_SURROGATE.search(text) is not None


def _decoded(text: str) -> str:
    try:
        decoded = str(json.loads(f'"{text}"'))
    except ValueError:  # cut off inside an escape
        return text
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

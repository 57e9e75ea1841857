"""Schemas that came before, found again in a body by comparing bytes: who asks for one form a hundred times sends the same
100 kB a hundred times, and to read over them as JSON is most of what reading such a body takes.

Knows under which names a schema may stand, and how many to keep. Does not know what a schema says.

What is kept is the text of a whole JSON object. Where it stands behind `"schema":` in a body, that is a key's value, since
within a string no quote stands unescaped. So a short value may be put in its place, and the body then means the same but for
that value, or is as broken as before.
"""

import contextlib
import secrets
from collections.abc import Iterator
from typing import TypeVar

from headrace.base.errors import InvalidRequestError
from headrace.base.recent import Recent
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.protocol.openai import GenerationFields
from headrace.server.decoding import RequestDecoder
from headrace.server.structured import KnownText, structured_output

R = TypeVar("R", bound=GenerationFields)

_NAMES = (b'"schema"', b'"json"', b'"structural_tag"')
_MAX_PLACES = 8
"""Of one name in a body: a property may be called so, too."""
_SPACE = b" \t\r\n"
_LEAST = 4_000
"""Bytes that are worth keeping: fewer are read in some microseconds."""
_MAX_KEPT = 64
_MAX_BYTES = 4_000_000


class KnownSchemas:
    def __init__(self, max_kept: int = _MAX_KEPT, max_bytes: int = _MAX_BYTES) -> None:
        """`max_bytes`: of all that are kept, but for the last."""
        self._texts: Recent[bytes, str] = Recent(max_count=max_kept, max_size=max_bytes)
        self._mark = f'"{secrets.token_hex(16)}"'.encode()
        """Stands for a schema that is known. Nobody can send it, since nobody knows it."""

    def __len__(self) -> int:
        return len(self._texts)

    def read(self, body: bytes, decoder: RequestDecoder[R]) -> tuple[R, StructuredOutput | None]:
        """The request, and the form that it asks for. Raises InvalidRequestError as the decoder does."""
        if (found := self._find(body)) is not None:
            place, raw, known = found
            with contextlib.suppress(InvalidRequestError):  # it will be raised again, with the client's own places
                request = decoder.decode(body[:place] + known.mark + body[place + len(raw) :])
                form = structured_output(request, known)
                if form is not None and form.text is known.text:
                    return request, form
        request = decoder.decode(body)
        form = structured_output(request)
        if form is not None:
            self._keep(form.text, body)
        return request, form

    def _find(self, body: bytes) -> tuple[int, bytes, KnownText] | None:
        """Where a known schema stands, as bytes and as text."""
        if not self._texts or len(body) < _LEAST:
            return None
        for place in _places(body):
            for raw in self._texts:
                if body.startswith(raw, place):
                    text = self._texts.get(raw)
                    assert text is not None
                    return place, raw, KnownText(self._mark, text)
        return None

    def _keep(self, text: str, body: bytes) -> None:
        if len(text) < _LEAST or not text.startswith("{"):
            return
        raw = text.encode()
        if raw in body:  # else it was sent as a string that holds its text
            self._texts.put(raw, text, len(raw))


def _places(body: bytes) -> Iterator[int]:
    """Where the value of a key begins that may be a schema's."""
    for name in _NAMES:
        end = 0
        for _ in range(_MAX_PLACES):
            if (start := body.find(name, end)) < 0:
                break
            end = start + len(name)
            place = _behind_space(body, end)
            if body.startswith(b":", place) and (start == 0 or body[start - 1] != ord("\\")):
                yield _behind_space(body, place + 1)


def _behind_space(body: bytes, place: int) -> int:
    while place < len(body) and body[place] in _SPACE:
        place += 1
    return place

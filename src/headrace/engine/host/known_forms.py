"""Long forms by number: the engine process is sent a form's text once, and its number with every later request for it.

Knows what was sent, and how much that may be. Does not know what a form says, nor who compiles it. The client's end alone
decides what is known; messages keep their order, so the engine's end has whatever it is asked for. What that end gives back
is one and the same object each time: its hash is remembered, and to find it no text is compared.
"""

import itertools

import msgspec

from headrace.base.recent import Recent
from headrace.engine.grammar.cache import DEFAULT_CAPACITY, MAX_CHARACTERS
from headrace.engine.host.messages import AddRequest
from headrace.engine.mind.request import Request
from headrace.engine.mind.structured_output import StructuredOutput

_LEAST = 4_000
"""Characters of a form that is worth a number: below, sending takes some microseconds."""


class SentForms:
    """The client's end, for as long as one engine process lives."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        """`max_characters`: of all forms together, but for the one that was asked for last."""
        self._numbers: Recent[StructuredOutput, int] = Recent(max_count=DEFAULT_CAPACITY, max_size=max_characters)
        self._next = itertools.count()

    def message(self, request: Request) -> AddRequest:
        form = request.structured_output
        if form is None or form.num_characters < _LEAST:
            return AddRequest(request)
        if (number := self._numbers.get(form)) is not None:
            return AddRequest(msgspec.structs.replace(request, structured_output=None), form_number=number)
        number = next(self._next)
        forgotten = self._numbers.put(form, number, form.num_characters)
        return AddRequest(request, form_number=number, forgotten=tuple(forgotten))


class ReceivedForms:
    """The engine's end."""

    def __init__(self) -> None:
        self._forms: dict[int, StructuredOutput] = {}

    def __len__(self) -> int:
        return len(self._forms)

    def request(self, message: AddRequest) -> Request:
        """As the client has it."""
        request, number = message.request, message.form_number
        for old in message.forgotten:
            del self._forms[old]
        if number is None:
            return request
        if request.structured_output is not None:
            self._forms[number] = request.structured_output
            return request
        return msgspec.structs.replace(request, structured_output=self._forms[number])

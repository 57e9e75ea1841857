"""A long form is sent to the engine once, and asked for by its number from then on."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.host.fakes import make_request

from headrace.engine.host.known_forms import ReceivedForms, SentForms
from headrace.engine.host.messages import AddRequest, ClientMessage
from headrace.engine.mind.request import Request
from headrace.engine.mind.structured_output import OutputKind, SchemaSource, StructuredOutput

LONG = "x" * 5_000


def formed(text: str, **fields: object) -> Request:
    form = StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=text, **fields)  # type: ignore[arg-type]
    return msgspec.structs.replace(make_request(), structured_output=form)


def over_the_line(message: AddRequest) -> AddRequest:
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ClientMessage)
    assert isinstance(received, AddRequest)
    return received


def size(message: AddRequest) -> int:
    return len(msgspec.msgpack.encode(message))


def test_a_long_form_goes_over_the_line_once() -> None:
    sent, received = SentForms(), ReceivedForms()
    sizes, forms = [], []
    for _ in range(3):
        message = over_the_line(sent.message(formed(LONG)))
        sizes.append(size(message))
        forms.append(received.request(message).structured_output)
    assert sizes[0] > len(LONG) > 1_000 > max(sizes[1:])
    assert forms == [formed(LONG).structured_output] * 3
    assert forms[1] is forms[2], "one object, so that nothing of it is compared to find it again"


def test_what_a_form_was_made_of_goes_along_and_once() -> None:
    tools = (SchemaSource(field="tools[0].function.parameters", text=LONG, tool="turn"),)
    sent, received = SentForms(), ReceivedForms()
    first, second = (over_the_line(sent.message(formed(LONG, sources=tools))) for _ in range(2))
    assert size(second) < 1_000
    assert received.request(first) == received.request(second) == formed(LONG, sources=tools)


@pytest.mark.parametrize("request_", [make_request(), formed("short")])
def test_what_is_short_or_free_has_no_number(request_: Request) -> None:
    sent, received = SentForms(), ReceivedForms()
    for _ in range(2):
        message = over_the_line(sent.message(request_))
        assert message.form_number is None
        assert received.request(message) == request_
    assert len(received) == 0


@pytest.mark.parametrize("options", [{"disable_any_whitespace": True}, {"field": "response_format"}, {"begins_after": (5,)}])
def test_forms_of_one_text_that_differ_in_anything_else_are_told_apart(options: dict[str, object]) -> None:
    sent, received = SentForms(), ReceivedForms()
    asked = [formed(LONG), formed(LONG, **options)] * 2
    assert [received.request(over_the_line(sent.message(one))) for one in asked] == asked


@given(texts=st.lists(st.integers(0, 6), max_size=40), room=st.integers(1, 5))
def test_the_engine_has_whatever_it_is_asked_for_and_no_more_than_there_is_room_for(texts: list[int], room: int) -> None:
    sent, received = SentForms(max_characters=room * len(LONG)), ReceivedForms()
    for number in texts:
        asked = formed(LONG[:-1] + str(number))
        assert received.request(over_the_line(sent.message(asked))) == asked
        assert len(received) <= room

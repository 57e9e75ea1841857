"""Whether a schema is known or not, a body that holds it is the same request, of the same form, or refused in equal words.

Bodies hold the schema where it is the form, where it is something else (a property that is called `schema`, a message that
quotes one, a tool's), several times, broken, or cut off.
"""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InvalidRequestError
from headrace.protocol.openai import ChatCompletionRequest
from headrace.server import decoding
from headrace.server.known_schemas import KnownSchemas

LONG: dict[str, Any] = {"type": "object", "title": 'é\\"{' * 850, "properties": {"schema": {"type": "null"}}}
OTHER: dict[str, Any] = {"type": "object", "title": "}" * 4_000}
KNOWN = (LONG, OTHER)
SCHEMAS = st.sampled_from(
    (LONG, OTHER, {**LONG, "x": 1}, {}, {"properties": {"schema": LONG}}, {"schema": LONG}, json.dumps(LONG), None, True)
)
STRINGS = st.sampled_from(("hello", '"schema": {', f'{{"schema":{json.dumps(LONG)}}}', '\\"schema":{', "\\"))
FORMS = st.one_of(
    st.builds(lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}, SCHEMAS),
    st.builds(lambda schema: {"response_format": {"type": "json_object", "schema": schema}}, SCHEMAS),
    st.builds(lambda schema: {"structured_outputs": {"json": schema}}, SCHEMAS),
    st.builds(lambda tag: {"structured_outputs": {"structural_tag": tag}}, SCHEMAS),
    st.builds(lambda kwargs: {"chat_template_kwargs": {"schema": kwargs}}, SCHEMAS),
    st.just({}),
)
BODIES = st.builds(
    lambda first, said, form, more, last: first | {"messages": [{"role": "user", "content": said}]} | form | more | last,
    FORMS,
    STRINGS,
    FORMS,
    st.sampled_from(({}, {"store": False}, {"nonsense": 1}, {"n": "two"})),
    FORMS,
)
WRITERS = st.sampled_from(
    (
        msgspec.json.encode,
        lambda value: json.dumps(value).encode(),
        lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode(),
    )
)
Outcome = tuple[Any, ...]


def known_schemas() -> KnownSchemas:
    """Knows each as every writer writes it."""
    schemas = KnownSchemas()
    for schema in KNOWN:
        for text in (
            msgspec.json.encode(schema),
            json.dumps(schema).encode(),
            json.dumps(schema, ensure_ascii=False).encode(),
        ):
            body = b'{"messages":[{"role":"user","content":"x"}],"structured_outputs":{"json":%s}}' % text
            schemas.read(body, decoding.CHAT)
    return schemas


def outcome(schemas: KnownSchemas, body: bytes) -> Outcome:
    try:
        request, form = schemas.read(body, decoding.CHAT)
    except InvalidRequestError as error:
        return str(error), error.param, error.code
    said = msgspec.structs.replace(request, response_format=None, structured_outputs=None)
    if form is not None:  # a body that holds what changes nothing is written anew to be read, in a spelling of its own
        form = msgspec.structs.replace(form, text=json.dumps(json.loads(form.text)))
    return said, form


@given(body=BODIES, write=WRITERS, cut=st.none() | st.integers(0, 9_000), inserted=st.none() | st.integers(0, 9_000))
def test_a_known_schema_changes_nothing_but_the_time_that_reading_takes(
    body: dict[str, Any], write: Any, cut: int | None, inserted: int | None
) -> None:
    written: bytes = write(body)
    if cut is not None:
        written = written[:-cut] if cut else written
    if inserted is not None:
        written = written[:inserted] + b'"' + written[inserted:]
    assert outcome(known_schemas(), written) == outcome(KnownSchemas(), written)


def test_a_schema_that_came_before_is_not_read_again_and_is_the_same_text() -> None:
    schemas = KnownSchemas()
    body = b'{"messages":[],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema": %s}}}'
    written = body % msgspec.json.encode(LONG)
    lengths: list[int] = []

    class Counting(decoding.RequestDecoder[Any]):
        def decode(self, body: bytes) -> Any:
            lengths.append(len(body))
            return decoding.CHAT.decode(body)

    counting = Counting(ChatCompletionRequest, {})
    forms = [schemas.read(written, counting)[1] for _ in range(3)]
    assert lengths[0] == len(written) > 1_000 > max(lengths[1:])
    assert forms[0] is not None
    assert forms[1] == forms[0] == forms[2]
    assert forms[1] is not None
    assert forms[1].text is forms[0].text, "one object, whose hash is known"


def test_so_many_schemas_are_kept_and_those_asked_for_longest_ago_are_read_again() -> None:
    schemas = KnownSchemas(max_kept=2)
    for number in range(5):
        schema = msgspec.json.encode({**LONG, "title": "x" * 5_000 + str(number)})
        schemas.read(b'{"messages":[],"structured_outputs":{"json":%s}}' % schema, decoding.CHAT)
    assert len(schemas) == 2

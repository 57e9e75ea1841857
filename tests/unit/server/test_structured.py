"""How clients ask for a form of the answer, and what the engine is asked for."""

import json
from typing import Any

import pytest
from tests.fakes import FakeEngine
from tests.unit.server.asgi import call, chat, complete, error_of, make_app

from headrace.base.errors import InvalidRequestError
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"maxLength": 3}}}


def form_asked(**fields: Any) -> StructuredOutput | None:
    engine = FakeEngine()
    response = chat(make_app(engine), **fields)
    assert response.status_code == 200, response.text
    return engine.requests[-1].structured_output


def options(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


@pytest.mark.parametrize(
    ("fields", "kind", "text", "field"),
    [
        ({"response_format": {"type": "json_object"}}, OutputKind.JSON_SCHEMA, '{"type":"object"}', "response_format"),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            OutputKind.JSON_SCHEMA, SCHEMA, "response_format.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
            OutputKind.JSON_SCHEMA, SCHEMA, "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": [{"begin": "<a"}], "triggers": ["<"]}},
            OutputKind.STRUCTURAL_TAG, {"structures": [{"begin": "<a"}], "triggers": ["<"]}, "response_format",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            OutputKind.STRUCTURAL_TAG, {"format": {"type": "any_text"}}, "response_format",
        ),
        (options(json=SCHEMA), OutputKind.JSON_SCHEMA, SCHEMA, "structured_outputs.json"),
        (options(json=json.dumps(SCHEMA)), OutputKind.JSON_SCHEMA, SCHEMA, "structured_outputs.json"),
        (options(json_object=True), OutputKind.JSON_SCHEMA, '{"type":"object"}', "structured_outputs.json_object"),
        (options(regex="[a-z]+"), OutputKind.REGEX, "[a-z]+", "structured_outputs.regex"),
        (options(choice=["a", "é"]), OutputKind.CHOICE, ["a", "é"], "structured_outputs.choice"),
        (options(grammar='root ::= "a"'), OutputKind.GRAMMAR, 'root ::= "a"', "structured_outputs.grammar"),
        (options(structural_tag={"format": {}}), OutputKind.STRUCTURAL_TAG, {"format": {}},
         "structured_outputs.structural_tag"),
        (options(structural_tag='{"format": {}}'), OutputKind.STRUCTURAL_TAG, {"format": {}},
         "structured_outputs.structural_tag"),
    ],
)  # fmt: skip
def test_each_way_of_asking_reaches_the_engine(fields: dict[str, Any], kind: OutputKind, text: Any, field: str) -> None:
    form = form_asked(**fields)
    assert form is not None
    assert (form.kind, form.field) == (kind, field)
    assert form.text == text if isinstance(text, str) else list(json.loads(form.text)) == list(text)
    assert isinstance(text, str) or json.loads(form.text) == text


def test_properties_keep_their_order_for_the_answer_will_have_it() -> None:
    form = form_asked(structured_outputs={"json": SCHEMA})
    assert form is not None
    assert list(json.loads(form.text)["properties"]) == ["b", "a"]


@pytest.mark.parametrize("place", ["json_schema", "json"])
def test_a_schema_goes_on_as_it_was_sent_unread(place: str) -> None:
    """Letter for letter, so that the engine may know it again by its text alone."""
    sent = b'{ "type" : "object",\n\t"properties": {"\xc3\xa9": {"maximum": 1.50}, "\\u00e9": {}} }'
    engine = FakeEngine()
    asked = {
        "json_schema": b'"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": %s}}',
        "json": b'"structured_outputs": {"json": %s }',
    }[place]
    body = b'{"messages": [{"role": "user", "content": "x"}], ' + asked % sent + b"}"
    response = call(make_app(engine), "POST", "/v1/chat/completions", content=body)
    assert response.status_code == 200, response.text
    form = engine.requests[-1].structured_output
    assert form is not None
    assert form.text == sent.decode()


def test_fields_that_change_nothing_do_not_keep_a_form_from_being_read() -> None:
    """A body that holds them is read a second time."""
    form = form_asked(structured_outputs={"json": SCHEMA}, store=False, logit_bias={"5": 1})
    assert form is not None
    assert json.loads(form.text) == SCHEMA


@pytest.mark.parametrize("schema", [b'{"title": "\xff"}', b'"{\xff}"', b'{"a": "\xed\xa0\x80"}'])
def test_a_schema_that_is_no_text_is_refused_where_it_stands(schema: bytes) -> None:
    engine = FakeEngine()
    body = b'{"messages": [{"role": "user", "content": "x"}], "structured_outputs": {"json": %s}}' % schema
    error = error_of(call(make_app(engine), "POST", "/v1/chat/completions", content=body), 400)
    assert error["param"] == "structured_outputs.json"
    assert engine.requests == []


@pytest.mark.parametrize("schema", [True, False])
def test_true_and_false_are_schemas(schema: bool) -> None:
    for fields in (options(json=schema), {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}):
        form = form_asked(**fields)
        assert form is not None
        assert json.loads(form.text) is schema


def test_options_of_json_go_along() -> None:
    form = form_asked(
        structured_outputs={
            "json": {}, "disable_any_whitespace": True, "whitespace_pattern": " ?", "disable_additional_properties": True,
        }
    )  # fmt: skip
    assert form is not None
    assert (form.disable_any_whitespace, form.whitespace_pattern, form.disable_additional_properties) == (True, " ?", True)


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}, {"structured_outputs": None}]
)
def test_free_text_has_no_form(fields: dict[str, Any]) -> None:
    assert form_asked(**fields) is None


def test_completions_take_the_same_fields_for_every_prompt() -> None:
    engine = FakeEngine()
    assert complete(make_app(engine), prompt=["a", "b"], **options(regex="a")).status_code == 200
    assert [request.structured_output is not None for request in engine.requests] == [True, True]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "shema": {}}}, "response_format.shema"),
        (options(), "structured_outputs"),
        (options(json=None), "structured_outputs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": None}}},
            "response_format.json_schema.schema",
        ),
        (options(json_object=False), "structured_outputs"),
        (options(json={}, regex="a"), "structured_outputs"),
        (options(choice=[]), "structured_outputs.choice"),
        (options(choice=[1]), "structured_outputs.choice[0]"),
        (options(regexp="a"), "structured_outputs.regexp"),
        ({"response_format": {"type": "json_object"}, **options(regex="a")}, "structured_outputs"),
        ({"ignore_eos": True, **options(regex="a")}, "ignore_eos"),
    ],
)
def test_what_contradicts_itself_is_refused_where_it_stands(fields: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    assert error_of(chat(make_app(engine), **fields), 400)["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_the_engine_cannot_enforce_is_a_400_streamed_or_not(stream: bool) -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError("structured_outputs.regex cannot be enforced: …", param="structured_outputs.regex")
    response = chat(make_app(engine), stream=stream, **options(regex="(a"))
    assert error_of(response, 400)["param"] == "structured_outputs.regex"


@pytest.mark.parametrize("name", ["guided_json", "guided_regex", "guided_choice", "guided_grammar"])
def test_old_names_lead_to_the_new_one(name: str) -> None:
    assert "structured_outputs" in error_of(chat(make_app(), **{name: "a"}), 400)["message"]

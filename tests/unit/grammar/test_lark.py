"""JSON Schemas inside a grammar in Lark's notation are held to what schemas are held to anywhere."""

import pytest
from tests.walks import accepts, backend_of_bytes

from headrace.base.errors import InvalidRequestError
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

BACKEND = backend_of_bytes(())
DATE = '{"type": "string", "format": "date"}'


def grammar(text: str) -> StructuredOutput:
    return StructuredOutput(kind=OutputKind.GRAMMAR, text=text, field="structured_outputs.grammar")


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ('{"x-guidance": {"lenient": true}, "uniqueItems": true, "type": "array"}', "x-guidance"),
        ('{"disallow": "string"}', "disallow"),
        ('{"type": "integer", "exclusiveMinimum": true}', "exclusiveMinimum"),
        ('{"minProperties": 2}', "minProperties"),
        ('{"type": ', "not valid JSON"),
    ],
)
@pytest.mark.parametrize("before", ["", '// a "comment\n', 'mark: "%json {" /[/]?\\//\n'])
def test_what_would_be_passed_over_is_refused_by_name(schema: str, named: str, before: str) -> None:
    with pytest.raises(InvalidRequestError, match=named) as refused:
        BACKEND.compile(grammar(f'{before}start: "a" other\nother: %json {schema}'))
    assert refused.value.param == "structured_outputs.grammar"


@pytest.mark.parametrize(
    ("answer", "is_valid"), [('<"2024-02-29">', True), ('<"2023-02-29">', False), ('<"2023-02-28">', True)]
)
def test_what_the_library_would_not_enforce_exactly_is_enforced(answer: str, is_valid: bool) -> None:
    assert accepts(BACKEND, grammar(f'start: "<" day ">"\nday: %json {DATE}'), answer) is is_valid


def test_what_only_looks_like_a_schema_is_left_as_it_is() -> None:
    assert accepts(BACKEND, grammar('start: "%json {\\"a\\": 1.50}"'), '%json {"a": 1.50}')

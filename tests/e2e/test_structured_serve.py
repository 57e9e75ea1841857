"""Forms and scores through a real server and a real model, as the official client asks for them."""

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from tests.e2e.real_server import RealServer
from tests.patience import PATIENCE_S

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "水"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
RESPONSE_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
MESSAGES: Any = [{"role": "user", "content": "Invent a person and answer in JSON."}]


@pytest.fixture(scope="module")
def client(server: RealServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(client: openai.OpenAI, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "smollm2-135m", "messages": MESSAGES, "max_tokens": 200, "seed": 1}
    return client.chat.completions.create(**(asked | fields))


def test_every_answer_of_a_request_is_an_instance_of_its_schema(client: openai.OpenAI) -> None:
    # Without white space the form itself ends every answer, whatever is drawn on whatever processor.
    compact = {"json": SCHEMA, "disable_any_whitespace": True}
    answer = create(client, extra_body={"structured_outputs": compact}, n=3, temperature=1.5)
    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_a_stream_concatenates_to_the_answer(client: openai.OpenAI) -> None:
    whole = create(client, response_format=RESPONSE_FORMAT).choices[0].message.content
    stream = create(client, response_format=RESPONSE_FORMAT, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
    jsonschema.validate(json.loads(whole), SCHEMA)


def test_a_stop_string_cuts_an_answer_of_a_form(client: openai.OpenAI) -> None:
    choice = create(client, response_format=RESPONSE_FORMAT, stop=['"age"']).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content.lstrip().startswith("{")
    assert '"age"' not in choice.message.content


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "root ::= nowhere"}, "nowhere"),
        ({"structural_tag": {"format": {"type": "dispatch"}}}, "dispatch"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_enforced_is_a_400_that_names_it_and_harms_nobody(
    client: openai.OpenAI, asked: dict[str, Any], named: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, stream=stream, extra_body={"structured_outputs": asked})
    assert named in refused.value.message
    assert refused.value.body is not None
    answer = create(client, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert answer.choices[0].message.content in ("yes", "no")


def test_prompt_scores_are_the_same_once_the_prompt_is_cached(server: RealServer) -> None:
    asked = {"prompt": "The water ran down the headrace and turned the wheel. " * 4, "max_tokens": 1, "prompt_logprobs": 2,
             "temperature": 0}  # fmt: skip

    def scores() -> Any:
        response = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=PATIENCE_S)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["prompt_logprobs"]

    first = scores()
    assert first[0] is None
    assert len(first) > 20
    assert scores() == first


def test_an_evaluation_harness_gets_the_prompts_own_log_probabilities(server: RealServer) -> None:
    asked = {"prompt": "The mill stands by the water", "max_tokens": 0, "echo": True, "logprobs": 1}
    answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=PATIENCE_S).json()
    scores = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["text"] == asked["prompt"]
    assert "".join(scores["tokens"]) == asked["prompt"]
    assert scores["token_logprobs"][0] is None
    assert all(logprob <= 0 for logprob in scores["token_logprobs"][1:])

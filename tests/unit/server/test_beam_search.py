"""Beam search at the doors: what the engine is asked, and what beams cannot be combined with."""

from typing import Any

import pytest
from tests.fakes import FakeEngine
from tests.unit.server.asgi import chat, complete, error_of, events_of, make_app

from headrace.engine.mind.sampling_params import BeamSearch, EarlyStopping

TOOLS = [{"type": "function", "function": {"name": "stop"}}]


def test_chat_searches_as_wide_as_the_answers_are_many() -> None:
    engine = FakeEngine()
    response = chat(make_app(engine), use_beam_search=True, n=3, length_penalty=0.5, early_stopping=True, temperature=0.7)
    assert len(response.json()["choices"]) == 3
    (request,) = engine.requests
    assert request.num_sequences == 3
    assert request.sampling.beam_search == BeamSearch(width=3, length_penalty=0.5, early_stopping=EarlyStopping.WHEN_FULL)


def test_completions_may_search_wider_than_they_answer() -> None:
    engine = FakeEngine()
    response = complete(make_app(engine), use_beam_search=True, n=2, best_of=5, early_stopping="never")
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1]
    (request,) = engine.requests
    assert (request.num_sequences, request.sampling.logprobs) == (2, -1), "the engine ranks; the server need not"
    assert request.sampling.beam_search == BeamSearch(width=5, early_stopping=EarlyStopping.WHEN_HOPELESS)


def test_a_stream_of_a_search_is_a_stream() -> None:
    app = make_app()
    whole = complete(app, use_beam_search=True, n=2, best_of=4).json()["choices"]
    texts = ["", ""]
    for event in events_of(complete(app, use_beam_search=True, n=2, best_of=4, stream=True)):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"early_stopping": "never"}, "early_stopping"),
        ({"use_beam_search": True, "early_stopping": "perhaps"}, "early_stopping"),
        ({"use_beam_search": True, "length_penalty": 1000.0}, "length_penalty"),
        ({"use_beam_search": True, "stop": ["\n"]}, "stop"),
        ({"use_beam_search": True, "structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        ({"use_beam_search": True, "response_format": {"type": "json_object"}}, "response_format"),
        ({"use_beam_search": True, "repetition_detection": {"max_pattern_size": 4}}, "repetition_detection"),
        ({"use_beam_search": True, "n": 3, "allowed_token_ids": [65, 66]}, "allowed_token_ids"),
        ({"use_beam_search": True, "n": 1000}, "n"),
    ],
)
def test_what_beams_cannot_give_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    for door in (chat, complete):
        error = error_of(door(make_app(), **fields), 400)
        assert error["param"] == param
        assert param.split(".")[0] in error["message"]


def test_more_refusals_of_single_doors() -> None:
    assert error_of(complete(make_app(), use_beam_search=True, n=3, best_of=2), 400)["param"] == "best_of"
    assert error_of(chat(make_app(), use_beam_search=True, tools=TOOLS, tool_choice="required"), 400)["param"] == "tools"
    error = error_of(chat(make_app(), use_beam_search=True, logprobs=True, logprob_token_ids=[65]), 400)
    assert error["param"] == "logprob_token_ids"


def test_values_that_ask_for_nothing_need_no_search() -> None:
    assert chat(make_app(), use_beam_search=False, length_penalty=1, early_stopping=False).status_code == 200

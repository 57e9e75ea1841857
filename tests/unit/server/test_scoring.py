"""Conditions on tokens, scores of the prompt, and answers that compete: from the client's fields to the answer's."""

from typing import Any

import pytest
from tests.fakes import BOS, FakeEngine, fixed_answer
from tests.unit.server.asgi import chat, complete, error_of, events_of, make_app

from headrace.engine.host.generation import GenerationRequest
from headrace.engine.mind.sampling_params import RepetitionDetection
from headrace.server.config import ServerConfig


def asked(**fields: Any) -> GenerationRequest:
    engine = FakeEngine()
    response = complete(make_app(engine), **fields)
    assert response.status_code == 200, response.text
    return engine.requests[-1]


def test_conditions_on_tokens_reach_the_engine() -> None:
    sampling = asked(
        allowed_token_ids=[65, 66], logprobs=0, logprob_token_ids=[65],
        repetition_detection={"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 4},
    ).sampling  # fmt: skip
    assert sampling.allowed_token_ids == (65, 66)
    assert sampling.logprob_token_ids == (65,)
    assert sampling.repetition_detection == RepetitionDetection(max_pattern_size=8, min_pattern_size=2, min_count=4)


def test_bad_words_are_spelt_at_a_beginning_and_after_a_space() -> None:
    assert asked(bad_words=["no", " so"]).sampling.bad_words_token_ids == (tuple(b"no"), tuple(b" no"), tuple(b" so"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [100_000]}, "allowed_token_ids"),
        ({"bad_words": ["a", " "]}, "bad_words[1]"),
        ({"bad_words": ["x"] * 1001}, "bad_words"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprobs": 1, "logprob_token_ids": [100_000]}, "logprob_token_ids"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"repetition_detection": {"max_pattern_size": 0}}, "repetition_detection.max_pattern_size"),
        ({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3}}, "repetition_detection.min_pattern_size"),
        ({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}}, "repetition_detection.min_count"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 10_000}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "stream": True}, "stream"),
    ],
)
def test_what_has_no_sense_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert error_of(complete(make_app(), **fields), 400)["param"] == param


# Truncation


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, list(b"def")),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [BOS, *b"ab"]),
        ({"truncate_prompt_tokens": 100}, [BOS, *b"abcdef"]),
        ({"truncate_prompt_tokens": None, "truncation_side": "left"}, [BOS, *b"abcdef"]),
    ],
)
def test_a_prompt_is_cut_on_the_side_asked_for(fields: dict[str, Any], kept: list[int]) -> None:
    assert list(asked(prompt="abcdef", **fields).prompt_token_ids) == kept


def test_minus_one_keeps_what_leaves_room_for_the_answer() -> None:
    engine = FakeEngine(max_model_len=20)
    assert complete(make_app(engine), prompt="x" * 100, max_tokens=8, truncate_prompt_tokens=-1).status_code == 200
    assert len(engine.requests[-1].prompt_token_ids) == 12


def test_an_echo_of_a_cut_prompt_is_what_was_kept() -> None:
    answer = complete(make_app(FakeEngine(fixed_answer("!"))), prompt="abcdef", truncate_prompt_tokens=2, echo=True)
    assert answer.json()["choices"][0]["text"] == "ef!"


# Scores of the prompt


def test_prompt_scores_of_a_completion_stand_with_its_choice() -> None:
    choice = complete(make_app(), prompt="ab", prompt_logprobs=2).json()["choices"][0]
    nothing, first, second = choice["prompt_logprobs"]
    assert nothing is None
    assert first[str(ord("a"))]["rank"] == 1
    assert first[str(ord("a"))]["decoded_token"] == "a"
    assert set(second) == {str(ord("b")), str(ord("c"))}


def test_prompt_scores_of_a_chat_stand_with_the_answer() -> None:
    app = make_app()
    answer = chat(app, prompt_logprobs=0).json()
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in chat(app).json()


def test_echo_begins_the_log_probabilities_with_the_prompts() -> None:
    app = make_app(FakeEngine(fixed_answer("xyz")))
    choice = complete(app, prompt="ab", echo=True, logprobs=1, max_tokens=2).json()["choices"][0]
    scores = choice["logprobs"]
    assert choice["text"] == "abxy"
    assert scores["tokens"] == ["<|bos|>", "a", "b", "x", "y"]
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    assert all(logprob < 0 for logprob in scores["token_logprobs"][1:])
    assert scores["text_offset"] == [0, 0, 1, 2, 3]


def test_a_stream_with_echo_tells_the_same_log_probabilities() -> None:
    app = make_app(FakeEngine(fixed_answer("xyz")))
    fields: dict[str, Any] = {"prompt": ["ab", "cd"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 2}
    whole = {c["index"]: c["logprobs"] for c in complete(app, **fields).json()["choices"]}
    streamed: dict[int, dict[str, list[Any]]] = {}
    for event in events_of(complete(make_app(FakeEngine(fixed_answer("xyz"))), stream=True, **fields)):
        for choice in event["choices"]:
            if choice["logprobs"] is not None:
                collected = streamed.setdefault(choice["index"], {name: [] for name in choice["logprobs"]})
                for name, values in choice["logprobs"].items():
                    collected[name] += values
    assert streamed == whole


def test_with_echo_no_token_at_all_may_be_asked_for() -> None:
    answer = complete(make_app(), prompt="ab", echo=True, logprobs=0, max_tokens=0).json()
    choice = answer["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"] == ["<|bos|>", "a", "b"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


# Answers that compete


def test_best_of_gives_the_most_probable_answers_per_token() -> None:
    def answer(request: GenerationRequest, index: int) -> list[int]:
        return [*f"answer {index}".encode(), 257]

    engine = FakeEngine(answer)
    likely = {0: -3.0, 1: -1.0, 2: -2.0}
    original = engine._advance

    def scored(request: GenerationRequest, sequence: Any) -> Any:
        from msgspec.structs import replace

        chunk = original(request, sequence)
        return replace(chunk, logprobs=tuple(replace(one, logprob=likely[sequence.index]) for one in chunk.logprobs))

    engine._advance = scored  # type: ignore[method-assign]
    response = complete(make_app(engine), best_of=3, n=2, max_tokens=20).json()
    assert [choice["text"] for choice in response["choices"]] == ["answer 1", "answer 2"]
    assert [choice["index"] for choice in response["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in response["choices"])
    assert engine.requests[-1].num_sequences == 3
    assert response["usage"]["completion_tokens"] == 3 * len("answer 0.")


def test_best_of_is_bounded_like_n() -> None:
    assert error_of(complete(make_app(config=ServerConfig(max_n=4)), best_of=5), 400)["param"] == "best_of"

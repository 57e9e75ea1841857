"""What an answer holds beside its text where a request asks for it: token ids as names, the prompt, the last message; and
how often a stream speaks."""

from typing import Any

import pytest
from tests.fakes import FakeEngine, fixed_answer
from tests.unit.server.asgi import chat, complete, events_of, make_app

TURNS = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Once upon"}]


def test_tokens_are_named_by_their_ids_in_logprobs() -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    app = make_app(FakeEngine(fixed_answer("AB")))
    tokens = chat(app, **fields).json()["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in tokens[:2]] == ["token_id:65", "token_id:66"]
    assert [one["token"] for one in tokens[0]["top_logprobs"]] == ["token_id:65", "token_id:66"]
    assert tokens[0]["bytes"] == [65]
    streamed = [
        one["token"]
        for event in events_of(chat(app, stream=True, **fields))
        for choice in event["choices"]
        if choice.get("logprobs")
        for one in choice["logprobs"]["content"]
    ]
    assert streamed == [one["token"] for one in tokens]
    written = complete(app, logprobs=2, return_tokens_as_token_ids=True).json()["choices"][0]["logprobs"]
    assert written["tokens"][:2] == ["token_id:65", "token_id:66"]
    assert set(written["top_logprobs"][0]) == {"token_id:65", "token_id:66"}


def test_the_rendered_prompt_comes_back_even_where_it_was_cut() -> None:
    app = make_app()
    answer = chat(app, return_prompt_text=True, truncate_prompt_tokens=5).json()
    assert answer["prompt_text"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    first, *others = events_of(chat(app, return_prompt_text=True, stream=True))
    assert first["prompt_text"] == answer["prompt_text"]
    assert not any("prompt_text" in event for event in others)
    assert "prompt_text" not in chat(app).json()


def test_an_assistants_last_message_is_repeated_before_its_continuation() -> None:
    app = make_app(FakeEngine(fixed_answer(" a time")))
    fields: dict[str, Any] = {
        "messages": TURNS,
        "continue_final_message": True,
        "echo": True,
    }
    assert chat(app, **fields).json()["choices"][0]["message"]["content"] == "Once upon a time"
    said = ""
    for event in events_of(chat(app, stream=True, **fields)):
        for choice in event["choices"]:
            said += choice["delta"].get("content") or ""
    assert said == "Once upon a time"


def test_a_users_last_message_is_not_repeated() -> None:
    app = make_app(FakeEngine(fixed_answer("hi")))
    assert chat(app, echo=True).json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("interval", [1, 3, 100])
def test_a_stream_speaks_as_often_as_asked_and_says_the_same(interval: int) -> None:
    app = make_app(FakeEngine(fixed_answer("naïve river water")))
    fields: dict[str, Any] = {"n": 2, "max_tokens": 50, "return_token_ids": True, "logprobs": 0}
    whole = complete(app, **fields).json()["choices"]
    events = events_of(complete(app, stream=True, stream_interval=interval, **fields))
    for index in (0, 1):
        choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in choices) == whole[index]["text"]
        assert [token for choice in choices for token in choice["token_ids"]] == whole[index]["token_ids"]
        told = [one for choice in choices for one in (choice["logprobs"] or {"tokens": []})["tokens"]]
        assert told == whole[index]["logprobs"]["tokens"]
        sizes = [len(choice["token_ids"]) for choice in choices]
        assert sizes[0] == 1, "the first comes at once"
        assert all(size == interval for size in sizes[1:-1])
        assert len(sizes) <= 2 + len(whole[index]["token_ids"]) // interval

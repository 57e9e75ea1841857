"""What each accepted parameter becomes on its way to the engine, and where its limits are."""

from typing import Any

import pytest
from tests.fakes import BOS, FakeEngine
from tests.unit.server.asgi import chat, complete, error_of, make_app

from headrace.engine.host.generation import GenerationRequest
from headrace.server.config import ServerConfig


def asked(engine: FakeEngine, /, **fields: Any) -> GenerationRequest:
    """What the engine is asked for a chat request with these fields."""
    response = chat(make_app(engine), **fields)
    assert response.status_code == 200, response.text
    return engine.requests[-1]


def test_every_sampling_parameter_reaches_the_engine() -> None:
    request = asked(
        FakeEngine(policy="priority"),
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=-7,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={"65": -100, "66": 2.5},
        logprobs=True,
        top_logprobs=3,
        stop_token_ids=[10, 13],
        ignore_eos=True,
        stop=["END", "\n\n"],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        cache_salt="tenant",
        priority=-3,
        n=2,
    )
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature) == (9, 2, 0.5)
    assert (sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0.9, 40, 0.05, -7)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, -0.5, 0.25)
    assert sampling.logit_bias == {65: -100, 66: 2.5}
    assert (sampling.logprobs, sampling.stop_token_ids, sampling.ignore_eos) == (3, (10, 13), True)
    assert (request.stop, request.include_stop_str_in_output) == (("END", "\n\n"), True)
    assert (request.skip_special_tokens, request.cache_salt) == (False, "tenant")
    assert (request.priority, request.num_sequences) == (-3, 2)


def test_absent_and_null_parameters_take_the_apis_defaults() -> None:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
             "logit_bias", "logprobs", "top_logprobs", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "n",
             "cache_salt", "priority", "stream", "stream_options", "user", "metadata", "seed",
             "skip_special_tokens")  # fmt: skip
    request = asked(FakeEngine(), **dict.fromkeys(names))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (sampling.logit_bias, sampling.logprobs, sampling.stop_token_ids) == ({}, -1, ())
    assert (sampling.ignore_eos, sampling.min_tokens) == (False, 0)
    assert (request.stop, request.cache_salt, request.priority, request.num_sequences) == ((), "", 0, 1)
    assert request.skip_special_tokens


def test_the_models_own_defaults_come_before_the_apis_and_after_the_clients() -> None:
    own: dict[str, float | int] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
    sampling = asked(FakeEngine(default_sampling=own), temperature=None, top_k=5).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 5)
    assert sampling.repetition_penalty == 1.05


def test_a_request_without_a_seed_gets_a_new_one_each_time() -> None:
    engine = FakeEngine()
    assert asked(engine).sampling.seed != asked(engine).sampling.seed
    assert asked(engine, seed=0).sampling.seed == 0


def test_chat_may_use_all_the_room_that_the_prompt_leaves() -> None:
    request = asked(FakeEngine(max_model_len=300), max_tokens=None)
    assert request.sampling.max_tokens == 300 - len(request.prompt_token_ids)


def test_completions_default_to_sixteen_tokens_or_what_is_left() -> None:
    engine = FakeEngine(max_model_len=30)
    app = make_app(engine)
    assert complete(app, prompt="a", max_tokens=None).status_code == 200
    assert engine.requests[-1].sampling.max_tokens == 16
    assert complete(app, prompt="a" * 20, max_tokens=None).status_code == 200
    assert engine.requests[-1].sampling.max_tokens == 9


def test_the_two_names_of_max_tokens_must_agree() -> None:
    app = make_app()
    assert chat(app, max_tokens=5, max_completion_tokens=5).status_code == 200
    assert error_of(chat(app, max_tokens=5, max_completion_tokens=6), 400)["param"] == "max_completion_tokens"
    engine = FakeEngine()
    assert asked(engine, max_tokens=None, max_completion_tokens=7).sampling.max_tokens == 7


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_prompt_and_answer_that_do_not_fit_are_refused_with_the_numbers(field: str) -> None:
    app = make_app(FakeEngine(max_model_len=100))
    fields = {"max_tokens": None} | {field: 90}
    error = error_of(chat(app, **fields), 400)
    assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    num_prompt = len(chat_prompt_tokens())
    for number in (100, num_prompt + 90, num_prompt, 90):
        assert str(number) in error["message"]


def chat_prompt_tokens() -> list[int]:
    engine = FakeEngine()
    return list(asked(engine).prompt_token_ids)


def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers() -> None:
    app = make_app(FakeEngine(max_model_len=20))
    error = error_of(complete(app, prompt=[1] * 20, max_tokens=None), 400)
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "20 tokens" in error["message"]
    assert complete(app, prompt=[1] * 19, max_tokens=1).status_code == 200


@pytest.mark.parametrize("door", ["chat", "prompt", "one prompt of two"])
def test_of_a_text_that_is_far_too_long_a_beginning_alone_is_tokenised(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(max_model_len=100)
    num_chars: list[int] = []
    encode = engine.tokenizer.encode

    def noting(text: str, **how: bool) -> list[int]:
        num_chars.append(len(text))
        return encode(text, **how)

    monkeypatch.setattr(engine.tokenizer, "encode", noting)
    long = "x" * 100_000
    app = make_app(engine)
    if door == "chat":
        response = chat(app, messages=[{"role": "user", "content": long}])
    else:
        response = complete(app, prompt=long if door == "prompt" else ["good", long])
    error = error_of(response, 400)
    assert (error["param"], error["code"]) == ("messages" if door == "chat" else "prompt", "context_length_exceeded")
    assert "100 tokens" in error["message"]
    assert 0 < sum(num_chars) < 5_000


def test_a_long_text_that_is_to_be_cut_is_tokenised_whole() -> None:
    engine = FakeEngine(max_model_len=100)
    text = "x" * 100_000 + "the end"
    assert complete(make_app(engine), prompt=text, truncate_prompt_tokens=7, max_tokens=1).status_code == 200
    assert bytes(engine.requests[-1].prompt_token_ids).decode() == "the end"


def test_a_long_text_of_few_tokens_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tokenizers drop white space, or have tokens for much of it."""
    engine = FakeEngine(max_model_len=100)
    encode = engine.tokenizer.encode
    monkeypatch.setattr(engine.tokenizer, "encode", lambda text, **how: encode(" ".join(text.split()), **how))
    assert complete(make_app(engine), prompt="a" + " " * 100_000 + "b", max_tokens=1).status_code == 200
    assert len(engine.requests[-1].prompt_token_ids) <= 4


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, 10**30]),
        ("min_tokens", [-1, 9]),
        ("temperature", [-0.1, 101]),
        ("top_p", [0, -1, 1.1]),
        ("top_k", [-2, 2**31]),
        ("min_p", [-0.1, 1.5]),
        ("seed", [2**64, -(2**63) - 1, 10**100]),
        ("repetition_penalty", [0, -1]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("logit_bias", [{"65": 101}, {"-1": 0}, {"260": 1}, {str(10**30): 1}]),
        ("stop_token_ids", [[-1], [260], [10**30]]),
        ("n", [0, -1, 129, 10**30]),
        ("stop", ["", ["a", ""], ["a"] * 65]),
        ("cache_salt", ["", "x" * 1025]),
        ("priority", [1, -1]),
        ("request_id", ["", "two words", "x" * 129, "line\nbreak", "naïve"]),
        ("stream_options", [{"include_usage": True}]),
    ],
)  # fmt: skip
def test_values_beyond_a_limit_are_refused_by_name(field: str, values: list[Any]) -> None:
    app = make_app()
    for value in values:
        for response in (chat(app, **{field: value}), complete(app, **{field: value})):
            assert error_of(response, 400)["param"] == field, value


@pytest.mark.parametrize("value", [2**31, -(2**31), 10**30])
def test_priorities_are_limited_even_where_they_are_obeyed(value: int) -> None:
    app = make_app(FakeEngine(policy="priority"))
    assert error_of(chat(app, priority=value), 400)["param"] == "priority"


@pytest.mark.parametrize(
    ("field", "values"),
    [("top_p", [1, 1e-9]), ("top_k", [-1, 0]), ("temperature", [0, 2]), ("seed", [2**64 - 1, -(2**63)]),
     ("n", [1, 128]), ("stop", [[], ["a"] * 64]), ("cache_salt", ["x", "x" * 1024]), ("priority", [0]),
     ("logit_bias", [{}, {"259": 100}]), ("user", ["me"]), ("metadata", [{}, {"a": "b"}]),
     ("safety_identifier", ["s"]), ("prompt_cache_key", ["k"]), ("request_id", ["x" * 128]),
     ("model", ["fake-model", "fake-alias"])],
)  # fmt: skip
def test_values_at_a_limit_are_accepted(field: str, values: list[Any]) -> None:
    app = make_app()
    for value in values:
        assert chat(app, **{field: value}).status_code == 200, value
        assert complete(app, **{field: value}).status_code == 200, value


def test_a_model_that_is_not_served_is_404_with_the_nearest_name() -> None:
    error = error_of(chat(make_app(), model="fake-modle"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'fake-model'" in error["message"]
    assert len(error_of(chat(make_app(), model="m" * 100_000), 404)["message"]) < 500


@pytest.mark.parametrize("value", [-1, 21, 10**30])
def test_top_logprobs_are_limited_under_their_own_name(value: int) -> None:
    app = make_app()
    assert error_of(chat(app, logprobs=True, top_logprobs=value), 400)["param"] == "top_logprobs"
    assert error_of(complete(app, logprobs=value), 400)["param"] == "logprobs"


def test_top_logprobs_need_logprobs() -> None:
    app = make_app()
    assert error_of(chat(app, top_logprobs=2), 400)["param"] == "top_logprobs"
    assert chat(app, top_logprobs=0).status_code == 200
    assert error_of(complete(app, logprobs=True), 400)["param"] == "logprobs"
    assert complete(app, logprobs=False).json()["choices"][0]["logprobs"] is None


# Prompts


def prompts_asked(engine: FakeEngine, prompt: Any, **fields: Any) -> list[list[int]]:
    response = complete(make_app(engine), prompt=prompt, **fields)
    assert response.status_code == 200, response.text
    return [list(request.prompt_token_ids) for request in engine.requests]


def test_a_prompt_may_be_text_texts_ids_or_lists_of_ids() -> None:
    assert prompts_asked(FakeEngine(), "ab") == [[BOS, 97, 98]]
    assert prompts_asked(FakeEngine(), ["a", "b"]) == [[BOS, 97], [BOS, 98]]
    assert prompts_asked(FakeEngine(), [97, 98]) == [[97, 98]]
    assert prompts_asked(FakeEngine(), [[97], [98, 99]]) == [[97], [98, 99]]
    assert prompts_asked(FakeEngine(), ["a", [98]]) == [[BOS, 97], [98]]


def test_completions_let_the_tokenizer_add_its_special_tokens_unless_told_not_to() -> None:
    assert prompts_asked(FakeEngine(), "a", add_special_tokens=False) == [[97]]


@pytest.mark.parametrize("prompt", [[], [[]], ["a", []], [1, "a"], [1, [2]]])
def test_prompts_that_are_empty_or_mixed_are_refused(prompt: Any) -> None:
    assert error_of(complete(make_app(), prompt=prompt), 400)["param"] == "prompt"


def test_an_empty_text_is_a_prompt_only_where_the_tokenizer_adds_something() -> None:
    assert prompts_asked(FakeEngine(), "") == [[BOS]]
    assert error_of(complete(make_app(), prompt="", add_special_tokens=False), 400)["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([1, 260], "prompt[1]"), ([-1], "prompt[0]"), ([[1], [2, 10**30]], "prompt[1][1]")],
)
def test_token_ids_that_the_model_does_not_have_are_named(prompt: Any, param: str) -> None:
    error = error_of(complete(make_app(), prompt=prompt), 400)
    assert error["param"] == param
    assert "259" in error["message"]


def test_nothing_reaches_the_engine_unless_every_prompt_is_good() -> None:
    engine = FakeEngine(max_model_len=100)
    assert error_of(complete(make_app(engine), prompt=["good", "x" * 200]), 400)["code"] == "context_length_exceeded"
    assert engine.requests == []


def test_too_many_prompts_are_refused_with_the_limit() -> None:
    app = make_app(config=ServerConfig(max_prompts=3, access_log=False))
    assert complete(app, prompt=["a"] * 3).status_code == 200
    assert "3" in error_of(complete(app, prompt=["a"] * 4), 400)["message"]


def test_a_long_prompt_is_tokenised_like_a_short_one() -> None:
    engine = FakeEngine(max_model_len=100_000)
    assert prompts_asked(engine, ["a" * 50_000, "b"]) == [[BOS] + [97] * 50_000, [BOS, 98]]


# Conversations


def rendered(**fields: Any) -> str:
    engine = FakeEngine()
    request = asked(engine, **fields)
    return engine.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)


def test_a_conversation_is_rendered_by_the_template_and_gets_no_further_special_tokens() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert rendered(messages=messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(messages=messages, add_special_tokens=True).startswith("<|bos|><|im_start|>system")


def test_a_developer_speaks_as_the_system() -> None:
    assert rendered(messages=[{"role": "developer", "content": "x"}]).startswith("<|im_start|>system\nx")


def test_text_parts_reach_the_template_as_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "user\none\ntwo<|im_end|>" in rendered(messages=[{"role": "user", "content": parts}])


def test_the_answer_may_continue_the_last_message() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    assert rendered(messages=messages, continue_final_message=True).endswith("assistant\nWell,")
    assert rendered(messages=messages, add_generation_prompt=False).endswith("Well,<|im_end|>\n")
    both = chat(make_app(), continue_final_message=True, add_generation_prompt=True)
    assert error_of(both, 400)["param"] == "continue_final_message"


def test_template_variables_are_passed_on_but_may_not_redefine_what_other_fields_say() -> None:
    assert rendered(chat_template_kwargs={"enable_thinking": False}).endswith("<think></think>")
    for name in ("self", "messages", "tools", "add_generation_prompt", "continue_final_message"):
        error = error_of(chat(make_app(), chat_template_kwargs={name: True}), 400)
        assert error["param"] == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("documents", [5, {}, "x", ["x"]])
def test_documents_for_a_template_are_a_list_of_objects(documents: Any) -> None:
    error = error_of(chat(make_app(), chat_template_kwargs={"documents": documents}), 400)
    assert error["param"] == "chat_template_kwargs.documents"
    assert chat(make_app(), chat_template_kwargs={"documents": [{"text": "x"}]}).status_code == 200


def test_a_conversation_that_the_template_will_not_have_is_the_callers_fault() -> None:
    error = error_of(chat(make_app(), messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}]), 400)
    assert "cannot begin" in error["message"]


def test_an_empty_conversation_is_refused() -> None:
    assert error_of(chat(make_app(), messages=[]), 400)["param"] == "messages"


@pytest.mark.parametrize(
    ("message", "param"),
    [({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[0].tool_call_id"),
     ({"role": "user", "content": "x", "reasoning": "hm"}, "messages[0].reasoning")],
)  # fmt: skip
def test_fields_of_another_role_are_refused(message: dict[str, str], param: str) -> None:
    assert error_of(chat(make_app(), messages=[message]), 400)["param"] == param


def test_names_reasoning_and_calls_reach_the_template() -> None:
    seen: list[Any] = []

    class Watching:
        source = "tools"

        def render(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            seen.extend(messages)
            return "x"

    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Ann"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "tool", "content": "c", "tool_call_id": "7"},
    ]
    assert chat(make_app(chat_template=Watching()), messages=messages).status_code == 200
    assert seen == [
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Ann"},
        {"role": "assistant", "content": "b", "reasoning": "hm", "reasoning_content": "hm"},
        {"role": "tool", "content": "c", "tool_call_id": "7"},
    ]


def test_a_clients_template_is_refused_unless_the_server_trusts_it() -> None:
    error = error_of(chat(make_app(), chat_template="{{ messages }}"), 400)
    assert error["param"] == "chat_template"
    assert "--trust-request-chat-template" in error["message"]


def test_a_trusted_clients_template_is_used() -> None:
    class Constant:
        def __init__(self, source: str | None) -> None:
            self._source = source

        @property
        def source(self) -> str | None:
            return self._source

        def render(self, *args: Any, **kwargs: Any) -> str:
            assert self._source is not None
            return self._source

    engine = FakeEngine()
    app = make_app(engine, compile_chat_template=Constant)
    assert chat(app, chat_template="river").status_code == 200
    assert engine.tokenizer.decode(engine.requests[-1].prompt_token_ids) == "river"


# Ids


def test_ids_come_from_the_request_else_from_the_header_else_they_are_new() -> None:
    app = make_app()
    assert chat(app, request_id="mine").json()["id"] == "chatcmpl-mine"
    assert complete(app, request_id="mine").json()["id"] == "cmpl-mine"
    assert chat(app).json()["id"] != chat(app).json()["id"]


def test_the_engine_never_sees_the_same_id_twice_whatever_clients_choose() -> None:
    engine = FakeEngine()
    app = make_app(engine)
    for _ in range(3):
        assert complete(app, request_id="same", prompt=["a", "b"]).status_code == 200
    assert len({request.request_id for request in engine.requests}) == 6

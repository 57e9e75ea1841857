"""Every field of vLLM's chat and completion requests beyond OpenAI's: it does what it says, or a 400 names it. None is
silently ignored.

The list is kept here as those requests have it. What "does what it says" means is shown field by field: the engine is asked
something else, or the answer holds something else; a few are hints, which change nothing and say so in their description.
"""

from typing import Any

import msgspec
import pytest
from tests.fakes import FakeEngine, fixed_answer
from tests.unit.server.asgi import chat, complete, error_of, events_of, make_app

from headrace.engine.host.chat_template import ChatTemplate
from headrace.protocol.openai import ChatCompletionRequest, CompletionRequest
from headrace.server.config import ServerConfig

TEMPLATE = ChatTemplate(
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% for document in documents or [] %}{{ document.text }}{% endfor %}{{ reasoning_effort }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}",
    {},
)
PROMPT = [{"role": "user", "content": "hello"}]
LAST_TURN = [*PROMPT, {"role": "assistant", "content": "Once"}]

BOTH: dict[str, dict[str, Any]] = {
    "use_beam_search": {"use_beam_search": True, "n": 2},
    "top_k": {"top_k": 3, "temperature": 1},
    "min_p": {"min_p": 0.2, "temperature": 1},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "length_penalty": {"use_beam_search": True, "length_penalty": 0.5},
    "early_stopping": {"use_beam_search": True, "early_stopping": "never"},
    "watermarking": {"watermarking": True},
    "stop_token_ids": {"stop_token_ids": [46]},
    "include_stop_str_in_output": {"include_stop_str_in_output": True},
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": 3},
    "skip_special_tokens": {"skip_special_tokens": False},
    "spaces_between_special_tokens": {"spaces_between_special_tokens": False},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 3},
    "truncation_side": {"truncate_prompt_tokens": 3, "truncation_side": "right"},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "logprob_token_ids": {"logprobs": True, "logprob_token_ids": [65]},
    "allowed_token_ids": {"allowed_token_ids": [65, 66]},
    "bad_words": {"bad_words": ["river"]},
    "thinking_token_budget": {"thinking_token_budget": 5},
    "echo": {"echo": True, "messages": LAST_TURN},
    "structured_outputs": {"structured_outputs": {"choice": ["a", "b"]}},
    "priority": {"priority": 2},
    "request_id": {"request_id": "mine"},
    "session_id": {"session_id": "talk"},
    "return_tokens_as_token_ids": {"logprobs": True, "return_tokens_as_token_ids": True},
    "return_token_ids": {"return_token_ids": True},
    "return_token_offsets": {"return_token_offsets": True},
    "return_prompt_text": {"return_prompt_text": True},
    "cache_salt": {"cache_salt": "tenant"},
    "kv_transfer_params": {"kv_transfer_params": {"do_remote_decode": True}},
    "ec_transfer_params": {"ec_transfer_params": {"a": 1}},
    "vllm_xargs": {"vllm_xargs": {"a": 1}},
    "repetition_detection": {"repetition_detection": {"max_pattern_size": 3}},
    "stream_interval": {"stream": True, "stream_interval": 4},
}
CHAT_ONLY: dict[str, dict[str, Any]] = {
    "reasoning_effort": {"reasoning_effort": "high"},
    "include_reasoning": {"include_reasoning": False},
    "add_generation_prompt": {"add_generation_prompt": False},
    "add_special_tokens": {"add_special_tokens": True},
    "continue_final_message": {"continue_final_message": True, "messages": LAST_TURN},
    "documents": {"documents": [{"title": "a", "text": "b"}]},
    "chat_template": {"chat_template": "{{ messages }}"},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "media_io_kwargs": {"media_io_kwargs": {"image": {}}},
    "mm_processor_kwargs": {"mm_processor_kwargs": {"size": 1}},
}
COMPLETIONS_ONLY: dict[str, dict[str, Any]] = {
    "add_special_tokens": {"add_special_tokens": False},
    "best_of": {"use_beam_search": True, "best_of": 3},
}
HINTS = {"session_id"}
"""Accepted without effect, as their descriptions say."""
PARTNERS: dict[str, dict[str, Any]] = {
    # What a field is given together with, and is compared to.
    "use_beam_search": {"n": 2},
    "length_penalty": {"use_beam_search": True},
    "early_stopping": {"use_beam_search": True},
    "best_of": {"use_beam_search": True},
    "truncation_side": {"truncate_prompt_tokens": 3},
    "logprob_token_ids": {"logprobs": True},
    "return_tokens_as_token_ids": {"logprobs": True},
    "stream_interval": {"stream": True},
    "echo": {"messages": LAST_TURN},
    "continue_final_message": {"messages": LAST_TURN, "add_generation_prompt": False},
}


class Told:
    """What a request led to: what the engine was asked, and what the client was told."""

    def __init__(self, fields: dict[str, Any], *, is_chat: bool) -> None:
        engine = FakeEngine(fixed_answer("<think>hm</think>river water"), policy="priority")
        engine.tokens_per_step = 2
        app = make_app(engine, ServerConfig(access_log=False, reasoning_parser="think"), chat_template=TEMPLATE)
        body = {"seed": 7, "max_tokens": 40, "request_id": "same", **fields}
        if not is_chat:
            body.pop("messages", None)
            if body.get("logprobs") is True:
                body["logprobs"] = 1
        response = (chat if is_chat else complete)(app, **body)
        self.status = response.status_code
        self.error = response.json()["error"] if self.status != 200 else None
        asked = engine.requests[-1] if engine.requests else None
        self.asked = None if asked is None else msgspec.msgpack.encode(
            [asked.prompt_token_ids, asked.sampling, asked.num_sequences, asked.priority, asked.cache_salt, asked.stop,
             asked.include_stop_str_in_output, asked.skip_special_tokens, asked.structured_output]
        )  # fmt: skip
        if self.status == 200:
            answers = events_of(response) if body.get("stream") else [response.json()]
            self.said = msgspec.json.encode([{**answer, "created": 0} for answer in answers])


@pytest.mark.parametrize("name", [*BOTH, *CHAT_ONLY])
def test_chat_carries_every_field_out_or_refuses_it_by_name(name: str) -> None:
    assert_heeded(name, (BOTH | CHAT_ONLY)[name], is_chat=True)


@pytest.mark.parametrize("name", [*BOTH, *COMPLETIONS_ONLY])
def test_completions_carry_every_field_out_or_refuse_it_by_name(name: str) -> None:
    assert_heeded(name, (BOTH | COMPLETIONS_ONLY)[name], is_chat=False)


def assert_heeded(name: str, fields: dict[str, Any], *, is_chat: bool) -> None:
    told = Told(fields, is_chat=is_chat)
    if told.error is not None:
        assert told.status == 400
        assert (told.error["param"] or "").split(".")[0] == name
        assert name in told.error["message"]
        return
    without = Told(PARTNERS.get(name, {}), is_chat=is_chat)
    assert without.error is None
    if name in HINTS:
        request = ChatCompletionRequest if is_chat else CompletionRequest
        (field,) = (one for one in msgspec.inspect.type_info(request).fields if one.name == name)  # type: ignore[attr-defined]
        assert "Accepted; " in str(field.type)
        return
    assert (told.asked, told.said) != (without.asked, without.said), f"{name} was silently ignored"


def test_fields_that_are_no_chat_matter_are_unknown_to_completions() -> None:
    for name in CHAT_ONLY.keys() - COMPLETIONS_ONLY.keys():
        assert error_of(complete(make_app(), **{name: CHAT_ONLY[name][name]}), 400)["param"] == name

"""From what a client says to the token ids that the model reads: conversations rendered, texts tokenised, ids checked.

Knows the chat template and the tokenizer as interfaces. Does not know sampling, answers or HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.base.errors import ContextLengthError, InvalidRequestError
from headrace.protocol.openai import ChatCompletionRequest, ChatMessage, GenerationFields, TokenizeRequest, ToolCall
from headrace.server.echo import shortened
from headrace.server.services import ChatRenderer, Services

_TEMPLATE_VARIABLES = ("self", "messages", "tools", "add_generation_prompt", "continue_final_message")
"""Names that `chat_template_kwargs` may not redefine: other fields of the request, or Python, give them."""

_CHARS_PER_TOKEN = 16
"""More than the tokens of a text have on average, in any language."""
_TOKENS_AT_A_CUT = 16
"""By which a text's beginning may have more tokens than it has within the whole."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the model reads it, and as text where the client sent text."""

    token_ids: list[int]
    text: str | None


async def chat_prompt(
    services: Services,
    request: ChatCompletionRequest | TokenizeRequest,
    template: ChatRenderer,
    tools: Sequence[Mapping[str, Any]] | None,
    more_variables: Mapping[str, Any] | None = None,
) -> Prompt:
    """The conversation as the template writes it. `more_variables`: for the template, beside those that the client names.
    Raises InvalidRequestError where it cannot be written."""
    assert request.messages is not None, "the caller has looked"
    messages = [_template_message(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    continue_final = bool(request.continue_final_message)
    generation_prompt = request.add_generation_prompt
    if continue_final and generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude one another", param="continue_final_message"
        )
    variables = (request.chat_template_kwargs or {}) | dict(more_variables or {})
    _check_variables(variables)
    special_tokens = bool(request.add_special_tokens)
    must_fit = isinstance(request, ChatCompletionRequest) and request.truncate_prompt_tokens is None

    def work() -> Prompt:
        text = template.render(
            messages,
            tools=tools,
            add_generation_prompt=not continue_final if generation_prompt is None else generation_prompt,
            continue_final_message=continue_final,
            **variables,
        )
        if must_fit:
            _check_beginning(services, text, "messages")
        return Prompt(services.engine.tokenizer.encode(text, add_special_tokens=special_tokens), text)

    num_chars = sum(_num_chars(message) for message in request.messages)
    return await services.text_pool.run(num_chars + len(msgspec.json.encode(tools or ())), work)


async def completion_prompts(
    services: Services, prompt: str | Sequence[str | int | list[int]], *, add_special_tokens: bool, must_fit: bool
) -> list[Prompt]:
    """The prompts of a completion request, in the client's order. `must_fit`: nobody cuts them afterwards."""
    tokenizer = services.engine.tokenizer
    given = _prompt_list(prompt)
    if len(given) > services.config.max_prompts:
        raise InvalidRequestError(
            f"prompt holds {len(given)} prompts; at most {services.config.max_prompts} go into one request",
            param="prompt",
        )

    def work() -> list[Prompt]:
        if must_fit:
            for one in given:
                if isinstance(one, str):
                    _check_beginning(services, one, "prompt")
        return [
            Prompt(tokenizer.encode(one, add_special_tokens=add_special_tokens), one)
            if isinstance(one, str)
            else Prompt(one, None)
            for one in given
        ]

    prompts = await services.text_pool.run(sum(len(one) for one in given if isinstance(one, str)), work)
    for i, one in enumerate(prompts):
        path = "prompt" if len(prompts) == 1 else f"prompt[{i}]"
        check_token_ids(one.token_ids, services.engine.facts.vocab_size, path)
    return prompts


def _check_beginning(services: Services, text: str, field: str) -> None:
    """Tokenising ten megabytes takes a core for many seconds. So of what is by far too long only a beginning is tokenised to
    find that out. Raises ContextLengthError."""
    most = services.engine.facts.max_model_len
    num_chars = _CHARS_PER_TOKEN * most
    if len(text) <= num_chars:
        return
    num_tokens = len(services.engine.tokenizer.encode(text[:num_chars], add_special_tokens=False)) - _TOKENS_AT_A_CUT
    if num_tokens >= most:
        raise ContextLengthError(
            f"This model's maximum context length is {most} tokens. However, your {field} resulted in {num_tokens} tokens "
            f"from the first {num_chars} of {len(text)} characters alone. Please reduce the length of the {field}.",
            param=field,
        )


def truncated(prompt: Prompt, request: GenerationFields, *, max_model_len: int, max_tokens: int | None) -> Prompt:
    """The prompt cut to what the request allows it; `max_tokens`: of the answer that must fit beside it."""
    most = request.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == -1:
        most = max(max_model_len - max(max_tokens or 1, 1), 1)
    if most < 1:
        raise InvalidRequestError(
            f"truncate_prompt_tokens must be at least 1, or -1, not {most}", param="truncate_prompt_tokens"
        )
    if len(prompt.token_ids) <= most:
        return prompt
    kept = prompt.token_ids[:most] if request.truncation_side == "right" else prompt.token_ids[-most:]
    return Prompt(kept, None)


def check_token_ids(token_ids: Sequence[int], vocab_size: int, path: str) -> None:
    """Raises InvalidRequestError where an id is none of the model's."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        place = next(i for i, token in enumerate(token_ids) if not 0 <= token < vocab_size)
        raise InvalidRequestError(
            f"{path}[{place}] is no token of the model: ids go from 0 to {vocab_size - 1}", param=f"{path}[{place}]"
        )


def _prompt_list(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """Always a list of prompts, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("prompt is empty", param="prompt")
    token_ids = [one for one in prompt if isinstance(one, int)]
    others = [one for one in prompt if not isinstance(one, int)]
    if token_ids and others:
        raise InvalidRequestError("prompt mixes token ids with prompts: send one or the other", param="prompt")
    return [token_ids] if token_ids else others


def chat_template(services: Services, source: str | None) -> ChatRenderer:
    """The model's own template, or the request's, where clients are trusted with that."""
    if source is not None:
        if services.compile_chat_template is None:
            raise InvalidRequestError(
                "this server does not run its clients' templates; leave chat_template out, or start it with "
                "--trust-request-chat-template",
                param="chat_template",
                code="unsupported_parameter",
            )
        return services.compile_chat_template(source)
    if services.chat_template is None:
        raise InvalidRequestError(
            "this model has no chat template, so it does not know conversations: use /v1/completions", param="messages"
        )
    return services.chat_template


def _num_chars(message: ChatMessage) -> int:
    content, calls = message.content or "", message.tool_calls or ()
    said = len(content) if isinstance(content, str) else sum(len(part.text) for part in content)
    return said + sum(len(call.function.arguments) for call in calls)


def _check_variables(variables: Mapping[str, Any]) -> None:
    for name in _TEMPLATE_VARIABLES:
        if name in variables:
            raise InvalidRequestError(f"chat_template_kwargs may not set {name!r}", param=f"chat_template_kwargs.{name}")
    documents = variables.get("documents")
    if documents is not None and not (isinstance(documents, list) and all(isinstance(one, dict) for one in documents)):
        raise InvalidRequestError(
            "chat_template_kwargs.documents must be a list of objects", param="chat_template_kwargs.documents"
        )


def _template_message(message: ChatMessage, path: str) -> dict[str, Any]:
    """A message as templates know it."""
    content: str | list[dict[str, str]] | None
    if message.content is None or isinstance(message.content, str):
        content = message.content
    else:  # as parts: the template may have its own way with them, and gets them joined where it has none
        content = [{"type": "text", "text": part.text} for part in message.content]
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if content is None and not message.tool_calls and reasoning is None:
        raise InvalidRequestError(f"{path}.content is required", param=f"{path}.content", code="missing_required_parameter")
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_call_id is not None:
        if message.role != "tool":
            raise InvalidRequestError(f"{path}.tool_call_id belongs to role 'tool'", param=f"{path}.tool_call_id")
        rendered["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        if message.role != "assistant":
            raise InvalidRequestError(f"{path}.tool_calls belong to role 'assistant'", param=f"{path}.tool_calls")
        rendered["tool_calls"] = [
            _template_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    if reasoning is not None:
        if message.role != "assistant":
            raise InvalidRequestError(f"{path}.reasoning belongs to role 'assistant'", param=f"{path}.reasoning")
        rendered["reasoning"] = rendered["reasoning_content"] = reasoning
    return rendered


def _template_call(call: ToolCall, path: str) -> dict[str, Any]:
    """A call as templates know it: arguments are an object, not its text. No text at all is no arguments."""
    text = call.function.arguments
    try:
        arguments = msgspec.json.decode(text.encode()) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            f"{path}.function.arguments is not the text of a JSON object: {shortened(text)!r}",
            param=f"{path}.function.arguments",
        )
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}

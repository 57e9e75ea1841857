"""The APIs that are spoken: how a request becomes a body, and what each event of an answer says.

Knows JSON; no sockets and no time. One reader lives as long as one answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.measure.workload.request import ChatPrompt, TextPrompt, TokenPrompt, WorkloadRequest, token_ids, words

TOKENS, DONE = 1, 2
"""What an event brought; both may be set."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _CompletionChoice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _CompletionChunk(msgspec.Struct):
    choices: list[_CompletionChoice] = []
    usage: _Usage | None = None
    error: Any = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _ChatChoice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _ChatChunk(msgspec.Struct):
    choices: list[_ChatChoice] = []
    usage: _Usage | None = None
    error: Any = None


class _AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _AnthropicMessage(msgspec.Struct):
    usage: _AnthropicUsage | None = None


class _AnthropicDelta(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _AnthropicEvent(msgspec.Struct):
    type: str = ""
    delta: _AnthropicDelta | None = None
    message: _AnthropicMessage | None = None
    usage: _AnthropicUsage | None = None
    error: Any = None


class AnswerReader:
    """What has been said so far. `read` raises msgspec.DecodeError where an event is none of the API's."""

    __slots__ = ("error", "finish_reason", "num_cached_tokens", "num_output_tokens", "num_prompt_tokens", "texts")

    def __init__(self) -> None:
        self.error = ""
        self.finish_reason = ""
        self.num_prompt_tokens: int | None = None
        self.num_output_tokens: int | None = None
        self.num_cached_tokens: int | None = None
        self.texts: list[str] = []

    def read(self, data: bytes) -> int:
        raise AssertionError("each API has a reader of its own")


class _OpenAIReader(AnswerReader):
    """What completions and chat have in common: all but where a choice keeps its text."""

    __slots__ = ()
    _decoder: ClassVar[msgspec.json.Decoder[Any]]

    def read(self, data: bytes) -> int:
        if data == b"[DONE]":
            return DONE
        chunk = self._decoder.decode(data)
        found = 0
        for choice in chunk.choices:
            if self._take(choice):
                found = TOKENS
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
        if chunk.usage is not None:
            self._note_usage(chunk.usage)
        if chunk.error is not None:
            self.error = _message(chunk.error)
        return found

    def _take(self, choice: Any) -> bool:
        """Whether it held tokens."""
        raise AssertionError("each API has choices of its own")

    def _note_usage(self, usage: _Usage) -> None:
        self.num_prompt_tokens = usage.prompt_tokens
        self.num_output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.num_cached_tokens = usage.prompt_tokens_details.cached_tokens


class CompletionReader(_OpenAIReader):
    __slots__ = ()
    _decoder: ClassVar[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_CompletionChunk)

    def _take(self, choice: _CompletionChoice) -> bool:
        if choice.text:
            self.texts.append(choice.text)
        return bool(choice.text)


class ChatReader(_OpenAIReader):
    __slots__ = ()
    _decoder: ClassVar[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_ChatChunk)

    def _take(self, choice: _ChatChoice) -> bool:
        """The first chunk of many servers names a role and holds no token: it does not count."""
        delta = choice.delta
        if delta is None:
            return False
        if delta.content:
            self.texts.append(delta.content)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class AnthropicReader(AnswerReader):
    __slots__ = ()
    _decode = msgspec.json.Decoder(_AnthropicEvent).decode

    def read(self, data: bytes) -> int:
        event = self._decode(data)
        usage = event.usage or (event.message.usage if event.message is not None else None)
        if usage is not None:
            self._note_anthropic_usage(usage)
        if event.error is not None:
            self.error = _message(event.error)
        delta = event.delta
        if event.type == "message_stop":
            return DONE
        if delta is None:
            return 0
        if delta.stop_reason:
            self.finish_reason = delta.stop_reason
        if delta.text:
            self.texts.append(delta.text)
        return TOKENS if delta.text or delta.thinking or delta.partial_json else 0

    def _note_anthropic_usage(self, usage: _AnthropicUsage) -> None:
        """Cached tokens are not among `input_tokens` there; everywhere else they are among the prompt's, so also here."""
        if usage.input_tokens is not None:
            self.num_prompt_tokens = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        if usage.cache_read_input_tokens is not None:
            self.num_cached_tokens = usage.cache_read_input_tokens
        if usage.output_tokens is not None:
            self.num_output_tokens = usage.output_tokens


def _message(error: Any) -> str:
    if isinstance(error, Mapping):
        return str(error.get("message") or error)
    return str(error)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a request that was answered, and the answer."""

    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """What all requests of a run have in common."""

    model: str
    seed: int = 0
    vocab_size: int = 8000
    ignore_eos: bool = True
    """Ask for exactly as many tokens as the workload says, where it wants so; APIs that know no such field refuse it."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)


class Format:
    """One API."""

    path: ClassVar[str]
    reader: ClassVar[Callable[[], AnswerReader]]

    @classmethod
    def body(cls, request: WorkloadRequest, options: BodyOptions, before: Conversation | None) -> dict[str, Any]:
        raise AssertionError("each API has a body of its own")


class CompletionsFormat(Format):
    path = "/v1/completions"
    reader = CompletionReader

    @classmethod
    def body(cls, request: WorkloadRequest, options: BodyOptions, before: Conversation | None) -> dict[str, Any]:
        """Token ids go as they are, so the server's prompt is the workload's to the token."""
        prompt: str | list[int]
        match request.prompt:
            case TokenPrompt(segments):
                prompt = token_ids(segments, seed=options.seed, vocab_size=options.vocab_size)
            case TextPrompt(text):
                prompt = text
            case ChatPrompt():
                prompt = "\n".join(f"{m['role']}: {m['content']}" for m in _messages(request, options, before))
        return _openai_fields(request, options) | {"prompt": prompt}


class ChatFormat(Format):
    path = "/v1/chat/completions"
    reader = ChatReader

    @classmethod
    def body(cls, request: WorkloadRequest, options: BodyOptions, before: Conversation | None) -> dict[str, Any]:
        return _openai_fields(request, options) | {"messages": _messages(request, options, before)}


class AnthropicFormat(Format):
    path = "/v1/messages"
    reader = AnthropicReader

    @classmethod
    def body(cls, request: WorkloadRequest, options: BodyOptions, before: Conversation | None) -> dict[str, Any]:
        messages = _messages(request, options, before)
        system = "\n".join(str(m["content"]) for m in messages if m["role"] == "system")
        return {
            "model": request.model or options.model,
            "max_tokens": request.num_output_tokens,
            "stream": True,
            "messages": [m for m in messages if m["role"] != "system"],
            **({"system": system} if system else {}),
            **options.extra_body,
            **request.extra_body,
        }


def _openai_fields(request: WorkloadRequest, options: BodyOptions) -> dict[str, Any]:
    return {
        "model": request.model or options.model,
        "max_tokens": request.num_output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if options.ignore_eos and request.ignore_eos else {}),
        **options.extra_body,
        **request.extra_body,
    }


def _messages(request: WorkloadRequest, options: BodyOptions, before: Conversation | None) -> list[dict[str, Any]]:
    match request.prompt:
        case TokenPrompt(segments):
            return [{"role": "user", "content": words(segments, seed=options.seed)}]
        case TextPrompt(text):
            return [{"role": "user", "content": text}]
        case ChatPrompt(messages, continues):
            return [*(before.messages if continues and before is not None else ()), *messages]


FORMATS: dict[str, type[Format]] = {
    "vllm": CompletionsFormat,  # vLLM's own names for the two OpenAI APIs …
    "openai": CompletionsFormat,
    "openai-chat": ChatFormat,
    "anthropic": AnthropicFormat,
}
"""By `--backend`."""


def format_named(name: str) -> type[Format]:
    if name not in FORMATS:
        raise ConfigurationError(f"there is no backend {name!r} (known: {', '.join(FORMATS)})")
    return FORMATS[name]

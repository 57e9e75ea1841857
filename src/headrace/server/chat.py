"""POST /v1/chat/completions: a conversation in, the assistant's next turn out, whole or as a stream of chunks.

Knows the chat format. Does not know how generation or HTTP work.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from headrace.base.errors import InvalidRequestError
from headrace.engine.host.generation import OutputChunk, TokenLogprob
from headrace.engine.mind.sampling_params import MAX_LOGPROBS
from headrace.engine.mind.update import FinishReason
from headrace.protocol.openai import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatLogprobs,
    ChatTokenLogprob,
    FinishReasonWord,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
)
from headrace.server import decoding
from headrace.server.answers import (
    AnswerIdentity,
    Tally,
    WholeAnswer,
    finish_reason,
    finite,
    prompt_logprobs_list,
    tally,
    token_id_text,
)
from headrace.server.door import Call, Reply
from headrace.server.opening import begin, deliver, read_request
from headrace.server.parsing.events import CallArguments, CallStart, Content, Event, Parsed, Reasoning
from headrace.server.prompts import Prompt, chat_prompt, chat_template
from headrace.server.reading import AnswerParser, AnswerReading, answer_reading
from headrace.server.reasoning.request import effort_variables
from headrace.server.streaming import DONE, Chunks, event, merged
from headrace.server.tools.request import tool_use
from headrace.server.validation import (
    NO_LOGPROBS,
    Asked,
    Limits,
    bad_words_token_ids,
    num_prompt_logprobs,
)


async def answer_chat(call: Call, reply: Reply) -> None:
    request, form = read_request(call, decoding.CHAT)
    services, tokenizer = call.services, call.services.engine.tokenizer
    use, template = tool_use(request, form), chat_template(services, request.chat_template)
    reading = answer_reading(use, services.config, template.source, shows_reasoning=request.include_reasoning is not False)
    rendered = await chat_prompt(
        services, request, template, use.for_template, _template_variables(request, template.source, reading)
    )
    assert rendered.text is not None, "a conversation is rendered as text"
    parsers = [reading.parser(rendered.text) for _ in range(request.n or 1)]
    asked = Asked(
        num_logprobs=_num_logprobs(request),
        num_prompt_logprobs=num_prompt_logprobs(request),
        structured_output=reading.form_after_reasoning(rendered.text, tokenizer),
        bad_words_token_ids=bad_words_token_ids(request.bad_words or (), tokenizer),
        shown_special_token_ids=reading.shown_special_token_ids(tokenizer),
        reasoning_marks=reading.reasoning_format,
        rendered_prompt=rendered.text,
        has_enough=lambda index: parsers[index].is_over,
    )
    (prompt,), identity, chunks = begin(call, request, [rendered], kind="chatcmpl", limits=_limits(request), asked=asked)
    answer = _Answer(request, prompt, rendered.text, identity, parsers)
    await deliver(request, chunks, reply, writer=lambda: _ChunkWriter(answer), whole=lambda: _whole(answer, chunks))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is known of an answer before it comes."""

    request: ChatCompletionRequest
    prompt: Prompt
    prompt_text: str
    """As the chat template wrote it, whether or not it was cut."""
    identity: AnswerIdentity
    parsers: Sequence[AnswerParser]
    """One for each of its choices."""

    @property
    def echoed(self) -> str:
        """What each choice begins with: the last message, where it is the assistant's and the request wants it."""
        last = self.request.messages[-1]
        if not self.request.echo or last.role != "assistant" or last.content is None:
            return ""
        return last.content if isinstance(last.content, str) else "".join(part.text for part in last.content)


def _template_variables(request: ChatCompletionRequest, template: str | None, reading: AnswerReading) -> dict[str, Any]:
    """What fields of the request tell the chat template. Raises InvalidRequestError where it would not listen."""
    variables = effort_variables(
        request,
        template,
        is_reasoner=reading.reasoning_format is not None,
        is_harmony=reading.separates_reasoning,
    )
    if request.documents:
        if "documents" not in (template or ""):
            raise InvalidRequestError(
                "this model's chat template takes no documents: put them into a message",
                param="documents",
                code="unsupported_parameter",
            )
        variables["documents"] = request.documents
    return variables


def _limits(request: ChatCompletionRequest) -> Limits:
    new, old = request.max_completion_tokens, request.max_tokens
    if new is not None and old is not None and new != old:
        raise InvalidRequestError(
            f"max_completion_tokens ({new}) and max_tokens ({old}) disagree: give one of them",
            param="max_completion_tokens",
        )
    return Limits(
        max_tokens=old if new is None else new,
        default_max_tokens=None,
        max_tokens_field="max_tokens" if new is None else "max_completion_tokens",
        prompt_field="messages",
    )


def _num_logprobs(request: ChatCompletionRequest) -> int:
    num_top = request.top_logprobs or 0
    if not 0 <= num_top <= MAX_LOGPROBS:
        raise InvalidRequestError(f"top_logprobs must be between 0 and {MAX_LOGPROBS}, not {num_top}", param="top_logprobs")
    if request.logprobs:
        return num_top
    if request.logprob_token_ids:
        raise InvalidRequestError("logprob_token_ids needs logprobs to be true", param="logprob_token_ids")
    if num_top:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return NO_LOGPROBS


async def _whole(asked: _Answer, chunks: Sequence[Chunks]) -> ChatCompletion:
    request, identity = asked.request, asked.identity
    counted = tally([asked.prompt])
    answers = [WholeAnswer() for _ in asked.parsers]
    parsed = [Parsed(content=asked.echoed) for _ in asked.parsers]
    async with aclosing(merged(chunks)) as merged_chunks:
        async for place, chunk in merged_chunks:
            counted.count(place, chunk)
            answers[chunk.index].add(chunk)
            parsed[chunk.index].add(asked.parsers[chunk.index].push(chunk.text))
    return ChatCompletion(
        id=identity.id,
        created=identity.created,
        model=identity.model,
        choices=[_choice(asked, i, *pair) for i, pair in enumerate(zip(answers, parsed, strict=True))],
        usage=counted.usage(),
        system_fingerprint=identity.system_fingerprint,
        prompt_token_ids=asked.prompt.token_ids if request.return_token_ids else UNSET,
        prompt_text=asked.prompt_text if request.return_prompt_text else UNSET,
        prompt_logprobs=(UNSET if request.prompt_logprobs is None else prompt_logprobs_list(answers[0].prompt_logprobs)),
    )


def _choice(asked: _Answer, index: int, answer: WholeAnswer, parsed: Parsed) -> ChatChoice:
    request, parser = asked.request, asked.parsers[index]
    parsed.add(parser.finish())
    return ChatChoice(
        index=index,
        message=_message(parsed),
        logprobs=_logprobs(answer.logprobs, request) if request.logprobs else None,
        finish_reason=_finish_reason(answer.finish_reason, parser),
        stop_reason=answer.stop_reason,
        token_ids=answer.token_ids if request.return_token_ids else UNSET,
    )


def _message(parsed: Parsed) -> AssistantMessage:
    says_nothing = not parsed.content and bool(parsed.calls or parsed.reasoning)
    message = AssistantMessage(role="assistant", content=None if says_nothing else parsed.content)
    if parsed.calls:
        message.tool_calls = [ToolCall(call.id, FunctionCall(call.name, call.arguments)) for call in parsed.calls]
    if parsed.reasoning:
        message.reasoning = parsed.reasoning
    return message


def _finish_reason(reason: FinishReason | None, parser: AnswerParser) -> FinishReasonWord:
    word = finish_reason(reason)
    if parser.is_over:  # whatever it went on to say, it ended with a call
        return "tool_calls"
    return "tool_calls" if word == "stop" and parser.num_calls else word


class _ChunkWriter:
    """Writes the events of one stream: the role first, then what is said, thought and called, then why it ended."""

    def __init__(self, answer: _Answer) -> None:
        request = answer.request
        options = request.stream_options
        self._answer = answer
        self._request = request
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = self._include_usage and bool(options and options.continuous_usage_stats)
        self._tally: Tally = tally([answer.prompt])
        self._begun = [False] * (request.n or 1)

    def events(self, place: int, chunk: OutputChunk) -> bytes:
        self._tally.count(place, chunk)
        events = b""
        if not self._begun[chunk.index]:
            first = not any(self._begun)
            self._begun[chunk.index] = True
            beginning = ChatDelta(role="assistant", content=self._answer.echoed)
            events += self._event(ChatChunkChoice(chunk.index, beginning), with_prompt=first)
        parser = self._answer.parsers[chunk.index]
        said = parser.push(chunk.text)
        if chunk.finish_reason is not None:
            said += parser.finish()
        for choice in self._choices(chunk, said):
            events += self._event(choice)
        if chunk.finish_reason is not None:
            reason = _finish_reason(chunk.finish_reason, parser)
            events += self._event(
                ChatChunkChoice(chunk.index, ChatDelta(), finish_reason=reason, stop_reason=chunk.stop_reason)
            )
        return events

    def closing_events(self) -> bytes:
        if not self._include_usage:
            return DONE
        completion_chunk = self._chunk([])
        completion_chunk.usage = self._tally.usage()
        return event(completion_chunk) + DONE

    def _choices(self, chunk: OutputChunk, said: Sequence[Event]) -> list[ChatChunkChoice]:
        """One for each thing said; what tells of the chunk's tokens goes with the first of them."""
        choices = [ChatChunkChoice(chunk.index, _delta(event)) for event in said]
        return_ids = self._request.return_token_ids and chunk.token_ids
        if not choices and (chunk.logprobs or return_ids):
            choices = [ChatChunkChoice(chunk.index, ChatDelta(content=""))]
        if choices:
            choices[0].logprobs = _logprobs(chunk.logprobs, self._request) if self._request.logprobs else None
            choices[0].token_ids = list(chunk.token_ids) if self._request.return_token_ids else UNSET
        return choices

    def _event(self, choice: ChatChunkChoice, *, with_prompt: bool = False) -> bytes:
        completion_chunk = self._chunk([choice])
        if self._include_usage:
            completion_chunk.usage = self._tally.usage() if self._continuous_usage else None
        if with_prompt and self._request.return_token_ids:
            completion_chunk.prompt_token_ids = self._answer.prompt.token_ids
        if with_prompt and self._request.return_prompt_text:
            completion_chunk.prompt_text = self._answer.prompt_text
        return event(completion_chunk)

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        identity = self._answer.identity
        return ChatCompletionChunk(identity.id, identity.created, identity.model, choices, identity.system_fingerprint)


def _delta(event: Event) -> ChatDelta:
    match event:
        case Content(text):
            return ChatDelta(content=text)
        case Reasoning(text):
            return ChatDelta(reasoning=text)
        case CallStart(index, call_id, name):
            return ChatDelta(tool_calls=[ToolCallDelta(index, FunctionCallDelta(name=name), id=call_id, type="function")])
        case CallArguments(index, text):
            return ChatDelta(tool_calls=[ToolCallDelta(index, FunctionCallDelta(arguments=text))])


def _logprobs(tokens: Sequence[TokenLogprob], request: ChatCompletionRequest) -> ChatLogprobs:
    def name(token: TokenLogprob) -> str:
        return token_id_text(token) if request.return_tokens_as_token_ids else token.text

    return ChatLogprobs(
        [
            ChatTokenLogprob(
                name(token),
                finite(token.logprob),
                list(token.raw),
                [TopLogprob(name(top), finite(top.logprob), list(top.raw)) for top in token.top],
            )
            for token in tokens
        ]
    )

"""POST /v1/completions: texts or token ids in, their continuations out, whole or as a stream of chunks.

Knows the completion format. Does not know how generation or HTTP work.
"""

import codecs
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from headrace.base.errors import InvalidRequestError
from headrace.engine.host.generation import OutputChunk, Tokenizer, TokenLogprob
from headrace.engine.mind.sampling_params import MAX_LOGPROBS
from headrace.protocol.openai import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from headrace.server import decoding
from headrace.server.answers import (
    AnswerIdentity,
    WholeAnswer,
    answer_identity,
    finish_reason,
    finite,
    generations,
    tally,
)
from headrace.server.door import Call, Reply
from headrace.server.prompts import Prompt, completion_prompts
from headrace.server.streaming import DONE, Chunks, event, merged, stream_answer
from headrace.server.structured import structured_output
from headrace.server.validation import NO_LOGPROBS, Limits, check_common

DEFAULT_MAX_TOKENS = 16
"""OpenAI's own."""


async def answer_completion(call: Call, reply: Reply) -> None:
    request = decoding.COMPLETION.decode(call.body)
    services = call.services
    check_common(request, services.engine.facts, services.config)
    num_logprobs, form = _num_logprobs(request), structured_output(request)
    prompts = await completion_prompts(services, request.prompt, add_special_tokens=request.add_special_tokens is not False)
    identity = answer_identity(call, request, "cmpl")
    limits = Limits(
        max_tokens=request.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        max_tokens_field="max_tokens",
        prompt_field="prompt",
    )
    chunks = generations(
        call, request, prompts, answer_id=identity.id, limits=limits, num_logprobs=num_logprobs, structured_output=form
    )
    answer = _Answer(request, prompts, identity, services.engine.tokenizer)
    if request.stream:
        await stream_answer(chunks, answer, reply)
    else:
        await _whole(answer, chunks, reply)


def _num_logprobs(request: CompletionRequest) -> int:
    asked = request.logprobs
    if asked is None or asked is False:
        return NO_LOGPROBS
    if asked is True or not 0 <= asked <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"logprobs must be a number of alternatives between 0 and {MAX_LOGPROBS}, not {asked}", param="logprobs"
        )
    if request.echo:
        raise InvalidRequestError(
            "logprobs cannot be combined with echo: log-probabilities of the prompt are not computed", param="logprobs"
        )
    return asked


async def _whole(answer: "_Answer", chunks: Sequence[Chunks], reply: Reply) -> None:
    collected = [WholeAnswer() for _ in range(answer.num_choices)]
    async with aclosing(merged(chunks)) as merged_chunks:
        async for place, chunk in merged_chunks:
            answer.tally.count(place, chunk)
            collected[answer.choice_index(place, chunk.index)].add(chunk)
    completion = answer.completion([answer.whole_choice(i, one) for i, one in enumerate(collected)])
    completion.usage = answer.tally.usage()
    await reply.whole(msgspec.json.encode(completion))


class _Answer:
    """Writes the answer to one request, in either form."""

    def __init__(
        self, request: CompletionRequest, prompts: Sequence[Prompt], identity: AnswerIdentity, tokenizer: Tokenizer
    ) -> None:
        options = request.stream_options
        self.num_choices = len(prompts) * (request.n or 1)
        self.tally = tally(prompts)
        self._request = request
        self._prompts = prompts
        self._identity = identity
        self._tokenizer = tokenizer
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = self._include_usage and bool(options and options.continuous_usage_stats)
        self._begun = [False] * self.num_choices
        self._skip_special_tokens = request.skip_special_tokens is not False
        self._offsets = [
            _TextOffset(tokenizer, skip_special_tokens=self._skip_special_tokens) for i in range(self.num_choices)
        ]

    def choice_index(self, place: int, index: int) -> int:
        return place * (self._request.n or 1) + index

    def completion(self, choices: list[CompletionChoice]) -> Completion:
        identity = self._identity
        return Completion(identity.id, identity.created, identity.model, choices, identity.system_fingerprint)

    def whole_choice(self, index: int, answer: WholeAnswer) -> CompletionChoice:
        return_ids = self._request.return_token_ids
        return CompletionChoice(
            index,
            self._echo(index) + answer.text,
            logprobs=self._logprobs(index, answer.logprobs),
            finish_reason=finish_reason(answer.finish_reason),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if return_ids else UNSET,
            prompt_token_ids=self._prompt(index).token_ids if return_ids else UNSET,
        )

    def events(self, place: int, chunk: OutputChunk) -> bytes:
        self.tally.count(place, chunk)
        index = self.choice_index(place, chunk.index)
        return_ids = self._request.return_token_ids
        choice = CompletionChoice(index, chunk.text, logprobs=self._logprobs(index, chunk.logprobs))
        if return_ids:
            choice.token_ids = list(chunk.token_ids)
        if not self._begun[index]:
            self._begun[index] = True
            choice.text = self._echo(index) + choice.text
            if return_ids:
                choice.prompt_token_ids = self._prompt(index).token_ids
        if chunk.finish_reason is not None:
            choice.finish_reason = finish_reason(chunk.finish_reason)
            choice.stop_reason = chunk.stop_reason
        elif not (choice.text or chunk.logprobs or (return_ids and chunk.token_ids)):
            return b""
        completion = self.completion([choice])
        if self._include_usage:
            completion.usage = self.tally.usage() if self._continuous_usage else None
        return event(completion)

    def closing_events(self) -> bytes:
        if not self._include_usage:
            return DONE
        completion = self.completion([])
        completion.usage = self.tally.usage()
        return event(completion) + DONE

    def _prompt(self, index: int) -> Prompt:
        return self._prompts[index // (self._request.n or 1)]

    def _echo(self, index: int) -> str:
        if not self._request.echo:
            return ""
        prompt = self._prompt(index)
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(prompt.token_ids, skip_special_tokens=self._skip_special_tokens)

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs | None:
        if self._request.logprobs is None or self._request.logprobs is False:
            return None
        offset = self._offsets[index]
        return CompletionLogprobs(
            text_offset=[offset.before(token) for token in tokens],
            token_logprobs=[finite(token.logprob) for token in tokens],
            tokens=[_token_text(token) for token in tokens],
            top_logprobs=[_alternatives(token) for token in tokens],
        )


class _TextOffset:
    """Where tokens begin in a text: counts whole characters, though tokens may hold parts of them."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0

    def before(self, token: TokenLogprob) -> int:
        """How many characters stand before this token, which is the next; call it once for each."""
        offset = self._num_chars
        if not (self._skip_special_tokens and self._tokenizer.is_special(token.token_id)):
            self._num_chars += len(self._decoder.decode(token.raw))
        return offset


def _alternatives(token: TokenLogprob) -> dict[str, float]:
    """The most probable tokens and the chosen one, which need not be among them."""
    alternatives = {_token_text(top): finite(top.logprob) for top in token.top}
    return alternatives | {_token_text(token): finite(token.logprob)}


def _token_text(token: TokenLogprob) -> str:
    """The token's text, or its bytes spelt out where they are no whole characters: so that texts tell tokens apart."""
    try:
        token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
    return token.text

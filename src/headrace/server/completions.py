"""POST /v1/completions: texts or token ids in, their continuations out, whole or as a stream of chunks.

Knows the completion format. Does not know how generation or HTTP work.
"""

import codecs
from collections.abc import Sequence
from contextlib import aclosing

from msgspec import UNSET
from msgspec.structs import replace

from headrace.base.errors import InvalidRequestError
from headrace.engine.host.generation import OutputChunk, Tokenizer, TokenLogprob
from headrace.engine.mind.sampling_params import MAX_LOGPROBS
from headrace.engine.mind.update import FinishReason
from headrace.protocol.openai import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from headrace.server import decoding
from headrace.server.answers import (
    AnswerIdentity,
    WholeAnswer,
    finish_reason,
    finite,
    prompt_logprobs_list,
    tally,
    token_id_text,
)
from headrace.server.door import Call, Reply
from headrace.server.opening import begin, deliver, read_request
from headrace.server.prompts import Prompt, completion_prompts
from headrace.server.reading import reasoning_format
from headrace.server.streaming import DONE, Chunks, event, merged
from headrace.server.validation import (
    NO_LOGPROBS,
    Asked,
    Limits,
    bad_words_token_ids,
    num_prompt_logprobs,
)

DEFAULT_MAX_TOKENS = 16
"""OpenAI's own."""


async def answer_completion(call: Call, reply: Reply) -> None:
    request, form = read_request(call, decoding.COMPLETION)
    services, tokenizer = call.services, call.services.engine.tokenizer
    width = _num_generated(request, services.config.max_n)
    num_kept, num_generated = request.n or 1, (request.n or 1) if request.use_beam_search else width
    template = services.chat_template.source if services.chat_template is not None else None
    num_logprobs = _num_logprobs(request)
    asked = Asked(
        # The best are chosen by their log-probabilities.
        num_logprobs=max(num_logprobs, 0) if num_generated > num_kept else num_logprobs,
        num_prompt_logprobs=max(num_prompt_logprobs(request), num_logprobs if request.echo else NO_LOGPROBS),
        num_sequences=num_generated,
        structured_output=form,
        bad_words_token_ids=bad_words_token_ids(request.bad_words or (), tokenizer),
        reasoning_marks=reasoning_format(services.config, template),
        beam_width=width,
    )
    given = await completion_prompts(
        services,
        request.prompt,
        add_special_tokens=request.add_special_tokens is not False,
        must_fit=request.truncate_prompt_tokens is None,
    )
    limits = Limits(
        max_tokens=1 if _only_echoes(request) else request.max_tokens,  # the engine generates, and the token is dropped
        default_max_tokens=DEFAULT_MAX_TOKENS,
        max_tokens_field="max_tokens",
        prompt_field="prompt",
    )
    prompts, identity, chunks = begin(call, request, given, kind="cmpl", limits=limits, asked=asked)
    answer = _Answer(request, prompts, identity, tokenizer)
    await deliver(
        request,
        chunks,
        reply,
        writer=lambda: answer,
        whole=lambda: _whole(answer, chunks, num_generated=num_generated),
    )


def _only_echoes(request: CompletionRequest) -> bool:
    """As evaluation harnesses ask for the prompt's own log-probabilities. Raises InvalidRequestError in a stream."""
    if request.max_tokens != 0 or not request.echo:
        return False
    if request.stream:
        raise InvalidRequestError("max_tokens 0 with echo cannot be streamed: leave out stream", param="stream")
    return True


def _num_generated(request: CompletionRequest, max_n: int) -> int:
    """How many answers the engine compares for each prompt: all of them generated, or beams."""
    num_kept = request.n or 1
    if request.best_of is None or request.best_of == num_kept:
        return num_kept
    if not num_kept <= request.best_of <= max_n:
        raise InvalidRequestError(
            f"best_of must be between n ({num_kept}) and {max_n}, not {request.best_of}", param="best_of"
        )
    if request.stream and not request.use_beam_search:
        raise InvalidRequestError("best_of above n cannot be streamed: leave out stream", param="best_of")
    return request.best_of


def _num_logprobs(request: CompletionRequest) -> int:
    asked = request.logprobs
    if asked is None or asked is False:
        if request.logprob_token_ids:
            raise InvalidRequestError("logprob_token_ids needs logprobs", param="logprob_token_ids")
        return NO_LOGPROBS
    if asked is True or not 0 <= asked <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"logprobs must be a number of alternatives between 0 and {MAX_LOGPROBS}, not {asked}", param="logprobs"
        )
    return asked


async def _whole(answer: "_Answer", chunks: Sequence[Chunks], *, num_generated: int) -> Completion:
    collected = [[WholeAnswer() for _ in range(num_generated)] for _ in chunks]
    async with aclosing(merged(chunks)) as merged_chunks:
        async for place, chunk in merged_chunks:
            answer.count(place, chunk)
            collected[place][chunk.index].add(chunk)
    kept = [one for answers in collected for one in answer.kept(answers)]
    completion = answer.completion([answer.whole_choice(i, one) for i, one in enumerate(kept)])
    completion.usage = answer.tally.usage()
    return completion


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
        self._only_echoes = _only_echoes(request)
        self._prompt_logprobs: list[list[TokenLogprob]] = [[] for _ in prompts]
        self._skip_special_tokens = request.skip_special_tokens is not False
        self._offsets = [
            _TextOffset(tokenizer, skip_special_tokens=self._skip_special_tokens) for i in range(self.num_choices)
        ]

    def count(self, place: int, chunk: OutputChunk) -> None:
        self._prompt_logprobs[place] += chunk.prompt_logprobs
        self.tally.count(place, replace(chunk, token_ids=()) if self._only_echoes else chunk)

    def kept(self, answers: Sequence[WholeAnswer]) -> list[WholeAnswer]:
        """One prompt's answers, without those that only competed: the `n` most probable per token."""
        if self._only_echoes:
            answers = [WholeAnswer(finish_reason=FinishReason.LENGTH) for _ in answers]
        num_kept = self._request.n or 1
        return list(answers) if len(answers) == num_kept else sorted(answers, key=_mean_logprob, reverse=True)[:num_kept]

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
            logprobs=self._logprobs(index, answer.logprobs, echoes=bool(self._request.echo)),
            finish_reason=finish_reason(answer.finish_reason),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if return_ids else UNSET,
            prompt_token_ids=self._prompt(index).token_ids if return_ids else UNSET,
            prompt_logprobs=(UNSET if self._request.prompt_logprobs is None else prompt_logprobs_list(self._scores(index))),
        )

    def events(self, place: int, chunk: OutputChunk) -> bytes:
        self.count(place, chunk)
        index = self.choice_index(place, chunk.index)
        return_ids = self._request.return_token_ids
        echoes = bool(self._request.echo) and not self._begun[index]
        choice = CompletionChoice(index, chunk.text, logprobs=self._logprobs(index, chunk.logprobs, echoes=echoes))
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

    def _scores(self, index: int) -> list[TokenLogprob]:
        """Of the prompt's tokens from the second on."""
        return self._prompt_logprobs[index // (self._request.n or 1)]

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob], *, echoes: bool) -> CompletionLogprobs | None:
        """Of the answer's next tokens, and before them of the whole prompt's if that `echoes`."""
        if self._request.logprobs is None or self._request.logprobs is False:
            return None
        offset = self._offsets[index]
        written = CompletionLogprobs([], [], [], [])
        if echoes:
            first = self._prompt(index).token_ids[0]
            raw = self._tokenizer.token_bytes(first)
            unscored = TokenLogprob(token_id=first, text=self._tokenizer.token_text(first), raw=raw, logprob=0.0, rank=0)
            written = CompletionLogprobs([offset.before(unscored)], [None], [self._name(unscored)], [None])
            tokens = [*self._scores(index), *tokens]
        written.text_offset += [offset.before(token) for token in tokens]
        written.token_logprobs += [finite(token.logprob) for token in tokens]
        written.tokens += [self._name(token) for token in tokens]
        written.top_logprobs += [self._alternatives(token) for token in tokens]
        return written

    def _alternatives(self, token: TokenLogprob) -> dict[str, float]:
        """The most probable tokens and the chosen one, which need not be among them."""
        alternatives = {self._name(top): finite(top.logprob) for top in token.top}
        return alternatives | {self._name(token): finite(token.logprob)}

    def _name(self, token: TokenLogprob) -> str:
        return token_id_text(token) if self._request.return_tokens_as_token_ids else _token_text(token)


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


def _mean_logprob(answer: WholeAnswer) -> float:
    return sum(finite(token.logprob) for token in answer.logprobs) / max(len(answer.logprobs), 1)


def _token_text(token: TokenLogprob) -> str:
    """The token's text, or its bytes spelt out where they are no whole characters: so that texts tell tokens apart."""
    try:
        token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
    return token.text

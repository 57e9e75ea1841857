"""What the answers of chat and completions have in common: who answers, what is counted, and one answer put together.

Knows chunks and usage. Does not know the two formats; `chat.py` and `completions.py` each write one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.base.ids import RequestId
from headrace.base.system_clock import unix_seconds
from headrace.engine.host.generation import GenerationRequest, OutputChunk, TokenLogprob
from headrace.engine.mind.update import FinishReason
from headrace.protocol.openai import FinishReasonWord, GenerationFields, PromptLogprob, PromptTokensDetails, Usage
from headrace.server.door import Call
from headrace.server.prompts import Prompt
from headrace.server.recorder import recorded_generation
from headrace.server.streaming import Chunks
from headrace.server.validation import Asked, Limits, generation_request, new_seed

_LOWEST_LOGPROB = -9999.0
"""JSON has no infinity; this is what vLLM writes for an impossible token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerIdentity:
    """The same in every chunk of an answer."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def answer_identity(call: Call, request: GenerationFields, prefix: str) -> AnswerIdentity:
    return AnswerIdentity(
        id=f"{prefix}-{request.request_id or call.request_id}",
        created=unix_seconds(),
        model=call.services.engine.facts.served_model_names[0],
        system_fingerprint=call.services.system_fingerprint,
    )


def generations(
    call: Call,
    request: GenerationFields,
    prompts: Sequence[Prompt],
    *,
    answer_id: str,
    limits: Limits,
    asked: Asked,
) -> list[Chunks]:
    """One generation for each prompt. Every prompt is judged before any reaches the engine."""
    services = call.services
    requests: list[GenerationRequest] = [
        generation_request(
            request,
            request_id=RequestId(f"{answer_id}/{next(services.request_numbers)}"),
            prompt_token_ids=prompt.token_ids,
            limits=limits,
            seed=new_seed() if request.seed is None else request.seed,
            facts=services.engine.facts,
            config=services.config,
            asked=asked,
            tokenizer=services.engine.tokenizer,
        )
        for prompt in prompts
    ]
    return [
        recorded_generation(services.engine, one, metrics=services.metrics, clock=services.clock, arrived=call.arrived)
        for one in requests
    ]


@dataclass(slots=True)
class Tally:
    """Tokens counted so far, over all prompts and answers of one request."""

    num_prompt_tokens: int
    num_completion_tokens: int = 0
    num_cached_tokens: dict[int, int] = field(default_factory=dict)
    """By the prompt's place, as its first chunk tells it."""

    def count(self, place: int, chunk: OutputChunk) -> None:
        self.num_cached_tokens.setdefault(place, chunk.num_cached_tokens)
        self.num_completion_tokens += len(chunk.token_ids)

    def usage(self) -> Usage:
        return Usage(
            self.num_prompt_tokens,
            self.num_completion_tokens,
            self.num_prompt_tokens + self.num_completion_tokens,
            PromptTokensDetails(sum(self.num_cached_tokens.values())),
        )


def tally(prompts: Sequence[Prompt]) -> Tally:
    return Tally(sum(len(prompt.token_ids) for prompt in prompts))


@dataclass(slots=True)
class WholeAnswer:
    """One answer, put together from its chunks."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, chunk: OutputChunk) -> None:
        self.texts.append(chunk.text)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.prompt_logprobs += chunk.prompt_logprobs
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_reason = chunk.stop_reason

    @property
    def text(self) -> str:
        return "".join(self.texts)


_WORDS: dict[FinishReason, FinishReasonWord] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.REPETITION: "repetition",
}


def finish_reason(reason: FinishReason | None) -> FinishReasonWord:
    """The API's word for it. Answers that failed were raised as errors before they come here."""
    assert reason in _WORDS, f"an answer ended with {reason}"
    return _WORDS[reason]


def prompt_logprobs_list(scores: Sequence[TokenLogprob]) -> list[dict[str, PromptLogprob] | None]:
    """As vLLM writes them: null for the first token, of which there are none."""
    return [None, *({str(one.token_id): _prompt_logprob(one) for one in (score, *score.top)} for score in scores)]


def _prompt_logprob(score: TokenLogprob) -> PromptLogprob:
    return PromptLogprob(finite(score.logprob), score.rank, score.text)


def token_id_text(token: TokenLogprob) -> str:
    """As vLLM names tokens whose texts may not tell them apart."""
    return f"token_id:{token.token_id}"


def finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB)

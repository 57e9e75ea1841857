"""From a typed request to what the engine is asked: defaults filled in, limits checked, lengths fitted to the model.

Knows which fields contradict one another and what an absent one means. Ranges of sampling parameters are checked where
they are declared, in `SamplingParams`. Every refusal is an InvalidRequestError that names the client's own field.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.base.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError
from headrace.base.ids import RequestId
from headrace.engine.host.generation import EngineFacts, GenerationRequest, Tokenizer, wants_all
from headrace.engine.mind.sampling_params import (
    MAX_LOGPROBS,
    BeamSearch,
    EarlyStopping,
    RepetitionDetection,
    SamplingParams,
    ThinkingBudget,
)
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.protocol.openai import GenerationFields
from headrace.server.config import ServerConfig
from headrace.server.echo import shortened, suggestion
from headrace.server.reasoning.formats import ReasoningFormat
from headrace.server.reasoning.request import thinking_budget

V = TypeVar("V")

_MAX_CACHE_SALT = 1024
_MAX_BAD_WORDS = 1000
_MAX_LOGPROB_TOKEN_IDS = 128
_MAX_PRIORITY = 2**31 - 1
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long an answer may become, and in which fields the client says so."""

    max_tokens: int | None
    """What the client asked for."""
    default_max_tokens: int | None
    """Where it did not ask; None gives all that the model's length leaves."""
    max_tokens_field: str
    prompt_field: str
    """`prompt` or `messages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the two kinds of completion say each in its own way."""

    num_logprobs: int
    num_prompt_logprobs: int = NO_LOGPROBS
    num_sequences: int = 0
    """Where it is not `n`."""
    structured_output: StructuredOutput | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    shown_special_token_ids: frozenset[int] = frozenset()
    """Special tokens that a reader of the answer looks for."""
    reasoning_marks: ReasoningFormat | None = None
    """Around the model's reasoning, where it has any that can be written for it."""
    rendered_prompt: str | None = None
    """The conversation as the chat template wrote it; None where there is none."""
    beam_width: int = 0
    """Where a beam search is not as wide as the number of answers."""
    has_enough: Callable[[int], bool] = wants_all
    """Whether the reader of a continuation wants no more of it."""


def check_model(name: str | None, facts: EngineFacts) -> None:
    if name is not None and name not in facts.served_model_names:
        served = ", ".join(facts.served_model_names)
        raise ModelNotFoundError(
            f"the model {shortened(name)!r} is not served here{suggestion(name, facts.served_model_names)} "
            f"(served: {served})"
        )


def check_common(request: GenerationFields, facts: EngineFacts, config: ServerConfig) -> None:
    """What needs no prompt to be judged, so that a bad request costs no tokenising."""
    check_model(request.model, facts)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options needs stream to be true", param="stream_options")
    if request.n is not None and not 1 <= request.n <= config.max_n:
        raise InvalidRequestError(f"n must be between 1 and {config.max_n}, not {request.n}", param="n")
    if request.cache_salt is not None and not 1 <= len(request.cache_salt) <= _MAX_CACHE_SALT:
        raise InvalidRequestError(
            f"cache_salt must have 1 to {_MAX_CACHE_SALT} characters, not {len(request.cache_salt)}", param="cache_salt"
        )
    if request.priority and facts.policy != "priority":
        raise InvalidRequestError(
            f"priority needs an engine that schedules by priority; this one goes by {facts.policy}", param="priority"
        )
    if abs(request.priority or 0) > _MAX_PRIORITY:
        raise InvalidRequestError(f"priority must be within ±{_MAX_PRIORITY}, not {request.priority}", param="priority")
    if request.allowed_token_ids == []:
        raise InvalidRequestError("allowed_token_ids is empty: no token could be chosen", param="allowed_token_ids")
    if request.logprob_token_ids and len(request.logprob_token_ids) > _MAX_LOGPROB_TOKEN_IDS:
        raise InvalidRequestError(
            f"logprob_token_ids may hold at most {_MAX_LOGPROB_TOKEN_IDS} tokens, not {len(request.logprob_token_ids)}",
            param="logprob_token_ids",
        )
    if request.stream_interval is not None and request.stream_interval < 1:
        raise InvalidRequestError(
            f"stream_interval must be at least 1, not {request.stream_interval}", param="stream_interval"
        )
    if request.request_id is not None and not valid_request_id(request.request_id):
        raise InvalidRequestError(
            f"request_id must be 1 to 128 visible ASCII characters without spaces, not {shortened(request.request_id)!r}",
            param="request_id",
        )


def valid_request_id(text: str) -> bool:
    return _REQUEST_ID.fullmatch(text) is not None


def stop_strings(request: GenerationFields, config: ServerConfig) -> tuple[str, ...]:
    if request.stop is None:
        return ()
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if len(stops) > config.max_stops:
        raise InvalidRequestError(f"stop may hold at most {config.max_stops} strings, not {len(stops)}", param="stop")
    if "" in stops:
        raise InvalidRequestError("stop must not be an empty string: it would end every answer at once", param="stop")
    return stops


def generation_request(
    request: GenerationFields,
    *,
    request_id: RequestId,
    prompt_token_ids: Sequence[int],
    limits: Limits,
    seed: int,
    facts: EngineFacts,
    config: ServerConfig,
    asked: Asked,
    tokenizer: Tokenizer,
) -> GenerationRequest:
    """One prompt's request to the engine."""
    max_tokens = _max_tokens(len(prompt_token_ids), limits, facts)
    budget = thinking_budget(request, asked.reasoning_marks, prompt_token_ids, asked.rendered_prompt, tokenizer)
    sampling = _sampling_params(request, max_tokens=max_tokens, asked=asked, budget=budget, seed=seed, facts=facts)
    sampling.check_vocabulary(facts.vocab_size)
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling=sampling,
        num_sequences=asked.num_sequences or _or(request.n, 1),
        priority=_or(request.priority, 0),
        cache_salt=_or(request.cache_salt, ""),
        stop=stop_strings(request, config),
        include_stop_str_in_output=_or(request.include_stop_str_in_output, False),
        skip_special_tokens=_or(request.skip_special_tokens, True),
        shown_special_token_ids=asked.shown_special_token_ids,
        structured_output=asked.structured_output,
        has_enough=asked.has_enough,
    )


def new_seed() -> int:
    """For a request that brings none."""
    return secrets.randbits(63)


def _max_tokens(num_prompt_tokens: int, limits: Limits, facts: EngineFacts) -> int:
    if num_prompt_tokens == 0:
        raise InvalidRequestError(f"{limits.prompt_field} is empty: it has no tokens", param=limits.prompt_field)
    room = facts.max_model_len - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {facts.max_model_len} tokens. However, your {limits.prompt_field} "
            f"resulted in {num_prompt_tokens} tokens, which leaves none for the answer. Please reduce the length of the "
            f"{limits.prompt_field}.",
            param=limits.prompt_field,
        )
    if limits.max_tokens is None:
        return room if limits.default_max_tokens is None else min(limits.default_max_tokens, room)
    if limits.max_tokens > room:
        raise ContextLengthError(
            f"This model's maximum context length is {facts.max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + limits.max_tokens} tokens ({num_prompt_tokens} in the {limits.prompt_field}, "
            f"{limits.max_tokens} in the completion). Please reduce the length of the {limits.prompt_field} or "
            f"{limits.max_tokens_field}.",
            param=limits.max_tokens_field,
        )
    if limits.max_tokens < 1:
        raise InvalidRequestError(
            f"{limits.max_tokens_field} must be at least 1, not {limits.max_tokens}", param=limits.max_tokens_field
        )
    return limits.max_tokens


def _sampling_params(
    request: GenerationFields,
    *,
    max_tokens: int,
    asked: Asked,
    budget: ThinkingBudget | None,
    seed: int,
    facts: EngineFacts,
) -> SamplingParams:
    """Absent parameters take the model's own default, then the API's."""
    model = facts.default_sampling
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=_or(request.min_tokens, 0),
        temperature=_or(request.temperature, float(model.get("temperature", 1.0))),
        top_p=_or(request.top_p, float(model.get("top_p", 1.0))),
        top_k=_or(request.top_k, int(model.get("top_k", 0))),
        min_p=_or(request.min_p, float(model.get("min_p", 0.0))),
        seed=seed,
        repetition_penalty=_or(request.repetition_penalty, float(model.get("repetition_penalty", 1.0))),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=_or(request.logit_bias, {}),
        logprobs=asked.num_logprobs,
        stop_token_ids=tuple(_or(request.stop_token_ids, [])),
        ignore_eos=_or(request.ignore_eos, False),
        allowed_token_ids=tuple(_or(request.allowed_token_ids, [])),
        bad_words_token_ids=asked.bad_words_token_ids,
        logprob_token_ids=tuple(_or(request.logprob_token_ids, [])),
        prompt_logprobs=asked.num_prompt_logprobs,
        repetition_detection=_repetition_detection(request),
        thinking_budget=budget,
        beam_search=_beam_search(request, asked),
    )


def num_prompt_logprobs(request: GenerationFields) -> int:
    """Raises InvalidRequestError where the answer has no place for them."""
    asked = request.prompt_logprobs
    if asked is None:
        return NO_LOGPROBS
    if not 0 <= asked <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"prompt_logprobs must be a number of alternatives between 0 and {MAX_LOGPROBS}, not {asked}",
            param="prompt_logprobs",
        )
    if request.stream:
        raise InvalidRequestError("prompt_logprobs cannot be streamed: leave out stream", param="prompt_logprobs")
    return asked


def bad_words_token_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """How the tokenizer spells each word where a text begins with it, and after a space."""
    if len(words) > _MAX_BAD_WORDS:
        raise InvalidRequestError(f"bad_words holds {len(words)} words; at most {_MAX_BAD_WORDS} may be", param="bad_words")
    spelt: dict[tuple[int, ...], None] = {}
    for i, word in enumerate(words):
        if not word.strip():
            raise InvalidRequestError(
                f"bad_words[{i}] is empty, or white space alone: leave it out", param=f"bad_words[{i}]"
            )
        for text in (word, f" {word.lstrip()}"):
            spelt[tuple(tokenizer.encode(text, add_special_tokens=False, parse_special=False))] = None
    return tuple(spelt)


def _beam_search(request: GenerationFields, asked: Asked) -> BeamSearch | None:
    """Raises InvalidRequestError where the request also asks for what beams cannot give."""
    if not request.use_beam_search:
        for name, is_given in (
            ("length_penalty", request.length_penalty not in (None, 1.0)),
            ("early_stopping", request.early_stopping not in (None, False)),
        ):
            if is_given:
                raise InvalidRequestError(f"{name} needs use_beam_search to be true", param=name)
        return None
    if request.stop:
        raise InvalidRequestError(
            "stop cannot be combined with use_beam_search, which compares tokens before they are text: give stop_token_ids",
            param="stop",
        )
    if asked.structured_output is not None:
        field = asked.structured_output.field
        raise InvalidRequestError(f"{field} cannot be combined with use_beam_search: leave one out", param=field)
    return BeamSearch(
        width=asked.beam_width or _or(request.n, 1),
        length_penalty=_or(request.length_penalty, 1.0),
        early_stopping=_EARLY_STOPPING[request.early_stopping or False],
    )


_EARLY_STOPPING: dict[bool | str, EarlyStopping] = {
    True: EarlyStopping.WHEN_FULL,
    False: EarlyStopping.WHEN_BEHIND,
    "never": EarlyStopping.WHEN_HOPELESS,
}


def _repetition_detection(request: GenerationFields) -> RepetitionDetection | None:
    asked = request.repetition_detection
    if asked is None:
        return None
    return RepetitionDetection(
        max_pattern_size=asked.max_pattern_size,
        min_pattern_size=_or(asked.min_pattern_size, 1),
        min_count=_or(asked.min_count, 2),
    )


def _or(value: V | None, default: V) -> V:
    return default if value is None else value

"""RequestUpdate: what a step changed for one continuation of one request, told to whoever asked for it."""

from enum import StrEnum

import msgspec

from headrace.base.clock import Nanos
from headrace.base.ids import RequestId
from headrace.engine.mind.step import TokenLogprobs


class FinishReason(StrEnum):
    """Why a continuation ended, in OpenAI's words where it has them."""

    STOP = "stop"
    """An end-of-text or stop token was chosen."""
    LENGTH = "length"
    """`max_tokens` or the model's length was reached."""
    ABORT = "abort"
    """The client gave up."""
    REPETITION = "repetition"
    """The answer was stuck in a repetition, which the request asked to watch for."""
    ERROR = "error"
    """The model's numbers were not usable; `error` says how."""


class SequenceTimes(msgspec.Struct, frozen=True, array_like=True):
    """Moments in one continuation's life by the engine's clock; told once, with its last update."""

    arrived: Nanos
    scheduled: Nanos
    """First given tokens; equal to `arrived` if that never happened."""
    first_token: Nanos
    """First token known; equal to `finished` if none was."""
    finished: Nanos


class RequestUpdate(msgspec.Struct, frozen=True, array_like=True):
    request_id: RequestId
    sample_index: int
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per new token where the request asked for them, else empty."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The token that ended it, if one did; it is the last of `new_token_ids`."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt's next tokens, from its second on, where the request asked for them."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""
    error: str = ""
    times: SequenceTimes | None = None

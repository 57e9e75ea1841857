"""What the HTTP doors ask of an engine, and what comes back: text in pieces. Knows no sockets and no wire format.

`client.py` carries it out over the engine process; tests may carry it out over anything.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.base.ids import RequestId
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.engine.mind.update import FinishReason, SequenceTimes


def wants_all(index: int) -> bool:
    """Nothing that a continuation says is too much."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, `num_sequences` continuations."""

    request_id: RequestId
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    num_sequences: int = 1
    priority: int = 0
    cache_salt: str = ""
    stop: tuple[str, ...] = ()
    """Generation ends where any of these appears in the text of the answer."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    """Leave control tokens out of the text."""
    shown_special_token_ids: frozenset[int] = frozenset()
    """These stay in the text all the same: a reader of the text looks for them."""
    structured_output: StructuredOutput | None = None
    """The form of every answer; None: free text. Refused with its `field` named where it cannot be enforced."""
    has_enough: Callable[[int], bool] = wants_all
    """Asked with a continuation's index after each of its chunks: whether its reader wants no more of it. It then ends with
    `FinishReason.STOP`, and the engine computes no more of it."""


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A token with its text, for the API's `logprobs`."""

    token_id: int
    text: str
    raw: bytes
    """The token's own bytes, which need not be whole characters."""
    logprob: float
    rank: int
    top: tuple["TokenLogprob", ...] = ()
    """Alternatives, most probable first; their own `top` is empty."""


class OutputChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became known of one continuation. Texts of one `index` concatenate to the whole answer."""

    index: int
    text: str = ""
    """May be empty while a character or a possible stop string is incomplete."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """With the first tokens of the first continuation, where asked for: of the prompt's tokens from the second on."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token's id or the stop string that ended it; None for end-of-text."""
    num_cached_tokens: int = 0
    times: SequenceTimes | None = None
    """With the last chunk of an index."""
    error: str = ""


class Tokenizer(Protocol):
    """Text to token ids and back, for one model. Made by `tokenizer.py`."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def chat_template(self) -> str | None: ...
    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; partial characters included."""
        ...

    def token_text(self, token_id: int) -> str:
        """The token as a readable piece, for `logprobs`."""
        ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What is true of a ready engine for as long as it lives."""

    served_model_names: tuple[str, ...]
    """The first is the name in answers; all are accepted."""
    model_path: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    dtype: str
    device: str
    policy: str
    """`fcfs` or `priority`; the latter alone accepts a request's `priority`."""
    execution_identity: str
    started_unix_s: int
    startup_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase of the start-up, in order."""
    default_sampling: dict[str, float | int] = field(default_factory=dict)
    """What the model's makers advise: temperature, top_p, top_k, min_p, repetition_penalty where given."""


class Engine(Protocol):
    """What the server needs of an engine. `EngineClient` is the real one."""

    @property
    def facts(self) -> EngineFacts: ...
    @property
    def tokenizer(self) -> Tokenizer: ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[OutputChunk]:
        """Closing the iterator early aborts the request.

        Raises InvalidRequestError, OverloadedError or EngineDeadError.
        """
        ...

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine cannot serve."""
        ...

    async def reset_prefix_cache(self) -> None:
        """Forgets every cached block that no sequence holds. Raises EngineDeadError if the engine cannot be told."""
        ...

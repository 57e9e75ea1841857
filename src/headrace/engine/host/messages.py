"""What the two processes of one engine say to each other: msgspec structs, MessagePack on ZeroMQ.

They carry the mind's own types, so there is no twin of `SamplingParams` to keep in step; that is why they live here,
above the mind, and not in `protocol/` (docs/decisions/0003-engine-wire.md). Both ends come from one installation: no
versions.
"""

import msgspec

from headrace.base.ids import RequestId
from headrace.engine.mind.request import Request
from headrace.engine.mind.update import RequestUpdate

# Client -> engine


class AddRequest(msgspec.Struct, frozen=True, tag="add", omit_defaults=True):
    request: Request
    form_number: int | None = None
    """Of a long form, which stands in the request the first time, and is left out of it ever after."""
    forgotten: tuple[int, ...] = ()
    """Numbers that no request will name any more."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client gave up; unknown or finished ids are ignored, since the two may cross on the way."""

    request_ids: tuple[RequestId, ...]
    sample_index: int | None = None
    """The one continuation that is given up, for example because a stop string appeared; None: all of them."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answered with Stats, so that an engine that hangs is told from one that is busy."""


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget every cached block that no sequence holds."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish nothing more; answer what is in flight with an abort, then exit 0."""


ClientMessage = AddRequest | Abort | Ping | ResetPrefixCache | Shutdown

# Engine -> client


class StartupPhase(msgspec.Struct, frozen=True, tag="phase"):
    """One phase of the start-up is over."""

    name: str
    seconds: float
    detail: str = ""


class EngineReady(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The engine serves. Facts that only it knows."""

    num_blocks: int
    block_size: int
    max_model_len: int
    kv_bytes: int
    vocab_size: int
    generation_defaults: dict[str, float | int] = {}
    """What the model's makers advise for sampling, where they do."""
    execution_identity: str
    """Hexadecimal digest of the ExecutionIdentity."""
    dtype: str
    device: str
    """For people: what computes, for example `torch on CPU, 2 threads`."""


class Stats(msgspec.Struct, frozen=True, tag="stats", kw_only=True):
    """The engine's gauges now and its counters since the start; sent with updates and on Ping."""

    num_requests_running: int = 0
    """Sequences that hold blocks and run."""
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share of blocks that sequences hold, 0..1; cached and evictable blocks count as free."""
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    """Prompt tokens looked up."""
    prefix_cache_hits: int = 0
    """Prompt tokens found."""
    num_steps: int = 0
    step_token_counts: tuple[int, ...] = ()
    """Tokens of each step since the last Stats, for the histogram."""
    num_blocks_in_use: int = 0
    num_blocks_cached: int = 0


class Updates(msgspec.Struct, frozen=True, tag="updates"):
    """What one step changed."""

    updates: tuple[RequestUpdate, ...]
    stats: Stats


class RequestRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The mind would not take a request. `kind` is the name of a class in base/errors.py."""

    request_id: RequestId
    kind: str
    message: str
    param: str | None = None


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot start or cannot go on; it exits non-zero after this. `kind` as above, or empty for a bug."""

    kind: str
    message: str


EngineMessage = StartupPhase | EngineReady | Stats | Updates | RequestRefused | EngineFailed

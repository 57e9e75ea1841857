"""FrontEnd: what stands between clients and the mind, as a resource of its own: one process that reads requests, makes
tokens of text, and sends what comes out. Knows how long it is busy; knows no HTTP.

It works on one thing at a time, so it saturates: chunks of many streams queue behind one another, and behind new requests.
"""

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError

FRONT_END_TIMES = ("request_us", "prompt_token_us", "chunk_us", "latency_us")
"""Of `FrontEndCost`, what is a time."""


class FrontEndCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in microseconds; the defaults cost nothing."""

    request_us: float = 0.0
    """To read a request and hand it to the engine."""
    prompt_token_us: float = 0.0
    """More of it for each token of the prompt."""
    chunk_us: float = 0.0
    """Of one process's time for each chunk that goes out."""
    latency_us: float = 0.0
    """From the end of a step to the first chunk at its client, when nothing else waits."""
    first_chunk_tokens: int = 1
    """Tokens that a stream's first chunk waits for. More than one where results are read while further steps run, or where a
    replica that got a prompt's KV from another sends nothing before its stream interval is full."""

    def __post_init__(self) -> None:
        for name in FRONT_END_TIMES:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"front_end: {name} must not be negative, not {getattr(self, name):g}")
        if self.first_chunk_tokens < 1:
            raise ConfigurationError(f"front_end: first_chunk_tokens must be at least 1, not {self.first_chunk_tokens}")


NO_FRONT_END = FrontEndCost()


class FrontEnd:
    def __init__(self, cost: FrontEndCost) -> None:
        self._cost = cost
        self._busy_until = 0.0

    @property
    def has_cost(self) -> bool:
        return self._cost != NO_FRONT_END

    @property
    def first_chunk_tokens(self) -> int:
        return self._cost.first_chunk_tokens

    def accept(self, now: Nanos, num_prompt_tokens: int) -> Nanos:
        """When the mind sees a request that its client sends now."""
        cost = self._cost
        self._busy_until = max(self._busy_until, now) + (cost.request_us + cost.prompt_token_us * num_prompt_tokens) * 1e3
        return Nanos(round(self._busy_until))

    def deliver(self, now: Nanos) -> Nanos:
        """When a client has a chunk that the engine gives now."""
        cost = self._cost
        self._busy_until = max(self._busy_until, now) + cost.chunk_us * 1e3
        return Nanos(round(self._busy_until + cost.latency_us * 1e3))

    def delay_of_run(self, first: int) -> int | None:
        """How much later than they are computed all tokens are seen from the moment `first` on, while nobody else comes;
        None where it is not the same for all of them."""
        if self._cost.chunk_us or self._busy_until > first:
            return None
        return round(self._cost.latency_us * 1e3)

    def deliver_all(self, now: Nanos, num_chunks: int) -> tuple[float, float]:
        """The same for the chunks of one step: when a client has the first, and how long after it each next one is there; in
        nanoseconds."""
        gap = self._cost.chunk_us * 1e3
        begin = max(self._busy_until, now)
        self._busy_until = begin + gap * num_chunks
        return begin + gap + self._cost.latency_us * 1e3, gap

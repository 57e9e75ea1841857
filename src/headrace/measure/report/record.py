"""RequestRecord: what happened to one request, as moments. The same for real and simulated runs; every figure is made of
these.

Moments are integer nanoseconds since the start of the run. Knows no clock, no protocol and no statistics.
"""

import msgspec

from headrace.base.clock import Nanos


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    request_id: str
    intended_ns: Nanos
    """When the workload wanted it sent. Every latency counts from here: a client or server that is late hides nothing."""
    sent_ns: Nanos
    """When its first byte was handed to the network; later than intended if the client held it back or was late."""
    headers_ns: Nanos | None = None
    """When the answer's header was there."""
    first_chunk_ns: Nanos | None = None
    """When the first chunk with tokens was there."""
    gaps_ns: tuple[Nanos, ...] = ()
    """Between chunks with tokens, every one of them, in order."""
    finished_ns: Nanos
    """When its last byte was there, or when it was known to have failed."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    """Prompt tokens that came from a cache; None where the server does not say."""
    queued_ns: Nanos | None = None
    """In the server's own queue; None where it does not say."""
    finish_reason: str = ""
    error: str = ""
    """The kind of its failure (`connect`, `http 503`, `dropped`, `timeout` …); empty where it succeeded."""
    error_detail: str = ""
    text: str = ""

    @property
    def is_completed(self) -> bool:
        return not self.error

    @property
    def last_chunk_ns(self) -> Nanos | None:
        return None if self.first_chunk_ns is None else Nanos(self.first_chunk_ns + sum(self.gaps_ns))

    @property
    def chunk_ns(self) -> list[int]:
        """The moment of every chunk with tokens."""
        if self.first_chunk_ns is None:
            return []
        moments = [int(self.first_chunk_ns)]
        for gap in self.gaps_ns:
            moments.append(moments[-1] + gap)
        return moments


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How well the client itself kept up; a simulated run has none."""

    cpu_s: float
    """Processor time of the client process during the run."""
    wall_s: float
    loop_lag_p99_ns: Nanos
    """How late the event loop came back to a regular appointment."""
    send_lag_p99_ns: Nanos
    """How late requests were sent that nothing but the client could hold back."""
    send_lag_max_ns: Nanos

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run was, beside its requests."""

    source: str
    """`live` or `simulated`."""
    duration_ns: Nanos
    """From the first intended send to the last byte."""
    start_ns: Nanos | None = None
    """The start by the client's monotonic clock, which other programs of its machine share: their logs can be laid
    beside."""
    in_flight_integral_ns: int | None = None
    """Requests in flight, summed over time, by a counter of its own: Little's law is checked against it."""
    is_interrupted: bool = False
    """Somebody ended it before its workload did; what was in flight then has failed as `interrupted`."""
    label: str = ""
    date: str = ""
    backend: str = ""
    url: str = ""
    model: str = ""
    workload: str = ""
    seed: int = 0
    request_rate: float | None = None
    """As asked for; None where there was none (all at once, a closed loop, a trace)."""
    burstiness: float = 1.0
    max_concurrency: int | None = None
    slo_ms: dict[str, float] = {}
    reusable_token_share: float | None = None
    """Of prompt tokens, those that a prefix cache without limits would find, by the workload itself."""
    metadata: dict[str, str] = {}
    client: ClientHealth | None = None
    server_counters: dict[str, float] = {}
    """How much the server's own counters grew during the run, by vLLM's metric names; empty where it has none."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept of a run; everything else is computed from it."""

    facts: RunFacts
    records: tuple[RequestRecord, ...]

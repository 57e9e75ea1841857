"""FleetLog: what a fleet was like over time, small enough to keep: the replay page and the Perfetto trace are made of it.

Columns, not rows: one list of moments, and for each replica one list a figure. Knows figures; draws nothing.
"""

from collections.abc import Mapping

import msgspec

from headrace.base.clock import Nanos
from headrace.engine.mind.stats import EngineStats


class ReplicaColumns(msgspec.Struct):
    """One value for each moment of the log. A replica that is down has zeros, and `is_up` 0."""

    is_up: list[int] = []
    num_running: list[int] = []
    num_waiting: list[int] = []
    kv_permille: list[int] = []
    """KV blocks that sequences hold, in thousandths."""
    cached_permille: list[int] = []
    """Blocks that nobody holds and whose content is kept, in thousandths of all."""
    hit_tokens: list[int] = []
    """Prompt tokens found in the prefix cache since the moment before."""
    query_tokens: list[int] = []
    """Prompt tokens looked up since the moment before."""
    num_preemptions: list[int] = []
    """Since the moment before."""
    num_loading: list[int] = []
    """Sequences whose KV is on its way from another replica."""
    leased_permille: list[int] = []
    """Blocks that are kept for other replicas to fetch, in thousandths of all; what two requests share counts twice."""
    received_mb: list[int] = []
    """Megabytes of KV that came from other replicas since the moment before."""


class FleetEvent(msgspec.Struct, frozen=True, array_like=True):
    at_ms: float
    kind: str
    """A kind of fault, and `begins` or `ends`."""
    replica: str


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One answered request on the replica that answered it; nanoseconds since the start of the run."""

    request_id: str
    replica: str
    arrived: Nanos
    scheduled: Nanos
    first_token: Nanos
    finished: Nanos
    num_cached_tokens: int
    num_output_tokens: int


class TransferSpan(msgspec.Struct, frozen=True, array_like=True):
    """KV on its way from one replica to another; nanoseconds since the start of the run."""

    request_id: str
    source: str
    target: str
    asked: Nanos
    begun: Nanos
    """When its first byte left."""
    ended: Nanos
    num_bytes: int
    """0 where it failed."""
    error: str = ""


class FleetLog(msgspec.Struct, kw_only=True):
    version: int = 1
    interval_ms: float
    replicas: list[str]
    at_ms: list[float] = []
    columns: dict[str, ReplicaColumns] = {}
    events: list[FleetEvent] = []
    spans: list[Span] = []
    """Empty where they were not asked for. Where one replica computes a prompt and another answers, there are two."""
    transfers: list[TransferSpan] = []
    """With the spans."""
    roles: list[str] = []
    """By replica: both, prefill or decode."""


_NOTHING = (0, 0, 0, 0)


class FleetLogger:
    """Takes the figures down; a gap since the last moment is that of the counters."""

    def __init__(self, roles: Mapping[str, str], *, interval_ns: int) -> None:
        """`roles`: of each replica."""
        self.log = FleetLog(
            interval_ms=interval_ns / 1e6,
            replicas=list(roles),
            columns={name: ReplicaColumns() for name in roles},
            roles=list(roles.values()),
        )
        self._counted: dict[str, tuple[int, int, int, int]] = {}

    def begin_moment(self, now: Nanos) -> None:
        self.log.at_ms.append(now / 1e6)

    def note(self, replica: str, stats: EngineStats | None, num_blocks: int, num_bytes_received: int = 0) -> None:
        """Once for each replica and moment. The counters of a process that is gone start again from 0."""
        columns = self.log.columns[replica]
        if stats is None:
            self._counted.pop(replica, None)
            for values in (getattr(columns, name) for name in ReplicaColumns.__struct_fields__):
                values.append(0)
            return
        before = self._counted.get(replica, _NOTHING)
        received = num_bytes_received // 1_000_000
        counted = (stats.prefix_cache_hits, stats.prefix_cache_queries, stats.num_preemptions, received)
        if counted[1] < before[1] or received < before[3]:
            before = _NOTHING
        self._counted[replica] = counted
        columns.is_up.append(1)
        columns.num_running.append(stats.num_running)
        columns.num_waiting.append(stats.num_waiting)
        columns.kv_permille.append(round(1000 * stats.kv_cache_usage))
        columns.cached_permille.append(round(1000 * stats.num_blocks_cached / num_blocks))
        columns.hit_tokens.append(counted[0] - before[0])
        columns.query_tokens.append(counted[1] - before[1])
        columns.num_preemptions.append(counted[2] - before[2])
        columns.num_loading.append(stats.num_loading)
        columns.leased_permille.append(round(1000 * stats.num_blocks_leased / num_blocks))
        columns.received_mb.append(received - before[3])

    def event(self, now: Nanos, kind: str, replica: str) -> None:
        self.log.events.append(FleetEvent(now / 1e6, kind, replica))

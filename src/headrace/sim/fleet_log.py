"""FleetLog: what a fleet was like over time, small enough to keep: the replay page and the Perfetto trace are made of it.

Columns, not rows: one list of moments, and for each replica one list a figure. Knows figures; draws nothing.
"""

from collections.abc import Iterable

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


class FleetLog(msgspec.Struct, kw_only=True):
    version: int = 1
    interval_ms: float
    replicas: list[str]
    at_ms: list[float] = []
    columns: dict[str, ReplicaColumns] = {}
    events: list[FleetEvent] = []
    spans: list[Span] = []
    """Empty where they were not asked for."""


class FleetLogger:
    """Takes the figures down; a gap since the last moment is that of the counters."""

    def __init__(self, replicas: Iterable[str], *, interval_ns: int) -> None:
        names = list(replicas)
        self.log = FleetLog(
            interval_ms=interval_ns / 1e6, replicas=names, columns={name: ReplicaColumns() for name in names}
        )
        self._counted: dict[str, tuple[int, int, int]] = {}

    def begin_moment(self, now: Nanos) -> None:
        self.log.at_ms.append(now / 1e6)

    def note(self, replica: str, stats: EngineStats | None, num_blocks: int) -> None:
        """Once for each replica and moment. The counters of a process that is gone start again from 0."""
        columns = self.log.columns[replica]
        if stats is None:
            self._counted.pop(replica, None)
            for values in (getattr(columns, name) for name in ReplicaColumns.__struct_fields__):
                values.append(0)
            return
        before = self._counted.get(replica, (0, 0, 0))
        counted = (stats.prefix_cache_hits, stats.prefix_cache_queries, stats.num_preemptions)
        if counted[1] < before[1]:
            before = (0, 0, 0)
        self._counted[replica] = counted
        columns.is_up.append(1)
        columns.num_running.append(stats.num_running)
        columns.num_waiting.append(stats.num_waiting)
        columns.kv_permille.append(round(1000 * stats.kv_cache_usage))
        columns.cached_permille.append(round(1000 * stats.num_blocks_cached / num_blocks))
        columns.hit_tokens.append(counted[0] - before[0])
        columns.query_tokens.append(counted[1] - before[1])
        columns.num_preemptions.append(counted[2] - before[2])

    def event(self, now: Nanos, kind: str, replica: str) -> None:
        self.log.events.append(FleetEvent(now / 1e6, kind, replica))

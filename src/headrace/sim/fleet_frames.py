"""FleetFrames: a fleet's log and its run, cut down to what a page can hold: a bounded number of frames, and curves beside.

Knows how moments become frames and requests become curves. Draws nothing.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from headrace.base.clock import Nanos
from headrace.base.units import NANOS_PER_SECOND
from headrace.measure.report.latency import ttft_ms
from headrace.measure.report.record import RequestRecord, Run
from headrace.measure.report.statistics import percentile
from headrace.measure.report.timeline import in_flight
from headrace.sim.fleet_log import FleetEvent, FleetLog, ReplicaColumns

MAX_FRAMES = 600
MAX_CELLS = 120_000
"""Frames times replicas: a page of 256 replicas has 468 frames, and stays below a megabyte."""
NUM_BINS = 240
"""Of the curves over time, at most; fewer where a run is short."""
_SHORTEST_BIN_NS = NANOS_PER_SECOND // 10
_COUNTERS = ("hit_tokens", "query_tokens", "num_preemptions", "received_mb")


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A fault from its begin to its end, on one replica or, without one, on all."""

    kind: str
    replica: int | None
    """Its number among the replicas."""
    from_s: float
    to_s: float | None
    """None: the run was over first."""


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """Of the clients, in bins of `bin_s` from 0."""

    bin_s: float
    arrivals_per_s: list[float]
    failures_per_s: list[float]
    """By the moment at which they were known to have failed."""
    in_flight: list[float]
    ttft_p95_ms: list[float | None]
    """Of the requests that arrived in the bin; None where none of them had a token."""


class FleetFrames(msgspec.Struct, frozen=True, kw_only=True):
    replicas: list[str]
    roles: list[str]
    """One for each replica."""
    duration_s: float
    at_s: list[float]
    """The moment of each frame."""
    columns: list[ReplicaColumns]
    """One for each replica, a value a frame: levels as they were at its moment, counts since the frame before."""
    num_moments: int
    """That the log had."""
    log_interval_s: float
    outages: list[Outage]
    curves: Curves


def fleet_frames(log: FleetLog, run: Run, *, max_frames: int = MAX_FRAMES, max_cells: int = MAX_CELLS) -> FleetFrames:
    num_moments = len(log.at_ms)
    limit = max(1, min(max_frames, max_cells // max(1, len(log.replicas))))
    step = max(1, -(-num_moments // limit))
    ends = list(range(step - 1, num_moments, step))
    if num_moments and (not ends or ends[-1] != num_moments - 1):
        ends.append(num_moments - 1)
    last_s = log.at_ms[-1] / 1e3 if num_moments else 0.0
    return FleetFrames(
        replicas=log.replicas,
        roles=log.roles or ["both"] * len(log.replicas),
        duration_s=max(run.facts.duration_ns / 1e9, last_s),
        at_s=[log.at_ms[end] / 1e3 for end in ends],
        columns=[_sampled(log.columns[name], ends) for name in log.replicas],
        num_moments=num_moments,
        log_interval_s=log.interval_ms / 1e3,
        outages=outages(log.events, log.replicas),
        curves=_curves(run.records, run.facts.duration_ns),
    )


def _sampled(columns: ReplicaColumns, ends: Sequence[int]) -> ReplicaColumns:
    begins = [0, *(end + 1 for end in ends)]
    sampled = {}
    for name in ReplicaColumns.__struct_fields__:
        values = getattr(columns, name)
        if name in _COUNTERS:
            sampled[name] = [sum(values[begin : end + 1]) for begin, end in zip(begins, ends, strict=False)]
        else:
            sampled[name] = [values[end] for end in ends]
    return ReplicaColumns(**sampled)


def outages(events: Sequence[FleetEvent], replicas: Sequence[str]) -> list[Outage]:
    """Begins and ends of one kind on one replica belong together in their order. A storm is a moment."""
    numbers = {name: index for index, name in enumerate(replicas)}
    found: list[Outage] = []
    open_ones: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        kind, _, what = event.kind.partition(" ")
        at_s, number = event.at_ms / 1e3, numbers.get(event.replica)
        if what == "begins":
            if number is not None:
                open_ones[kind, event.replica].append(len(found))
            found.append(Outage(kind=kind, replica=number, from_s=at_s, to_s=at_s if number is None else None))
        elif open_ones[kind, event.replica]:
            index = open_ones[kind, event.replica].pop(0)
            found[index] = msgspec.structs.replace(found[index], to_s=at_s)
    return found


def _curves(records: Sequence[RequestRecord], duration_ns: Nanos) -> Curves:
    num_bins = max(1, min(NUM_BINS, duration_ns // _SHORTEST_BIN_NS))
    bin_ns = max(1, -(-duration_ns // num_bins))
    bin_s = bin_ns / 1e9

    def bin_of(moment: int) -> int:
        return min(num_bins - 1, moment // bin_ns)

    arrivals, failures = [0] * num_bins, [0] * num_bins
    ttfts: list[list[float]] = [[] for _ in range(num_bins)]
    for record in records:
        arrivals[bin_of(record.intended_ns)] += 1
        if not record.is_completed:
            failures[bin_of(record.finished_ns)] += 1
        if (ttft := ttft_ms(record)) is not None:
            ttfts[bin_of(record.intended_ns)].append(ttft)
    return Curves(
        bin_s=bin_s,
        arrivals_per_s=[count / bin_s for count in arrivals],
        failures_per_s=[count / bin_s for count in failures],
        in_flight=[round(value, 2) for value in in_flight(records, bin_ns, num_bins)],
        ttft_p95_ms=[round(percentile(sorted(values), 95), 2) if values else None for values in ttfts],
    )

"""What a run was like over time: in flight, tokens per second, stalls, and Little's law. Knows records; draws nothing."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from headrace.base.clock import Nanos
from headrace.base.units import NANOS_PER_MILLI, NANOS_PER_SECOND
from headrace.measure.report.record import RequestRecord

STALL_FACTOR = 10
SHORTEST_STALL_MS = 100.0


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    bin_ns: Nanos
    in_flight: tuple[float, ...]
    """Requests in flight, averaged over each bin."""
    tokens_per_s: tuple[float, ...]
    """Chunks that came, in tokens: an answer's tokens are spread evenly over its chunks."""


class Stall(msgspec.Struct, frozen=True):
    """A silence inside an answer. One that nothing ended is the silence before a failure."""

    request_id: str
    from_ns: Nanos
    duration_ns: Nanos


class LittlesLaw(msgspec.Struct, frozen=True, kw_only=True):
    in_flight: float
    """L: requests in flight over the run, by a counter that knows nothing of records."""
    rate_times_time: float
    """lambda times W: requests per second times their mean time from send to end, by the records."""
    error: float
    """(L - lambda W) / lambda W. Not 0: requests were lost, counted twice or timed wrongly."""
    steady_in_flight: float
    """In flight over the middle 80 % of the time in which requests were sent, by the records."""
    steady_rate_times_time: float
    """Rate times time of the requests sent in that window."""
    steady_error: float
    """Not near 0: the run was not steady (a queue that grew, a ramp, a run too short), so its averages depend on its
    length."""


def timeline(records: Sequence[RequestRecord], duration_ns: Nanos, *, num_bins: int = 120) -> Timeline:
    bin_ns = max(1, -(-duration_ns // num_bins))
    tokens = [0.0] * num_bins
    for record in records:
        chunks = record.chunk_ns
        for moment in chunks:
            tokens[min(num_bins - 1, moment // bin_ns)] += record.num_output_tokens / len(chunks)
    return Timeline(
        bin_ns=Nanos(bin_ns),
        in_flight=tuple(in_flight(records, bin_ns, num_bins)),
        tokens_per_s=tuple(count * NANOS_PER_SECOND / bin_ns for count in tokens),
    )


def in_flight(records: Sequence[RequestRecord], bin_ns: int, num_bins: int) -> list[float]:
    """Requests in flight, averaged over each bin."""
    bins = [0.0] * num_bins
    for record in records:
        _add_interval(bins, record.sent_ns, record.finished_ns, bin_ns)
    return bins


def _add_interval(bins: list[float], start: int, end: int, bin_ns: int) -> None:
    for index in range(max(0, start // bin_ns), min(len(bins) - 1, end // bin_ns) + 1):
        covered = min(end, (index + 1) * bin_ns) - max(start, index * bin_ns)
        bins[index] += max(0, covered) / bin_ns


def max_in_flight(records: Sequence[RequestRecord]) -> int:
    """The most at once. An end and a start at one moment do not overlap."""
    changes = sorted([(r.sent_ns, 1) for r in records] + [(r.finished_ns, -1) for r in records])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def max_tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """Of whole seconds since the start, as vLLM reports its peak."""
    counts: dict[int, float] = {}
    for record in records:
        chunks = record.chunk_ns
        for moment in chunks:
            second = moment // NANOS_PER_SECOND
            counts[second] = counts.get(second, 0.0) + record.num_output_tokens / len(chunks)
    return max(counts.values(), default=0.0)


def stall_threshold_ms(records: Sequence[RequestRecord]) -> float:
    """Ten times the run's median gap, and at least 100 ms: far beyond what a reader takes for the stream's own pace."""
    gaps = [gap for record in records for gap in record.gaps_ns]
    return max(SHORTEST_STALL_MS, STALL_FACTOR * median(gaps) / NANOS_PER_MILLI) if gaps else SHORTEST_STALL_MS


def stalls(records: Sequence[RequestRecord]) -> list[Stall]:
    """Every silence inside an answer at least as long as the threshold, the longest first."""
    threshold = stall_threshold_ms(records) * NANOS_PER_MILLI
    found = []
    for record in records:
        moments = record.chunk_ns
        if moments and not record.is_completed:
            moments = [*moments, record.finished_ns]
        found += [
            Stall(record.request_id, Nanos(before), Nanos(after - before))
            for before, after in pairwise(moments)
            if after - before >= threshold
        ]
    return sorted(found, key=lambda stall: -stall.duration_ns)


def littles_law(
    records: Sequence[RequestRecord], duration_ns: Nanos, in_flight_integral_ns: int | None
) -> LittlesLaw | None:
    """In flight = rate x time, twice: as bookkeeping over the whole run, and as a sign of steadiness in its middle.

    >>> one = lambda n: RequestRecord(request_id=str(n), intended_ns=n * 10, sent_ns=n * 10, finished_ns=n * 10 + 20)
    >>> law = littles_law([one(n) for n in range(100)], 1010, 2000)
    >>> round(law.in_flight, 3), law.error
    (1.98, 0.0)
    """
    if not records or not duration_ns:
        return None
    residence = [record.finished_ns - record.sent_ns for record in records]
    by_records = sum(residence) / duration_ns
    by_counter = by_records if in_flight_integral_ns is None else in_flight_integral_ns / duration_ns
    sends = [record.sent_ns for record in records]
    begin, span = min(sends), max(sends) - min(sends)
    low, high = begin + span // 10, max(begin + 1, begin + span - span // 10)
    window = high - low
    steady = sum(max(0, min(r.finished_ns, high) - max(r.sent_ns, low)) for r in records) / window
    steady_product = sum(r.finished_ns - r.sent_ns for r in records if low <= r.sent_ns < high) / window
    return LittlesLaw(
        in_flight=by_counter,
        rate_times_time=by_records,
        error=_relative(by_counter, by_records),
        steady_in_flight=steady,
        steady_rate_times_time=steady_product,
        steady_error=_relative(steady, steady_product),
    )


def _relative(value: float, reference: float) -> float:
    if reference == 0:
        return 0.0 if value == 0 else math.inf
    return (value - reference) / reference

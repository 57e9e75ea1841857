"""Summary: every figure of a run, computed from its records and facts. The one place where they are computed."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from headrace.base.clock import Nanos
from headrace.base.units import NANOS_PER_MILLI, seconds
from headrace.measure.report import latency
from headrace.measure.report.goodput import Goodput, goodput
from headrace.measure.report.record import ClientHealth, RequestRecord, Run
from headrace.measure.report.statistics import Distribution, distribution, warm_up_length
from headrace.measure.report.timeline import (
    LittlesLaw,
    Stall,
    littles_law,
    max_in_flight,
    max_tokens_per_s,
    stall_threshold_ms,
    stalls,
)

DEFAULT_SHARES = (50.0, 90.0, 95.0, 99.0)

BUSY_CPU_SHARE = 0.8
LATE_MS = 10.0
_LONGEST_DETAIL = 200


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    duration_s: float
    num_completed: int
    num_failed: int
    errors: dict[str, int]
    """How many failed, by kind."""
    num_prompt_tokens: int
    num_output_tokens: int
    offered_rate: float | None
    """Requests per second that were meant to be sent; None for fewer than two."""
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    distributions: dict[str, Distribution]
    """By name: ttft, tpot, itl, e2el, client_queue_time, server_queue_time (milliseconds), interactivity (tokens/s)."""
    goodput: Goodput | None
    cached_token_share: float | None
    """Of prompt tokens, those that came from a cache; None where nobody says."""
    acceptance_rate: float | None
    """Of drafted tokens, those accepted; None where nothing was drafted."""
    num_stalls: int
    longest_stall_ms: float
    stall_threshold_ms: float
    littles_law: LittlesLaw | None
    num_warm_up: int
    """Requests at the beginning, in order of their intended send, that belong to a warm-up (MSER-5 on E2E)."""
    warnings: tuple[str, ...]


def summarize(run: Run, *, shares: Sequence[float] = DEFAULT_SHARES) -> Summary:
    facts, records = run.facts, run.records
    completed = [record for record in records if record.is_completed]
    duration_s = seconds(facts.duration_ns)
    num_prompt_tokens = sum(record.num_prompt_tokens for record in completed)
    num_output_tokens = sum(record.num_output_tokens for record in completed)
    found_stalls = stalls(records)
    law = littles_law(records, facts.duration_ns, facts.in_flight_integral_ns)
    num_warm_up = _num_warm_up(completed)

    def per_second(count: float) -> float:
        return count / duration_s if duration_s else 0.0

    return Summary(
        duration_s=duration_s,
        num_completed=len(completed),
        num_failed=len(records) - len(completed),
        errors=dict(sorted(Counter(record.error for record in records if record.error).items())),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        offered_rate=_offered_rate(records),
        request_throughput=per_second(len(completed)),
        output_throughput=per_second(num_output_tokens),
        total_token_throughput=per_second(num_prompt_tokens + num_output_tokens),
        max_output_tokens_per_s=max_tokens_per_s(records),
        max_concurrent_requests=max_in_flight(records),
        distributions=distributions(records, shares),
        goodput=goodput(records, facts.slo_ms, facts.duration_ns) if facts.slo_ms else None,
        cached_token_share=_cached_share(run, num_prompt_tokens),
        acceptance_rate=_counted_share(
            run, "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"
        ),
        num_stalls=len(found_stalls),
        longest_stall_ms=found_stalls[0].duration_ns / NANOS_PER_MILLI if found_stalls else 0.0,
        stall_threshold_ms=stall_threshold_ms(records),
        littles_law=law,
        num_warm_up=num_warm_up,
        warnings=tuple(_warnings(run, law, found_stalls, num_warm_up, len(completed))),
    )


def distributions(records: Sequence[RequestRecord], shares: Sequence[float]) -> dict[str, Distribution]:
    """Those that have values. TTFT and gaps count of every answer that began, even if it failed later: leaving them out
    would make a server look faster the more it drops."""
    completed = [record for record in records if record.is_completed]
    values: dict[str, Iterable[float | None]] = {
        "ttft": (latency.ttft_ms(record) for record in records),
        "tpot": (latency.tpot_ms(record) for record in completed),
        "itl": (gap for record in records for gap in latency.itl_ms(record)),
        "e2el": (latency.e2el_ms(record) for record in completed),
        "client_queue_time": (latency.client_queue_time_ms(record) for record in records),
        "server_queue_time": (latency.server_queue_time_ms(record) for record in records),
        "interactivity": (latency.interactivity(record) for record in completed),
    }
    made = {name: distribution([v for v in column if v is not None], shares) for name, column in values.items()}
    return {name: found for name, found in made.items() if found is not None}


def without_warm_up(run: Run, num_warm_up: int) -> Run:
    """The run as if it had begun after its first requests; those count nowhere, but what they left in flight did exist."""
    kept = sorted(run.records, key=lambda record: record.intended_ns)[num_warm_up:]
    if not kept:
        return run
    start = kept[0].intended_ns
    duration = Nanos(max(record.finished_ns for record in kept) - start)
    facts = msgspec.structs.replace(run.facts, duration_ns=duration, in_flight_integral_ns=None)
    return Run(facts=facts, records=tuple(_shifted(record, start) for record in kept))


def _shifted(record: RequestRecord, start: int) -> RequestRecord:
    def moved(moment: Nanos | None) -> Nanos | None:
        return None if moment is None else Nanos(moment - start)

    return msgspec.structs.replace(
        record,
        intended_ns=moved(record.intended_ns),
        sent_ns=moved(record.sent_ns),
        headers_ns=moved(record.headers_ns),
        first_chunk_ns=moved(record.first_chunk_ns),
        finished_ns=moved(record.finished_ns),
    )


def _num_warm_up(completed: Sequence[RequestRecord]) -> int:
    ordered = sorted(completed, key=lambda record: record.intended_ns)
    return warm_up_length([float(record.finished_ns - record.intended_ns) for record in ordered])


def _offered_rate(records: Sequence[RequestRecord]) -> float | None:
    """n - 1 gaps between n arrivals."""
    moments = [record.intended_ns for record in records]
    span = max(moments, default=0) - min(moments, default=0)
    return (len(moments) - 1) / seconds(span) if span else None


def _cached_share(run: Run, num_prompt_tokens: int) -> float | None:
    told = [r for r in run.records if r.is_completed and r.num_cached_tokens is not None]
    if told:
        asked = sum(record.num_prompt_tokens for record in told)
        return sum(record.num_cached_tokens or 0 for record in told) / asked if asked else None
    return _counted_share(run, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")


def _counted_share(run: Run, part: str, whole: str) -> float | None:
    counters = run.facts.server_counters
    return counters.get(part, 0.0) / counters[whole] if counters.get(whole) else None


def _failures(records: Sequence[RequestRecord]) -> Iterable[str]:
    """For each kind of failure, what was said of the first that it befell."""
    first: dict[str, str] = {}
    for record in records:
        if record.error_detail:
            first.setdefault(record.error, record.error_detail)
    for error, detail in sorted(first.items()):
        yield f"{error}, the first: {detail if len(detail) <= _LONGEST_DETAIL else f'{detail[:_LONGEST_DETAIL]}…'}"


def _warnings(
    run: Run, law: LittlesLaw | None, found_stalls: Sequence[Stall], num_warm_up: int, num_completed: int
) -> Iterable[str]:
    if run.facts.client is not None:
        yield from client_warnings(run.facts.client)
    yield from _failures(run.records)
    if run.facts.is_interrupted:
        yield "the run was interrupted: what was not sent yet is not in these figures"
    if law is not None and abs(law.error) > 0.01:
        yield f"Little's law is off by {law.error:+.1%}: requests were lost, counted twice or timed wrongly"
    if law is not None and len(run.records) >= 50 and abs(law.steady_error) > 0.2:
        yield (
            f"the run was not steady (in flight {law.steady_in_flight:.1f}, rate x time {law.steady_rate_times_time:.1f}): "
            "averages depend on how long it lasted"
        )
    if num_completed and num_warm_up >= num_completed:
        yield "no steady state was reached: latency still changed at the end"
    elif num_warm_up:
        yield f"the first {num_warm_up} requests look like a warm-up; --exclude-warm-up leaves them out"
    if found_stalls:
        yield f"{len(found_stalls)} stalls inside answers, the longest {found_stalls[0].duration_ns / 1e6:,.0f} ms"


def client_warnings(client: ClientHealth) -> list[str]:
    """What a client must admit about itself."""
    found = []
    if client.cpu_share >= BUSY_CPU_SHARE:
        found.append(f"it used {client.cpu_share:.0%} of its core")
    if client.loop_lag_p99_ns >= LATE_MS * NANOS_PER_MILLI:
        found.append(f"its event loop was up to {client.loop_lag_p99_ns / NANOS_PER_MILLI:.1f} ms late (p99)")
    if client.send_lag_p99_ns >= LATE_MS * NANOS_PER_MILLI:
        found.append(f"it sent up to {client.send_lag_p99_ns / NANOS_PER_MILLI:.1f} ms late (p99)")
    return [f"THE CLIENT WAS THE BOTTLENECK: {'; '.join(found)}. Do not trust these figures"] if found else []

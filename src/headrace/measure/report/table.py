"""A summary as rows of text: what a terminal and the page both show. Knows wording and rounding; draws nothing."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.measure.report.goodput import OBJECTIVES
from headrace.measure.report.record import RunFacts
from headrace.measure.report.statistics import Distribution
from headrace.measure.report.summary import Summary

TITLES = {
    "ttft": "TTFT ms",
    "itl": "ITL ms",
    "tpot": "TPOT ms",
    "e2el": "E2E ms",
    "client_queue_time": "client queue ms",
    "server_queue_time": "server queue ms",
    "interactivity": "interactivity tok/s",
}
"""How distributions are headed, in the order in which they are shown."""


class Fact(NamedTuple):
    name: str
    value: str
    note: str = ""


def figure(value: float) -> str:
    """Four digits that matter, no exponent.

    >>> figure(0.01234), figure(12.345), figure(1234.5), figure(123456.7)
    ('0.0123', '12.3', '1,234', '123,457')
    """
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.3g}"


def facts(run: RunFacts, summary: Summary) -> list[Fact]:
    """One line each, what matters most first."""
    rows = [
        Fact("requests", f"{summary.num_completed:,} completed, {summary.num_failed:,} failed", _errors(summary)),
        Fact("duration", f"{figure(summary.duration_s)} s"),
        Fact("request throughput", f"{figure(summary.request_throughput)} req/s", _offered(summary)),
        Fact(
            "output throughput",
            f"{figure(summary.output_throughput)} tok/s",
            f"peak second {figure(summary.max_output_tokens_per_s)}",
        ),
        Fact("total throughput", f"{figure(summary.total_token_throughput)} tok/s", "prompt and answer"),
        Fact("in flight", f"at most {summary.max_concurrent_requests}", _littles_law(summary)),
    ]
    if summary.goodput is not None:
        for name, limit in run.slo_ms.items():
            kept = f"{figure(summary.goodput.per_objective[name])} req/s"
            rows.append(
                Fact(f"goodput {name}", kept, f"{summary.goodput.shares[name]:.1%} within {limit:g} ms ({OBJECTIVES[name]})")
            )
        rows.append(
            Fact("goodput, joint", f"{figure(summary.goodput.joint)} req/s", f"{summary.goodput.joint_share:.1%} kept all")
        )
    if summary.cached_token_share is not None:
        rows.append(Fact("cached prompt tokens", f"{summary.cached_token_share:.1%}", _reusable(run)))
    if summary.acceptance_rate is not None:
        rows.append(Fact("draft tokens accepted", f"{summary.acceptance_rate:.1%}"))
    rows.append(
        Fact(
            "stalls",
            f"{summary.num_stalls}",
            f"gaps of at least {figure(summary.stall_threshold_ms)} ms"
            + (f"; the longest {figure(summary.longest_stall_ms)} ms" if summary.num_stalls else ""),
        )
    )
    if run.client is not None:
        rows.append(
            Fact(
                "the client",
                f"{run.client.cpu_share:.0%} of a core",
                f"sent {figure(run.client.send_lag_p99_ns / 1e6)} ms late, "
                f"loop {figure(run.client.loop_lag_p99_ns / 1e6)} ms late (p99)",
            )
        )
    return rows


def distribution_rows(summary: Summary, shares: Sequence[float]) -> list[list[str]]:
    """Name, count, mean, std, minimum, each percentile, maximum."""
    return [
        [TITLES[name], f"{found.count:,}", *_cells(found, shares)]
        for name in TITLES
        if (found := summary.distributions.get(name)) is not None
    ]


def distribution_header(shares: Sequence[float]) -> list[str]:
    return ["", "count", "mean", "std", "min", *(f"p{share:g}" for share in shares), "max"]


FEW_ABOVE = 5
FOOTNOTE = f"~ fewer than {FEW_ABOVE} values lie above: another run would show another number"


def _cells(found: Distribution, shares: Sequence[float]) -> list[str]:
    percentiles = [p for p in found.percentiles if p.share in shares]
    tails = [f"{'~' if p.num_above < FEW_ABOVE and p.share > 50 else ''}{figure(p.value)}" for p in percentiles]
    return [figure(found.mean), figure(found.std), figure(found.minimum), *tails, figure(found.maximum)]


def _reusable(run: RunFacts) -> str:
    if run.reusable_token_share is None:
        return ""
    return f"a cache without limits would find {run.reusable_token_share:.1%}"


def _errors(summary: Summary) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in summary.errors.items())


def _offered(summary: Summary) -> str:
    return "" if summary.offered_rate is None else f"offered {figure(summary.offered_rate)}"


def _littles_law(summary: Summary) -> str:
    law = summary.littles_law
    if law is None:
        return ""
    return f"Little's law: {figure(law.in_flight)} against rate x time {figure(law.rate_times_time)}, error {law.error:+.2%}"

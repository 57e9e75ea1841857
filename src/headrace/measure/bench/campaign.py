"""Many runs with one purpose: sweeps with a stop rule, the highest rate that keeps a promise, and A beside B.

Knows the order of runs and when to stop. `measure_at` does the running, so that all of this can be tested without a server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.measure.report.record import Run
from headrace.measure.report.summary import Summary, summarize

MeasureAt = Callable[[float], Run]


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    load: float
    """The rate or the concurrency."""
    run: Run
    summary: Summary

    @property
    def kept_share(self) -> float:
        """Requests that kept all promises; those that completed, where nothing was promised."""
        if self.summary.goodput is not None:
            return self.summary.goodput.joint_share
        total = self.summary.num_completed + self.summary.num_failed
        return self.summary.num_completed / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When more load tells nothing new. Each part can be left out by its extreme value."""

    least_kept_share: float = 0.0
    """Stop after a run in which fewer requests kept their promises."""
    least_growth: float = 0.0
    """Stop after a run whose throughput did not grow by this share over the best one before."""

    def reason(self, points: Sequence[Point]) -> str:
        """Why the sweep ends here; empty where it goes on."""
        last = points[-1]
        if last.kept_share < self.least_kept_share:
            return f"only {last.kept_share:.1%} of requests kept their promises (limit {self.least_kept_share:.1%})"
        best_before = max((point.summary.output_throughput for point in points[:-1]), default=0.0)
        if self.least_growth > 0 and best_before and last.summary.output_throughput < best_before * (1 + self.least_growth):
            return f"throughput grew by less than {self.least_growth:.1%}"
        return ""


def sweep(
    loads: Sequence[float], measure_at: MeasureAt, rule: StopRule, *, on_point: Callable[[Point], None] = lambda point: None
) -> tuple[list[Point], str]:
    """In order; the reason says why not all were run."""
    points: list[Point] = []
    for load in loads:
        points.append(_measured(load, measure_at))
        on_point(points[-1])
        if points[-1].run.facts.is_interrupted:
            return points, "interrupted"
        reason = rule.reason(points)
        if reason and len(points) < len(loads):
            return points, reason
    return points, ""


def highest_load(
    measure_at: MeasureAt,
    *,
    start: float,
    kept_share: float,
    precision: float = 0.05,
    most_runs: int = 20,
    on_point: Callable[[Point], None] = lambda point: None,
) -> tuple[Point | None, list[Point]]:
    """The highest load at which at least `kept_share` of requests keep all promises, to within `precision`.

    Doubles until a run fails (or halves until one holds), then halves the interval geometrically. Assumes that more load is
    never better; runs are noisy, so the answer is as good as the runs are long.
    """
    points: list[Point] = []

    def holds(load: float) -> bool:
        points.append(_measured(load, measure_at))
        on_point(points[-1])
        return points[-1].kept_share >= kept_share

    good, bad = 0.0, float("inf")
    load = start
    while len(points) < most_runs and (good == 0.0 or bad > good * (1 + precision)):
        holds_here = holds(load)
        if points[-1].run.facts.is_interrupted:
            break
        if holds_here:
            good = load
        else:
            bad = load
        if bad == float("inf"):
            load = good * 2
        elif good == 0.0:
            load = bad / 2
        else:
            load = (good * bad) ** 0.5
    best = next((point for point in points if point.load == good), None)
    return best, sorted(points, key=lambda point: point.load)


def interleaved(
    measure_first: Callable[[], Run], measure_second: Callable[[], Run], *, num_rounds: int, on_run: Callable[[str], None]
) -> tuple[list[Run], list[Run]]:
    """A B, B A, A B …: what drifts drifts for both, and neither is always the one that comes first."""
    runs: dict[str, list[Run]] = {"A": [], "B": []}
    measures = {"A": measure_first, "B": measure_second}
    for index in range(num_rounds):
        for side in ("AB", "BA")[index % 2]:
            on_run(f"round {index + 1} of {num_rounds}, {side}")
            runs[side].append(measures[side]())
            if runs[side][-1].facts.is_interrupted:
                return runs["A"], runs["B"]
    return runs["A"], runs["B"]


def _measured(load: float, measure_at: MeasureAt) -> Point:
    run = measure_at(load)
    return Point(load, run, summarize(run))

"""Two runs, or two series of interleaved runs, side by side: ratios with intervals, and which of them are regressions.

Knows which way each figure is better. Does not know where runs come from: real beside simulated is a comparison like any
other.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import ConfigurationError, nearest
from headrace.base.rng import stream
from headrace.measure.report import latency
from headrace.measure.report.record import RequestRecord, Run
from headrace.measure.report.statistics import Interval, interval_of, percentile, resampled_means, resampled_percentiles
from headrace.measure.report.summary import Summary, summarize

_NUM_RESAMPLES = 1000
_FEWEST_ROUNDS = 3
_SHARES = (50.0, 90.0, 99.0)


def _max_gap_ms(record: RequestRecord) -> float | None:
    return max(latency.itl_ms(record), default=None)


_OF_REQUESTS: Mapping[str, Callable[[RequestRecord], float | None]] = {
    "ttft": latency.ttft_ms,
    "tpot": latency.tpot_ms,
    "e2el": latency.e2el_ms,
    "max_itl": _max_gap_ms,
}
"""Figures with one value a request, whose intervals come from drawing requests again. Gaps within an answer depend on one
another, so of them only each answer's longest is here."""


def _goodput_share(summary: Summary) -> float | None:
    return summary.goodput.joint_share if summary.goodput is not None else None


_OF_RUNS: Mapping[str, Callable[[Summary], float | None]] = {
    "request_throughput": lambda s: s.request_throughput,
    "output_throughput": lambda s: s.output_throughput,
    "goodput_share": _goodput_share,
    "cached_token_share": lambda s: s.cached_token_share,
    "completed_share": lambda s: s.num_completed / max(1, s.num_completed + s.num_failed),
    "p99_itl_ms": lambda s: s.distributions["itl"].percentile(99.0) if "itl" in s.distributions else None,
}
"""Figures with one value a run."""

_LESS_IS_BETTER = frozenset({"p99_itl_ms"})
_SHARES_OF_ONE = frozenset({"goodput_share", "cached_token_share", "completed_share"})
"""Figures whose differences matter, not their ratios: half a percent instead of one is no regression by half."""


class Row(NamedTuple):
    name: str
    first: float
    second: float
    ratio: float
    """Second to first."""
    interval: Interval | None
    """Of the ratio, 95 %; None for figures with one value a run and too few runs."""
    is_less_better: bool

    @property
    def is_certain(self) -> bool:
        """1 lies outside the interval."""
        return self.interval is not None and not self.interval.low <= 1.0 <= self.interval.high

    def is_regression(self, tolerance: float) -> bool:
        """Worse by more than `tolerance`, and not by chance as far as the interval tells."""
        if self.name in _SHARES_OF_ONE:
            worse = self.first - self.second > tolerance
        else:
            worse = self.ratio > 1 + tolerance if self.is_less_better else self.ratio < 1 / (1 + tolerance)
        return worse and (self.interval is None or self.is_certain)


def compare(first: Sequence[Run], second: Sequence[Run], *, seed: int = 0) -> list[Row]:
    """Runs of a series are rounds; with at least three pairs of rounds, rounds are drawn again, else requests are."""
    sides = [[summarize(run, shares=_SHARES) for run in runs] for runs in (first, second)]
    by_rounds = len(first) == len(second) >= _FEWEST_ROUNDS
    rows = []
    for name, values in _request_columns(first, second).items():
        for label, reduce in _reductions(name):
            if by_rounds:
                rows.append(
                    _row_of_rounds(label, *[[reduce(v) for v in side] for side in values], is_less_better=True, seed=seed)
                )
            else:
                rows.append(_row_of_requests(label, *([v for column in side for v in column] for side in values), seed=seed))
    for name, of_run in _OF_RUNS.items():
        columns = [[of_run(summary) for summary in side] for side in sides]
        if any(value is None for column in columns for value in column):
            continue
        pair = [[float(value) for value in column if value is not None] for column in columns]
        rows.append(_row_of_rounds(name, *pair, is_less_better=name in _LESS_IS_BETTER, seed=seed, by_rounds=by_rounds))
    return rows


def regressions(rows: Sequence[Row], *, tolerance: float, names: Sequence[str] = ()) -> list[Row]:
    """Those among the named rows, or among all, that got worse."""
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"there is no figure {name!r} in both runs{nearest(name, known)} (known: {', '.join(known)})"
            )
    return [row for row in rows if (not names or row.name in names) and row.is_regression(tolerance)]


def _request_columns(first: Sequence[Run], second: Sequence[Run]) -> dict[str, list[list[list[float]]]]:
    """Figure -> side -> round -> values. Figures that a round of either side has no value of are left out."""
    columns = {}
    for name, of_request in _OF_REQUESTS.items():
        values = [
            [[v for record in run.records if (v := of_request(record)) is not None] for run in runs]
            for runs in (first, second)
        ]
        if all(round_values for side in values for round_values in side):
            columns[name] = values
    return columns


def _reductions(name: str) -> list[tuple[str, Callable[[Sequence[float]], float]]]:
    def at(share: float) -> Callable[[Sequence[float]], float]:
        return lambda values: percentile(sorted(values), share)

    return [(f"mean_{name}_ms", _mean), (f"median_{name}_ms", at(50)), (f"p99_{name}_ms", at(99))]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _row_of_requests(label: str, first: list[float], second: list[float], *, seed: int) -> Row:
    kind = label.split("_")[0]
    replicates = []
    for side, values in (("first", first), ("second", second)):
        rng = stream(seed, f"bootstrap {label} {side}")
        if kind == "mean":
            replicates.append(resampled_means(values, rng, num_resamples=_num_resamples(len(values))))
        else:
            share = 50.0 if kind == "median" else float(kind.removeprefix("p"))
            replicates.append(resampled_percentiles(values, share, rng, num_resamples=_num_resamples(len(values))))
    num_pairs = min(map(len, replicates))
    interval = interval_of([_ratio(b, a) for a, b in zip(replicates[0][:num_pairs], replicates[1][:num_pairs], strict=True)])
    reduce = dict(_reductions(label.split("_", 1)[1].removesuffix("_ms")))[label]
    return _row(label, reduce(first), reduce(second), interval, is_less_better=True)


def _num_resamples(count: int) -> int:
    """Fewer where each costs more; 200 are enough for the ends of a 95 % interval."""
    return max(200, min(_NUM_RESAMPLES, 2_000_000 // max(1, count)))


def _row_of_rounds(
    name: str, first: list[float], second: list[float], *, is_less_better: bool, seed: int, by_rounds: bool = True
) -> Row:
    """Rounds are drawn in pairs, so that what drifts for both sides drifts out."""
    interval = None
    if by_rounds:
        rng = stream(seed, f"bootstrap {name}")
        drawn = [rng.choices(range(len(first)), k=len(first)) for _ in range(_NUM_RESAMPLES)]
        interval = interval_of([_ratio(_mean([second[i] for i in d]), _mean([first[i] for i in d])) for d in drawn])
    return _row(name, _mean(first), _mean(second), interval, is_less_better=is_less_better)


def _row(name: str, first: float, second: float, interval: Interval | None, *, is_less_better: bool) -> Row:
    return Row(name, first, second, _ratio(second, first), interval, is_less_better)


def _ratio(value: float, reference: float) -> float:
    if reference == 0:
        return 1.0 if value == 0 else math.inf
    return value / reference

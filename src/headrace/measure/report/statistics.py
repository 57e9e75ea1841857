"""Distributions with the count behind every percentile, bootstrap intervals, and where warm-up ends. Knows numbers only."""

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from headrace.base.rng import Random


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of ascending values, between neighbours linearly, as numpy and vLLM do.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.5
    >>> percentile([1.0, 2.0, 3.0, 4.0], 100)
    4.0
    """
    assert ordered, "no values, no percentile"
    place = (len(ordered) - 1) * share / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class Percentile(msgspec.Struct, frozen=True):
    share: float
    value: float
    num_above: int
    """How many values lie above it. A p99.9 of a hundred values has none, and is their maximum by another name."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    mean: float
    std: float
    """Of these values as the whole population, as numpy's default and vLLM have it."""
    median: float
    minimum: float
    maximum: float
    percentiles: tuple[Percentile, ...]

    def percentile(self, share: float) -> float:
        return next(p.value for p in self.percentiles if p.share == share)


def distribution(values: Sequence[float], shares: Sequence[float]) -> Distribution | None:
    """None where there are no values: nothing was measured, which is not 0.

    >>> d = distribution([1.0, 2.0, 3.0, 4.0], [75])
    >>> d.count, d.mean, d.median, d.percentiles
    (4, 2.5, 2.5, (Percentile(share=75, value=3.25, num_above=1),))
    """
    if not values:
        return None
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered)
    return Distribution(
        count=len(ordered),
        mean=mean,
        std=math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)),
        median=percentile(ordered, 50),
        minimum=ordered[0],
        maximum=ordered[-1],
        percentiles=tuple(_percentile(ordered, share) for share in shares),
    )


def _percentile(ordered: Sequence[float], share: float) -> Percentile:
    value = percentile(ordered, share)
    return Percentile(share, value, len(ordered) - bisect_right(ordered, value))


class Interval(msgspec.Struct, frozen=True):
    low: float
    high: float


def interval_of(replicates: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """The percentile bootstrap's interval. Infinite replicates stay at the ends; undefined ones are left out."""
    drawn = sorted(value for value in replicates if not math.isnan(value))
    if not drawn:
        return None
    tail = (1 - confidence) / 2
    last = len(drawn) - 1
    return Interval(drawn[round(last * tail)], drawn[round(last * (1 - tail))])


def resampled_means(values: Sequence[float], rng: Random, *, num_resamples: int) -> list[float]:
    """Means of samples of the same size, drawn with replacement."""
    count = len(values)
    return [math.fsum(rng.choices(values, k=count)) / count for _ in range(num_resamples)]


def resampled_percentiles(values: Sequence[float], share: float, rng: Random, *, num_resamples: int) -> list[float]:
    """Percentiles of samples of the same size, drawn with replacement, without drawing the samples.

    The k-th smallest of n uniform numbers is Beta(k, n - k + 1), and the next is a Beta(1, n - k) of the way from there
    to 1; the values at those ranks are what a resample would have had at its k-th and next place. This is exact, and
    takes one step.

    >>> from headrace.base.rng import stream
    >>> drawn = resampled_percentiles([float(n) for n in range(101)], 50, stream(0, "example"), num_resamples=2000)
    >>> 49 < sum(drawn) / 2000 < 51
    True
    """
    ordered = sorted(values)
    count = len(ordered)
    place = (count - 1) * share / 100
    rank, weight = math.floor(place) + 1, place - math.floor(place)
    drawn = []
    for _ in range(num_resamples):
        at = rng.betavariate(rank, count - rank + 1)
        low = ordered[min(count - 1, int(at * count))]
        if weight and rank < count:
            above = at + (1 - at) * rng.betavariate(1, count - rank)
            low += weight * (ordered[min(count - 1, int(above * count))] - low)
        drawn.append(low)
    return drawn


_CERTAIN_ERRORS = 6
_NEARLY = 1.5
_NOTABLE_SHARE = 0.2


def warm_up_length(values: Sequence[float], *, batch_size: int = 5) -> int:
    """How many values at the beginning belong to the warm-up, by the MSER-5 rule (White, Cobb and Spratt 2000).

    Batches of five are averaged; cut where the standard error of what remains is smallest. The rule cuts noise, too, so a
    cut counts only if the means before and after it differ by far more than chance and by a fifth. Where the cut is in the
    middle, or what remains still changes, no steady state was seen, and the answer is the number of values.

    >>> warm_up_length([90.0] * 10 + [10.0, 11.0] * 45)
    10
    >>> warm_up_length([10.0, 11.0] * 50)
    0
    >>> warm_up_length([float(n) for n in range(100)])
    100
    """
    num_batches = len(values) // batch_size
    if num_batches < 4:
        return 0
    means = [math.fsum(values[i * batch_size : (i + 1) * batch_size]) / batch_size for i in range(num_batches)]
    cut = _mser_cut(means)
    rest = means[cut:]
    if cut >= num_batches // 2 or _differ(rest[: len(rest) // 2], rest[len(rest) // 2 :]):
        return len(values)
    return cut * batch_size if cut and _differ(means[:cut], rest) else 0


def _mser_cut(means: Sequence[float]) -> int:
    """At most half: the standard error of a few batches is small by chance. The earliest of those that are nearly as
    good."""
    errors: dict[int, float] = {}
    total = squares = 0.0
    for cut in range(len(means) - 1, -1, -1):  # from the end, so that sums grow by one batch at a time
        total += means[cut]
        squares += means[cut] ** 2
        count = len(means) - cut
        if cut <= len(means) // 2:
            errors[cut] = max(0.0, squares - total**2 / count) / count**2
    tolerable = _NEARLY * min(errors.values()) + 1e-12 * squares
    return min(cut for cut, error in errors.items() if error <= tolerable)


def _differ(before: Sequence[float], after: Sequence[float]) -> bool:
    """By the noise of the steady part alone: a warm-up may be anything but steady."""
    first, second = math.fsum(before) / len(before), math.fsum(after) / len(after)
    variance = math.fsum((value - second) ** 2 for value in after) / max(1, len(after) - 1)
    error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    return abs(first - second) > max(_CERTAIN_ERRORS * error, _NOTABLE_SHARE * abs(second))

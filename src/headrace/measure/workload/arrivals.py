"""When users come: renewal processes by their gaps, ramps, and a trace's own moments. Knows seconds, not requests."""

import math
from collections.abc import Iterable

from headrace.base.errors import ConfigurationError
from headrace.base.rng import Random, stream


def arrival_times(num_requests: int, *, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Seconds at which requests arrive: gaps are Gamma with shape `burstiness` and mean `1 / rate`.

    Burstiness 1 is Poisson, below 1 is burstier, above 1 is more even, infinity is a constant gap. An infinite rate is
    all at once.

    >>> arrival_times(3, rate=2.0, burstiness=math.inf)
    [0.5, 1.0, 1.5]
    """
    _positive("request rate", rate)
    _positive("burstiness", burstiness)
    rng = stream(seed, "arrivals")
    return _cumulated(_gap(rng, rate, burstiness) for _ in range(num_requests))


def ramp_times(
    num_requests: int, *, start_rps: float, end_rps: float, strategy: str, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """Arrivals whose rate goes from one value to another over the requests, linearly or by equal factors."""
    _positive("ramp-up start", start_rps)
    _positive("ramp-up end", end_rps)
    _positive("burstiness", burstiness)
    if strategy not in ("linear", "exponential"):
        raise ConfigurationError(f"the ramp-up strategy is linear or exponential, not {strategy!r}")
    rng = stream(seed, "arrivals")

    def rate(index: int) -> float:
        progress = index / max(1, num_requests - 1)
        if strategy == "linear":
            return start_rps + (end_rps - start_rps) * progress
        return start_rps * math.pow(end_rps / start_rps, progress)

    return _cumulated(_gap(rng, rate(index), burstiness) for index in range(num_requests))


def _gap(rng: Random, rate: float, burstiness: float) -> float:
    if math.isinf(rate):
        return 0.0
    if math.isinf(burstiness):
        return 1.0 / rate
    return rng.gammavariate(burstiness, 1.0 / (rate * burstiness))


def _cumulated(gaps: Iterable[float]) -> list[float]:
    moments, now = [], 0.0
    for gap in gaps:
        now += gap
        moments.append(now)
    return moments


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigurationError(f"the {name} must be above 0, not {value:g}")

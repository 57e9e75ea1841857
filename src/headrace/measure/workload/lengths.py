"""How many tokens prompts and answers have: distributions that are drawn from, by name. Knows numbers only."""

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from headrace.base.errors import ConfigurationError
from headrace.base.rng import Random

_MOST = 1 << 20
"""Tokens of anything that is drawn from a curve: its tail has no end."""


class Lengths(Protocol):
    def draw(self, rng: Random) -> int:
        """At least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    num_tokens: int

    def draw(self, rng: Random) -> int:
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    low: int
    high: int
    """Included."""

    def draw(self, rng: Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """By its own mean and coefficient of variation, not by those of its logarithm."""

    mean: float
    variation: float
    most: int = _MOST

    def draw(self, rng: Random) -> int:
        variance = math.log(1 + self.variation**2)
        drawn = rng.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return max(1, min(self.most, round(drawn)))


class Empirical:
    """As often as they were counted."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._values = [max(1, value) for value in sorted(weights)]
        self._cumulated = list(accumulate(weights[value] for value in sorted(weights)))
        if not all(0 <= weight < math.inf for weight in weights.values()):
            raise ConfigurationError("the weights of an empirical distribution are finite numbers, none of them negative")
        if not self._cumulated or self._cumulated[-1] <= 0:
            raise ConfigurationError("an empirical distribution needs at least one length with a weight above 0")

    def draw(self, rng: Random) -> int:
        place = bisect(self._cumulated, rng.random() * self._cumulated[-1])
        return self._values[min(place, len(self._values) - 1)]


def parse_lengths(text: str) -> Lengths:
    """`128`, `uniform:64:256`, `lognormal:400:1.2` (mean, coefficient of variation) or `empirical:100=3,200=1`.

    >>> parse_lengths("uniform:64:256")
    Uniform(low=64, high=256)
    """
    kind, _, rest = text.partition(":")
    try:
        match kind, rest.split(":"):
            case "uniform", [low, high] if 1 <= int(low) <= int(high):
                return Uniform(int(low), int(high))
            case "lognormal", [mean, variation] if 1 <= float(mean) <= _MOST and 0 <= float(variation) <= _MOST:
                return LogNormal(float(mean), float(variation))
            case "empirical", [pairs]:
                counted = {int(k): float(v) for k, _, v in (pair.partition("=") for pair in pairs.split(","))}
                if min(counted) >= 1:
                    return Empirical(counted)
            case number, [""] if int(number) >= 1:
                return Fixed(int(number))
    except ValueError:
        pass  # the message below says what is wanted
    raise ConfigurationError(
        f"{text!r} is no distribution of lengths; write for example 128, uniform:64:256, lognormal:400:1.2 or "
        "empirical:100=3,200=1, with lengths of at least 1"
    )

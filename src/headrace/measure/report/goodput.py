"""Goodput: requests per second that kept every promise. Knows promises in milliseconds and records; no servers."""

import tomllib
from collections.abc import Mapping, Sequence

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError, nearest
from headrace.base.units import seconds
from headrace.measure.report.latency import e2el_ms, itl_ms, tpot_ms, ttft_ms
from headrace.measure.report.record import RequestRecord

OBJECTIVES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "every gap between tokens",
    "e2el": "end-to-end latency",
}
"""What a promise can be about, by vLLM's names; `itl` is ours: the longest gap of an answer."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    per_objective: dict[str, float]
    """Requests per second that kept this promise, whatever became of the others."""
    shares: dict[str, float]
    """The same as shares of all requests, failed ones included."""
    joint: float
    """Requests per second that kept all."""
    joint_share: float


def parse_objectives(pairs: Sequence[str]) -> dict[str, float]:
    """`ttft:200 tpot:50`, milliseconds.

    >>> parse_objectives(["ttft:200", "tpot:50"])
    {'ttft': 200.0, 'tpot': 50.0}
    """
    objectives = {}
    for pair in pairs:
        name, colon, limit = pair.partition(":")
        if not colon:
            raise ConfigurationError(f"an objective is a name and milliseconds, such as ttft:500, not {pair!r}")
        objectives[name] = _limit(name, limit)
    return objectives


def read_objectives(text: str) -> dict[str, float]:
    """A TOML file: a table `slo` with a limit in milliseconds for each name (`ttft_ms = 200`)."""
    try:
        table = tomllib.loads(text).get("slo")
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the SLO file is no TOML: {error}") from None
    if not isinstance(table, dict):
        raise ConfigurationError("the SLO file needs a table [slo] with lines such as ttft_ms = 200")
    return {name.removesuffix("_ms"): _limit(name.removesuffix("_ms"), value) for name, value in table.items()}


def _limit(name: str, value: object) -> float:
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ConfigurationError(f"there is no objective {name!r}{nearest(name, OBJECTIVES)} (known: {known})")
    try:
        limit = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigurationError(f"the objective {name} needs a number of milliseconds, not {value!r}") from None
    if not limit >= 0:
        raise ConfigurationError(f"the objective {name} must not be negative, not {limit:g}")
    return limit


def goodput(records: Sequence[RequestRecord], objectives: Mapping[str, float], duration_ns: Nanos) -> Goodput:
    """What was promised beside what was kept. A failed request keeps nothing; a promise about a value that an answer cannot
    have (the TPOT of one token) is kept."""
    kept = {name: [_is_kept(record, name, limit) for record in records] for name, limit in objectives.items()}
    num_joint = sum(
        record.is_completed and all(column[index] for column in kept.values()) for index, record in enumerate(records)
    )
    duration_s, num_requests = seconds(duration_ns), len(records)
    return Goodput(
        per_objective={name: sum(column) / duration_s if duration_s else 0.0 for name, column in kept.items()},
        shares={name: sum(column) / num_requests if num_requests else 0.0 for name, column in kept.items()},
        joint=num_joint / duration_s if duration_s else 0.0,
        joint_share=num_joint / num_requests if num_requests else 0.0,
    )


def _is_kept(record: RequestRecord, name: str, limit: float) -> bool:
    if not record.is_completed:
        return False
    match name:
        case "ttft":
            value = ttft_ms(record)
        case "tpot":
            value = tpot_ms(record)
        case "itl":
            value = max(itl_ms(record), default=None)
        case _:
            value = e2el_ms(record)
    return value is None or value <= limit

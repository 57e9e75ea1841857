"""The shortest story of a failure: of what was drawn for a seed, the least with which the same rule breaks at one place.

Knows how to leave things out and look again. Does not know what the rules are.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

import msgspec

from headrace.measure.workload.request import WorkloadRequest
from headrace.sim.fault_cases import DrawnCase, draw_case, rehearse_case
from headrace.sim.fleet_spec import FaultSpec
from headrace.sim.scenario import draw_scenario, rehearse_scenario
from headrace.sim.simulation import Arrival

_Item = TypeVar("_Item")
_MOST_RUNS = 300
"""Some seconds; what is not left out by then stays."""


def fewest(items: Sequence[_Item], still_fails: Callable[[list[_Item]], bool]) -> list[_Item]:
    """Of `items` those without which it would not fail: larger pieces are left out first.

    >>> fewest(range(20), lambda some: {3, 17} <= set(some)), fewest(range(3), lambda some: True)
    ([3, 17], [])
    """
    kept, size = list(items), len(items)
    while size:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if still_fails(fewer):
                kept = fewer
            else:
                start += size
        size //= 2
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortFailure:
    requests: tuple[str, ...]
    """Those that it takes, by name."""
    faults: tuple[FaultSpec, ...]
    has_message_trouble: bool
    lines: tuple[str, ...]
    """What happened last, the failure itself at the end; empty where nobody watched."""


def shorten_case(seed: int, name: str, *, num_requests: int) -> ShortFailure | None:
    """None where it does not fail at all, or not in the same way again."""
    drawn = draw_case(seed, name, num_requests=num_requests)
    place = _place_of(lambda: rehearse_case(seed, drawn))
    if place is None:
        return None
    attempts = _Attempts(place)

    def fails(one: DrawnCase) -> bool:
        return attempts.fails(lambda: rehearse_case(seed, one))

    quiet = msgspec.structs.replace(drawn.spec.network, loss=0.0, duplication=0.0, reordering=0.0)
    if quiet != drawn.spec.network and fails(one := drawn.replaced(network=quiet)):
        drawn = one
    drawn = drawn.replaced(faults=tuple(fewest(drawn.spec.faults, lambda some: fails(drawn.replaced(faults=tuple(some))))))
    requests = fewest(drawn.workload.requests, lambda some: fails(drawn.with_requests(_on_their_own(some))))
    drawn = drawn.with_requests(_on_their_own(requests))
    network = drawn.spec.network
    return ShortFailure(
        requests=tuple(request.request_id for request in requests),
        faults=drawn.spec.faults,
        has_message_trouble=bool(network.loss or network.duplication or network.reordering),
        lines=tuple(_told(seed, drawn)),
    )


def shorten_scenario(seed: int, *, num_requests: int) -> ShortFailure | None:
    """The same of an engine alone."""
    drawn = draw_scenario(seed, num_requests=num_requests)
    place = _place_of(lambda: rehearse_scenario(drawn))
    if place is None:
        return None
    attempts = _Attempts(place)

    def fails(arrivals: list[Arrival]) -> bool:
        return attempts.fails(lambda: rehearse_scenario(drawn.with_arrivals(arrivals)))

    arrivals = fewest(drawn.arrivals, fails)
    names = tuple(str(arrival.request.request_id) for arrival in arrivals)
    return ShortFailure(requests=names, faults=(), has_message_trouble=False, lines=())


class _Attempts:
    def __init__(self, place: str) -> None:
        self._place = place
        self._num_left = _MOST_RUNS

    def fails(self, run: Callable[[], object]) -> bool:
        """Whether it does, at the same place; no more, once it was tried often enough."""
        self._num_left -= 1
        return self._num_left >= 0 and _place_of(run) == self._place


def _place_of(run: Callable[[], object]) -> str | None:
    """Where it fails, and by what kind of error."""
    try:
        run()
    except Exception as failure:  # whatever broke
        return f"{type(failure).__name__} {_where(failure)}"
    return None


def describe(failure: Exception) -> str:
    """What broke and where, in a line."""
    return f"{type(failure).__name__}: {failure} ({_where(failure)})".replace(":  (", " (")


def _where(failure: Exception) -> str:
    frame = traceback.extract_tb(failure.__traceback__)[-1]
    return f"{PurePath(frame.filename).name}:{frame.lineno}"


def _told(seed: int, drawn: DrawnCase) -> list[str]:
    lines: list[str] = []
    try:
        rehearse_case(seed, drawn, tell=lines.extend)
    except Exception as failure:  # it is what is told
        lines.append(describe(failure))
    return lines


def _on_their_own(requests: Sequence[WorkloadRequest]) -> tuple[WorkloadRequest, ...]:
    """Who followed one that was left out comes by himself."""
    names = {request.request_id for request in requests}
    return tuple(
        request if not request.after or request.after in names else msgspec.structs.replace(request, after="")
        for request in requests
    )

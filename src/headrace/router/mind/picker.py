"""Pickers: the one endpoint among those that are left, by their scores."""

from collections.abc import Sequence
from typing import Protocol

from headrace.router.mind.endpoint import Endpoint


class Picker(Protocol):
    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> Endpoint:
        """`endpoints` is not empty."""
        ...


class MaxScorePicker:
    """The best; among equals each in turn, so that equal endpoints get equal work."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> Endpoint:
        best = max(scores)
        equals = [e for e, score in zip(endpoints, scores, strict=True) if score == best]
        self._last = (picked := _next_after(self._last, equals)).index
        return picked


class RoundRobinPicker:
    """Each in turn, whatever the scores."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> Endpoint:
        self._last = (picked := _next_after(self._last, endpoints)).index
        return picked


def _next_after(index: int, endpoints: Sequence[Endpoint]) -> Endpoint:
    """By the order of first arrival, which the endpoints are in; after the last comes the first."""
    for endpoint in endpoints:
        if endpoint.index > index:
            return endpoint
    return endpoints[0]

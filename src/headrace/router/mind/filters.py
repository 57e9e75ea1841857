"""Filters: which endpoints may get a request at all. A filter keeps the order and adds nobody."""

from collections.abc import Sequence
from typing import Protocol

from headrace.router.mind.endpoint import Endpoint, EndpointState
from headrace.router.mind.routed_request import RoutedRequest


class Filter(Protocol):
    def keep(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]: ...


class ReadyFilter:
    """Those that take new work. Every profile begins with it."""

    def keep(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        ready = EndpointState.READY
        return [endpoint for endpoint in endpoints if endpoint.state is ready]


class QueueFilter:
    """Those with few waiting, if there are any: a cached prefix is not worth a long queue."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting

    def keep(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        limit = self._max_waiting
        short = [e for e in endpoints if e.load is None or e.load.num_waiting <= limit]
        return short or endpoints

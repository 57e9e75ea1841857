"""Filters: which endpoints may get a request at all. A filter looks at one endpoint, so who passes is known before anybody
asks (`candidates.py`)."""

from typing import Protocol

from headrace.router.mind.endpoint import Endpoint, EndpointRole, EndpointState


class Filter(Protocol):
    def passes(self, endpoint: Endpoint) -> bool: ...


class ReadyFilter:
    """Those that take new work. Every profile begins with it."""

    def passes(self, endpoint: Endpoint) -> bool:
        return endpoint.state is EndpointState.READY


class ComputingFilter:
    """Those that compute prompts."""

    def passes(self, endpoint: Endpoint) -> bool:
        return endpoint.role is not EndpointRole.DECODE


class AnsweringFilter:
    """Those that answer."""

    def passes(self, endpoint: Endpoint) -> bool:
        return endpoint.role is not EndpointRole.PREFILL


class QueueFilter:
    """Those with few waiting: a cached prefix is not worth a long queue."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting

    def passes(self, endpoint: Endpoint) -> bool:
        return endpoint.load is None or endpoint.load.num_waiting <= self._max_waiting

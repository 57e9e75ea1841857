"""Scorers: how good each endpoint is for a request, 0 to 1. A score outside is a bug, and an error (`profile.py`)."""

from collections.abc import Sequence
from typing import Protocol

from headrace.router.mind.endpoint import Endpoint
from headrace.router.mind.prefix_index import PrefixIndex
from headrace.router.mind.routed_request import RoutedRequest


class Scorer(Protocol):
    def score(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        """One for each, in order."""
        ...


class LeastRequestsScorer:
    """1 for whoever has the fewest of this router's requests in flight, 0 for whoever has the most."""

    def score(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        counts = [endpoint.num_in_flight for endpoint in endpoints]
        low, high = min(counts), max(counts)
        if low == high:
            return [1.0] * len(counts)
        width = high - low
        return [(high - count) / width for count in counts]


class LeastTokensScorer:
    """As `LeastRequestsScorer`, by prompt tokens in flight: one request may be a thousand times another."""

    def score(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        counts = [endpoint.num_in_flight_tokens for endpoint in endpoints]
        low, high = min(counts), max(counts)
        if low == high:
            return [1.0] * len(counts)
        width = high - low
        return [(high - count) / width for count in counts]


class KVUsageScorer:
    """The free share of an endpoint's KV blocks, as last reported; 1 where nothing was."""

    def score(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        return [1.0 if e.load is None else 1.0 - e.load.kv_cache_usage for e in endpoints]


class PrefixAffinityScorer:
    """The share of the prompt's blocks that an endpoint has probably cached, since they were sent there before."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def score(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        num_blocks = len(request.block_hashes)
        found = self._index.match(request.block_hashes) if num_blocks else {}
        if not found:
            return [0.0] * len(endpoints)
        return [found.get(endpoint.index, 0) / num_blocks for endpoint in endpoints]

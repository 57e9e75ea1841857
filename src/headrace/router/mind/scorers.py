"""Scorers: how good each endpoint is for a request, 0 to 1. A score outside is a bug, and an error (`profile.py`).

A scorer also says whom it favours and how much anybody else can score from some place in the line on: so the search for the
best ends where nobody who is left could be better.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from headrace.router.mind.candidates import Line
from headrace.router.mind.endpoint import Endpoint
from headrace.router.mind.prefix_index import PrefixIndex
from headrace.router.mind.routed_request import RoutedRequest

Score = Callable[[Endpoint], float]


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a scorer thinks of the endpoints for one request."""

    score: Score
    most_from: Score
    """From this endpoint's place in line on, the most that anybody who is not favoured can score."""
    favours: Collection[int] = ()
    """By index, those that may score more than that wherever they stand."""


class Scorer(Protocol):
    def opinion(self, request: RoutedRequest, line: Line) -> Opinion:
        """`line` is not empty, and stays as it is while the opinion is asked for."""
        ...


class LeastLoadScorer:
    """1 for whoever has the least to do, 0 for whoever has the most, by the measure that the line is in."""

    def opinion(self, request: RoutedRequest, line: Line) -> Opinion:
        load, most, width = line.load, line.most, line.most - line.least

        def score(endpoint: Endpoint) -> float:
            return (most - load(endpoint)) / width

        return Opinion(score, score) if width else _ALL_ARE_GOOD


class KVUsageScorer:
    """The free share of an endpoint's KV blocks, as last reported; 1 where nothing was."""

    def opinion(self, request: RoutedRequest, line: Line) -> Opinion:
        return _BY_KV_USAGE


class PrefixAffinityScorer:
    """The share of the prompt's blocks that an endpoint has probably cached, since they were sent there before."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def opinion(self, request: RoutedRequest, line: Line) -> Opinion:
        num_blocks = len(request.block_hashes)
        found = self._index.match(request.block_hashes) if num_blocks else {}
        if not found:
            return _ALL_ARE_BAD

        def score(endpoint: Endpoint) -> float:
            return found.get(endpoint.index, 0) / num_blocks

        return Opinion(score, _zero, found)


def _zero(endpoint: Endpoint) -> float:
    return 0.0


def _one(endpoint: Endpoint) -> float:
    return 1.0


def _free_share(endpoint: Endpoint) -> float:
    return 1.0 if endpoint.load is None else 1.0 - endpoint.load.kv_cache_usage


_ALL_ARE_GOOD = Opinion(_one, _one)
_ALL_ARE_BAD = Opinion(_zero, _zero)
_BY_KV_USAGE = Opinion(_free_share, _one)

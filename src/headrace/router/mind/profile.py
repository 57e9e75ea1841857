"""Profile: how one kind of request is routed: filters in order, scorers with weights, a picker.

The policies that can be asked for by name are in `POLICIES`, each with its reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.base.errors import ConfigurationError, nearest
from headrace.router.mind.endpoint import Endpoint
from headrace.router.mind.filters import Filter, QueueFilter, ReadyFilter
from headrace.router.mind.picker import MaxScorePicker, Picker, RoundRobinPicker
from headrace.router.mind.prefix_index import PrefixIndex
from headrace.router.mind.routed_request import RoutedRequest
from headrace.router.mind.scorers import KVUsageScorer, LeastRequestsScorer, LeastTokensScorer, PrefixAffinityScorer, Scorer


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: str = "least-requests"
    """One of `POLICIES`."""
    prefix_block_size: int = 256
    """Tokens of a block of the router's own prefix index; larger is cheaper and coarser."""
    max_prefix_blocks: int = 500_000
    """Blocks that the prefix index remembers."""
    max_waiting: int = 8
    """For prefix-affinity: an endpoint that reported more waiting gets nothing while another reported fewer."""
    load_weight: float = 0.25
    """For prefix-affinity: what the fewest tokens in flight are worth beside a wholly cached prompt, which is worth 1."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise ConfigurationError(f"policy {self.policy!r} is none{nearest(self.policy, POLICIES)} (known: {known})")
        for name in ("prefix_block_size", "max_prefix_blocks"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_waiting < 0 or not 0 <= self.load_weight < float("inf"):
            raise ConfigurationError("max_waiting and load_weight must not be negative, and finite")


@dataclass(slots=True)
class Profile:
    filters: Sequence[Filter]
    scorers: Sequence[tuple[Scorer, float]]
    picker: Picker
    prefix_index: PrefixIndex | None = None
    """Told where requests went, if a scorer asks it."""

    def pick(self, request: RoutedRequest, endpoints: Sequence[Endpoint]) -> Endpoint | None:
        """None where no endpoint may get the request."""
        for one in self.filters:
            endpoints = one.keep(request, endpoints)
        if not endpoints:
            return None
        totals = [0.0] * len(endpoints)
        for scorer, weight in self.scorers:
            scores = scorer.score(request, endpoints)
            assert len(scores) == len(endpoints) and min(scores) >= 0 and max(scores) <= 1, f"{scorer} scored outside 0..1"
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        picked = self.picker.pick(endpoints, totals)
        if self.prefix_index is not None:
            self.prefix_index.add(request.block_hashes, picked.index)
        return picked


def _round_robin(config: RoutingConfig) -> Profile:
    return Profile([ReadyFilter()], [], RoundRobinPicker())


def _least_requests(config: RoutingConfig) -> Profile:
    return Profile([ReadyFilter()], [(LeastRequestsScorer(), 1.0)], MaxScorePicker())


def _prefix_affinity(config: RoutingConfig) -> Profile:
    index = PrefixIndex(config.max_prefix_blocks)
    return Profile(
        [ReadyFilter(), QueueFilter(config.max_waiting)],
        [
            (PrefixAffinityScorer(index), 1.0),
            (LeastTokensScorer(), config.load_weight),
            (KVUsageScorer(), config.load_weight / 2),
        ],
        MaxScorePicker(),
        index,
    )


POLICIES: dict[str, Callable[[RoutingConfig], Profile]] = {
    # The yardstick: needs to know nothing, and is as good as any while all requests are alike.
    "round-robin": _round_robin,
    # Evens out requests of unlike length; the default, since it needs no tokens and harms nobody.
    "least-requests": _least_requests,
    # Sends what begins alike to where it was before: several times less prefill for conversations and agents.
    "prefix-affinity": _prefix_affinity,
}


def profile_for(config: RoutingConfig) -> Profile:
    return POLICIES[config.policy](config)

"""Profile: how one kind of request is routed: who may get it, in what line they stand, scorers with weights.

The policies that can be asked for by name are in `POLICIES`, each with its reason.
"""

from collections.abc import Callable, Sequence

import msgspec

from headrace.base.errors import ConfigurationError, nearest
from headrace.router.mind.candidates import Candidates, Line, Load, no_load, requests_in_flight, tokens_in_flight
from headrace.router.mind.endpoint import Endpoint
from headrace.router.mind.filters import Filter, QueueFilter, ReadyFilter
from headrace.router.mind.prefix_index import PrefixIndex
from headrace.router.mind.routed_request import RoutedRequest
from headrace.router.mind.scorers import KVUsageScorer, LeastLoadScorer, PrefixAffinityScorer, Score, Scorer


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
            raise ConfigurationError(f"there is no policy {self.policy!r}{nearest(self.policy, POLICIES)} (known: {known})")
        for name in ("prefix_block_size", "max_prefix_blocks"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_waiting < 0 or not 0 <= self.load_weight < float("inf"):
            raise ConfigurationError("max_waiting and load_weight must not be negative, and finite")


class Profile:
    def __init__(
        self,
        *,
        load: Load,
        preference: Filter | None = None,
        scorers: Sequence[tuple[Scorer, float]] = (),
        prefix_index: PrefixIndex | None = None,
    ) -> None:
        """`load`: what the candidates are in line by; without scorers whoever has the least gets the request.
        `preference`: a filter that counts while it passes somebody. `scorers`: with their weights. `prefix_index`: told
        where requests went, if a scorer asks it."""
        self.prefix_index = prefix_index
        self._load = load
        self._preference = preference
        self._scorers = scorers
        self._last = -1
        """Among equals each gets its turn, so that equal endpoints get equal work."""

    def candidates(self, *others: Filter) -> Candidates:
        """Nobody yet; whoever holds them tells them of every endpoint, and of every change. `others`: filters that they
        must pass, too."""
        return Candidates((ReadyFilter(), *others), self._preference, self._load)

    def pick(self, request: RoutedRequest, candidates: Candidates) -> Endpoint | None:
        """None where no endpoint may get the request."""
        line = candidates.line
        if not line:
            return None
        picked = self._best(request, line) if self._scorers else line.next_of_least(self._last)
        self._last = picked.index
        if self.prefix_index is not None:
            self.prefix_index.add(request.block_hashes, picked.index)
        return picked

    def _best(self, request: RoutedRequest, line: Line) -> Endpoint:
        """Whoever has the highest sum of weighted scores. Looks at those whom a scorer favours, and along the line until
        nobody further down could have as much."""
        opinions = [(scorer.opinion(request, line), weight) for scorer, weight in self._scorers]
        scores = [(opinion.score, weight) for opinion, weight in opinions]
        bounds = [(opinion.most_from, weight) for opinion, weight in opinions]
        favoured = {index for opinion, _ in opinions for index in opinion.favours}
        best, equals = -1.0, list[Endpoint]()
        for index in favoured:
            endpoint = line.get(index)
            if endpoint is not None and (total := _total(scores, endpoint)) >= best:
                equals = [*equals, endpoint] if total == best else [endpoint]
                best = total
        for endpoint in line:
            if _total(bounds, endpoint) < best:
                break
            if endpoint.index not in favoured and (total := _total(scores, endpoint)) >= best:
                equals = [*equals, endpoint] if total == best else [endpoint]
                best = total
        return min(equals, key=lambda endpoint: (endpoint.index <= self._last, endpoint.index))


def _total(scores: Sequence[tuple[Score, float]], endpoint: Endpoint) -> float:
    total = 0.0
    for score, weight in scores:
        scored = score(endpoint)
        assert 0 <= scored <= 1, f"{endpoint.name} was scored {scored}, outside of 0 to 1"
        total += weight * scored
    return total


def _round_robin(config: RoutingConfig) -> Profile:
    return Profile(load=no_load)


def _least_requests(config: RoutingConfig) -> Profile:
    return Profile(load=requests_in_flight)


def _prefix_affinity(config: RoutingConfig) -> Profile:
    index = PrefixIndex(config.max_prefix_blocks)
    return Profile(
        load=tokens_in_flight,
        preference=QueueFilter(config.max_waiting),
        scorers=[
            (PrefixAffinityScorer(index), 1.0),
            (LeastLoadScorer(), config.load_weight),
            (KVUsageScorer(), config.load_weight / 2),
        ],
        prefix_index=index,
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

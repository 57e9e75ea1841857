"""Disaggregation: whether a prompt is computed where it is answered, or by somebody else who hands its KV over.

Computing a prompt for another endpoint keeps its steps short for those who are being answered there, and costs a transfer;
what little is left of a prompt that is cached is not worth one. Who answers is picked first, for that decides how much is
left; its place is kept while the prompt is computed. Knows endpoints, their roles and what was sent where; moves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.router.mind.endpoint import Endpoint, EndpointState
from headrace.router.mind.filters import AnsweringFilter, ComputingFilter
from headrace.router.mind.profile import Profile
from headrace.router.mind.routed_request import RoutedRequest


class Leg(StrEnum):
    """What of a request an endpoint is sent."""

    WHOLE = "whole"
    PREFILL = "prefill"
    """Compute the prompt, and keep its KV for whoever answers."""
    DECODE = "decode"
    """Fetch the prompt's KV, and answer."""


class DisaggregationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: str = ""
    """How the endpoint that computes a prompt is chosen: a name of `POLICIES`; empty: as the one that answers."""
    min_uncached_tokens: int = 256
    """A prompt of which fewer tokens are left to compute where it is answered is computed there; 0: none is."""

    def __post_init__(self) -> None:
        if self.min_uncached_tokens < 0:
            raise ConfigurationError(f"min_uncached_tokens must not be negative, not {self.min_uncached_tokens}")


@dataclass(frozen=True, slots=True)
class Route:
    endpoint: Endpoint
    leg: Leg = Leg.WHOLE
    reserved: Endpoint | None = None
    """After the prefill leg: who answers."""
    num_cached_tokens: int = 0
    """Of the prompt, what that one has probably cached."""


class Disaggregation:
    def __init__(self, config: DisaggregationConfig, *, prefill: Profile, decode: Profile, prefix_block_size: int) -> None:
        """`prefix_block_size`: tokens of a block of the profiles' prefix indexes."""
        self._config = config
        self._prefill = prefill
        self._decode = decode
        self._block_size = prefix_block_size
        self._computing = prefill.candidates(ComputingFilter())
        self._answering = decode.candidates(AnsweringFilter())

    def renew(self, endpoint: Endpoint) -> None:
        """Something about this endpoint has changed."""
        self._computing.renew(endpoint)
        self._answering.renew(endpoint)

    def route(self, request: RoutedRequest) -> Route | None:
        """None where nobody can answer. Where nobody can compute the prompt for whoever answers, that one does it."""
        cached = self._num_cached_tokens(request)
        answers = self._decode.pick(request, self._answering)
        if answers is None:
            return None
        num_cached = cached.get(answers.index, 0)
        if request.num_prompt_tokens - num_cached < self._config.min_uncached_tokens:
            return Route(answers)
        self._computing.take_out(answers)
        computes = self._prefill.pick(request, self._computing)
        self._computing.renew(answers)
        return Route(answers) if computes is None else Route(computes, Leg.PREFILL, answers, num_cached)

    def route_on(self, request: RoutedRequest, reserved: Endpoint | None) -> Route | None:
        """Who answers what has been computed: whoever was picked before, while it takes new work; None where nobody can."""
        if reserved is None or reserved.state is not EndpointState.READY:
            reserved = self._decode.pick(request, self._answering)
        return None if reserved is None else Route(reserved, Leg.DECODE)

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint lost its cache."""
        for profile in (self._prefill, self._decode):
            if profile.prefix_index is not None:
                profile.prefix_index.remove(endpoint.index)

    def check_integrity(self, endpoints: Sequence[Endpoint]) -> None:
        """Asserts that it knows them as they are."""
        self._computing.check_integrity(endpoints)
        self._answering.check_integrity(endpoints)

    def _num_cached_tokens(self, request: RoutedRequest) -> dict[int, int]:
        """By endpoint, of the prompt's tokens those that it has probably cached: to be asked before it is sent the rest."""
        index = self._decode.prefix_index
        matched = {} if index is None else index.match(request.block_hashes)
        return {endpoint: num_blocks * self._block_size for endpoint, num_blocks in matched.items()}

"""RouterCore: one router's mind: where each request goes, and what becomes of it when something fails.

Told what happened, it answers with actions for whoever owns it to carry out. A request that is lost with its endpoint
before its first token goes to another, as a new generation; after that its client is told, since what was streamed cannot
be taken back. Every request that was submitted ends once: finished, rejected or cancelled.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.ids import RequestId
from headrace.protocol.load_report import LoadReport
from headrace.router.mind.disaggregation import Disaggregation, Leg, Route
from headrace.router.mind.endpoint import Endpoint, EndpointRole, EndpointState
from headrace.router.mind.generation_fence import GenerationFence
from headrace.router.mind.membership import Membership
from headrace.router.mind.profile import Profile
from headrace.router.mind.routed_request import RoutedRequest


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_attempts: int = 3
    """Endpoints that a request is sent to, one after another, before its client is told."""
    report_timeout_ns: Nanos = Nanos(10_000_000_000)
    """An endpoint not heard of for so long is gone."""
    queue_timeout_ns: Nanos = Nanos(60_000_000_000)
    """So long a request waits in the router for an endpoint that may have it."""

    def __post_init__(self) -> None:
        for name in ("max_attempts", "report_timeout_ns", "queue_timeout_ns"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a prompt's KV will be wanted, so that it can go there while the prompt is computed."""

    endpoint: str
    num_cached_tokens: int
    """Of the prompt, what is probably there already."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to this endpoint."""

    endpoint: str
    epoch: int
    request_id: RequestId
    generation: int
    leg: Leg = Leg.WHOLE
    handoff: Any = None
    """For the decode leg: where the prompt's KV lies, as its prefill endpoint said."""
    destination: Destination | None = None
    """For the prefill leg."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell this endpoint that nobody waits for this generation any more."""

    endpoint: str
    epoch: int
    request_id: RequestId
    generation: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Tell the client that its request has failed."""

    request_id: RequestId
    error: str


@dataclass(frozen=True, slots=True)
class Expel:
    """The endpoint is gone: it must join again to be sent anything."""

    endpoint: str
    epoch: int


Action = Dispatch | Cancel | Reject | Expel


@dataclass(slots=True, eq=False)
class _Flight:
    request: RoutedRequest
    since: Nanos
    num_attempts: int = 0
    generation: int = 0
    endpoint: Endpoint | None = None
    reserved: Endpoint | None = None
    """Where it goes when `endpoint` has computed its prompt."""
    handoff: Any = None
    """What that endpoint left, while nobody has been sent for it."""
    has_output: bool = False


class RouterCore:
    def __init__(self, config: RouterConfig, profile: Profile, disaggregation: Disaggregation | None = None) -> None:
        """`disaggregation`: where some endpoints compute prompts for others; it has `profile` for whoever answers."""
        self._config = config
        self._profile = profile
        self._disaggregation = disaggregation
        self._membership = Membership(config.report_timeout_ns)
        self._candidates = profile.candidates()
        self._fence = GenerationFence()
        self._flights: dict[RequestId, _Flight] = {}
        self._waiting: OrderedDict[RequestId, _Flight] = OrderedDict()  # for an endpoint
        self._by_endpoint: dict[int, dict[RequestId, _Flight]] = {}

    @property
    def num_open_requests(self) -> int:
        return len(self._flights)

    # Endpoints come and go

    def join(self, name: str, life: int, now: Nanos, role: EndpointRole = EndpointRole.BOTH) -> tuple[int, list[Action]]:
        """An endpoint is ready, in this life of its own counting. Its epoch, and what can be done now that it is there.

        A life that is a member already stays what it is: its message came twice. What an earlier life had is lost; of one
        earlier than the last known, 0 is the epoch, and nothing changes."""
        assert role is EndpointRole.BOTH or self._disaggregation is not None, f"{name} has a role that nobody gives work to"
        actions: list[Action] = []
        known = self._membership.endpoint(name)
        if known is not None:
            if life < known.life:
                return 0, []
            if known.state is not EndpointState.GONE:
                if life == known.life:
                    return known.epoch, []
                actions += self._lose(known, now)
        endpoint = self._membership.join(name, life, now, role)
        self._by_endpoint[endpoint.index] = {}
        self._renew(endpoint)
        for flight in list(self._waiting.values()):
            actions += self._dispatch(flight, now)
        return endpoint.epoch, actions

    def drain(self, name: str) -> bool:
        """The endpoint gets nothing new. Whether it has nothing left."""
        endpoint = self._membership.endpoint(name)
        if endpoint is None or endpoint.state is EndpointState.GONE:
            return True
        endpoint.state = EndpointState.DRAINING
        self._renew(endpoint)
        return not self._by_endpoint[endpoint.index]

    def leave(self, name: str, life: int, now: Nanos) -> list[Action]:
        """This life of an endpoint is known to be over: its connections broke, or it said so."""
        endpoint = self._membership.endpoint(name)
        if endpoint is None or endpoint.life != life or endpoint.state is EndpointState.GONE:
            return []
        return [Expel(name, endpoint.epoch), *self._lose(endpoint, now)]

    def report(self, name: str, report: LoadReport, now: Nanos) -> bool:
        """False: the endpoint is not a member in this epoch, and must join again."""
        endpoint = self._membership.report(name, report, now)
        if endpoint is None:
            return False
        self._renew(endpoint)
        return True

    # Requests come and go

    def submit(self, request: RoutedRequest, now: Nanos) -> list[Action]:
        assert request.request_id not in self._flights, f"request {request.request_id} is open already"
        flight = self._flights[request.request_id] = _Flight(request, now)
        return self._dispatch(flight, now)

    def cancel(self, request_id: RequestId) -> list[Action]:
        """The client left. An unknown id is no error, for the two may cross on the way."""
        flight = self._flights.get(request_id)
        return [] if flight is None else self._end(flight)

    def first_token(self, request_id: RequestId, generation: int) -> bool:
        """Whether this output may go to the client."""
        if not self._fence.admits(request_id, generation):
            return False
        self._flights[request_id].has_output = True
        return True

    def prefilled(self, request_id: RequestId, generation: int, handoff: Any, now: Nanos) -> list[Action]:
        """The prompt was computed, and `handoff` says where its KV lies: it goes on to whoever answers."""
        if not self._fence.admits(request_id, generation):
            return []
        flight = self._flights[request_id]
        flight.handoff = handoff
        if flight.endpoint is not None:
            self._take_off(flight, flight.endpoint)
            flight.endpoint = None
        flight.since = now
        return self._dispatch(flight, now)

    def finished(self, request_id: RequestId, generation: int) -> bool:
        """Whether this end may go to the client; if so, the request is over."""
        if not self._fence.admits(request_id, generation):
            return False
        self._close(self._flights[request_id])
        return True

    def failed(self, request_id: RequestId, generation: int, now: Nanos) -> list[Action]:
        """The endpoint refused this generation, or the connection to it broke."""
        if not self._fence.admits(request_id, generation):
            return []
        flight = self._flights[request_id]
        endpoint, epoch = flight.endpoint, flight.endpoint.epoch if flight.endpoint else 0
        actions = self._again(flight, now)
        if endpoint is not None:  # it may have got there all the same
            actions.insert(0, Cancel(endpoint.name, epoch, request_id, generation))
        return actions

    # Time passes

    def next_wakeup(self) -> Nanos | None:
        """When `tick` should be called, if nothing happens before."""
        moments = [] if (silence := self._membership.next_silence()) is None else [silence]
        if self._waiting:
            moments.append(Nanos(next(iter(self._waiting.values())).since + self._config.queue_timeout_ns))
        return min(moments, default=None)

    def tick(self, now: Nanos) -> list[Action]:
        """Gives up on endpoints that are silent and on requests that waited too long for one."""
        actions: list[Action] = []
        for endpoint in self._membership.silent(now):
            actions.append(Expel(endpoint.name, endpoint.epoch))
            actions += self._lose(endpoint, now)
        for flight in list(self._waiting.values()):
            if flight.since + self._config.queue_timeout_ns <= now:
                actions += self._end(flight)
                actions.append(Reject(flight.request.request_id, "no endpoint"))
        return actions

    def check_integrity(self) -> None:
        """Asserts every rule that must hold between calls."""
        for endpoint in self._membership.endpoints:
            held = self._by_endpoint[endpoint.index]
            assert endpoint.num_in_flight == len(held), f"{endpoint.name} counts requests that it has not"
            assert endpoint.num_in_flight_tokens == sum(flight.request.num_prompt_tokens for flight in held.values())
            assert not held or endpoint.state is not EndpointState.GONE, f"{endpoint.name} is gone and has requests"
            assert all(endpoint in (flight.endpoint, flight.reserved) for flight in held.values())
        chooser = self._candidates if self._disaggregation is None else self._disaggregation
        chooser.check_integrity(self._membership.endpoints)
        num_places = sum((f.endpoint is not None) + (f.reserved is not None) for f in self._flights.values())
        assert num_places == sum(len(held) for held in self._by_endpoint.values()), "a request has a place and is not there"
        num_placed = sum(flight.endpoint is not None for flight in self._flights.values())
        assert num_placed + len(self._waiting) == len(self._flights), "a request is nowhere, or in two places"
        assert len(self._fence) <= len(self._flights), "a fence stands where no request is"
        for flight in self._waiting.values():
            assert flight.endpoint is None and flight.reserved is None, "a request waits and is placed"

    # Parts

    def _dispatch(self, flight: _Flight, now: Nanos) -> list[Action]:
        request = flight.request
        route = self._route(flight)
        if route is None:
            self._waiting[request.request_id] = flight
            return []
        self._waiting.pop(request.request_id, None)
        endpoint, leg = route.endpoint, route.leg
        if leg is not Leg.DECODE:  # else it is the same attempt
            flight.num_attempts += 1
        flight.generation = self._fence.advance(request.request_id)
        flight.endpoint = endpoint
        self._put(flight, endpoint)
        destination = None
        if route.reserved is not None:
            flight.reserved = route.reserved
            self._put(flight, route.reserved)
            destination = Destination(route.reserved.name, route.num_cached_tokens)
        handoff, flight.handoff = flight.handoff, None
        return [Dispatch(endpoint.name, endpoint.epoch, request.request_id, flight.generation, leg, handoff, destination)]

    def _route(self, flight: _Flight) -> Route | None:
        request = flight.request
        if self._disaggregation is None:
            picked = self._profile.pick(request, self._candidates)
            return None if picked is None else Route(picked)
        if flight.handoff is None:
            return self._disaggregation.route(request)
        reserved, flight.reserved = flight.reserved, None
        if reserved is not None:
            self._take_off(flight, reserved)
        return self._disaggregation.route_on(request, reserved)

    def _again(self, flight: _Flight, now: Nanos) -> list[Action]:
        """Elsewhere, unless it was tried often enough or its client has seen a part of the answer."""
        self._detach(flight)
        flight.handoff = None
        if flight.has_output or flight.num_attempts >= self._config.max_attempts:
            self._close(flight)
            return [Reject(flight.request.request_id, "dropped" if flight.has_output else "unavailable")]
        self._fence.advance(flight.request.request_id)  # nothing of the old generation counts, even while it waits
        flight.since = now
        return self._dispatch(flight, now)

    def _lose(self, endpoint: Endpoint, now: Nanos) -> list[Action]:
        self._membership.lose(endpoint)
        self._renew(endpoint)
        if self._profile.prefix_index is not None:
            self._profile.prefix_index.remove(endpoint.index)
        if self._disaggregation is not None:
            self._disaggregation.forget(endpoint)
        actions: list[Action] = []
        for flight in list(self._by_endpoint[endpoint.index].values()):
            if flight.reserved is endpoint:  # its prompt is computed elsewhere all the same
                flight.reserved = None
                self._take_off(flight, endpoint)
            else:
                actions += self._again(flight, now)
        return actions

    def _end(self, flight: _Flight) -> list[Action]:
        endpoint = flight.endpoint
        self._close(flight)
        if endpoint is None or endpoint.state is EndpointState.GONE:
            return []
        return [Cancel(endpoint.name, endpoint.epoch, flight.request.request_id, flight.generation)]

    def _close(self, flight: _Flight) -> None:
        request_id = flight.request.request_id
        self._detach(flight)
        self._waiting.pop(request_id, None)
        del self._flights[request_id]
        if flight.generation:
            self._fence.close(request_id)

    def _detach(self, flight: _Flight) -> None:
        if flight.endpoint is not None:
            self._take_off(flight, flight.endpoint)
            flight.endpoint = None
        if flight.reserved is not None:
            self._take_off(flight, flight.reserved)
            flight.reserved = None

    def _renew(self, endpoint: Endpoint) -> None:
        """Whoever chooses must know what has become of it."""
        if self._disaggregation is None:
            self._candidates.renew(endpoint)
        else:
            self._disaggregation.renew(endpoint)

    def _put(self, flight: _Flight, endpoint: Endpoint) -> None:
        endpoint.num_in_flight += 1
        endpoint.num_in_flight_tokens += flight.request.num_prompt_tokens
        self._by_endpoint[endpoint.index][flight.request.request_id] = flight
        self._renew(endpoint)

    def _take_off(self, flight: _Flight, endpoint: Endpoint) -> None:
        endpoint.num_in_flight -= 1
        endpoint.num_in_flight_tokens -= flight.request.num_prompt_tokens
        del self._by_endpoint[endpoint.index][flight.request.request_id]
        self._renew(endpoint)

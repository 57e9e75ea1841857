"""RouterHost: the process around the router's mind: carries out its actions over the network, and wakes it in time.

Decides nothing. Requests come from `clients.py`, answers go back there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from headrace.base.clock import Clock, Nanos
from headrace.base.ids import RequestId
from headrace.engine.mind.kv_transfer import KVSource
from headrace.engine.mind.request import Request
from headrace.protocol.load_report import LoadReport
from headrace.router.mind.disaggregation import Leg
from headrace.router.mind.routed_request import RoutedRequest
from headrace.router.mind.router_core import Action, Cancel, Dispatch, Expel, Reject, RouterCore
from headrace.sim.events import EventQueue, Rank
from headrace.sim.network import Network
from headrace.sim.replica_host import ROUTER, Finish
from headrace.sim.watch import Watch

if TYPE_CHECKING:
    from headrace.sim.replica_host import ReplicaHost

_BYTES_PER_TOKEN = 4
_NEXT_LOOK_NS = 1_000_000_000
"""While no endpoint is there, the router looks so often whether somebody waited too long."""


class Answerer(Protocol):
    """Whom the router answers."""

    def first_token(self, request_id: RequestId, sent: Nanos) -> None: ...
    def finished(self, request_id: RequestId, finish: Finish) -> None: ...
    def rejected(self, request_id: RequestId, error: str) -> None: ...


@dataclass(slots=True)
class RouterHost:
    core: RouterCore
    clients: Answerer
    clock: Clock
    events: EventQueue
    network: Network
    watch: Watch
    replicas: Mapping[str, "ReplicaHost"]
    _requests: dict[RequestId, Request] = field(default_factory=dict)
    _prefills: dict[RequestId, Finish] = field(default_factory=dict)
    _looks_at: Nanos | None = None

    # Clients

    def submit(self, request: Request, routed: RoutedRequest) -> None:
        self._requests[request.request_id] = request
        self._perform(self.core.submit(routed, self.clock.now()))
        self._look_in_time()

    def cancel(self, request_id: RequestId) -> None:
        if request_id in self._requests:
            self._perform(self.core.cancel(request_id))
            del self._requests[request_id]
            self._prefills.pop(request_id, None)

    # Replicas

    def joins(self, name: str, life: int) -> None:
        host = self.replicas[name]
        epoch, actions = self.core.join(name, life, self.clock.now(), host.spec.role)
        if not epoch:
            return
        self.watch.joined(name, epoch)
        self.network.send(ROUTER, name, partial(host.joined, life, epoch), failed=_forget)
        self._perform(actions)
        self._look_in_time()

    def reported(self, name: str, report: LoadReport) -> None:
        if not self.core.report(name, report, self.clock.now()):
            self.network.send(ROUTER, name, partial(self.replicas[name].rejoin, report.epoch))

    def broke(self, name: str, life: int) -> None:
        """Every connection to this life of a replica was reset."""
        self._perform(self.core.leave(name, life, self.clock.now()))

    def drain(self, name: str) -> bool:
        """Nothing new for this replica. Whether it has nothing left."""
        self.watch.draining(name)
        return self.core.drain(name)

    def first_token(self, request_id: RequestId, generation: int, sent: Nanos) -> None:
        if self.core.first_token(request_id, generation):
            self.watch.forwarded(request_id, generation)
            self.clients.first_token(request_id, sent)

    def prefilled(self, request_id: RequestId, generation: int, source: KVSource, finish: Finish) -> None:
        """The prompt is computed, for another replica to answer; its client hears nothing of it."""
        actions = self.core.prefilled(request_id, generation, source, self.clock.now())
        if request_id in self._requests:
            self._prefills[request_id] = finish
        self._perform(actions)
        self._look_in_time()

    def finished(self, request_id: RequestId, generation: int, finish: Finish) -> None:
        if self.core.finished(request_id, generation):
            self.watch.forwarded(request_id, generation)
            del self._requests[request_id]
            prefill = self._prefills.pop(request_id, None)
            if prefill is not None:  # what was found in a cache, and not computed, was found there
                finish = replace(finish, num_cached_tokens=prefill.num_cached_tokens, prefill=prefill)
            self.clients.finished(request_id, finish)

    def failed(self, request_id: RequestId, generation: int) -> None:
        self._perform(self.core.failed(request_id, generation, self.clock.now()))
        self._look_in_time()

    # Its own clock

    def _look_in_time(self) -> None:
        wakeup = self.core.next_wakeup()
        if wakeup is not None and (self._looks_at is None or wakeup < self._looks_at):
            self._look_at(wakeup)

    def _look_at(self, moment: Nanos) -> None:
        self._looks_at = Nanos(max(moment, self.clock.now() + 1))
        self.events.schedule(self._looks_at, Rank.MESSAGE, partial(self._look, self._looks_at))

    def _look(self, appointment: Nanos) -> None:
        if appointment != self._looks_at:
            return  # another one was made, for earlier
        self._looks_at = None
        now = self.clock.now()
        self._perform(self.core.tick(now))
        wakeup = self.core.next_wakeup()
        self._look_at(Nanos(now + _NEXT_LOOK_NS) if wakeup is None else wakeup)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Dispatch():
                    self._dispatch(action)
                case Cancel(name, epoch, request_id, generation):
                    host = self.replicas[name]
                    self.network.send(ROUTER, name, partial(host.cancel, epoch, request_id, generation), failed=_forget)
                case Reject(request_id, error):
                    del self._requests[request_id]
                    self._prefills.pop(request_id, None)
                    self.clients.rejected(request_id, error)
                case Expel(name, _):
                    self.watch.left(name)

    def _dispatch(self, action: Dispatch) -> None:
        request = self._requests[action.request_id]
        self.watch.dispatched(action.endpoint, action.epoch, action.request_id, action.generation, action.leg)
        if action.leg is not Leg.DECODE:
            self._prefills.pop(action.request_id, None)  # of an attempt that came to nothing
        host = self.replicas[action.endpoint]
        self.network.send(
            ROUTER,
            action.endpoint,
            partial(host.dispatch, action.epoch, request, action.generation, action.leg, action.handoff, action.destination),
            num_bytes=_BYTES_PER_TOKEN * len(request.prompt_token_ids),
            failed=partial(self.failed, action.request_id, action.generation),
        )


def _forget() -> None:
    """A cancellation or a welcome that does not arrive: the other side's next message brings it to light."""

"""Faults: what goes wrong in a fleet, and when. Each begins at a moment and ends at another, whatever has become of the
rest.

Knows how a fault is done to a host and a network. Does not know what must hold in spite of it: `invariants.py` does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from headrace.base.clock import Clock, Nanos
from headrace.base.rng import Random
from headrace.base.units import nanos
from headrace.measure.workload.request import Segment, TokenPrompt, WorkloadRequest
from headrace.sim.clients import Clients
from headrace.sim.events import EventQueue, Rank
from headrace.sim.fleet_log import FleetLogger
from headrace.sim.fleet_spec import FaultKind, FaultSpec
from headrace.sim.network import Network
from headrace.sim.replica_host import ROUTER, ReplicaHost
from headrace.sim.router_host import RouterHost

_LOOK_AGAIN_NS = 100_000_000
"""How often a draining replica is asked whether it has nothing left."""


@dataclass(slots=True)
class Faults:
    clock: Clock
    events: EventQueue
    network: Network
    hosts: Mapping[str, ReplicaHost]
    router: RouterHost
    clients: Clients
    logger: FleetLogger
    rng: Random
    hands_kv_over: bool = False
    is_healed: bool = False
    num_storms: int = 0

    def schedule(self, fault: FaultSpec) -> None:
        self._at(nanos(fault.at_s), partial(self._begin, fault))

    def heal_all(self) -> None:
        """Everything is well again, and stays so: what is down starts, what is cut or slow is as before."""
        self.is_healed = True
        self.network.heal_all()
        for host in self.hosts.values():
            host.slow_down(100)
            host.freeze_reports(False)
            if not host.is_up and not host.is_starting:
                host.start()

    def _begin(self, fault: FaultSpec) -> None:
        if self.is_healed:
            return
        duration = nanos(fault.duration_s)
        self.logger.event(self.clock.now(), f"{fault.kind} begins", fault.replica)
        if fault.kind is FaultKind.STORM:
            self._storm(fault)
            return
        host = self.hosts[fault.replica]
        match fault.kind:
            case FaultKind.CRASH:
                self._crash(host)
            case FaultKind.NODE_LOSS:
                self.network.cut(ROUTER, host.name)
                self._cut_links(host)
                host.crash()
            case FaultKind.SLOW:
                host.slow_down(round(100 * fault.slowdown))
            case FaultKind.PARTITION:
                self.network.cut(ROUTER, host.name)
            case FaultKind.LINK_LOSS:
                self._cut_links(host)
            case FaultKind.STALE_REPORTS:
                host.freeze_reports(True)
            case FaultKind.DRAIN:
                self._drain(host, until=Nanos(self.clock.now() + duration))
                return
        self._at(self.clock.now() + duration, partial(self._end, fault, host))

    def _end(self, fault: FaultSpec, host: ReplicaHost) -> None:
        if self.is_healed:
            return
        self.logger.event(self.clock.now(), f"{fault.kind} ends", fault.replica)
        match fault.kind:
            case FaultKind.CRASH:
                self._start(host)
            case FaultKind.NODE_LOSS:
                self.network.heal(ROUTER, host.name)
                self._heal_links(host)
                self._start(host)
            case FaultKind.SLOW:
                host.slow_down(100)
            case FaultKind.PARTITION:
                self.network.heal(ROUTER, host.name)
            case FaultKind.LINK_LOSS:
                self._heal_links(host)
            case FaultKind.STALE_REPORTS:
                host.freeze_reports(False)

    def _cut_links(self, host: ReplicaHost) -> None:
        """Nothing passes between it and the other replicas, if anything ever does."""
        for other in self.hosts if self.hands_kv_over else ():
            if other != host.name:
                self.network.cut(host.name, other)

    def _heal_links(self, host: ReplicaHost) -> None:
        for other in self.hosts if self.hands_kv_over else ():
            if other != host.name:
                self.network.heal(host.name, other)

    def _crash(self, host: ReplicaHost) -> None:
        """The router sees its connections reset, unless it cannot see the machine at all."""
        was_up, life = host.is_up, host.life
        host.crash()
        if was_up:
            self.network.send(host.name, ROUTER, partial(self.router.broke, host.name, life))

    def _start(self, host: ReplicaHost) -> None:
        if not host.is_up and not host.is_starting:
            host.start()

    def _drain(self, host: ReplicaHost, *, until: Nanos) -> None:
        """Restarts when it has nothing left, or at the latest then."""
        if self.is_healed:
            return
        if not host.is_up:
            self.logger.event(self.clock.now(), f"{FaultKind.DRAIN} ends", host.name)
            return
        is_empty = self.router.drain(host.name) and not host.num_leases
        if is_empty or self.clock.now() >= until:
            self.logger.event(self.clock.now(), f"{FaultKind.DRAIN} ends", host.name)
            self._crash(host)
            host.start()
        else:
            self._at(self.clock.now() + _LOOK_AGAIN_NS, partial(self._drain, host, until=until))

    def _storm(self, fault: FaultSpec) -> None:
        self.num_storms += 1
        self.clients.storm(
            WorkloadRequest(
                request_id=(name := f"storm{self.num_storms}.{index}"),
                prompt=TokenPrompt((Segment(name, self.rng.randrange(16, 1_024)),)),
                num_output_tokens=self.rng.randrange(1, 128),
            )
            for index in range(fault.num_requests)
        )

    def _at(self, moment: int, action: Callable[[], None]) -> None:
        self.events.schedule(Nanos(moment), Rank.MESSAGE, action)

"""Network: messages that take time, get lost, come twice or out of order, and do not pass a partition.

A message with a `failed` is a part of a connection: it is sent again until it gets through or has been held up too long,
and then its sender is told. One without is a datagram. Knows names of machines and numbers of bytes; does not know what it
carries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace.base.clock import Clock, Nanos
from headrace.base.rng import Random
from headrace.base.units import NANOS_PER_MILLI, nanos
from headrace.sim.events import EventQueue, Rank
from headrace.sim.fleet_spec import NetworkSpec

CLIENT = "client"
_NANOS_PER_MICRO = 1_000
_HELD_UP = 20
"""A message that is passed by others takes up to so many times the usual."""


@dataclass(slots=True, eq=False)
class _Held:
    deliver: Callable[[], None]
    is_open: bool = True


class Network:
    def __init__(self, spec: NetworkSpec, *, rng: Random, clock: Clock, events: EventQueue) -> None:
        self._spec = spec
        self._rng = rng
        self._clock = clock
        self._events = events
        self._cut: dict[frozenset[str], list[_Held]] = {}
        self._latency_ns = max(1, round(spec.latency_us * _NANOS_PER_MICRO))
        self._client_latency_ns = max(1, round(spec.client_latency_us * _NANOS_PER_MICRO))
        self._jitter_ns = round(spec.jitter_us * _NANOS_PER_MICRO)
        self._is_troubled = bool(spec.loss or spec.duplication or spec.reordering)

    def latency(self, source: str, target: str) -> int:
        """One way, for a connection that begins now: at least a nanosecond, so that nothing is answered before it is
        asked."""
        base = self._client_latency_ns if CLIENT in (source, target) else self._latency_ns
        return base + self._rng.randrange(self._jitter_ns) if self._jitter_ns else base

    def send(
        self,
        source: str,
        target: str,
        deliver: Callable[[], None],
        *,
        num_bytes: int = 0,
        failed: Callable[[], None] | None = None,
    ) -> None:
        delay = self.latency(source, target) + int(num_bytes * 8 / self._spec.gigabits_per_s)
        if self._cut and frozenset((source, target)) in self._cut:
            if failed is not None:
                self._hold(frozenset((source, target)), deliver, failed)
            return
        if self._is_troubled:
            self._send_troubled(delay, deliver, is_datagram=failed is None)
        else:
            self._events.schedule(Nanos(self._clock.now() + delay), Rank.MESSAGE, deliver)

    def send_safely(self, source: str, target: str, deliver: Callable[[], None], *, num_bytes: int = 0) -> None:
        """On a line that has latency and never any trouble."""
        delay = self.latency(source, target) + int(num_bytes * 8 / self._spec.gigabits_per_s)
        self._events.schedule(Nanos(self._clock.now() + delay), Rank.MESSAGE, deliver)

    def cut(self, one: str, other: str) -> None:
        """Nothing that is sent from now on passes; what is on its way arrives."""
        self._cut.setdefault(frozenset((one, other)), [])

    def is_cut(self, one: str, other: str) -> bool:
        return bool(self._cut) and frozenset((one, other)) in self._cut

    def heal(self, one: str, other: str) -> None:
        for held in self._cut.pop(frozenset((one, other)), []):
            if held.is_open:
                held.is_open = False
                self._events.schedule(Nanos(self._clock.now() + self._latency_ns), Rank.MESSAGE, held.deliver)

    def heal_all(self) -> None:
        """And no more trouble from now on."""
        self._is_troubled = False
        for pair in list(self._cut):
            self.heal(min(pair), max(pair))

    def _send_troubled(self, delay: int, deliver: Callable[[], None], *, is_datagram: bool) -> None:
        spec, rng = self._spec, self._rng
        if rng.random() < spec.loss:
            if is_datagram:
                return
            delay += round(spec.retransmit_ms * NANOS_PER_MILLI)
        if rng.random() < spec.reordering:
            delay += rng.randrange(1, _HELD_UP * self._latency_ns + 1)
        now = self._clock.now()
        self._events.schedule(Nanos(now + delay), Rank.MESSAGE, deliver)
        if rng.random() < spec.duplication:
            again = delay + rng.randrange(1, _HELD_UP * self._latency_ns + 1)
            self._events.schedule(Nanos(now + again), Rank.MESSAGE, deliver)

    def _hold(self, pair: frozenset[str], deliver: Callable[[], None], failed: Callable[[], None]) -> None:
        held = _Held(deliver)
        self._cut[pair].append(held)
        expires = Nanos(self._clock.now() + max(1, nanos(self._spec.connect_timeout_s)))
        self._events.schedule(expires, Rank.MESSAGE, partial(self._give_up, held, failed))

    @staticmethod
    def _give_up(held: _Held, failed: Callable[[], None]) -> None:
        if held.is_open:
            held.is_open = False
            failed()

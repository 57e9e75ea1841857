"""KVExchange: how KV goes from replica to replica in rehearsal: connectors on both sides, and the links between them.

Who needs KV fetches it: a message to its source, a transfer over the links of both, a word that it has come. Transfers that
would use the same links at once wait for one another. A message may be lost, either side may die, a line may be cut: then
the transfer fails, at the latest after its time limit, and the lease of what nobody fetched ends by itself.

Knows moments, tokens and bytes. What is done with blocks, the minds on both sides decide.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.base.clock import Clock, Nanos
from headrace.base.ids import BlockId, RequestId
from headrace.base.units import nanos
from headrace.engine.mind.kv_transfer import KVLoad, KVSource
from headrace.engine.mind.request import Request
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import Worker
from headrace.sim.fleet_log import TransferSpan
from headrace.sim.fleet_spec import PoolSpec
from headrace.sim.network import Network
from headrace.sim.watch import Watch

if TYPE_CHECKING:
    from headrace.sim.replica import SimReplica

_NANOS_PER_MICRO = 1_000


@runtime_checkable
class KVHolder(Protocol):
    """A worker whose blocks hold something that can be carried elsewhere."""

    def read(self, block_ids: Sequence[BlockId]) -> list[list[int]]: ...
    def write(self, block_ids: Sequence[BlockId], content: Sequence[Sequence[int]]) -> None: ...


@dataclass(slots=True, eq=False)
class _Fetch:
    """A transfer from its beginning to its end, as the side that wants it sees it."""

    load: KVLoad
    asked: Nanos
    begun: Nanos | None = None
    """When its first byte left; None while the source has not heard of it, or it waits for a link."""
    is_heard: bool = False


@dataclass(slots=True)
class Counts:
    """Since the beginning."""

    num_transfers: int = 0
    num_failures: int = 0
    num_bytes: int = 0
    """Of transfers that came whole."""


@dataclass(slots=True, eq=False)
class _Links:
    """One replica's. A lane is busy until its moment; what finds none free on its way out waits in line."""

    out: list[Nanos]
    into: list[Nanos]
    line: deque[tuple["HostConnector", int]] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class KVExchange:
    clock: Clock
    events: EventQueue
    network: Network
    watch: Watch
    keeps_spans: bool = False
    counts: Counts = field(default_factory=Counts)
    spans: list[TransferSpan] = field(default_factory=list)
    """Where they are kept."""
    _connectors: dict[str, "HostConnector"] = field(default_factory=dict)

    def connect(self, name: str, life: int, spec: PoolSpec, worker: Worker) -> "HostConnector":
        """One life of a replica. Its links are free."""
        connector = self._connectors[name] = HostConnector(self, name, life, spec, worker)
        return connector

    def connector(self, engine_id: str) -> "HostConnector | None":
        """None where that life of it is over."""
        found = self._connectors.get(name_of(engine_id))
        return found if found is not None and found.engine_id == engine_id and found.is_open else None

    # The source's side

    def hear_of_end(self, source: KVSource) -> None:
        """Whoever wanted this has it, or does without."""
        connector = self.connector(source.engine_id)
        if connector is not None:
            connector.replica.end_lease(source.request_id)

    def hear(self, target: "HostConnector", number: int) -> None:
        """The source is asked for what it keeps. A question that comes twice is one."""
        fetch = target.fetches.get(number)
        if fetch is None or fetch.is_heard:
            return
        fetch.is_heard = True
        source, asked = self.connector(fetch.load.source.engine_id), fetch.load.source
        if source is None or not source.replica.core.renew_lease(asked.request_id, self.clock.now()):
            refuse = partial(target.fail, number, "its source does not keep it any more")
            self.network.send(name_of(asked.engine_id), target.name, refuse, failed=refuse)
            return
        source.links.line.append((target, number))
        self._begin_next(source)

    def _begin_next(self, source: "HostConnector") -> None:
        """What is first in line goes out when a lane is free on both sides."""
        now, links = self.clock.now(), source.links
        while links.line and min(links.out) <= now:
            target, number = links.line.popleft()
            fetch = target.fetches.get(number)
            if fetch is None:
                continue  # it was given up
            fetch.begun = begin = Nanos(max(now, min(target.links.into)))
            per_token = max(source.spec.kv_nanos_per_token, target.spec.kv_nanos_per_token)
            setup = round(source.spec.transfer.setup_us * _NANOS_PER_MICRO)
            end = Nanos(begin + setup + max(1, round(target.num_tokens(fetch.load) * per_token)))
            links.out[links.out.index(min(links.out))] = end
            target.links.into[target.links.into.index(min(target.links.into))] = end
            arrives = Nanos(end + self.network.latency(source.name, target.name))
            self.events.schedule(end, Rank.MESSAGE, partial(self._begin_next, source))
            self.events.schedule(arrives, Rank.MESSAGE, partial(self._arrive, source, target, number))

    def _arrive(self, source: "HostConnector", target: "HostConnector", number: int) -> None:
        """The last byte has come, unless something happened on the way. Memory is read until then."""
        fetch = target.fetches.get(number)
        if fetch is None or self.network.is_cut(source.name, target.name):
            return  # given up, or it will be
        load = fetch.load
        if not source.is_open:
            target.fail(number, "its source died")
        elif not source.replica.core.is_leased(load.source.request_id):
            target.fail(number, "its source did not keep it long enough")
        else:
            wanted = load.source.block_ids[load.first_block : load.first_block + len(load.block_ids)]
            if isinstance(source.worker, KVHolder) and isinstance(target.worker, KVHolder):
                target.worker.write(load.block_ids, source.worker.read(wanted))
            self.watch.loaded(target.name, load.block_ids, source.name, wanted)
            target.complete(number)


class HostConnector:
    """A `KVConnector`: one life of one replica, as a source and as a target of KV."""

    def __init__(self, exchange: KVExchange, name: str, life: int, spec: PoolSpec, worker: Worker) -> None:
        self.exchange = exchange
        self.name = name
        self.engine_id = f"{name}#{life}"
        self.spec = spec
        self.worker = worker
        self.replica: SimReplica
        self.is_open = True
        lanes = spec.num_kv_lanes
        self.links = _Links([Nanos(0)] * lanes, [Nanos(0)] * lanes)
        self.fetches: dict[int, _Fetch] = {}
        self.num_bytes_received = 0
        self._num_fetches = 0
        self._sources: dict[RequestId, KVSource] = {}
        self._wakes_at: Nanos | None = None

    @property
    def num_leases(self) -> int:
        return self.replica.core.num_leases

    def close(self) -> None:
        """The process is gone: it fetches nothing and keeps nothing any more."""
        self.is_open = False
        self.fetches.clear()

    # What its mind says

    def num_tokens_elsewhere(self, request: Request) -> int:
        return 0 if request.kv_source is None else request.kv_source.num_tokens

    def load(self, load: KVLoad) -> None:
        exchange, now = self.exchange, self.exchange.clock.now()
        number = self._num_fetches = self._num_fetches + 1
        self.fetches[number] = _Fetch(load, now)
        exchange.counts.num_transfers += 1
        exchange.network.send(
            self.name,
            name_of(load.source.engine_id),
            partial(exchange.hear, self, number),
            failed=partial(self.fail, number, "its source cannot be reached"),
        )
        expires = Nanos(now + nanos(self.spec.transfer.timeout_s))
        exchange.events.schedule(expires, Rank.MESSAGE, partial(self.fail, number, "it did not come in time"))

    def forgo(self, request: Request) -> None:
        assert request.kv_source is not None
        self._let_go(request.kv_source)

    def offer(self, request: Request, block_ids: Sequence[BlockId], num_tokens: int) -> None:
        self._sources[request.request_id] = KVSource(
            engine_id=self.engine_id, request_id=request.request_id, block_ids=tuple(block_ids), num_tokens=num_tokens
        )
        if self._wakes_at is None:
            self._wake_at(Nanos(self.exchange.clock.now() + self.spec.transfer.config.lease_ns))

    def source_of(self, request_id: RequestId) -> KVSource:
        """Where the KV of a request lies that has just ended here; told once."""
        return self._sources.pop(request_id)

    # How a transfer ends

    def num_tokens(self, load: KVLoad) -> int:
        """What is carried: the last block may be full in part."""
        return load.num_tokens - load.first_block * self.spec.scheduler.block_size

    def complete(self, number: int) -> None:
        fetch = self.fetches.pop(number)
        load = fetch.load
        num_bytes = round(self.num_tokens(load) * self.spec.kv_bytes_per_token)
        self.exchange.counts.num_bytes += num_bytes
        self.num_bytes_received += num_bytes
        self._end(fetch, load.num_tokens, num_bytes)

    def fail(self, number: int, error: str) -> None:
        """Whatever says so first; the rest is late."""
        fetch = self.fetches.pop(number, None)
        if fetch is None:
            return
        self.exchange.counts.num_failures += 1
        self._end(fetch, fetch.load.first_block * self.spec.scheduler.block_size, 0, error=error)

    def _end(self, fetch: _Fetch, num_tokens: int, num_bytes: int, *, error: str = "") -> None:
        load, exchange = fetch.load, self.exchange
        if exchange.keeps_spans:
            now = exchange.clock.now()
            exchange.spans.append(
                TransferSpan(
                    client_id_of(load.source.request_id), name_of(load.source.engine_id), self.name, fetch.asked,
                    now if fetch.begun is None else min(fetch.begun, now), now, num_bytes, error,
                )
            )  # fmt: skip
        self._let_go(load.source)
        self.replica.end_load(load.sequence_id, num_tokens, error=error and f"the prompt's KV was not there: {error}")

    def _let_go(self, source: KVSource) -> None:
        """Its source need not keep it any longer. If the word is lost, the lease ends by itself."""
        exchange = self.exchange
        exchange.network.send(self.name, name_of(source.engine_id), partial(exchange.hear_of_end, source))

    # Leases that nobody ended

    def _wake_at(self, moment: Nanos) -> None:
        self._wakes_at = moment
        self.exchange.events.schedule(moment, Rank.MESSAGE, self._wake)

    def _wake(self) -> None:
        self._wakes_at = None
        if not self.is_open:
            return
        self.replica.end_leases_over()
        wakeup = self.replica.core.next_wakeup()
        if wakeup is not None:
            self._wake_at(wakeup)


def name_of(engine_id: str) -> str:
    """The replica, of one of its lives."""
    return engine_id.rpartition("#")[0]


def client_id_of(request_id: RequestId) -> str:
    """The request, of one of its generations."""
    return request_id.rpartition("#")[0]

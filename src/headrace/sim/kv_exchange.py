"""KVExchange: how KV goes from replica to replica in rehearsal: connectors on both sides, and the links between them.

Who needs KV fetches it: a message to its source, a transfer over the links of both, a word that it has come. Where a
source's pool says so, chunks or layers go to whoever will answer as soon as they are computed; then only what is missing is
fetched. Transfers that would use the same links at once wait for one another. A message may be lost, either side may die,
a line may be cut: then the transfer fails, at the latest after its time limit, and the lease of what nobody fetched ends by
itself.

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
from headrace.engine.mind.step import StepPlan
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import Worker
from headrace.sim.fleet_log import TransferSpan
from headrace.sim.fleet_spec import PoolSpec, TransferOverlap
from headrace.sim.kv_ahead import ComputedKV
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
    num_missing: int
    """Tokens that did not go ahead, and for which the source has not been asked yet."""
    stream: "_Stream | None" = None
    """None while nothing has gone ahead, and the source has not heard of it."""
    is_heard: bool = False


@dataclass(slots=True, eq=False)
class _Stream:
    """One prompt's KV on its way, in one piece or in many that go one after another. In tokens times layers."""

    source: "HostConnector"
    target: "HostConnector"
    computed: ComputedKV | None = None
    """Where it goes ahead: what of it is there."""
    number: int | None = None
    """Of the fetch that waits for it; None while it goes ahead of that."""
    num_layers: int = 1
    backlog: int = 0
    """There, and not sent."""
    sent_ahead: int = 0
    """In pieces that left before all of the prompt was computed."""
    last_sent: tuple[Nanos, int] = (Nanos(0), 0)
    """When the last piece left, and how much that was."""
    begun: Nanos | None = None
    """When its first byte left."""
    is_computing: bool = False
    """Whether the prompt is still being computed."""
    is_in_line: bool = False
    num_on_the_way: int = 0
    is_going: bool = False
    is_broken: bool = False
    """Something of it was lost, or nobody will want it."""
    looks_at: Nanos | None = None

    @property
    def is_wanted(self) -> bool:
        if self.is_broken or not self.target.is_open:
            return False
        return self.source.is_open if self.number is None else self.number in self.target.fetches

    @property
    def is_whole(self) -> bool:
        """All of it has come."""
        is_there = not self.is_computing and (self.computed is None or self.computed.is_taken)
        return is_there and not (self.backlog or self.is_in_line or self.is_going or self.num_on_the_way)


@dataclass(slots=True)
class Counts:
    """Since the beginning."""

    num_transfers: int = 0
    num_failures: int = 0
    num_bytes: int = 0
    """Of transfers that came whole."""
    num_bytes_ahead: int = 0
    """Of those, what left before all of its prompt was computed."""


@dataclass(slots=True, eq=False)
class _Links:
    """One replica's. A lane is busy until its moment; what finds none free on its way out waits in line."""

    out: list[Nanos]
    into: list[Nanos]
    line: deque[_Stream] = field(default_factory=deque)


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

    def connector_named(self, name: str) -> "HostConnector | None":
        """Its present life; None where it has none."""
        found = self._connectors.get(name)
        return found if found is not None and found.is_open else None

    # The source's side

    def hear_of_end(self, source: KVSource) -> None:
        """Whoever wanted this has it, or does without."""
        connector = self.connector(source.engine_id)
        if connector is not None:
            connector.end_stream(source.request_id)
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
        if fetch.stream is None:
            source.end_stream(asked.request_id)  # it went elsewhere, or was cut off
            fetch.stream = _Stream(source, target, number=number)
        fetch.stream.backlog += fetch.num_missing * fetch.stream.num_layers
        fetch.num_missing = 0
        self.go_on(fetch.stream)

    def stream_to(self, target: "HostConnector", asked: KVSource) -> _Stream | None:
        """What goes, or went, ahead of this question."""
        source = self.connector(asked.engine_id)
        stream = None if source is None else source.streams.get(asked.request_id)
        return stream if stream is not None and stream.target is target and not stream.is_broken else None

    def go_on(self, stream: _Stream) -> None:
        """What is there of it gets into line; if nothing is, it looks again when something will be."""
        if stream.is_in_line or stream.is_going or not stream.is_wanted:
            return
        now, computed = self.clock.now(), stream.computed
        if computed is not None:
            stream.backlog += computed.take(now)
        if stream.backlog:
            stream.is_in_line = True
            stream.source.links.line.append(stream)
            self._begin_next(stream.source)
        elif computed is not None and (moment := computed.next_moment(now)) is not None and moment != stream.looks_at:
            stream.looks_at = moment
            self.events.schedule(moment, Rank.MESSAGE, partial(self._look, stream, moment))

    def _look(self, stream: _Stream, appointment: Nanos) -> None:
        if appointment == stream.looks_at:
            stream.looks_at = None
            self.go_on(stream)

    def _begin_next(self, source: "HostConnector") -> None:
        """What is first in line goes out when a lane is free on both sides."""
        now, links = self.clock.now(), source.links
        while links.line and min(links.out) <= now:
            stream = links.line.popleft()
            stream.is_in_line = False
            if not stream.is_wanted:
                continue  # it was given up
            target = stream.target
            units, stream.backlog = stream.backlog, 0
            begin = Nanos(max(now, min(target.links.into)))
            per_token = max(source.spec.kv_nanos_per_token, target.spec.kv_nanos_per_token)
            setup = 0
            if stream.begun is None:
                stream.begun, setup = begin, round(source.spec.transfer.setup_us * _NANOS_PER_MICRO)
            end = Nanos(begin + setup + max(1, round(units / stream.num_layers * per_token)))
            links.out[links.out.index(min(links.out))] = end
            target.links.into[target.links.into.index(min(target.links.into))] = end
            stream.is_going = True
            stream.num_on_the_way += 1
            stream.last_sent = begin, units
            if stream.is_computing:
                stream.sent_ahead += units
            arrives = Nanos(end + self.network.latency(source.name, target.name))
            self.events.schedule(end, Rank.MESSAGE, partial(self._sent, stream))
            self.events.schedule(arrives, Rank.MESSAGE, partial(self._arrive, stream))

    def _sent(self, stream: _Stream) -> None:
        """A piece's last byte has left."""
        stream.is_going = False
        self.go_on(stream)
        self._begin_next(stream.source)

    def _arrive(self, stream: _Stream) -> None:
        """The last byte of a piece has come, unless something happened on the way."""
        stream.num_on_the_way -= 1
        if self.network.is_cut(stream.source.name, stream.target.name):
            stream.is_broken = True  # whoever waits for it gives up, or will
        elif stream.number is None:
            pass
        elif not stream.source.is_open:
            stream.target.fail(stream.number, "its source died")
        else:
            self.complete_if_whole(stream)

    def complete_if_whole(self, stream: _Stream) -> None:
        """Memory is read until then."""
        source, target, number = stream.source, stream.target, stream.number
        fetch = None if number is None else target.fetches.get(number)
        if fetch is None or number is None or stream.is_broken or not stream.is_whole or fetch.num_missing:
            return
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
        self.streams: dict[RequestId, _Stream] = {}
        """Of requests here whose KV goes ahead, until it is fetched or nobody will."""
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
        self.streams.clear()

    # What its mind says

    def num_tokens_elsewhere(self, request: Request) -> int:
        return 0 if request.kv_source is None else request.kv_source.num_tokens

    def load(self, load: KVLoad) -> None:
        exchange, now = self.exchange, self.exchange.clock.now()
        number = self._num_fetches = self._num_fetches + 1
        fetch = self.fetches[number] = _Fetch(load, now, self.num_tokens(load), exchange.stream_to(self, load.source))
        stream = fetch.stream
        if stream is not None:
            assert stream.computed is not None
            stream.number = number
            fetch.num_missing = max(0, stream.computed.first_token - load.first_block * self.spec.scheduler.block_size)
            exchange.events.schedule(now, Rank.MESSAGE, partial(exchange.complete_if_whole, stream))
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
        if (stream := self.streams.get(request.request_id)) is not None:
            stream.is_computing = False
            last, units = stream.last_sent
            stream.sent_ahead -= units if last >= self.exchange.clock.now() else 0
        if self._wakes_at is None:
            self._wake_at(Nanos(self.exchange.clock.now() + self.spec.transfer.config.lease_ns))

    def source_of(self, request_id: RequestId) -> KVSource:
        """Where the KV of a request lies that has just ended here; told once."""
        return self._sources.pop(request_id)

    # What goes ahead

    @property
    def has_streams(self) -> bool:
        return bool(self.streams)

    def open_stream(self, request_id: RequestId, target: str, num_cached_tokens: int, num_prompt_tokens: int) -> None:
        """From now on this request's KV goes to `target`, as far as it is not there already, if that is what the pool does.
        The last token's is computed where it is answered."""
        reached = self.exchange.connector_named(target)
        if self.spec.transfer.overlap is TransferOverlap.NONE or reached is None:
            return
        num_layers = self.spec.num_kv_pieces
        end_token = num_prompt_tokens - 1
        computed = ComputedKV(num_layers=num_layers, first_token=min(num_cached_tokens, end_token), end_token=end_token)
        self.streams[request_id] = _Stream(self, reached, computed, num_layers=num_layers, is_computing=True)

    def computes(self, plan: StepPlan, begins: Nanos, ends: Nanos) -> None:
        """A step of this replica, at those moments."""
        streams = self.streams
        found = {
            sequence.sequence_id: stream
            for sequence in self.replica.core.running
            if (stream := streams.get(sequence.request.request_id)) is not None and stream.is_computing
        }
        for entry in plan.scheduled:
            stream = found.get(entry.sequence_id)
            if stream is not None:
                assert stream.computed is not None
                stream.computed.step(entry.num_computed_tokens, entry.num_tokens, begins=begins, ends=ends)
                self.exchange.go_on(stream)

    def end_stream(self, request_id: RequestId) -> None:
        """Nothing more of it goes; what is on its way arrives in vain. If it is waited for, it goes on."""
        stream = self.streams.pop(request_id, None)
        if stream is not None and stream.number is None:
            stream.is_broken = True

    # How a transfer ends

    def num_tokens(self, load: KVLoad) -> int:
        """What is carried: the last block may be full in part."""
        return load.num_tokens - load.first_block * self.spec.scheduler.block_size

    def complete(self, number: int) -> None:
        fetch = self.fetches.pop(number)
        load = fetch.load
        num_bytes = round(self.num_tokens(load) * self.spec.kv_bytes_per_token)
        self.exchange.counts.num_bytes += num_bytes
        if fetch.stream is not None and fetch.stream.sent_ahead:
            ahead = fetch.stream.sent_ahead / fetch.stream.num_layers * self.spec.kv_bytes_per_token
            self.exchange.counts.num_bytes_ahead += min(num_bytes, round(ahead))
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
            begun = now if fetch.stream is None or fetch.stream.begun is None else min(fetch.stream.begun, now)
            exchange.spans.append(
                TransferSpan(
                    client_id_of(load.source.request_id), name_of(load.source.engine_id), self.name,
                    min(fetch.asked, begun), begun, now, num_bytes, error,
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
        for request_id in [one for one, stream in self.streams.items() if not stream.is_computing]:
            if not self.replica.core.is_leased(request_id):
                self.end_stream(request_id)
        wakeup = self.replica.core.next_wakeup()
        if wakeup is not None:
            assert wakeup > self.exchange.clock.now(), f"{self.name} keeps KV whose lease is over"
            self._wake_at(wakeup)


def name_of(engine_id: str) -> str:
    """The replica, of one of its lives."""
    return engine_id.rpartition("#")[0]


def client_id_of(request_id: RequestId) -> str:
    """The request, of one of its generations."""
    return request_id.rpartition("#")[0]

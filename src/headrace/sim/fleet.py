"""Fleet: a router and its replicas, clients and a network, under virtual time; built from a description, run to the end.

Decides nothing: replicas are real `EngineCore`s, the router is the real `RouterCore`. One seed with a stream of chance for
each part, so what one part draws never shifts what another draws. The outcome is a function of description, workload and
seed: equal in every process, on every machine.
"""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.base.clock import ManualClock, Nanos
from headrace.base.rng import stream
from headrace.base.units import NANOS_PER_SECOND, nanos
from headrace.engine.mind.block_hashing import BlockHasher
from headrace.engine.mind.prefix_cache import root_hash
from headrace.engine.mind.update import SequenceTimes
from headrace.measure.report.record import RequestRecord, Run, RunFacts
from headrace.measure.workload.request import ChatPrompt, Workload, WorkloadRequest
from headrace.router.mind.disaggregation import Disaggregation
from headrace.router.mind.profile import profile_for
from headrace.router.mind.router_core import RouterCore
from headrace.sim.answers import AnswerWorker
from headrace.sim.clients import Clients, Routing
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import Worker
from headrace.sim.faults import Faults
from headrace.sim.fleet_log import FleetLog, FleetLogger, Span
from headrace.sim.fleet_spec import FleetSpec, PoolSpec
from headrace.sim.kv_exchange import KVExchange
from headrace.sim.network import Network
from headrace.sim.prompts import SegmentHasher
from headrace.sim.replica_host import IDENTITY_DIGEST, Finish, ReplicaHost, Surroundings
from headrace.sim.router_host import RouterHost
from headrace.sim.watch import Watch

_EVENTS_BETWEEN_NEWS = 5_000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rehearsal is."""

    now: Nanos
    num_ended: int
    num_requests: int
    num_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutcome:
    run: Run
    log: FleetLog
    digest: str
    """Of every request's record, and of which replica answered it: equal wherever the same is rehearsed."""
    num_events: int
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """How a fleet is rehearsed; the defaults are what a user wants."""

    takes_runs: bool = True
    """Decode steps that are alike are taken together; off only to show that it makes no difference."""
    log_interval_ns: int = NANOS_PER_SECOND
    keeps_spans: bool = False
    keeps_tokens: bool = False
    watch: Watch | None = None
    make_worker: Callable[[PoolSpec], Worker] = lambda spec: AnswerWorker()
    cache_salt: Callable[[WorkloadRequest], str] = lambda asked: ""
    on_progress: Callable[[Progress], None] | None = None


class Fleet:
    def __init__(self, spec: FleetSpec, workload: Workload, how: Rehearsal) -> None:
        self.spec = spec
        self.workload = workload
        self._how = how
        self.clock = ManualClock()
        self.events = EventQueue(self.clock)
        self.watch = how.watch or Watch()
        self._hasher: BlockHasher = SegmentHasher()
        self.network = Network(spec.network, rng=stream(spec.seed, "network"), clock=self.clock, events=self.events)
        self.exchange: KVExchange | None = None
        if spec.is_disaggregated:
            self.exchange = KVExchange(self.clock, self.events, self.network, self.watch, keeps_spans=how.keeps_spans)
        profile = profile_for(spec.router)
        names_prompts = profile.prefix_index is not None
        disaggregation = None
        if spec.is_disaggregated:
            prefill = profile_for(spec.router.prefill_routing)
            names_prompts = names_prompts or prefill.prefix_index is not None
            disaggregation = Disaggregation(
                spec.router.disaggregation, prefill=prefill, decode=profile, prefix_block_size=spec.router.prefix_block_size
            )
        keeps_context = any(isinstance(r.prompt, ChatPrompt) and r.prompt.continues for r in workload.requests)
        around = Surroundings(
            clock=self.clock,
            events=self.events,
            network=self.network,
            watch=self.watch,
            hasher=self._hasher,
            make_worker=how.make_worker,
            takes_runs=how.takes_runs,
            keeps_tokens=how.keeps_tokens or keeps_context,
            exchange=self.exchange,
        )
        self.clients = Clients(
            spec.client,
            workload,
            self.clock,
            self.events,
            self.network,
            self._hasher,
            stream(spec.seed, "clients"),
            Routing(
                block_size=spec.router.prefix_block_size if names_prompts else 0,
                engine_block_size=next(iter(spec.pools.values())).scheduler.block_size,
            ),
            how.cache_salt,
            lambda salt: root_hash(IDENTITY_DIGEST, adapter="", cache_salt=salt),
            self._answered,
        )
        self.hosts: dict[str, ReplicaHost] = {}
        self.router = RouterHost(
            RouterCore(spec.router.config, profile, disaggregation),
            self.clients,
            self.clock,
            self.events,
            self.network,
            self.watch,
            self.hosts,
        )
        self.clients.router = self.router
        for pool_name, pool in spec.pools.items():
            for index in range(pool.num_replicas):
                name = f"{pool_name}-{index}"
                self.hosts[name] = ReplicaHost(name, len(self.hosts), pool, around, self.router)
        roles = {name: str(host.spec.role) for name, host in self.hosts.items()}
        self.logger = FleetLogger(roles, interval_ns=how.log_interval_ns)
        self.faults = Faults(
            self.clock,
            self.events,
            self.network,
            self.hosts,
            self.router,
            self.clients,
            self.logger,
            stream(spec.seed, "faults"),
            hands_kv_over=spec.is_disaggregated,
        )
        self._answering: dict[str, str] = {}
        self.on_answer: Callable[[str, Finish], None] | None = None
        """Told every answer that a client got."""

    def begin(self) -> None:
        """Everything is set out on the event queue."""
        for host in self.hosts.values():
            host.start(takes_ns=Nanos(0) if host.spec.start.is_warm else None)
        self.clients.begin()
        for fault in self.spec.faults:
            self.faults.schedule(fault)
        self._every(nanos(self.spec.router.report_interval_s), self._report)
        self._every(self._how.log_interval_ns, self._log)

    def run(self, facts: RunFacts) -> FleetOutcome:
        """Until every client has its answer or has given up. `facts` says what the run is called."""
        self.begin()
        clients, news = self.clients, self._how.on_progress
        while not clients.is_done():
            self.events.run(_EVENTS_BETWEEN_NEWS)
            if news is not None:
                num_ended, num_open = len(clients.records), clients.num_open
                news(Progress(self.clock.now(), num_ended, num_ended + num_open, self.events.num_scheduled))
        return self.outcome(facts)

    def outcome(self, facts: RunFacts) -> FleetOutcome:
        if self.exchange is not None:
            self.logger.log.transfers = self.exchange.spans
        records = sorted(self.clients.records, key=lambda record: (record.intended_ns, record.request_id))
        stats = [found for host in self.hosts.values() if (found := host.stats()) is not None]
        measured = msgspec.structs.replace(
            facts,
            source="simulated",
            duration_ns=Nanos(max((record.finished_ns for record in records), default=0)),
            in_flight_integral_ns=self.clients.in_flight_integral,
            server_counters={
                "vllm:prefix_cache_queries_total": float(sum(one.prefix_cache_queries for one in stats)),
                "vllm:prefix_cache_hits_total": float(sum(one.prefix_cache_hits for one in stats)),
                "vllm:num_preemptions_total": float(sum(one.num_preemptions for one in stats)),
                **self._transfer_counters(),
            },
        )
        return FleetOutcome(
            run=Run(facts=measured, records=tuple(records)),
            log=self.logger.log,
            digest=self._digest(records),
            num_events=self.events.num_scheduled,
            num_steps=sum(one.num_steps for one in stats),
        )

    # Parts

    def _answered(self, name: str, finish: Finish) -> None:
        self._answering[name] = finish.replica
        if self.on_answer is not None:
            self.on_answer(name, finish)
        if self._how.keeps_spans:
            for leg in (finish.prefill, finish):
                if leg is not None and leg.times is not None:
                    self.logger.log.spans.append(_span(name, leg, leg.times))

    def _transfer_counters(self) -> dict[str, float]:
        if self.exchange is None:
            return {}
        counts = self.exchange.counts
        return {
            "headrace:kv_transfers_total": float(counts.num_transfers),
            "headrace:kv_transfer_failures_total": float(counts.num_failures),
            "headrace:kv_transfer_bytes_total": float(counts.num_bytes),
            "headrace:kv_transfer_bytes_ahead_total": float(counts.num_bytes_ahead),
        }

    def _report(self) -> None:
        for host in self.hosts.values():
            host.report()

    def _log(self) -> None:
        self.logger.begin_moment(self.clock.now())
        for name, host in self.hosts.items():
            self.logger.note(name, host.stats(), host.spec.scheduler.num_blocks, host.num_bytes_received)

    def _every(self, interval: int, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.events.schedule(Nanos(self.clock.now() + interval), Rank.MESSAGE, again)

        self.events.schedule(Nanos(self.clock.now() + interval), Rank.MESSAGE, again)

    def _digest(self, records: list[RequestRecord]) -> str:
        hasher = hashlib.blake2b(digest_size=16)
        for record in records:
            line = (
                record.request_id, record.intended_ns, record.first_chunk_ns, record.finished_ns, record.num_output_tokens,
                record.num_cached_tokens, record.error, self._answering.get(record.request_id, ""),
            )  # fmt: skip
            hasher.update(msgspec.msgpack.encode(line))
            hasher.update(array("q", record.gaps_ns).tobytes())
        return hasher.hexdigest()


def _span(name: str, leg: Finish, times: SequenceTimes) -> Span:
    return Span(
        name,
        leg.replica,
        times.arrived,
        times.scheduled,
        times.first_token,
        times.finished,
        leg.num_cached_tokens,
        leg.num_tokens,
    )

"""ReplicaHost: the process around one replica, as far as a fleet sees it: starting, serving, dying, starting again.

Knows its own life and what the router told it. The replica inside is `SimReplica`, with the real mind; the door is the real
`DispatchGate`. What it sends goes over the network.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import sub
from typing import TYPE_CHECKING

import msgspec

from headrace.base.clock import Clock, Nanos
from headrace.base.errors import OverloadedError
from headrace.base.ids import RequestId
from headrace.engine.mind.block_hashing import BlockHasher
from headrace.engine.mind.decode_run import DecodeRun
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.kv_transfer import KVSource
from headrace.engine.mind.request import Request
from headrace.engine.mind.stats import EngineStats
from headrace.engine.mind.step import StepPlan
from headrace.engine.mind.update import FinishReason, RequestUpdate, SequenceTimes
from headrace.protocol.load_report import LoadReport
from headrace.router.mind.disaggregation import Leg
from headrace.router.mind.generation_fence import DispatchGate
from headrace.router.mind.router_core import Destination
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import SimExecutor, Worker
from headrace.sim.fleet_spec import PoolSpec
from headrace.sim.front_end import FrontEnd
from headrace.sim.kv_exchange import HostConnector, KVExchange
from headrace.sim.network import Network
from headrace.sim.replica import Observer, SimReplica
from headrace.sim.step_cost import SlowedStepCost
from headrace.sim.watch import Watch

if TYPE_CHECKING:
    from headrace.sim.router_host import RouterHost

ROUTER = "router"
IDENTITY_DIGEST = b"rehearsal"
"""One model for all."""
_JOIN_AGAIN_NS = 1_000_000_000


@dataclass(slots=True, eq=False)
class Generation:
    """One attempt at one request, or at a leg of it, on one replica."""

    client_request_id: RequestId
    number: int
    leg: Leg = Leg.WHOLE
    first_token: int = 0
    last_token: int = 0
    """When those were there, if any was."""
    first_chunk_wait: int = 0
    """So long the first token waited for the others of its chunk."""
    num_tokens: int = 0
    """Computed so far; those of the first chunk are seen together."""
    first_chunk_tokens: int = 1
    gaps: "array[int]" = field(default_factory=lambda: array("q"))
    """From each token to the next, in nanoseconds: many times smaller than a list."""
    token_ids: list[int] = field(default_factory=list)
    """The tokens, where somebody wants to see them."""

    @property
    def name(self) -> tuple[RequestId, int]:
        return self.client_request_id, self.number

    def note_token(self, now: int) -> None:
        self.num_tokens += 1
        if self.num_tokens == 1:
            self.first_token = now
        if self.num_tokens > self.first_chunk_tokens:
            self.gaps.append(now - self.last_token)
        elif self.num_tokens == self.first_chunk_tokens:
            self._send_first_chunk(now)
        self.last_token = now

    def end(self) -> None:
        """Nothing more comes: a first chunk that is not full goes as it is."""
        if 0 < self.num_tokens < self.first_chunk_tokens:
            self._send_first_chunk(self.last_token)

    def _send_first_chunk(self, now: int) -> None:
        self.first_chunk_wait = now - self.first_token
        self.first_token = now
        self.gaps.extend([0] * (self.num_tokens - 1))

    def note_run(self, ends: Sequence[int], gaps: "array[int]") -> None:
        """A token at each of these moments, after the first. `gaps`: those between them."""
        if self.num_tokens < self.first_chunk_tokens:
            for end in ends:
                self.note_token(end)
            return
        self.gaps.append(ends[0] - self.last_token)
        self.gaps.extend(gaps)
        self.last_token = ends[-1]
        self.num_tokens += len(ends)


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation, as its replica tells it."""

    replica: str
    first_token: int
    last_token: int
    """When those were there, if any was."""
    num_tokens: int
    gaps: "array[int]"
    """From each token to the next, in nanoseconds."""
    token_ids: Sequence[int]
    reason: FinishReason
    num_cached_tokens: int
    times: SequenceTimes | None
    error: str = ""
    is_refused: bool = False
    """What was asked is wrong, by `error`: nobody else would take it either."""
    first_chunk_wait: int = 0
    """So long its first token waited for the others of its chunk, in nanoseconds."""
    prefill: "Finish | None" = None
    """The end of the leg before, where another replica computed the prompt."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all hosts of a fleet share."""

    clock: Clock
    events: EventQueue
    network: Network
    watch: Watch
    hasher: BlockHasher
    make_worker: Callable[[PoolSpec], Worker]
    takes_runs: bool = True
    keeps_tokens: bool = False
    exchange: KVExchange | None = None
    """Where replicas hand KV over."""


class ReplicaHost(Observer):
    def __init__(self, name: str, index: int, spec: PoolSpec, around: Surroundings, router: "RouterHost") -> None:
        self.name = name
        self.spec = spec
        self._around = around
        self._router = router
        self._source = index + 1
        self._cost = SlowedStepCost(spec.step_cost())
        self._life = 0
        self.is_starting = False
        self._replica: SimReplica | None = None
        self._gate: DispatchGate | None = None
        self._connector: HostConnector | None = None
        self._front_end: FrontEnd | None = None
        """None where it costs nothing."""
        self._generations: dict[RequestId, Generation] = {}
        self._num_reports = 0
        self._frozen_load: tuple[int, int, float] | None = None
        self._has_frozen_reports = False

    # Its life

    @property
    def is_up(self) -> bool:
        return self._replica is not None

    @property
    def life(self) -> int:
        """Counts its starts and its ends."""
        return self._life

    @property
    def epoch(self) -> int:
        """As the router told it; 0 before it did."""
        return self._gate.epoch if self._gate is not None else 0

    @property
    def num_open(self) -> int:
        """Requests that it has and has not answered."""
        return len(self._generations)

    @property
    def num_leases(self) -> int:
        """Prompts whose KV it keeps for others."""
        return 0 if self._connector is None else self._connector.num_leases

    @property
    def num_bytes_received(self) -> int:
        """Of KV, in this life."""
        return 0 if self._connector is None else self._connector.num_bytes_received

    @property
    def core(self) -> EngineCore | None:
        return None if self._replica is None else self._replica.core

    def start(self, *, takes_ns: Nanos | None = None) -> None:
        """It serves after its start-up time, or after `takes_ns`."""
        assert self._replica is None, f"{self.name} runs already"
        self._life += 1
        self.is_starting = True
        ready = Nanos(self._around.clock.now() + (self.spec.start.duration_ns if takes_ns is None else takes_ns))
        self._around.events.schedule(ready, Rank.MESSAGE, partial(self._serve, self._life), source=self._source)

    def crash(self) -> None:
        """The process ends; what it had is lost, its cache too."""
        self._life += 1  # a start that is under way comes to nothing
        self.is_starting = False
        if self._replica is not None:
            self._replica.stop()
        if self._connector is not None:
            self._connector.close()
        self._replica, self._gate, self._connector = None, None, None
        self._generations.clear()
        self._around.watch.lost_cache(self.name)

    def slow_down(self, slowdown_percent: int) -> None:
        """Takes effect for the next step that is planned."""

        def change() -> None:
            self._cost.slowdown_percent = slowdown_percent

        if self._replica is None:
            change()
        else:
            self._replica.change_cost(change)

    def freeze_reports(self, is_frozen: bool) -> None:
        self._has_frozen_reports, self._frozen_load = is_frozen, None

    def _serve(self, life: int) -> None:
        if life != self._life:
            return
        self.is_starting = False
        around = self._around
        worker = around.make_worker(self.spec)
        if around.exchange is not None:
            self._connector = around.exchange.connect(self.name, self._life, self.spec, worker)
        core = EngineCore(
            self.spec.scheduler,
            identity_digest=IDENTITY_DIGEST,
            hasher=around.hasher,
            connector=self._connector,
            transfer=self.spec.transfer.config,
        )
        executor = SimExecutor(
            worker=worker,
            cost=self._cost,
            clock=around.clock,
            events=around.events,
            source=self._source,
        )
        self._replica = SimReplica(
            core=core,
            executor=executor,
            clock=around.clock,
            events=around.events,
            observer=self,
            source=self._source,
            takes_runs=around.takes_runs,
        )
        if self._connector is not None:
            self._connector.replica = self._replica
        front_end = FrontEnd(self.spec.entrance)
        self._front_end = front_end if front_end.has_cost else None
        self.join()

    def join(self) -> None:
        """Tells the router that it is ready, until it is welcomed: neither message need get through."""
        around = self._around
        around.network.send(self.name, ROUTER, partial(self._router.joins, self.name, self._life), failed=_ask_again_anyway)
        again = Nanos(around.clock.now() + _JOIN_AGAIN_NS)
        around.events.schedule(again, Rank.MESSAGE, partial(self._join_unless_welcome, self._life), source=self._source)

    def _join_unless_welcome(self, life: int) -> None:
        if life == self._life and self.is_up and self._gate is None:
            self.join()

    # What the router says

    def joined(self, life: int, epoch: int) -> None:
        """What it had of an earlier epoch, nobody waits for."""
        if self._replica is None or life != self._life or epoch <= self.epoch:
            return
        self._replica.catch_up()
        for engine_request_id in list(self._generations):
            del self._generations[engine_request_id]
            self._stop_sending(engine_request_id)
            self._replica.abort(engine_request_id)
        self._gate = DispatchGate(epoch)

    def rejoin(self, epoch: int) -> None:
        """The router does not count it as a member in this epoch."""
        if self._replica is not None and epoch == self.epoch:
            self.join()

    def dispatch(
        self,
        epoch: int,
        request: Request,
        generation: int,
        leg: Leg = Leg.WHOLE,
        source: KVSource | None = None,
        destination: Destination | None = None,
    ) -> None:
        """A request for it; if it has no process that could take it, the connection breaks."""
        if self._replica is None or self._gate is None:
            self._refuse(request.request_id, generation)
            return
        if not self._gate.admits(epoch, request.request_id, generation):
            if epoch != self.epoch:
                self._refuse(request.request_id, generation)
            return
        self._around.watch.admitted(self.name, epoch, self.epoch, request, generation)
        engine_request_id = _engine_request_id(request.request_id, generation)
        first_chunk = 1 if self._front_end is None else self._front_end.first_chunk_tokens
        self._generations[engine_request_id] = Generation(
            request.request_id, generation, leg, first_chunk_tokens=1 if leg is Leg.PREFILL else first_chunk
        )
        sampling = request.sampling
        asked = Request(
            request_id=engine_request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling if leg is not Leg.PREFILL else msgspec.structs.replace(sampling, max_tokens=1, min_tokens=0),
            cache_salt=request.cache_salt,
            keeps_kv=leg is Leg.PREFILL,
            kv_source=source,
        )
        if destination is not None and self._connector is not None:
            self._connector.open_stream(
                engine_request_id, destination.endpoint, destination.num_cached_tokens, len(request.prompt_token_ids)
            )
        if self._front_end is None:
            self._replica.receive(asked)
            return
        self._replica.catch_up()  # what is older than the request is before it at the front end, too
        accepted = self._front_end.accept(self._around.clock.now(), len(request.prompt_token_ids))
        self._around.events.schedule(accepted, Rank.MESSAGE, partial(self._receive, self._life, asked), source=self._source)

    def _receive(self, life: int, request: Request) -> None:
        """What the front end has read; nobody waits for what was cancelled meanwhile."""
        if life == self._life and self._replica is not None and request.request_id in self._generations:
            self._replica.receive(request)

    def cancel(self, epoch: int, request_id: RequestId, generation: int) -> None:
        if self._replica is None or self._gate is None or epoch != self.epoch:
            return
        self._gate.cancel(request_id, generation)
        engine_request_id = _engine_request_id(request_id, generation)
        self._replica.catch_up()
        self._stop_sending(engine_request_id)
        if self._generations.pop(engine_request_id, None) is not None:
            self._replica.abort(engine_request_id)
        elif self._connector is not None:  # it may have ended, and left its KV for nobody
            self._replica.end_lease(engine_request_id)

    # What it reports

    def stats(self) -> EngineStats | None:
        """As of this moment; None while no process is there."""
        return None if self._replica is None else self._replica.stats()

    def report(self) -> None:
        if self._gate is None or (stats := self.stats()) is None:
            return
        load = (stats.num_running, stats.num_waiting, stats.kv_cache_usage)
        if self._has_frozen_reports:
            load = self._frozen_load = self._frozen_load or load
        self._num_reports += 1
        report = LoadReport(self._gate.epoch, self._num_reports, *load)
        self._around.network.send(self.name, ROUTER, partial(self._router.reported, self.name, report))

    # What its mind decides

    def planned(self, now: Nanos, plan: StepPlan) -> None:
        self._around.watch.planned(self.name, plan)

    def submitted(self, plan: StepPlan, begins: Nanos, ends: Nanos) -> None:
        if self._connector is not None and self._connector.has_streams:
            self._connector.computes(plan, begins, ends)

    def updated(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        for update in updates:
            generation = self._generations.get(update.request_id)
            if generation is None:
                continue  # cancelled: this is its abort
            is_sent = bool(update.new_token_ids) or update.finish_reason is not None
            seen = self._front_end.deliver(now) if self._front_end is not None and is_sent else now
            if update.new_token_ids:
                if not generation.num_tokens and generation.leg is not Leg.PREFILL:
                    self._send(generation, partial(self._router.first_token, *generation.name, seen), at=seen)
                generation.note_token(seen)
                if self._around.keeps_tokens:
                    generation.token_ids += update.new_token_ids
            if update.finish_reason is not None:
                self._finish(update.request_id, generation, update, at=seen)

    def ran(self, run: DecodeRun, ends: Sequence[int]) -> None:
        self._around.watch.ran(self.name, run)
        generations = [self._generations[sequence.request.request_id] for sequence in run.sequences]
        front_end = self._front_end
        delay = 0 if front_end is None else front_end.delay_of_run(ends[0])
        if front_end is not None and delay is None:
            for end in ends:
                for generation in generations:
                    generation.note_token(front_end.deliver(Nanos(end)))
        elif delay:
            ends = [end + delay for end in ends]
        gaps = array("q", map(sub, ends[1:], ends))
        for sequence, generation in zip(run.sequences, generations, strict=True):
            if delay is not None:
                generation.note_run(ends, gaps)
            if self._around.keeps_tokens:
                generation.token_ids += sequence.output_token_ids[-run.num_steps :]

    def refused(self, now: Nanos, request: Request, error: Exception) -> None:
        """Where there is no room, another may have some; what nobody can do as asked ends, and its client is told."""
        generation = self._generations.pop(request.request_id)
        self._stop_sending(request.request_id)
        if isinstance(error, OverloadedError):
            self._refuse(*generation.name)
            return
        finish = Finish(
            replica=self.name,
            first_token=0,
            last_token=0,
            num_tokens=0,
            gaps=generation.gaps,
            token_ids=(),
            reason=FinishReason.ERROR,
            num_cached_tokens=0,
            times=None,
            error=str(error),
            is_refused=True,
        )
        self._send(generation, partial(self._router.finished, *generation.name, finish), at=now)

    def _finish(self, engine_request_id: RequestId, generation: Generation, update: RequestUpdate, *, at: Nanos) -> None:
        assert update.finish_reason is not None
        del self._generations[engine_request_id]
        generation.end()
        finish = Finish(
            replica=self.name,
            first_token=generation.first_token,
            last_token=generation.last_token,
            num_tokens=generation.num_tokens,
            gaps=generation.gaps,
            token_ids=generation.token_ids,
            reason=update.finish_reason,
            num_cached_tokens=update.num_cached_tokens,
            times=update.times,
            error=update.error,
            first_chunk_wait=generation.first_chunk_wait,
        )
        if generation.leg is Leg.DECODE and finish.reason is FinishReason.ERROR and not finish.num_tokens:
            self._refuse(*generation.name)  # its KV did not come: the router knows where it can be computed
        elif generation.leg is not Leg.PREFILL:
            self._send(generation, partial(self._router.finished, *generation.name, finish), at=at)
        elif finish.reason in (FinishReason.LENGTH, FinishReason.STOP):
            assert self._connector is not None
            source = self._connector.source_of(engine_request_id)
            self._send(generation, partial(self._router.prefilled, *generation.name, source, finish), at=at)
        else:
            self._stop_sending(engine_request_id)
            self._refuse(*generation.name)

    def _stop_sending(self, engine_request_id: RequestId) -> None:
        """Nobody will answer with what it computes there."""
        if self._connector is not None:
            self._connector.end_stream(engine_request_id)

    def _send(self, generation: Generation, deliver: Callable[[], None], *, at: Nanos) -> None:
        """On the connection that the request came by; if nothing passes, it breaks, and both ends know. What the front end
        has not sent when the process dies is lost with it."""
        broken = partial(self._router.failed, *generation.name)
        send = partial(self._around.network.send, self.name, ROUTER, deliver, failed=broken)
        if at <= self._around.clock.now():
            send()
        else:
            self._around.events.schedule(
                at, Rank.MESSAGE, partial(self._send_if_alive, self._life, send), source=self._source
            )

    def _send_if_alive(self, life: int, send: Callable[[], None]) -> None:
        if life == self._life:
            send()

    def _refuse(self, request_id: RequestId, generation: int) -> None:
        failed = partial(self._router.failed, request_id, generation)
        self._around.network.send(self.name, ROUTER, failed, failed=failed)


def _ask_again_anyway() -> None:
    """Whoever is not welcomed asks again, whatever became of the question."""


def _engine_request_id(request_id: RequestId, generation: int) -> RequestId:
    return RequestId(f"{request_id}#{generation}")

"""Cases: small fleets under faults, drawn from a seed: deterministic simulation testing.

Each case has its own kinds of trouble. After a while everything is healed, and all that was asked must end within a bound;
then nothing may be left over. What is told on the way is checked by `FleetInvariants`, what lies in KV blocks by
`SimulatedWorker`, and what clients get is held against what a model alone in the world would have answered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.base.clock import Nanos
from headrace.base.rng import Random, stream
from headrace.base.units import nanos, seconds
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.kv_transfer import LoadFailurePolicy
from headrace.measure.report.record import RunFacts
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.router.mind.disaggregation import DisaggregationConfig
from headrace.router.mind.endpoint import EndpointRole
from headrace.sim.answers import AnswerWorker
from headrace.sim.clients import seed_of
from headrace.sim.events import Rank
from headrace.sim.executor import Worker
from headrace.sim.fleet import Fleet, Rehearsal
from headrace.sim.fleet_spec import (
    ClientSpec,
    FaultKind,
    FaultSpec,
    FleetSpec,
    LinearCostSpec,
    NetworkSpec,
    PoolSpec,
    RouterSpec,
    StartSpec,
    TransferOverlap,
    TransferSpec,
)
from headrace.sim.invariants import FleetInvariants
from headrace.sim.prompts import SegmentedPrompt
from headrace.sim.replica_host import Finish
from headrace.sim.story import Story
from headrace.sim.worker import SimulatedWorker, choose_any_of, fingerprint

VOCAB_SIZE = 512
TENANTS = ("", "", "red", "blue")
_TROUBLE_S = 40.0
"""So long things go wrong."""
_BOUND_S = 300.0
"""So soon after that everything has ended: far more than start-ups, time limits and queues add up to here."""
_SETTLING_S = 60.0
_CHECK_ALL_EVERY = 64

_ALL_KINDS = tuple(kind for kind in FaultKind if kind not in (FaultKind.STORM, FaultKind.LINK_LOSS))


@dataclass(frozen=True, slots=True)
class Case:
    """Which trouble, and why it is a case of its own."""

    kinds: tuple[FaultKind, ...] = ()
    num_faults: int = 6
    has_message_trouble: bool = False
    has_storms: bool = False
    leaves: bool = False
    """Clients lose patience."""
    hands_kv_over: bool = False
    """Some replicas compute prompts for others."""


CASES: dict[str, Case] = {
    # Nothing wrong but full pools and users who leave: what breaks here is no fault's doing.
    "calm": Case(num_faults=0, leaves=True),
    # Restarts with lost caches; connections break at any moment of a request's life.
    "crashes": Case((FaultKind.CRASH, FaultKind.NODE_LOSS), num_faults=8),
    # Work goes on behind a cut, and comes back late: epochs and generations.
    "partitions": Case((FaultKind.PARTITION,), num_faults=8, leaves=True),
    # Lost, doubled and passed on the way.
    "messages": Case((FaultKind.PARTITION, FaultKind.CRASH), num_faults=3, has_message_trouble=True, leaves=True),
    # Nodes that are slow or whose reports are old, and too much to do: no fault that shows at once.
    "overload": Case((FaultKind.SLOW, FaultKind.STALE_REPORTS), has_storms=True, leaves=True),
    # Planned leaving, under way while others fail.
    "rollout": Case((FaultKind.DRAIN, FaultKind.DRAIN, FaultKind.CRASH), num_faults=8),
    # Prompts are computed here and answered there: either side dies, links are cut, words are lost, leases end.
    "handover": Case(
        (FaultKind.CRASH, FaultKind.NODE_LOSS, FaultKind.LINK_LOSS, FaultKind.PARTITION, FaultKind.SLOW, FaultKind.DRAIN),
        num_faults=8,
        has_message_trouble=True,
        leaves=True,
        hands_kv_over=True,
    ),
    # All of it.
    "everything": Case(_ALL_KINDS, num_faults=12, has_message_trouble=True, has_storms=True, leaves=True),
}


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    digest: str
    num_requests: int
    num_failed: int
    num_retries: int
    num_dispatches: int
    finished_s: float


@dataclass(frozen=True, slots=True)
class DrawnCase:
    """What a seed stands for: a fleet with its faults, and what is asked of it."""

    spec: FleetSpec
    workload: Workload

    def replaced(self, **fields: Any) -> "DrawnCase":
        """With other faults, say."""
        return replace(self, spec=msgspec.structs.replace(self.spec, **fields))

    def with_requests(self, requests: tuple[WorkloadRequest, ...]) -> "DrawnCase":
        return replace(self, workload=msgspec.structs.replace(self.workload, requests=requests))


def draw_case(seed: int, name: str, *, num_requests: int) -> DrawnCase:
    return DrawnCase(draw_fleet(seed, CASES[name]), _draw_workload(seed, num_requests))


def run_case(seed: int, name: str, *, num_requests: int = 30) -> CaseOutcome:
    """Fails by an AssertionError where a rule is broken; seed, name and number reproduce it."""
    return rehearse_case(seed, draw_case(seed, name, num_requests=num_requests))


def rehearse_case(seed: int, drawn: DrawnCase, *, tell: Callable[[list[str]], None] | None = None) -> CaseOutcome:
    """The same of what was drawn, or of a part of it. `tell`: gets what happened last, in words, also if it fails."""
    spec, workload = drawn.spec, drawn.workload
    salts = _Salts(seed)
    pools = {f"{name}-{index}": pool for name, pool in spec.pools.items() for index in range(pool.num_replicas)}
    invariants = FleetInvariants(
        {name: pool.scheduler for name, pool in pools.items()},
        salts.of_seed,
        {name: pool.role for name, pool in pools.items()},
    )
    takes_runs = stream(seed, "runs").random() < 0.25
    story = Story(invariants)
    how = Rehearsal(
        watch=invariants if tell is None else story,
        make_worker=_answering if takes_runs else _fingerprinting,
        cache_salt=salts.of_request,
        keeps_tokens=True,
        log_interval_ns=nanos(10.0),
    )
    fleet = Fleet(spec, workload, how)
    story.clock = fleet.clock
    try:
        return _rehearse(fleet, invariants, is_checked=not takes_runs)
    finally:
        if tell is not None:
            tell(story.lines(fleet.logger.log.events))


def _rehearse(fleet: Fleet, invariants: FleetInvariants, *, is_checked: bool) -> CaseOutcome:
    answers = _Answers(fleet.workload, is_checked=is_checked)
    fleet.on_answer = answers.check
    fleet.begin()
    heals_at = Nanos(nanos(_TROUBLE_S))
    fleet.events.schedule(heals_at, Rank.MESSAGE, fleet.faults.heal_all)
    _run(fleet, invariants, until_done=True, limit=Nanos(heals_at + nanos(_BOUND_S)))
    if fleet.clock.now() < heals_at:
        _run(fleet, invariants, until_done=False, limit=heals_at)
    _run(fleet, invariants, until_done=False, limit=Nanos(fleet.clock.now() + nanos(_SETTLING_S)))
    _check_nothing_is_left(fleet)
    outcome = fleet.outcome(RunFacts(source="simulated", duration_ns=Nanos(0)))
    return CaseOutcome(
        digest=outcome.digest,
        num_requests=len(outcome.run.records),
        num_failed=sum(bool(record.error) for record in outcome.run.records),
        num_retries=fleet.clients.num_retries,
        num_dispatches=invariants.num_dispatches,
        finished_s=seconds(fleet.clock.now()),
    )


def _run(fleet: Fleet, invariants: FleetInvariants, *, until_done: bool, limit: Nanos) -> None:
    """Event by event, every rule after each."""
    count = 0
    while not (until_done and fleet.clients.is_done()):
        if fleet.events.next_moment > limit:
            assert not until_done, f"{fleet.clients.num_open} requests have not ended within {_BOUND_S:.0f} s of the healing"
            return
        fleet.events.run_next()
        count += 1
        names = list(invariants.touched) if count % _CHECK_ALL_EVERY else list(fleet.hosts)
        invariants.touched.clear()
        for name in names:
            core = fleet.hosts[name].core
            if core is not None:
                core.check_integrity()
        fleet.router.core.check_integrity()


def _check_nothing_is_left(fleet: Fleet) -> None:
    assert fleet.router.core.num_open_requests == 0, "the router keeps requests whose clients are gone"
    names = [record.request_id for record in fleet.clients.records]
    assert len(names) == len(set(names)), "a client was answered twice"
    for host in fleet.hosts.values():
        stats = host.stats()
        assert stats is not None, f"{host.name} is still down"
        assert host.core is not None and host.core.is_idle, f"{host.name} still computes, and for nobody"
        assert stats.num_blocks_in_use == 0, f"{host.name} holds blocks for nobody"
        assert stats.num_loading == stats.num_blocks_leased == 0, f"{host.name} waits for KV, or keeps some, for nobody"
        assert host.num_open == 0, f"{host.name} remembers requests that have ended"


class _Salts:
    """Which tenant asked: by the request's id, and by the seed that goes with it everywhere."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._by_seed: dict[int, str] = {}

    def of_request(self, asked: WorkloadRequest) -> str:
        salt = stream(self._seed, f"tenant of {asked.request_id}").choice(TENANTS)
        self._by_seed[seed_of(asked.request_id, 0)] = salt
        return salt

    def of_seed(self, seed: int) -> str:
        return self._by_seed[seed]


class _Answers:
    """What each client should get: a function of its prompt and seed alone."""

    def __init__(self, workload: Workload, *, is_checked: bool) -> None:
        self._asked: Mapping[str, WorkloadRequest] = {request.request_id: request for request in workload.requests}
        self._is_checked = is_checked

    def check(self, name: str, finish: Finish) -> None:
        asked = self._asked.get(name)
        if asked is None:
            return  # a storm's
        assert len(finish.token_ids) == asked.num_output_tokens, f"{name} got {len(finish.token_ids)} tokens"
        if self._is_checked:
            assert list(finish.token_ids) == expected_answer(asked), f"{name} got an answer that is not its own"


def expected_answer(asked: WorkloadRequest) -> list[int]:
    assert isinstance(asked.prompt, TokenPrompt)
    state, seed = 0, seed_of(asked.request_id, 0)
    for token_id in SegmentedPrompt(asked.prompt.segments, 0):
        state = fingerprint(state, token_id)
    answer: list[int] = []
    while len(answer) < asked.num_output_tokens:
        answer.append(fingerprint(state ^ seed, 0) % VOCAB_SIZE)
        state = fingerprint(state, answer[-1])
    return answer


def _fingerprinting(pool: PoolSpec) -> Worker:
    return SimulatedWorker(
        num_blocks=pool.scheduler.num_blocks, block_size=pool.scheduler.block_size, choose=choose_any_of(VOCAB_SIZE)
    )


def _answering(pool: PoolSpec) -> Worker:
    return AnswerWorker()


# What is drawn


def draw_fleet(seed: int, case: Case) -> FleetSpec:
    rng = stream(seed, "fleet")
    num_replicas = rng.randrange(1, 5)
    drawn = FleetSpec(
        seed=seed,
        pools={
            "main": PoolSpec(
                num_replicas=num_replicas,
                scheduler=_draw_limits(rng),
                cost=LinearCostSpec(
                    fixed_ns=rng.choice([1_000_000, 20_000_000]),
                    per_token_ns=rng.choice([0, 200_000]),
                    per_context_token_ns=rng.choice([0, 1_000]),
                ),
                start=StartSpec(process_s=rng.choice([0.1, 2.0]), weight_bytes=0, warm_up_s=0.1, is_warm=rng.random() < 0.7),
            )
        },
        router=RouterSpec(
            policy=rng.choice(["round-robin", "least-requests", "prefix-affinity"]),
            prefix_block_size=rng.choice([4, 16]),
            max_prefix_blocks=rng.choice([8, 10_000]),
            max_attempts=rng.randrange(1, 5),
            report_interval_s=rng.choice([0.2, 1.0]),
            report_timeout_s=rng.choice([3.0, 8.0]),
            queue_timeout_s=rng.choice([5.0, 30.0]),
        ),
        network=_draw_network(rng, case),
        client=ClientSpec(
            timeout_s=10_000.0,  # so long that no request ends by it: it must end by itself
            max_retries=rng.choice([0, 3]),
            backoff_s=0.5,
            disconnect_share=0.2 if case.leaves else 0.0,
            patience_s=rng.choice([0.3, 3.0]),
        ),
        faults=tuple(_draw_faults(stream(seed, "trouble"), case, [f"main-{index}" for index in range(num_replicas)])),
    )
    return _draw_roles(stream(seed, "roles"), case, drawn) if case.hands_kv_over else drawn


def _draw_roles(rng: Random, case: Case, drawn: FleetSpec) -> FleetSpec:
    """The same fleet with pools of its kind that differ in limits and roles."""
    main = drawn.pools["main"]
    transfer = TransferSpec(
        bytes_per_token=rng.choice([1_000, 1_000_000]),
        gigabits_per_s=rng.choice([1.0, 100.0]),
        timeout_s=rng.choice([0.05, 1.0, 5.0]),
        lease_s=rng.choice([5.0, 20.0]),
        load_failure_policy=rng.choice(list(LoadFailurePolicy)),
    )
    ahead = stream(drawn.seed, "kv that goes ahead")
    roles = rng.choice([("prefill", "decode"), ("prefill", "decode"), ("prefill", "both"), ("both", "decode")])
    pools = {}
    for name, role in zip(("front", "back"), roles, strict=True):
        block_size = main.scheduler.block_size
        scheduler = msgspec.structs.replace(
            _draw_limits(rng), block_size=block_size, num_blocks=-(-128 // block_size) * rng.choice([1, 2, 6])
        )
        overlap = TransferOverlap.NONE if role == "decode" else ahead.choice(list(TransferOverlap))
        pools[name] = msgspec.structs.replace(
            main,
            num_replicas=rng.randrange(1, 4),
            scheduler=scheduler,
            role=EndpointRole(role),
            transfer=msgspec.structs.replace(transfer, overlap=overlap, num_layers=ahead.choice([1, 3])),
        )
    names = [f"{name}-{index}" for name, pool in pools.items() for index in range(pool.num_replicas)]
    router = msgspec.structs.replace(
        drawn.router,
        disaggregation=DisaggregationConfig(
            policy=rng.choice(["", "round-robin"]), min_uncached_tokens=rng.choice([0, 0, 20, 1_000])
        ),
    )
    return msgspec.structs.replace(
        drawn, pools=pools, router=router, faults=tuple(_draw_faults(stream(drawn.seed, "trouble"), case, names))
    )


def _draw_limits(rng: Random) -> SchedulerConfig:
    block_size = rng.choice([4, 16])
    max_num_seqs = rng.choice([1, 4, 16])
    smallest = -(-128 // block_size)
    return SchedulerConfig(
        max_model_len=128,
        num_blocks=smallest * rng.choice([1, 2, 6]),
        block_size=block_size,
        max_num_batched_tokens=max_num_seqs * rng.choice([1, 8, 32]),
        max_num_seqs=max_num_seqs,
        max_tokens_per_prompt_chunk=rng.choice([4, 64]),
        max_bypasses=rng.choice([0, 64]),
        max_steps_in_flight=rng.choice([1, 2, 3]),
        max_num_queued_requests=rng.choice([4, 10_000]),
    )


def _draw_network(rng: Random, case: Case) -> NetworkSpec:
    shares = {name: rng.choice([0.0, 0.05, 0.2]) for name in ("loss", "duplication", "reordering")}
    return NetworkSpec(
        latency_us=rng.choice([1.0, 500.0, 20_000.0]),
        jitter_us=rng.choice([0.0, 300.0]),
        client_latency_us=1_000.0,
        retransmit_ms=rng.choice([20.0, 200.0]),
        connect_timeout_s=rng.choice([0.5, 5.0]),
        **(shares if case.has_message_trouble else {}),
    )


def _draw_faults(rng: Random, case: Case, replicas: Sequence[str]) -> list[FaultSpec]:
    faults = [
        FaultSpec(
            kind=rng.choice(case.kinds),
            at_s=rng.uniform(0, _TROUBLE_S * 0.9),
            replica=replicas[rng.randrange(len(replicas))],
            duration_s=rng.choice([0.05, 1.0, 6.0, 15.0]),
            slowdown=rng.choice([0.5, 4.0, 20.0]),
        )
        for _ in range(rng.randrange(case.num_faults + 1) if case.kinds else 0)
    ]
    if case.has_storms:
        storms = range(rng.randrange(3))
        faults += [FaultSpec(kind=FaultKind.STORM, at_s=rng.uniform(0, 30), num_requests=rng.randrange(40)) for _ in storms]
    return faults


def _draw_workload(seed: int, num_requests: int) -> Workload:
    """Few distinct beginnings, so that sharing is common, also between tenants, who must not share."""
    rng = stream(seed, "workload")
    mean_gap_s = _TROUBLE_S * 0.8 / num_requests * rng.choice([0.1, 1.0])
    now, requests = 0.0, []
    for index in range(num_requests):
        now += rng.expovariate(1 / mean_gap_s)
        shared = Segment(rng.choice("xy"), rng.choice([0, 15, 16, 17, 40]))
        own = Segment(f"own{index}", rng.randrange(1, 30))
        follows = index > 0 and rng.random() < 0.2
        requests.append(
            WorkloadRequest(
                request_id=f"r{index}",
                prompt=TokenPrompt((shared, own)),
                num_output_tokens=rng.randrange(1, 50),
                at_s=rng.uniform(0, 2) if follows else now,
                after=f"r{rng.randrange(index)}" if follows else "",
            )
        )
    return Workload(name="case", requests=tuple(requests), seed=0, vocab_size=VOCAB_SIZE)

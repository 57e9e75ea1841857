"""What a fleet is, as a file describes it: pools of replicas, a router, a network, clients, and what goes wrong.

Knows facts and their limits; builds nothing. Every struct refuses fields that it does not know. `cli/fleet_file.py` reads
it.
"""

from enum import StrEnum

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.units import nanos
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.kv_transfer import KVTransferConfig, LoadFailurePolicy
from headrace.router.mind.disaggregation import DisaggregationConfig
from headrace.router.mind.endpoint import EndpointRole
from headrace.router.mind.profile import RoutingConfig
from headrace.router.mind.router_core import RouterConfig
from headrace.sim.cost_model import EngineModel, GpuDeployment
from headrace.sim.front_end import NO_FRONT_END, FrontEndCost
from headrace.sim.step_cost import LinearStepCost, StepCost
from headrace.specs.device import device

_BYTES_PER_TOKEN = 131_072
"""32 layers of 8 heads of 128, keys and values, in BF16."""
_NUM_LAYERS = 32
_GIGABITS_PER_S = 400.0
_MOST_REPLICAS = 100_000
_MOST_BLOCKS = 500_000_000
"""Of a fleet: some ten gigabytes of this machine's memory."""


class LinearCostSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stated cost of a step, see `sim/step_cost.py`. The defaults are near an 8B model in BF16 on one H100."""

    fixed_ns: int = 6_500_000
    per_token_ns: int = 36_000
    per_context_token_ns: int = 45

    def __post_init__(self) -> None:
        LinearStepCost(**msgspec.structs.asdict(self))  # raises where it is none


class StartSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a replica takes from its start until it can serve."""

    process_s: float = 5.0
    """Process, libraries, device."""
    weight_bytes: int = 16_060_522_496
    """What is read before it serves: an 8B model in BF16."""
    weight_bytes_per_s: float = 2e9
    warm_up_s: float = 3.0
    is_warm: bool = True
    """Whether the replicas serve when the run begins; if not, they start then. A restart always takes its time."""

    def __post_init__(self) -> None:
        for name in ("process_s", "warm_up_s", "weight_bytes"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"start: {name} must not be negative, not {getattr(self, name):g}")
        if not self.weight_bytes_per_s > 0:
            raise ConfigurationError(f"start: weight_bytes_per_s must be above 0, not {self.weight_bytes_per_s:g}")

    @property
    def duration_ns(self) -> Nanos:
        return Nanos(nanos(self.process_s + self.weight_bytes / self.weight_bytes_per_s + self.warm_up_s))


class TransferOverlap(StrEnum):
    """How much of a prompt's KV goes to whoever answers while the prompt is still being computed."""

    NONE = "none"
    """Nothing: it is fetched when all of it is there."""
    CHUNKS = "chunks"
    """Each chunk of the prompt, when its step has ended."""
    LAYERS = "layers"
    """Each layer of each chunk, when it is computed; the layers of a step take equal times."""


class TransferSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How KV comes to a replica and leaves it, where one replica computes prompts for another. 0 stands for what `gpu` says
    of its model, KV dtype, layout and network cards; without `gpu`, for an 8B model in BF16 and 400 Gb/s."""

    bytes_per_token: int = 0
    """Of KV, over all links of a replica that one prompt's KV takes."""
    gigabits_per_s: float = 0.0
    """Of those links together, each way. Transfers that would use them at the same time wait for one another."""
    setup_us: float = 500.0
    """Before the first byte of each transfer; once for a prompt, in however many pieces it goes."""
    overlap: TransferOverlap = TransferOverlap.NONE
    """Of a pool that computes prompts for others: none, chunks or layers. What goes ahead lies in buffers of the machine
    that answers: it takes no blocks there before the answer's turn."""
    num_layers: int = 0
    """That have KV, for `layers`; 0: those that `gpu` says of its model, or 32."""
    timeout_s: float = 10.0
    """A transfer that has not come by then has failed."""
    lease_s: float = 60.0
    """So long KV is kept for whoever fetches it; never shorter than a transfer may take."""
    load_failure_policy: LoadFailurePolicy = LoadFailurePolicy.RECOMPUTE
    """What becomes of a request whose KV does not come: recompute or fail."""

    def __post_init__(self) -> None:
        if self.bytes_per_token < 0 or self.gigabits_per_s < 0 or self.setup_us < 0:
            raise ConfigurationError("transfer: bytes_per_token, gigabits_per_s and setup_us must not be negative")
        if self.num_layers < 0:
            raise ConfigurationError(f"transfer: num_layers must not be negative, not {self.num_layers}")
        if not 0 < self.timeout_s <= self.lease_s:
            raise ConfigurationError(
                f"transfer: timeout_s must be above 0 and at most lease_s ({self.lease_s:g}), not {self.timeout_s:g}: "
                "what is still being fetched must still be kept"
            )

    @property
    def config(self) -> KVTransferConfig:
        return KVTransferConfig(load_failure_policy=self.load_failure_policy, lease_ns=Nanos(nanos(self.lease_s)))


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one model and shape."""

    num_replicas: int
    scheduler: SchedulerConfig
    cost: LinearCostSpec = LinearCostSpec()
    gpu: GpuDeployment | None = None
    """What one replica runs on, and as what: steps then take what published kernel measurements say, in place of `cost`."""
    front_end: FrontEndCost = NO_FRONT_END
    """What stands before its mind; where nothing is stated, what deployments of `gpu.backend` showed, if one is named. Of a
    disaggregated fleet they showed it as a whole: it stands before the pools of role decode, and nothing before those of
    role prefill."""
    engine: EngineModel | None = None
    """An engine that was measured, in place of `cost` and `gpu`: what its steps took and what stands before it. In a fleet
    file, the name of what `headrace calibrate` wrote; keys of `scheduler` go before those that are there."""
    speed: float = 1.0
    """So many times as fast as `cost`, `gpu` or `engine` say."""
    role: EndpointRole = EndpointRole.BOTH
    """prefill: it computes prompts for others; decode: it answers, with KV from those; both: it does all there is to do."""
    transfer: TransferSpec = TransferSpec()
    start: StartSpec = StartSpec()
    device: str = ""
    """What one replica runs on, for the report."""

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ConfigurationError(f"num_replicas must be at least 1, not {self.num_replicas}")
        if not self.speed > 0:
            raise ConfigurationError(f"speed must be above 0, not {self.speed}")
        stated = {"cost": self.cost != LinearCostSpec(), "gpu": self.gpu is not None, "engine": self.engine is not None}
        given = [name for name, is_given in stated.items() if is_given]
        if len(given) > 1:
            raise ConfigurationError(f"a pool's steps have one cost, not {' and '.join(given)}: leave out all but one")
        if self.engine is not None and self.front_end != NO_FRONT_END:
            raise ConfigurationError("a pool's front_end stands in the file of its engine: leave it out here")
        if self.role is EndpointRole.DECODE and self.transfer.overlap is not TransferOverlap.NONE:
            raise ConfigurationError(
                'transfer: overlap is of a pool that computes prompts for others (role "prefill" or "both"), and this one '
                'has role "decode": state it there'
            )

    @property
    def replica(self) -> EngineModel:
        """One replica of it."""
        if self.engine is not None:
            return msgspec.structs.replace(self.engine, scheduler=self.scheduler)
        cost = {} if self.gpu is not None else msgspec.structs.asdict(self.cost)
        return EngineModel(scheduler=self.scheduler, cost=cost, gpu=self.gpu, front_end=self.front_end)

    @property
    def entrance(self) -> FrontEndCost:
        """What stands before each of its replicas, stated or not."""
        if self.role is EndpointRole.BOTH or self.gpu is None or self.front_end != NO_FRONT_END:
            return self.replica.entrance
        return NO_FRONT_END if self.role is EndpointRole.PREFILL else self.gpu.front_end_after_handover

    @property
    def kv_bytes_per_token(self) -> float:
        """Of one prompt's KV, over all its links."""
        if self.transfer.bytes_per_token:
            return self.transfer.bytes_per_token
        if self.gpu is None:
            return _BYTES_PER_TOKEN
        return self.gpu.step_model().kv_bytes_per_token_per_gpu * self._num_links

    @property
    def kv_nanos_per_token(self) -> float:
        """How long one token's KV keeps those links busy."""
        if self.transfer.gigabits_per_s:
            bytes_per_s = self.transfer.gigabits_per_s * 1e9 / 8
        elif self.gpu is None:
            bytes_per_s = _GIGABITS_PER_S * 1e9 / 8
        else:
            bytes_per_s = device(self.gpu.device).scale_out_bandwidth * self._num_links
        return self.kv_bytes_per_token / bytes_per_s * 1e9

    @property
    def num_kv_pieces(self) -> int:
        """In how many a step's KV leaves, one after another."""
        if self.transfer.overlap is not TransferOverlap.LAYERS:
            return 1
        if self.transfer.num_layers:
            return self.transfer.num_layers
        return _NUM_LAYERS if self.gpu is None else self.gpu.num_layers

    @property
    def num_kv_lanes(self) -> int:
        """Prompts whose KV can be moved at once without sharing a link: one for each attention rank that has its own."""
        return 1 if self.gpu is None else self.gpu.data_parallel_size

    @property
    def _num_links(self) -> int:
        """Network cards of the GPUs that hold one sequence."""
        assert self.gpu is not None
        return self.gpu.tensor_parallel_size * self.gpu.pipeline_parallel_size

    def step_cost(self) -> StepCost:
        """Raises ConfigurationError where `gpu` names what was not measured."""
        return self.replica.step_cost(speed=self.speed)


class RouterSpec(RoutingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_attempts: int = 3
    """Endpoints that a request is sent to, one after another, before its client is told."""
    report_interval_s: float = 1.0
    """How often endpoints report their load."""
    report_timeout_s: float = 10.0
    """An endpoint not heard of for so long is gone."""
    queue_timeout_s: float = 60.0
    """So long a request waits in the router for an endpoint that may have it."""
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    """Where pools have roles: which prompts are computed elsewhere, and by whom."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.report_interval_s < self.report_timeout_s:
            raise ConfigurationError(
                f"report_interval_s must be above 0 and below report_timeout_s ({self.report_timeout_s:g}), not "
                f"{self.report_interval_s:g}"
            )
        if self.disaggregation.policy:
            try:
                RoutingConfig(policy=self.disaggregation.policy)
            except ConfigurationError as error:
                raise ConfigurationError(f"disaggregation: {error}") from None
        if self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if not self.queue_timeout_s > 0:
            raise ConfigurationError(f"queue_timeout_s must be above 0, not {self.queue_timeout_s:g}")

    @property
    def prefill_routing(self) -> RoutingConfig:
        """How the endpoint that computes a prompt for another one is chosen."""
        fields = {name: getattr(self, name) for name in RoutingConfig.__struct_fields__}
        return RoutingConfig(**{**fields, "policy": self.disaggregation.policy or self.policy})

    @property
    def config(self) -> RouterConfig:
        return RouterConfig(
            max_attempts=self.max_attempts,
            report_timeout_ns=Nanos(nanos(self.report_timeout_s)),
            queue_timeout_ns=Nanos(nanos(self.queue_timeout_s)),
        )


class NetworkSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way between any two machines; a partition of it is a fault."""

    latency_us: float = 100.0
    """One way, inside the fleet."""
    client_latency_us: float = 5_000.0
    """One way, between a client and the router."""
    jitter_us: float = 0.0
    """Up to so much more, evenly drawn, for each connection."""
    gigabits_per_s: float = 25.0
    """Of each connection."""
    loss: float = 0.0
    """The share of messages that are lost once. A request or answer is sent again after `retransmit_ms`; a report is not."""
    duplication: float = 0.0
    """The share of messages that arrive twice."""
    reordering: float = 0.0
    """The share of messages that are held up, so that later ones pass them."""
    retransmit_ms: float = 200.0
    connect_timeout_s: float = 5.0
    """A message that cannot get through for so long has failed, and its sender knows."""

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "reordering"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is a share of messages, at least 0 and below 1, not {getattr(self, name)}")
        for name in ("latency_us", "client_latency_us", "jitter_us", "retransmit_ms", "connect_timeout_s"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative, not {getattr(self, name)}")
        if not self.gigabits_per_s > 0:
            raise ConfigurationError(f"gigabits_per_s must be above 0, not {self.gigabits_per_s}")


class ClientSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users do beside what the workload says."""

    timeout_s: float = 600.0
    """A request without its end for so long is given up."""
    first_token_timeout_s: float = 0.0
    """A request without any token for so long is given up; 0: as long as the whole may take."""
    max_retries: int = 0
    """How often a request that was refused or dropped is sent again."""
    backoff_s: float = 1.0
    """Before the first of those; each later one waits twice as long, and up to as much again by chance."""
    disconnect_share: float = 0.0
    """The share of requests whose client loses patience."""
    patience_s: float = 10.0
    """After how long, on average (exponential)."""
    extra_think_time_s: float = 0.0
    """On average (exponential), beside the workload's own, before a request that follows another."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or self.max_retries < 0 or not self.patience_s > 0:
            raise ConfigurationError("client: timeout_s and patience_s must be above 0, max_retries not negative")
        if not 0 <= self.disconnect_share <= 1:
            raise ConfigurationError(f"disconnect_share is a share, 0 to 1, not {self.disconnect_share}")
        if self.first_token_timeout_s < 0 or self.backoff_s < 0 or self.extra_think_time_s < 0:
            raise ConfigurationError("client: first_token_timeout_s, backoff_s and extra_think_time_s must not be negative")


class FaultKind(StrEnum):
    CRASH = "crash"
    """The process dies and its connections break; it starts again after `duration_s`, with nothing cached."""
    NODE_LOSS = "node-loss"
    """The machine vanishes without a word; another start follows after `duration_s`."""
    SLOW = "slow"
    """Steps take `slowdown` times as long for `duration_s`."""
    PARTITION = "partition"
    """Nothing passes between the router and the replica for `duration_s`."""
    LINK_LOSS = "link-loss"
    """Nothing passes between the replica and the other replicas for `duration_s`: no KV, that is."""
    STALE_REPORTS = "stale-reports"
    """The replica's load reports say what they said first, for `duration_s`."""
    DRAIN = "drain"
    """The replica finishes what it has, restarts and comes back."""
    STORM = "storm"
    """`num_requests` clients come at once, with random prompts."""


class FaultSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: FaultKind
    at_s: float
    replica: str = ""
    """`pool-index`, for example `main-3`; a storm hits all."""
    duration_s: float = 30.0
    slowdown: float = 3.0
    num_requests: int = 100

    def __post_init__(self) -> None:
        if self.at_s < 0 or self.duration_s < 0 or self.slowdown <= 0 or self.num_requests < 0:
            raise ConfigurationError("faults: at_s, duration_s and num_requests must not be negative, slowdown above 0")
        if (self.kind is FaultKind.STORM) != (not self.replica):
            raise ConfigurationError("faults: name the replica that it hits (`main-3`); a storm has none")


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pools: dict[str, PoolSpec]
    model: str = ""
    """Its name, for the report."""
    seed: int = 0
    router: RouterSpec = RouterSpec()
    network: NetworkSpec = NetworkSpec()
    client: ClientSpec = ClientSpec()
    faults: tuple[FaultSpec, ...] = ()

    def __post_init__(self) -> None:
        if not self.pools:
            raise ConfigurationError("a fleet needs at least one pool: a table [pools.main] with num_replicas")
        num_replicas = sum(pool.num_replicas for pool in self.pools.values())
        if num_replicas > _MOST_REPLICAS:
            raise ConfigurationError(
                f"the fleet has {num_replicas:,} replicas; at most {_MOST_REPLICAS:,}: lower num_replicas"
            )
        num_blocks = sum(pool.num_replicas * pool.scheduler.num_blocks for pool in self.pools.values())
        if num_blocks > _MOST_BLOCKS:
            raise ConfigurationError(
                f"the fleet has {num_blocks:,} KV blocks, and a rehearsal keeps books of each: at most {_MOST_BLOCKS:,}; "
                "lower num_replicas or num_blocks, or give blocks more tokens (block_size)"
            )
        for fault in self.faults:
            if fault.replica and not self._has_replica(fault.replica):
                names = ", ".join(f"{name}-0 to {name}-{pool.num_replicas - 1}" for name, pool in self.pools.items())
                raise ConfigurationError(f"a fault hits {fault.replica!r}, and there is no such replica: there are {names}")
        if self.is_disaggregated:
            self._check_roles()
        else:
            for name, pool in self.pools.items():
                if pool.transfer != TransferSpec():
                    raise ConfigurationError(
                        f"[pools.{name}.transfer] says how KV is handed over, and nobody hands any over: give pools role = "
                        '"prefill" and role = "decode", or leave the table out'
                    )

    @property
    def is_disaggregated(self) -> bool:
        """Whether some compute prompts for others."""
        return any(pool.role is not EndpointRole.BOTH for pool in self.pools.values())

    def _has_replica(self, name: str) -> bool:
        pool, _, index = name.rpartition("-")
        if pool not in self.pools or not index.isdecimal():
            return False
        return index == str(int(index)) and int(index) < self.pools[pool].num_replicas

    def _check_roles(self) -> None:
        if all(pool.role is EndpointRole.PREFILL for pool in self.pools.values()):
            raise ConfigurationError('no pool answers: give one role = "decode" or "both" beside those of role "prefill"')
        if all(pool.role is EndpointRole.DECODE for pool in self.pools.values()):
            raise ConfigurationError('nobody computes prompts for those of role "decode": give a pool role = "prefill"')
        sizes = {name: pool.scheduler.block_size for name, pool in self.pools.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ConfigurationError(f"pools that hand KV over have blocks of one size, not {told}: set block_size")

"""The cheapest fleet that keeps a promise: a search over devices, layouts, limits and policies, each judged by rehearsal.

Knows prices, promises and how to ask for fewer replicas. Judges nothing by itself: whether a fleet keeps its promise is what
`Fleet` says of it, with the real schedulers and the real router. Only aggregated serving: prompts are computed where answers
are.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RunFacts
from headrace.measure.report.summary import Summary, summarize
from headrace.measure.workload.request import ChatPrompt, TextPrompt, TokenPrompt, Workload
from headrace.sim.cost_model import GpuDeployment
from headrace.sim.fleet import Fleet, Rehearsal
from headrace.sim.fleet_spec import FleetSpec, PoolSpec, RouterSpec
from headrace.specs.device import device, devices

_USABLE_MEMORY = 0.90
_RESERVED_BYTES = 4e9
"""Of a GPU's memory, what engines may use by default, and what they need beside weights and KV."""
_BLOCK_SIZE = 16
_MOST_BLOCKS = 400_000
"""More KV than any workload here fills would only cost time to build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the fleet must keep."""

    slo_ms: Mapping[str, float]
    """By the names of goodput: ttft, tpot, itl, e2el."""
    share: float = 0.95
    """Of all requests, those that must keep all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched."""

    devices: tuple[str, ...]
    tensor_parallel_sizes: tuple[int, ...] = (1, 2, 4, 8)
    token_budgets: tuple[int, ...] = (2048, 8192)
    policies: tuple[str, ...] = ("least-requests", "prefix-affinity")
    max_replicas: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One way to build a replica, and to route to it."""

    gpu: GpuDeployment
    scheduler: SchedulerConfig
    policy: str
    price: float
    """US dollars an hour for one replica."""

    @property
    def layout(self) -> str:
        return f"{self.gpu.device} x{self.gpu.tensor_parallel_size}"

    @property
    def name(self) -> str:
        return f"{self.layout}, budget {self.scheduler.max_num_batched_tokens}, {self.policy}"

    def fleet(self, num_replicas: int, *, speed: float = 1.0) -> FleetSpec:
        pool = PoolSpec(num_replicas=num_replicas, scheduler=self.scheduler, gpu=self.gpu, speed=speed)
        return FleetSpec(pools={"main": pool}, model=self.gpu.model, router=RouterSpec(policy=self.policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A fleet that was rehearsed."""

    shape: Shape
    num_replicas: int
    summary: Summary
    keeps: bool

    @property
    def price(self) -> float:
        return self.shape.price * self.num_replicas

    @property
    def num_gpus(self) -> int:
        return self.num_replicas * self.shape.gpu.tensor_parallel_size

    @property
    def throughput_per_gpu(self) -> float:
        """Answer tokens per second and GPU."""
        return self.summary.output_throughput / self.num_gpus

    @property
    def interactivity(self) -> float:
        """Tokens per second of the median answer."""
        found = self.summary.distributions.get("interactivity")
        return 0.0 if found is None else found.percentile(50.0) or 0.0

    @property
    def kept_share(self) -> float:
        return self.summary.goodput.joint_share if self.summary.goodput else 0.0

    @property
    def binds(self) -> str:
        """The promise that the fewest requests kept."""
        shares = self.summary.goodput.shares if self.summary.goodput else {}
        return min(shares, key=lambda name: shares[name]) if shares else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that was rehearsed, and what came of it."""

    candidates: tuple[Candidate, ...]
    left_out: dict[str, str]
    """Shapes that were not rehearsed, and why."""

    @property
    def best(self) -> Candidate | None:
        """The cheapest that keeps the promise; of equally cheap ones that with the larger share kept."""
        kept = [one for one in self.candidates if one.keeps]
        return min(kept, key=lambda one: (one.price, -one.kept_share)) if kept else None

    @property
    def one_fewer(self) -> Candidate | None:
        """The best fleet with a replica fewer, where it was rehearsed: what it misses is what binds."""
        best = self.best
        same = [one for one in self.candidates if best and one.shape == best.shape and one.num_replicas < best.num_replicas]
        return max(same, key=lambda one: one.num_replicas, default=None)

    @property
    def pareto(self) -> list[Candidate]:
        """Those that no other beats in both interactivity and throughput per GPU, the quickest last."""
        found: list[Candidate] = []
        for one in sorted(self.candidates, key=lambda c: (-c.interactivity, -c.throughput_per_gpu)):
            if not found or one.throughput_per_gpu > found[-1].throughput_per_gpu:
                found.append(one)
        return found[::-1]


def known_prices() -> dict[str, float]:
    return read_prices(resources.files("headrace.sim").joinpath("prices.toml").read_bytes())


def read_prices(content: bytes) -> dict[str, float]:
    """Raises ConfigurationError where it is no table of prices by device."""
    try:
        prices = msgspec.toml.decode(content, type=dict[str, float])
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"it is no table of prices, such as h100_sxm = 6.88: {error}") from None
    for name, price in prices.items():
        device(name)
        if not price > 0:
            raise ConfigurationError(f"the price of {name} must be above 0, not {price:g}")
    return prices


def longest(workload: Workload) -> int:
    """Tokens of its longest sequence; what `max_model_len` must admit. Raises ConfigurationError where nobody can say."""
    most = 1
    for request in workload.requests:
        match request.prompt:
            case TokenPrompt() as prompt:
                most = max(most, prompt.num_tokens + request.num_output_tokens)
            case TextPrompt() | ChatPrompt():
                raise ConfigurationError(
                    f"request {request.request_id!r} has a prompt in words, whose tokens depend on a model: plan with a "
                    "workload of tokens (headrace bench --write-workload with --dataset-name random, sessions or a trace)"
                )
    return -(-most // _BLOCK_SIZE) * _BLOCK_SIZE


def shapes(
    deployment: GpuDeployment, space: Space, prices: Mapping[str, float], *, max_model_len: int, left_out: dict[str, str]
) -> Iterator[Shape]:
    """Those whose weights and longest sequence fit, the cheapest replica first. What does not is told in `left_out`."""
    layouts: list[tuple[float, GpuDeployment, int]] = []
    for name in space.devices:
        if name not in prices:
            left_out[name] = "it has no price: give one with --prices"
            continue
        for size in space.tensor_parallel_sizes:
            if size > devices()[name].scale_up_size:
                continue
            layout = f"{name} x{size}"
            gpu = msgspec.structs.replace(deployment, device=name, tensor_parallel_size=size)
            try:
                num_blocks = _num_blocks(gpu)
            except ConfigurationError as error:
                left_out[layout] = str(error)
                continue
            if num_blocks * _BLOCK_SIZE < max_model_len:
                left_out[layout] = f"weights and a sequence of {max_model_len:,} tokens do not fit into its memory"
                continue
            layouts.append((prices[name] * size, gpu, min(num_blocks, _MOST_BLOCKS)))
    for price, gpu, num_blocks in sorted(layouts, key=lambda layout: layout[0]):
        for budget in space.token_budgets:
            scheduler = SchedulerConfig(
                max_model_len=max_model_len, num_blocks=num_blocks, block_size=_BLOCK_SIZE, max_num_batched_tokens=budget,
                max_num_seqs=min(256, budget), max_tokens_per_prompt_chunk=budget,
            )  # fmt: skip
            for policy in space.policies:
                yield Shape(gpu=gpu, scheduler=scheduler, policy=policy, price=price)


def _num_blocks(gpu: GpuDeployment) -> int:
    model = gpu.step_model()
    free = device(gpu.device).memory_bytes * _USABLE_MEMORY - _RESERVED_BYTES - model.weight_bytes_per_gpu
    return max(0, int(free / (model.kv_bytes_per_token_per_gpu * _BLOCK_SIZE)))


def plan(
    workload: Workload,
    deployment: GpuDeployment,
    promise: Promise,
    space: Space,
    prices: Mapping[str, float],
    on_rehearsal: Callable[[str], None] = lambda name: None,
) -> Plan:
    """Searches for each shape the fewest replicas that keep the promise, as long as they can be the cheapest.

    `on_rehearsal` is told what is about to be rehearsed.
    """
    left_out: dict[str, str] = {}
    found: list[Candidate] = []
    best_price = float("inf")

    known: dict[tuple[str, int], Candidate] = {}

    def rehearsed(shape: Shape, num_replicas: int) -> Candidate:
        if (shape.name, num_replicas) in known:
            return known[shape.name, num_replicas]
        on_rehearsal(f"{num_replicas} x {shape.name}")
        candidate = rehearse(workload, shape, num_replicas, promise)
        found.append(candidate)
        known[shape.name, num_replicas] = candidate
        return candidate

    for shape in shapes(deployment, space, prices, max_model_len=longest(workload), left_out=left_out):
        most = min(space.max_replicas, int(best_price / shape.price) if best_price < float("inf") else space.max_replicas)
        if most < 1:
            left_out[shape.layout] = "one replica costs more than the best fleet"
            continue
        if best_price < float("inf") and not rehearsed(shape, most).keeps:
            continue  # as many as could be cheaper are too few
        fewest = _fewest(lambda count, shape=shape: rehearsed(shape, count).keeps, most)  # type: ignore[misc]
        if fewest is not None:
            best_price = min(best_price, fewest * shape.price)
    return Plan(candidates=tuple(found), left_out=left_out)


def rehearse(workload: Workload, shape: Shape, num_replicas: int, promise: Promise, *, speed: float = 1.0) -> Candidate:
    """`speed`: of all replicas, beside what the cost model says; 1 at its middle."""
    facts = RunFacts(
        source="simulated",
        duration_ns=Nanos(0),
        backend="simulated",
        workload=workload.name,
        slo_ms=dict(promise.slo_ms),
    )
    summary = summarize(Fleet(shape.fleet(num_replicas, speed=speed), workload, Rehearsal()).run(facts).run)
    share = summary.goodput.joint_share if summary.goodput else 0.0
    return Candidate(shape=shape, num_replicas=num_replicas, summary=summary, keeps=share >= promise.share)


def _fewest(keeps: Callable[[int], bool], most: int) -> int | None:
    """The fewest that keep, up to `most`; None if not even those do. More are taken to keep what fewer do.

    >>> _fewest(lambda count: count >= 5, 64), _fewest(lambda count: count >= 5, 4), _fewest(lambda count: True, 1)
    (5, None, 1)
    """
    too_few, enough = 0, 1
    while not keeps(enough):
        if enough == most:
            return None
        too_few, enough = enough, min(most, 2 * enough)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if keeps(middle):
            enough = middle
        else:
            too_few = middle
    return enough

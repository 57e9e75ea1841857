"""The cheapest fleet that keeps a promise: a search over devices, layouts, limits and policies, each judged by rehearsal.

Knows prices, promises and how to ask for fewer replicas. Judges nothing by itself: whether a fleet keeps its promise is what
`Fleet` says of it, with the real schedulers and the real router. Aggregated fleets compute prompts where answers are; in
disaggregated ones some replicas compute prompts and hand their KV to others, which may be of another shape.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import resources
from typing import Any

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RunFacts
from headrace.measure.report.summary import Summary, summarize
from headrace.measure.workload.request import ChatPrompt, TextPrompt, TokenPrompt, Workload
from headrace.router.mind.disaggregation import DisaggregationConfig
from headrace.router.mind.endpoint import EndpointRole
from headrace.sim.cost.shape import MoeMlp
from headrace.sim.cost_model import GpuDeployment
from headrace.sim.fleet import Fleet, Rehearsal
from headrace.sim.fleet_spec import FleetSpec, PoolSpec, RouterSpec, TransferOverlap, TransferSpec
from headrace.sim.rate_match import Demand, answer_s, demand_of, prompt_s
from headrace.specs.device import device, devices

_USABLE_MEMORY = 0.90
_RESERVED_BYTES = 4e9
"""Of a GPU's memory, what engines may use by default, and what they need beside weights and KV."""
_BLOCK_SIZE = 16
_MOST_BLOCKS = 400_000
"""More KV than any workload here fills would only cost time to build."""


class ExpertLayout(StrEnum):
    """How a replica's GPUs share a model's experts."""

    TENSOR = "tensor"
    """Each GPU has a part of every expert."""
    EXPERT = "expert"
    """Each has experts of its own, whole."""
    ATTENTION_DP = "attention-dp"
    """And each computes attention for sequences of its own, whose KV it alone has; where KV could be split, that is not
    searched."""


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
    """Of a fleet, all together."""
    is_aggregated: bool = True
    """Whether fleets are searched whose replicas are all alike."""
    is_disaggregated: bool = True
    """Whether those are whose prompts are computed apart."""
    mixes_devices: bool = True
    """Whether prompts may be computed on other devices than answers."""
    max_pairs: int = 24
    """Of shapes that compute prompts with shapes that answer, those that are rehearsed: the cheapest by closed numbers."""
    expert_layouts: tuple[ExpertLayout, ...] = tuple(ExpertLayout)
    """Of models with experts, where a replica has several GPUs."""
    overlap: TransferOverlap = TransferOverlap.NONE
    """What of a prompt's KV goes to whoever answers before all of the prompt is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One way to build a replica, and to route to it."""

    gpu: GpuDeployment
    scheduler: SchedulerConfig
    policy: str
    price: float
    """US dollars an hour for one replica."""
    overlap: TransferOverlap = TransferOverlap.NONE
    """Where it computes prompts for others."""

    @property
    def layout(self) -> str:
        return _layout(self.gpu)

    @property
    def name(self) -> str:
        return f"{self.layout}, budget {self.scheduler.max_num_batched_tokens}, {self.policy}"

    def pool(self, num_replicas: int, role: EndpointRole, speed: float) -> PoolSpec:
        overlap = self.overlap if role is EndpointRole.PREFILL else TransferOverlap.NONE
        return PoolSpec(
            num_replicas=num_replicas, scheduler=self.scheduler, gpu=self.gpu, speed=speed, role=role,
            transfer=TransferSpec(overlap=overlap),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A fleet that can be rehearsed."""

    shape: Shape
    """Of the replicas that answer; in an aggregated fleet, of all."""
    num_replicas: int
    prefill: Shape | None = None
    """Of those that compute prompts for them, in a disaggregated fleet."""
    num_prefill: int = 0

    @property
    def name(self) -> str:
        if self.prefill is None:
            return f"{self.num_replicas} x {self.shape.name}"
        return f"{self.num_prefill} prefill x {self.prefill.name} + {self.num_replicas} decode x {self.shape.name}"

    @property
    def price(self) -> float:
        return self.shape.price * self.num_replicas + (self.prefill.price * self.num_prefill if self.prefill else 0.0)

    @property
    def num_gpus(self) -> int:
        of_prefill = self.prefill.gpu.num_gpus * self.num_prefill if self.prefill else 0
        return self.num_replicas * self.shape.gpu.num_gpus + of_prefill

    def is_larger(self, other: "Setup") -> bool:
        """Whether it is the other one with replicas more."""
        is_alike = (self.shape, self.prefill) == (other.shape, other.prefill)
        is_more = self.num_replicas >= other.num_replicas and self.num_prefill >= other.num_prefill
        return is_alike and is_more and self != other

    def fleet(self, *, speed: float = 1.0) -> FleetSpec:
        model = self.shape.gpu.model
        if self.prefill is None:
            pools = {"main": self.shape.pool(self.num_replicas, EndpointRole.BOTH, speed)}
            return FleetSpec(pools=pools, model=model, router=RouterSpec(policy=self.shape.policy))
        pools = {
            "prefill": self.prefill.pool(self.num_prefill, EndpointRole.PREFILL, speed),
            "decode": self.shape.pool(self.num_replicas, EndpointRole.DECODE, speed),
        }
        handing_over = DisaggregationConfig(policy=self.prefill.policy)
        return FleetSpec(pools=pools, model=model, router=RouterSpec(policy=self.shape.policy, disaggregation=handing_over))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A fleet that was rehearsed."""

    setup: Setup
    summary: Summary
    keeps: bool

    @property
    def shape(self) -> Shape:
        return self.setup.shape

    @property
    def num_replicas(self) -> int:
        return self.setup.num_replicas

    @property
    def price(self) -> float:
        return self.setup.price

    @property
    def num_gpus(self) -> int:
        return self.setup.num_gpus

    @property
    def is_disaggregated(self) -> bool:
        return self.setup.prefill is not None

    @property
    def has_attention_dp(self) -> bool:
        """Of the replicas that answer or of those that compute prompts."""
        shapes = (self.setup.shape, self.setup.prefill)
        return any(one is not None and one.gpu.data_parallel_size > 1 for one in shapes)

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
        """The cheapest that keeps the promise; of equally cheap ones that which keeps more of it, or answers faster."""
        return next(iter(self.kept), None)

    @property
    def kept(self) -> list[Candidate]:
        """Those that keep the promise, the best first."""
        return sorted(
            (one for one in self.candidates if one.keeps),
            key=lambda one: (one.price, -one.kept_share, -one.interactivity),
        )

    @property
    def one_fewer(self) -> Candidate | None:
        """The best fleet with the fewest replicas fewer that was rehearsed and does not keep the promise: what it misses is
        what binds."""
        fewer = self.fewer
        return max(fewer, key=lambda one: (one.price, one.kept_share), default=None)

    @property
    def fewer(self) -> list[Candidate]:
        """All that are the best one with replicas fewer, and do not keep the promise."""
        best = self.best
        return [one for one in self.candidates if best and not one.keeps and best.setup.is_larger(one.setup)]

    @property
    def best_of_other_kind(self) -> Candidate | None:
        """The cheapest that keeps the promise and is disaggregated where the best is not, or the other way round."""
        kept = self.kept
        return next((one for one in kept if one.is_disaggregated != kept[0].is_disaggregated), None)

    @property
    def best_by_attention_dp(self) -> Candidate | None:
        """The cheapest that keeps the promise and has attention-DP where the best has none, or the other way round."""
        kept = self.kept
        return next((one for one in kept if one.has_attention_dp != kept[0].has_attention_dp), None)

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
        prices = msgspec.toml.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"it is no table of prices, such as h100_sxm = 6.88: {error}") from None
    if not prices:
        raise ConfigurationError("it has no prices: give one a line, such as h100_sxm = 6.88")
    for name, price in prices.items():
        if isinstance(price, dict):
            raise ConfigurationError(f"prices stand at the top, such as h100_sxm = 6.88, not in a table [{name}]")
        device(name)
        if not isinstance(price, (int, float)) or isinstance(price, bool) or not 0 < price < math.inf:
            raise ConfigurationError(f"the price of {name} must be dollars an hour, above 0, not {price!r}")
    return {name: float(price) for name, price in prices.items()}


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
                left_out[f"{name} x{size}"] = f"more GPUs than its {devices()[name].scale_up_size} that are joined directly"
                continue
            for expert_layout in _expert_layouts(deployment, space, size):
                gpu = _laid_out(deployment, name, size, expert_layout)
                layout = _layout(gpu)
                if expert_layout is ExpertLayout.ATTENTION_DP and (why := why_no_attention_dp(gpu)):
                    left_out[layout] = why
                    continue
                try:
                    num_blocks = _num_blocks(gpu)
                except ConfigurationError as error:
                    left_out[layout] = str(error)
                    continue
                if num_blocks * _BLOCK_SIZE < max_model_len:
                    left_out[layout] = f"weights and a sequence of {max_model_len:,} tokens do not fit into its memory"
                    continue
                layouts.append((prices[name] * size, gpu, min(num_blocks * gpu.data_parallel_size, _MOST_BLOCKS)))
    for price, gpu, num_blocks in sorted(layouts, key=lambda layout: layout[0]):
        num_ranks = gpu.data_parallel_size
        for budget in space.token_budgets:
            scheduler = SchedulerConfig(
                max_model_len=max_model_len, num_blocks=num_blocks, block_size=_BLOCK_SIZE,
                max_num_batched_tokens=budget * num_ranks, max_num_seqs=min(256, budget) * num_ranks,
                max_tokens_per_prompt_chunk=budget,
            )  # fmt: skip
            for policy in space.policies:
                yield Shape(gpu=gpu, scheduler=scheduler, policy=policy, price=price, overlap=space.overlap)


def _layout(gpu: GpuDeployment) -> str:
    ranks = f" DP{gpu.data_parallel_size}" if gpu.data_parallel_size > 1 else ""
    experts = f" EP{gpu.expert_parallel_size}" if gpu.expert_parallel_size > 1 else ""
    return f"{gpu.device} x{gpu.num_gpus}{ranks}{experts}"


def _expert_layouts(deployment: GpuDeployment, space: Space, size: int) -> tuple[ExpertLayout, ...]:
    """Those that differ, of a replica of so many GPUs."""
    if size == 1 or not deployment.known_shape.has_experts:
        return (ExpertLayout.TENSOR,)
    return space.expert_layouts


def _laid_out(deployment: GpuDeployment, device_name: str, size: int, layout: ExpertLayout) -> GpuDeployment:
    ranks = size if layout is ExpertLayout.ATTENTION_DP else 1
    return msgspec.structs.replace(
        deployment, device=device_name, tensor_parallel_size=size // ranks, data_parallel_size=ranks,
        expert_parallel_size=1 if layout is ExpertLayout.TENSOR else size,
    )  # fmt: skip


def why_no_attention_dp(gpu: GpuDeployment) -> str:
    """Empty where it is worth a look: each GPU then has all of the attention's weights, and that pays where splitting
    attention by heads would have each GPU keep KV that another has, too.

    >>> why_no_attention_dp(GpuDeployment(device="h200_sxm", model="deepseek-r1", data_parallel_size=8))
    ''
    """
    shape, size = gpu.known_shape, gpu.data_parallel_size
    if shape.num_kv_heads >= size:
        return (
            f"attention-DP would save no KV, for the model's {shape.num_kv_heads} KV heads can be split over {size} GPUs, "
            "and would keep the attention's weights on each"
        )
    if any(isinstance(group.mlp, MoeMlp) and group.mlp.num_experts % size for group in shape.layers):
        return f"attention-DP has whole experts on each GPU, and the model's cannot be dealt evenly to {size}"
    return ""


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
    """Searches for each shape the fewest replicas that keep the promise, as long as they can be the cheapest; then for pairs
    of layouts the cheapest numbers of prefill and decode replicas, in whatever ratio.

    `on_rehearsal` is told what is about to be rehearsed.
    """
    search = _Search(workload, promise, space, on_rehearsal)
    found = list(shapes(deployment, space, prices, max_model_len=longest(workload), left_out=search.left_out))
    if space.is_aggregated:
        for shape in found:
            search.try_alone(shape)
    if space.is_disaggregated:
        search.try_pairs(_pairs(found, mixes_devices=space.mixes_devices))
    return Plan(candidates=tuple(search.known.values()), left_out=search.left_out)


def _pairs(found: Sequence[Shape], *, mixes_devices: bool) -> list[tuple[Shape, Shape]]:
    """(prefill, decode). Prompts alone go through fastest in large steps, and who only answers needs no large ones: so one
    token budget each, and the policy that comes last."""
    by_layout: dict[str, list[Shape]] = {}
    for shape in found:
        by_layout.setdefault(shape.layout, []).append(shape)
    last = [[one for one in alike if one.policy == alike[-1].policy] for alike in by_layout.values()]
    return [
        (max(computes, key=_budget), min(answers, key=_budget))
        for computes in last
        for answers in last
        if mixes_devices or computes[0].gpu.device == answers[0].gpu.device
    ]


def _budget(shape: Shape) -> int:
    return shape.scheduler.max_num_batched_tokens


class _Search:
    """What was rehearsed so far, and what the best of it costs."""

    def __init__(self, workload: Workload, promise: Promise, space: Space, on_rehearsal: Callable[[str], None]) -> None:
        self._workload = workload
        self._promise = promise
        self._space = space
        self._on_rehearsal = on_rehearsal
        self.known: dict[str, Candidate] = {}
        self.left_out: dict[str, str] = {}
        self.best_price = float("inf")
        self._demand: Demand | None = None

    def keeps(self, setup: Setup) -> bool:
        candidate = self.known.get(setup.name)
        if candidate is None:
            self._on_rehearsal(setup.name)
            candidate = self.known[setup.name] = rehearse(self._workload, setup, self._promise)
            if candidate.keeps:
                self.best_price = min(self.best_price, setup.price)
        return candidate.keeps

    def try_alone(self, shape: Shape) -> None:
        """The fewest replicas of a shape."""
        best, most = self.best_price, self._space.max_replicas
        if best < float("inf"):
            most = min(most, int(best / shape.price))
        if most < 1:
            self.left_out[shape.layout] = "one replica costs more than the best fleet"
            return
        if best < float("inf") and not self.keeps(Setup(shape=shape, num_replicas=most)):
            return  # as many as could be cheaper are too few
        _fewest(lambda count: self.keeps(Setup(shape=shape, num_replicas=count)), most)

    def try_pairs(self, pairs: Sequence[tuple[Shape, Shape]]) -> None:
        """Those first for which the closed numbers are cheapest: where they are low enough, later ones need no rehearsal."""
        least = sorted((self._least(prefill, decode) for prefill, decode in pairs), key=lambda one: one.price)
        for index, one in enumerate(least):
            assert one.prefill is not None
            name = f"{one.prefill.layout} prefill with {one.shape.layout} decode"
            if one.price >= self.best_price:
                self.left_out[name] = "what the workload takes at least of them costs more than the best fleet"
            elif self._space.max_replicas < 2:
                self.left_out[name] = "it takes a replica for each, and more than 1 is not allowed (--max-replicas)"
            elif index >= self._space.max_pairs:
                self.left_out[name] = f"by closed numbers {self._space.max_pairs} other pairs are cheaper"
            else:
                self._try_pair(one)

    def _least(self, prefill: Shape, decode: Shape) -> Setup:
        """What the workload takes at least, by closed numbers."""
        needs_prefill, needs_decode = self._needs(prefill, decode)
        return Setup(
            shape=decode, num_replicas=max(1, math.ceil(needs_decode)), prefill=prefill,
            num_prefill=max(1, math.ceil(needs_prefill)),
        )  # fmt: skip

    def _try_pair(self, least: Setup) -> None:
        """First the fewest in the ratio in which the workload needs them; then every other ratio in which as many as
        could be cheaper may keep the promise; at last one fewer of either than any closed number says."""
        prefill, decode = least.prefill, least.shape
        assert prefill is not None
        needs_prefill, needs_decode = self._needs(prefill, decode)
        share, most = needs_prefill / (needs_prefill + needs_decode), self._space.max_replicas

        def matched(size: int) -> Setup:
            """Of so many replicas, at least two."""
            num_prefill = min(size - 1, max(1, round(size * share)))
            return replace(least, num_replicas=size - num_prefill, num_prefill=num_prefill)

        while most >= 2 and matched(most).price >= self.best_price:
            most -= 1
        found: list[Setup] = []
        if most >= 2 and self.keeps(matched(most)):
            size = _fewest(lambda count: self.keeps(matched(count + 1)), most - 1)
            found += [matched(size + 1)] if size is not None else []
        elif self.best_price == float("inf"):
            return  # not even all that may be
        highest = 2 * max(least.num_prefill, *(one.num_prefill for one in found), 1) + 1
        for num_prefill in range(least.num_prefill, highest + 1):
            found += self._fewest_decode(replace(least, num_prefill=num_prefill))
        if found:
            self._trim(min(found, key=lambda one: one.price))

    def _fewest_decode(self, least: Setup) -> list[Setup]:
        """With so many that compute prompts, the fewest to answer that are cheaper than what is known; none where there are
        none."""
        room = self._space.max_replicas - least.num_prefill - least.num_replicas
        while room >= 0 and replace(least, num_replicas=least.num_replicas + room).price >= self.best_price:
            room -= 1
        if room < 0 or not self.keeps(replace(least, num_replicas=least.num_replicas + room)):
            return []
        more = _fewest(lambda count: self.keeps(replace(least, num_replicas=least.num_replicas + count - 1)), room + 1)
        assert more is not None
        return [replace(least, num_replicas=least.num_replicas + more - 1)]

    def _trim(self, setup: Setup) -> None:
        """One fewer of either, the dearer first, as long as that keeps the promise."""
        assert setup.prefill is not None
        fewer = [
            replace(setup, num_replicas=setup.num_replicas - 1),
            replace(setup, num_prefill=setup.num_prefill - 1),
        ]
        for one in sorted(fewer, key=lambda one: one.price):
            if one.num_replicas and one.num_prefill and self.keeps(one):
                self._trim(one)
                return

    def _needs(self, prefill: Shape, decode: Shape) -> tuple[float, float]:
        """Replicas that would be busy all the time, by closed numbers; 0.7 of that at least, for those are not exact. Where
        nobody can say how long the workload lasts, only what the two are to one another counts."""
        if self._demand is None:
            self._demand = demand_of(self._workload)
        demand, limits = self._demand, self._promise.slo_ms
        computing = prompt_s(prefill.gpu, demand)
        answering = answer_s(
            decode.gpu, demand, num_tokens_of_kv=decode.scheduler.num_blocks * decode.scheduler.block_size,
            max_num_seqs=decode.scheduler.max_num_seqs, itl_ms=limits.get("tpot", limits.get("itl")),
        )  # fmt: skip
        if demand.span_s is None:
            return 1e-3 * computing / answering, 1e-3
        waits_s = (limits.get("e2el") or limits.get("ttft", 0.0)) / 1e3
        scale = 0.7 * demand.num_requests / max(demand.span_s + waits_s, 1e-3)
        return computing * scale, answering * scale


def rehearse(workload: Workload, setup: Setup, promise: Promise, *, speed: float = 1.0) -> Candidate:
    """`speed`: of all replicas, beside what the cost model says; 1 at its middle."""
    facts = RunFacts(
        source="simulated",
        duration_ns=Nanos(0),
        backend="simulated",
        workload=workload.name,
        slo_ms=dict(promise.slo_ms),
    )
    summary = summarize(Fleet(setup.fleet(speed=speed), workload, Rehearsal()).run(facts).run)
    share = summary.goodput.joint_share if summary.goodput else 0.0
    return Candidate(setup=setup, summary=summary, keeps=share >= promise.share)


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

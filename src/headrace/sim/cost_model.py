"""CostModel: one engine's file for rehearsals, and the durations that follow from it.

The one door to `sim/cost/`: reads what `headrace calibrate` wrote or a person described, and makes a `StepCost` of it.
Refuses steps beyond what was fitted, unless it is told to extrapolate; knows how far its numbers may be off.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError, nearest
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.step import StepPlan
from headrace.sim.cost.curves import curves_of, was_measured
from headrace.sim.cost.deployments import (
    Deviation,
    deviation_of,
    front_end_after_handover,
    front_end_of,
    half_width_90,
    measured_backends,
    measured_models,
)
from headrace.sim.cost.fitted_steps import FittedSteps
from headrace.sim.cost.gpu import GpuStepModel, Precision, Tuning
from headrace.sim.cost.shape import ModelShape, shape_from_config
from headrace.sim.cost.step_size import StepSize, busiest_rank, rank_context, step_size
from headrace.sim.front_end import NO_FRONT_END, FrontEndCost
from headrace.sim.step_cost import LinearStepCost, StepCost
from headrace.specs.device import device
from headrace.specs.parallel import ParallelSpec

_Z_90 = 1.6449
"""Standard deviations on each side that hold 90 % of a normal distribution."""


DecodeRunTimes = Callable[[int, Iterable[int]], list[float]]
"""(sequences, tokens of context for each of several steps) -> microseconds of each."""


class FittedRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The largest steps that a fit has seen."""

    max_tokens: int
    max_decodes: int
    max_context_per_sequence: int

    def refusal(self, size: StepSize) -> str | None:
        """Why a step lies outside; None where it does not."""
        if size.num_tokens > self.max_tokens:
            return f"a step of {size.num_tokens} tokens; the cost model was fitted up to {self.max_tokens}"
        if size.num_decodes > self.max_decodes:
            return f"{size.num_decodes} sequences decoding at once; the cost model was fitted up to {self.max_decodes}"
        contexts = ((size.decode_context, size.num_decodes), (size.chunk_context, size.num_chunks))
        for context, count in contexts:
            if count and context / count > self.max_context_per_sequence:
                return (
                    f"{context / count:.0f} tokens of context per sequence; "
                    f"the cost model was fitted up to {self.max_context_per_sequence}"
                )
        return None


class GpuDeployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on GPUs that need not be here."""

    device: str
    """A name of `specs/devices.toml`, such as h200_sxm."""
    model: str = ""
    """A name of `sim/cost/models.json`, such as deepseek-r1; or give `shape`."""
    shape: ModelShape | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    """Attention ranks of the engine (attention-DP): its scheduler's limits are those of all of them together, and its
    sequences are spread over them evenly. They share the experts, so a step ends for all of them at once."""
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1
    precision: Precision = Precision()
    tuning: Tuning | None = None
    """Factors of your own, in place of what is known of deployments like this one."""
    backend: str = ""
    """vllm, sglang or trtllm: whose measured deployments to resemble; empty for the kernels alone."""

    def __post_init__(self) -> None:
        if not self.model and self.shape is None:
            raise ConfigurationError(f"gpu needs a model (known: {', '.join(_known_configs())}), or a shape")
        backends = measured_backends()
        if self.backend and self.backend not in backends:
            raise ConfigurationError(
                f"no backend is called {self.backend!r}{nearest(self.backend, backends)} (known: {', '.join(backends)}; "
                "leave it out for the kernels alone)"
            )

    def step_model(self) -> GpuStepModel:
        """Raises ConfigurationError where a name is not known or a curve was not measured."""
        return GpuStepModel(
            shape=self.known_shape,
            device=device(self.device),
            curves=curves_of(self.device),
            parallel=ParallelSpec(
                tensor_parallel_size=self.tensor_parallel_size,
                data_parallel_size=self.data_parallel_size,
                pipeline_parallel_size=self.pipeline_parallel_size,
                expert_parallel_size=self.expert_parallel_size,
            ),
            precision=self.precision,
            tuning=self.tuning or Tuning(),
        )

    @property
    def known_shape(self) -> ModelShape:
        return self.shape or known_shape(self.model)

    @property
    def num_gpus(self) -> int:
        """Of one replica."""
        return self.tensor_parallel_size * self.data_parallel_size * self.pipeline_parallel_size

    @property
    def num_layers(self) -> int:
        return self.known_shape.num_layers

    @property
    def deviation(self) -> Deviation | None:
        """What deployments like it showed beside the kernels; None where none was measured, or where `tuning` is given."""
        if self.tuning is not None:
            return None
        has_experts = self.known_shape.has_experts
        dtype = self.precision.experts if has_experts else self.precision.gemm
        return deviation_of(self.model, self.backend, device(self.device).architecture, dtype)

    @property
    def front_end(self) -> FrontEndCost:
        """What stood before deployments of its backend; nothing where none is named, or where `tuning` is given."""
        if not self.backend or self.tuning is not None:
            return NO_FRONT_END
        return front_end_of(self.backend, device(self.device).architecture) or NO_FRONT_END

    @property
    def front_end_after_handover(self) -> FrontEndCost:
        """The same, where it answers prompts that others have computed."""
        if not self.backend or self.tuning is not None:
            return NO_FRONT_END
        return front_end_after_handover(self.backend) or NO_FRONT_END

    @property
    def half_width_90(self) -> float:
        return half_width_90(
            has_measured_model=self.model in measured_models(), has_measured_device=was_measured(self.device)
        )

    def step_us(self) -> Callable[[StepSize], float]:
        """The time of a step, deviations included."""
        model, deviation, num_ranks = self.step_model(), self.deviation, self.data_parallel_size

        def of_all_ranks(size: StepSize) -> float:
            return model.step_us(busiest_rank(size, num_ranks), num_tokens_everywhere=size.num_tokens)

        plain: Callable[[StepSize], float] = model.step_us if num_ranks == 1 else of_all_ranks
        if deviation is None:
            return plain

        def deviating(size: StepSize) -> float:
            return plain(size) * deviation.factor(size.num_sequences)

        return deviating

    def decode_run_us(self) -> DecodeRunTimes:
        """The same of steps that only decode, many at once."""
        model, deviation, num_ranks = self.step_model(), self.deviation, self.data_parallel_size

        def times(num_decodes: int, contexts: Iterable[int]) -> list[float]:
            if num_ranks == 1:
                found = model.decode_run_us(num_decodes, contexts)
            else:
                parts = [rank_context(num_decodes, context, num_ranks) for context in contexts]
                share = -(-num_decodes // num_ranks)
                found = model.decode_run_us(share, parts, num_tokens_everywhere=num_decodes)
            if deviation is None:
                return found
            factor = deviation.factor(num_decodes)
            return [us * factor for us in found]

        return times


class EngineModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine in rehearsal: what its mind may do, how long its steps take, and what stands before it.

    A file of it is TOML or JSON. At most one of `cost` (stated), `steps` (measured here) and `gpu` (from published curves).
    """

    scheduler: SchedulerConfig = SchedulerConfig(max_model_len=32_768, num_blocks=65_536)
    cost: dict[str, int] = {}
    """Fields of `LinearStepCost`."""
    steps: FittedSteps | None = None
    gpu: GpuDeployment | None = None
    front_end: FrontEndCost = NO_FRONT_END
    fitted: FittedRange | None = None
    """What `steps` is good for."""
    speed_spread: float = 0.0
    """Standard deviation of the logarithm of the machine's speed from one short run to the next."""
    extrapolate: bool = False
    """Answer for steps beyond what was fitted, too."""
    about: dict[str, str] = {}
    """Where the numbers are from; for people."""

    def __post_init__(self) -> None:
        given = [name for name in ("cost", "steps", "gpu") if getattr(self, name)]
        if len(given) > 1:
            raise ConfigurationError(f"an engine's steps have one cost, not {' and '.join(given)}: leave out all but one")
        if not self.speed_spread >= 0:
            raise ConfigurationError(f"speed_spread must not be negative, not {self.speed_spread:g}")
        self._stated_cost()  # raises where it is none

    def step_cost(self, *, speed: float = 1.0) -> StepCost:
        """`speed` 1.1: a machine 10 % faster than the fitted one."""
        if self.gpu is not None:
            return ModelledStepCost(self.gpu.step_us(), None, speed, self.gpu.decode_run_us())
        if self.steps is not None:
            return ModelledStepCost(self.steps.step_us, None if self.extrapolate else self.fitted, speed)
        return self._stated_cost().at_speed(speed)

    def _stated_cost(self) -> LinearStepCost:
        known = [field.name for field in dataclasses.fields(LinearStepCost)]
        for name in self.cost:
            if name not in known:
                hint = nearest(name, known)
                raise ConfigurationError(f"there is no key {name!r} in [cost]{hint} (known: {', '.join(known)})")
        return LinearStepCost(**self.cost)

    @property
    def entrance(self) -> FrontEndCost:
        """What stands before it: as stated; else what deployments of the backend that `gpu` names showed."""
        if self.front_end != NO_FRONT_END or self.gpu is None:
            return self.front_end
        return self.gpu.front_end

    @property
    def speeds_90(self) -> tuple[float, float]:
        """The slowest and the fastest machine to expect nine times in ten."""
        reach = math.exp(self.gpu.half_width_90 if self.gpu is not None else _Z_90 * self.speed_spread)
        return 1 / reach, reach

    @property
    def has_interval(self) -> bool:
        """Whether it knows how far it may be off."""
        return self.gpu is not None or self.speed_spread > 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its predictions must know."""
        if self.gpu is not None and not was_measured(self.gpu.device):
            return (f"extrapolated: no kernel of {device(self.gpu.device).title} was measured, a relative's stand in",)
        return ()


class ModelledStepCost:
    """A `StepCost` of a function of a step's size. Raises ConfigurationError for steps beyond `fitted`."""

    def __init__(
        self,
        step_us: Callable[[StepSize], float],
        fitted: FittedRange | None,
        speed: float,
        decode_run_us: DecodeRunTimes | None = None,
    ) -> None:
        """`decode_run_us`: what `step_us` says of many steps, where that is known sooner."""
        self._step_us = step_us
        self._decode_run_us = decode_run_us
        self._fitted = fitted
        self._nanos_per_us = 1e3 / speed

    def __call__(self, plan: StepPlan) -> Nanos:
        return self.of(step_size(plan))

    def decode_run(self, starts: Sequence[int], num_steps: int) -> list[int]:
        """The durations of successive steps that each compute one token of each sequence, the first at `starts`: as if each
        were asked for."""
        count, context = len(starts), sum(starts) + len(starts)
        if self._decode_run_us is not None:
            found = self._decode_run_us(count, range(context, context + count * num_steps, count))
            return [max(1, round(us * self._nanos_per_us)) for us in found]
        return [
            self.of(StepSize(num_decodes=count, decode_context=context + count * index, num_samples=count))
            for index in range(num_steps)
        ]

    def of(self, size: StepSize) -> Nanos:
        if self._fitted is not None and (reason := self._fitted.refusal(size)) is not None:
            raise ConfigurationError(f"{reason}: fit further, make steps smaller, or set extrapolate = true")
        return Nanos(max(1, round(self._step_us(size) * self._nanos_per_us)))


def read_engine(content: bytes, *, is_json: bool) -> EngineModel:
    """Raises ConfigurationError where the content describes no engine."""
    decode = msgspec.json.decode if is_json else msgspec.toml.decode
    try:
        return decode(content, type=EngineModel)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"it describes no engine: {error}") from None


@cache
def _known_configs() -> dict[str, dict[str, object]]:
    content = resources.files("headrace.sim.cost").joinpath("models.json").read_bytes()
    found: dict[str, dict[str, object]] = msgspec.json.decode(content)["models"]
    return found


def known_shape(name: str) -> ModelShape:
    """The shape of a public model by its short name. Raises ConfigurationError where it is not among them."""
    configs = _known_configs()
    if name not in configs:
        raise ConfigurationError(f"no model is called {name!r}{nearest(name, configs)} (known: {', '.join(configs)})")
    return shape_from_config(configs[name], name)

"""Steps of a real worker, each of its operations timed: a decode step of few and of many sequences, and a prompt's.

Knows plans and what each kind of step is. Does not know ceilings, nor how what was measured is shown.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.base.ids import BlockId, SequenceId, StepId
from headrace.base.rng import stream
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NewSequence, ScheduledSequence, StepPlan
from headrace.engine.ops.metered import Holding, MeteredOps
from headrace.engine.ops.protocol import Ops
from headrace.engine.worker.worker import Worker, WorkerConfig
from headrace.measure.report.roofline import MeasuredPhase

_NUM_WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineConfig:
    """Which steps are measured."""

    batch_sizes: tuple[int, ...] = (1, 16)
    """Sequences of a decode step, for each kind of it."""
    context: int = 128
    """Tokens that each of them has when the measuring begins."""
    prompt_length: int = 512
    """Tokens of a prompt, computed in one step."""
    num_decode_steps: int = 24
    """Measured decode steps of each kind; their median counts."""
    num_prefill_steps: int = 5
    """Measured prompts; their median counts."""

    def __post_init__(self) -> None:
        if min(self.batch_sizes, default=0) < 1 or min(self.context, self.prompt_length) < 1:
            raise ConfigurationError("batch_sizes, context and prompt_length must be at least 1")
        if min(self.num_decode_steps, self.num_prefill_steps) < 1:
            raise ConfigurationError("num_decode_steps and num_prefill_steps must be at least 1")

    @property
    def num_steps(self) -> int:
        """Of all phases, those that warm up included."""
        return len(self.batch_sizes) * (self.num_decode_steps + _NUM_WARM_UPS) + self.num_prefill_steps + _NUM_WARM_UPS

    @property
    def longest(self) -> int:
        return max(self.context + self.num_decode_steps + _NUM_WARM_UPS + 1, self.prompt_length + 1)


class RooflineRun:
    """Loads the model when made."""

    def __init__(
        self, worker_config: WorkerConfig, config: RooflineConfig, clock: Clock, *, on_step: Callable[[str], None]
    ) -> None:
        """`on_step` hears the phase's name before each step."""
        self._config = config
        self._clock = clock
        self._on_step = on_step
        self._metered: MeteredOps | None = None
        self.worker = Worker(worker_config, lambda *_: None, through=self._meter)
        longest, model_len = config.longest, self.worker.spec.max_position_embeddings
        if longest > model_len:
            raise ConfigurationError(
                f"the model's sequences end at {model_len} tokens, and these steps need {longest}: lower --context or "
                "--prompt-length"
            )
        block_size = worker_config.block_size
        self._blocks_of_a_sequence = -(-longest // block_size)
        self.worker.allocate_kv_cache(
            self._blocks_of_a_sequence * max(config.batch_sizes), max_model_len=min(model_len, longest)
        )

    def _meter(self, ops: Ops) -> Ops:
        self._metered = MeteredOps(ops, self._clock, holding_of(ops))
        return self._metered

    def measure(self) -> Iterator[MeasuredPhase]:
        for size in self._config.batch_sizes:
            yield self._decode(size)
        yield self._prefill()

    def _decode(self, batch_size: int) -> MeasuredPhase:
        context = self._config.context
        phase = MeasuredPhase(f"decode, {_counted(batch_size, 'sequence')}, context {context}", batch_size)
        ids = [SequenceId(i) for i in range(batch_size)]
        for i in ids:  # one prompt after another: a step of all of them could be very large
            self.worker.execute(self._prompt_plan(i, context))
        for step in range(self._config.num_decode_steps + _NUM_WARM_UPS):
            scheduled = tuple(ScheduledSequence(i, context + step, 1, True, 0, ()) for i in ids)
            self._execute(StepPlan(StepId(step), scheduled), phase, is_warm_up=step < _NUM_WARM_UPS)
        self._release(ids)
        return phase

    def _prefill(self) -> MeasuredPhase:
        length = self._config.prompt_length
        phase = MeasuredPhase(f"prefill, {_counted(length, 'token')}", length)
        for step in range(self._config.num_prefill_steps + _NUM_WARM_UPS):
            nobody = SequenceId(0)
            self._execute(self._prompt_plan(nobody, length), phase, is_warm_up=step < _NUM_WARM_UPS)
            self._release([nobody])
        return phase

    def _prompt_plan(self, sequence_id: SequenceId, length: int) -> StepPlan:
        drawn = stream(sequence_id, "roofline")
        tokens = tuple(drawn.randrange(self.worker.spec.vocab_size) for _ in range(length))
        first_block = sequence_id * self._blocks_of_a_sequence
        blocks = tuple(BlockId(first_block + i) for i in range(self._blocks_of_a_sequence))
        greedy = SamplingParams(max_tokens=self._config.longest, temperature=0.0, ignore_eos=True)
        new = NewSequence(sequence_id, 0, length, tokens, greedy, ())
        scheduled = ScheduledSequence(sequence_id, 0, length, True, 0, blocks)
        return StepPlan(StepId(0), (scheduled,), new_sequences=(new,))

    def _release(self, ids: Sequence[SequenceId]) -> None:
        self.worker.execute(StepPlan(StepId(-1), (), released_sequence_ids=tuple(ids)))

    def _execute(self, plan: StepPlan, phase: MeasuredPhase, *, is_warm_up: bool) -> None:
        assert self._metered is not None
        self._on_step(phase.name)
        self._metered.take_calls()
        began = self._clock.now()
        self.worker.execute(plan)
        duration = self._clock.now() - began
        if not is_warm_up:
            phase.steps.append(self._metered.take_calls())
            phase.durations_ns.append(duration)


def holding_of(ops: Ops) -> Holding:
    """How these ops hold and multiply with what a file has in each storage format."""
    floats = ("F32", "f32") if ops.dtype == "float32" else ("BF16", "bf16")
    if not ops.processor.startswith("native"):
        return lambda _: floats
    from headrace.engine.ops.native.ops import KERNEL_FORMATS

    def holding(storage: str) -> tuple[str, str]:
        if storage not in KERNEL_FORMATS:
            return floats
        if storage in ("F32", "F16", "BF16"):
            return storage, "bf16" if storage == "BF16" and ops.dtype == "bfloat16" else "f32"
        return storage, "int8"

    return holding


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"

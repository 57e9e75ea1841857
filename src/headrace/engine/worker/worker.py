"""Worker: one device that holds a model and its KV cache, and executes plans.

Knows configuration, the order of the start-up and what the device is. Does not know requests, scheduling or processes.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError, nearest
from headrace.base.ids import BlockId, SequenceId, StepId
from headrace.base.system_clock import SystemClock
from headrace.base.units import format_bytes, seconds
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NewSequence, ScheduledSequence, StepPlan, StepResult
from headrace.engine.models.decoder import Decoder
from headrace.engine.models.weights import open_checkpoint
from headrace.engine.ops.capabilities import CAPABILITIES, OPS_NAMES, Overrides
from headrace.engine.ops.protocol import Ops
from headrace.engine.ops.registry import choose_ops
from headrace.engine.worker.constraint import Masks
from headrace.engine.worker.cores import num_compute_threads
from headrace.engine.worker.graph import Graph
from headrace.engine.worker.host_sampler import HostSampler, RowSampler
from headrace.engine.worker.kv_cache import KVCache, kv_bytes_per_block
from headrace.engine.worker.model_runner import ModelRunner, TokenSampler
from headrace.specs.model import ModelSpec, RopeScaling
from headrace.specs.release import ExecutionIdentity

PhaseReport = Callable[[str, float, str], None]
"""(phase, seconds, detail for people)."""

_DTYPES = ("float32", "bfloat16")
_DEVICES = ("cpu", "cuda")
_SIGNS_OF_A_GPU = ("/dev/nvidiactl", "/dev/dxg")
"""Files of NVIDIA's driver, on Linux and in Windows' Linux."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is started with."""

    model_path: str
    """A Hugging Face checkpoint folder or a GGUF file."""
    dtype: str = "auto"
    """How weights and activations are held: `float32`, `bfloat16`, or `auto` for what is fastest here."""
    block_size: int = 16
    """Tokens per KV block."""
    max_model_len: int = 0
    """Most tokens of one sequence; 0 is the model's own length. Some rotary scalings are chosen by it."""
    num_threads: int = 0
    """Threads that compute on the CPU; 0 takes one per physical core that this process may use."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU where there is one."""
    ops: str = "auto"
    """Which implementation computes: `native`, `torch`, or `auto` for native where it serves the checkpoint as stored."""
    attention_backend: str = "auto"
    """Whose attention: that of ops `native` or `torch`, which then compute everything else as well."""
    kv_cache_dtype: str = "auto"
    """How keys and values are held: `float32`, `bfloat16`, `int8`, `fp8_e4m3` (or `fp8`), or `auto`."""
    quantization: str = "auto"
    """What matrices are turned into as they are loaded: `none` (the compute dtype), `q8_0`, `q4_0`, `q4_1`, or `auto`."""
    batch_invariant: bool = False
    """Refuse to start where a row's bits might depend on the rows computed beside it."""
    enforce_eager: bool = False
    """Calls the model's operations one by one in every step, instead of replaying a recording of them."""

    def __post_init__(self) -> None:
        for name, known in (("dtype", _DTYPES), ("device", _DEVICES), ("ops", OPS_NAMES)):
            value = getattr(self, name)
            if value not in (*known, "auto"):
                hint = nearest(value, (*known, "auto"))
                raise ConfigurationError(f"{name} {value!r} is not one of auto, {', '.join(known)}{hint}")
        if self.max_model_len < 0 or self.num_threads < 0:
            raise ConfigurationError("max_model_len and num_threads must not be negative; 0 chooses by itself")
        _ = self.overrides  # names are checked where they are given

    @property
    def overrides(self) -> Overrides:
        return Overrides(
            attention_backend=self.attention_backend,
            kv_cache_dtype=self.kv_cache_dtype,
            quantization=self.quantization,
            batch_invariant=self.batch_invariant,
        )


class Worker:
    """In order: construct (loads the weights), `allocate_kv_cache`, `warm_up`; then `execute`, plan after plan."""

    def __init__(
        self, config: WorkerConfig, report: PhaseReport, *, through: Callable[[Ops], Ops] = lambda ops: ops
    ) -> None:
        """`through` may put something between the model and the ops that were chosen for it."""
        self.config = config
        self._report = report
        self._clock = SystemClock()
        self._device = _choose_device(config.device)
        began = self._clock.now()
        self.checkpoint = open_checkpoint(Path(config.model_path))
        self.spec: ModelSpec = self.checkpoint.spec
        self.max_model_len = config.max_model_len or self.spec.max_position_embeddings
        began = self._phase("open_checkpoint", began, f"{self.spec.architecture}, {self.checkpoint.weight_format}")
        choice = choose_ops(
            config.ops,
            device=self._device,
            dtype=config.dtype,
            storages=self.checkpoint.matrix_storages(),
            block_size=config.block_size,
            overrides=config.overrides,
        )
        chosen = choice.make(config.num_threads or num_compute_threads())
        self._ops: Ops = through(chosen)
        self._sampler = _make_sampler(chosen)
        self.dtype, self.device = self._ops.dtype, self._ops.device
        with self._ops.computing():
            self._decoder = Decoder(self._ops, self.spec, self.checkpoint)
        self.checkpoint.release_pages()  # weights that were packed would count twice
        remark = f" ({choice.remark})" if choice.remark else ""
        attention = CAPABILITIES[choice.name].attention
        invariant = ", batch-invariant" if config.batch_invariant else ""
        self._phase(
            "load_weights",
            began,
            f"{self.dtype} on {self.device}{remark}; matrices {choice.weights}, attention by {attention}{invariant}",
        )
        self._runner: ModelRunner | None = None

    @property
    def identity(self) -> ExecutionIdentity:
        digest = self.checkpoint.digest
        if any(rope.scaling in (RopeScaling.DYNAMIC, RopeScaling.LONGROPE) for rope in self.spec.ropes):
            digest = f"{digest}/max_model_len={self.max_model_len}"  # it decides the rotary frequencies
        quantization = self.config.quantization
        return ExecutionIdentity(
            model_digest=digest,
            weight_dtype=self.dtype if quantization == "auto" else f"{self.dtype}/{quantization}",
            kv_dtype=self._ops.kv_dtype,
            processor=self._ops.processor,
        )

    @property
    def kv_bytes_per_block(self) -> int:
        return kv_bytes_per_block(self._ops, self.spec, block_size=self.config.block_size)

    def free_device_bytes(self) -> int | None:
        """What is free on a device with memory of its own; None where it computes in the machine's memory."""
        if not self._device.startswith("cuda"):
            return None
        import torch  # a GPU is torch's: see _choose_device

        free, _total = torch.cuda.mem_get_info()
        return int(free)

    def allocate_kv_cache(self, num_blocks: int, *, max_model_len: int | None = None) -> None:
        """Once. `max_model_len`: where the memory decided it, after the worker was made."""
        assert self._runner is None, "the KV cache is allocated once"
        began = self._clock.now()
        if max_model_len is not None:
            self.max_model_len = max_model_len
        block_size = self.config.block_size
        with self._ops.computing():
            cache = KVCache(self._ops, self.spec, num_blocks=num_blocks, block_size=block_size)
            graph = Graph(
                self._ops, self._decoder, cache,
                max_model_len=self.max_model_len, enforce_eager=self.config.enforce_eager,
            )  # fmt: skip
            windows = tuple(dict.fromkeys(layer.window for layer in self.spec.layers))  # distinct, in order
            self._runner = ModelRunner(self._ops, graph, cache, self._sampler, block_size=block_size, windows=windows)
        size = format_bytes(num_blocks * self.kv_bytes_per_block)
        places = f"{num_blocks} blocks of {block_size} tokens"
        self._phase("allocate_kv_cache", began, f"{places}, {size} in {self._ops.kv_dtype}")

    def enforce_forms(self, masks: Masks) -> None:
        """From now on answers may have a form. `masks` knows the vocabulary, which a worker does not."""
        assert self._runner is not None, "allocate_kv_cache comes before enforce_forms"
        self._runner.masks = masks

    def warm_up(self) -> None:
        """Runs a prompt and a decode step, so that the first request does not pay for kernels being made."""
        began = self._clock.now()
        assert self._runner is not None, "allocate_kv_cache comes before warm_up"
        num_tokens = max(1, min(self.config.block_size, self.max_model_len) - 1)
        nobody = SequenceId(-1)
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        sequence = NewSequence(nobody, 0, num_tokens, (0,) * num_tokens, sampling, ())
        prompt = ScheduledSequence(nobody, 0, num_tokens, True, 0, (BlockId(0),))
        self.execute(StepPlan(StepId(-3), (prompt,), new_sequences=(sequence,)))
        if num_tokens < self.config.block_size:
            self.execute(StepPlan(StepId(-2), (ScheduledSequence(nobody, num_tokens, 1, True, 0, ()),)))
        self.execute(StepPlan(StepId(-1), (), released_sequence_ids=(nobody,)))
        self._phase("warm_up", began, "")

    def execute(self, plan: StepPlan) -> StepResult:
        assert self._runner is not None, "allocate_kv_cache comes before execute"
        with self._ops.computing():
            return self._runner.execute(plan)

    def prepare(self) -> None:
        """For the next step, once this one's result is told; `execute` does it where it was not done."""
        assert self._runner is not None, "allocate_kv_cache comes before prepare"
        self._runner.prepare()

    def close(self) -> None:
        """Lets go of weights and KV."""
        self._runner = None
        del self._decoder

    def _phase(self, name: str, began: Nanos, detail: str) -> Nanos:
        now = self._clock.now()
        self._report(name, seconds(now - began), detail)
        return now


def _choose_device(device: str) -> str:
    if device != "auto":
        return device
    if not any(Path(sign).exists() for sign in _SIGNS_OF_A_GPU):
        return "cpu"  # without asking torch, which takes seconds to import
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def _make_sampler(ops: Ops) -> TokenSampler:
    if isinstance(ops, RowSampler):
        return HostSampler(ops)
    from headrace.engine.worker.sampler import Sampler  # torch's

    return Sampler()

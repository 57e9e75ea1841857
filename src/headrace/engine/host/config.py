"""What one engine and the process around it are told at the start. Each field is explained where it is declared.

Knows options and their defaults. Does not know where they came from: the command line, a file and the environment are
`cli`'s business.
"""

from enum import StrEnum

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.engine.grammar.registry import DEFAULT_BACKEND, check_backend
from headrace.engine.mind.config import SchedulerConfig, SchedulingPolicy

AUTO_MAX_MODEL_LEN = -1
"""Take the longest sequence that the KV cache can hold, up to the model's own length."""

CPU_TOKEN_BUDGET = 512
CPU_MIN_PROMPT_TOKENS = 128
"""Fewer rows at a time are computed at a lower speed."""
GPU_TOKEN_BUDGET = 2048


class EngineDeath(StrEnum):
    """What becomes of the server when its engine process ends unasked."""

    EXIT = "exit"
    """The server tells its open streams and exits non-zero: something above it restarts it."""
    RESTART = "restart"
    """The server stays, answers 503, and starts the engine anew; after repeated failures it exits after all."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process is started with; sent to it as one line of JSON."""

    model_path: str
    """A Hugging Face checkpoint folder or a GGUF file."""
    dtype: str = "auto"
    """How weights and activations are held: `float32`, `bfloat16`, or `auto` for what is fastest here."""
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
    num_threads: int = 0
    """Threads that compute on the CPU; 0 takes one per physical core that this process may use."""
    enforce_eager: bool = False
    """Calls the model's operations one by one in every step, instead of replaying a recording of them."""
    max_model_len: int = 0
    """Most tokens of one sequence; 0 is the model's own length, -1 the most that fits."""
    block_size: int = 16
    """Tokens per KV block."""
    max_num_batched_tokens: int = 0
    """The token budget of one step; 0 takes 512 on a CPU and 2048 on a GPU."""
    max_num_seqs: int = 64
    """Most sequences that run at once."""
    max_tokens_per_prompt_chunk: int = 0
    """Most tokens of one step for long prompts, all together, while others want tokens too; 0 takes half of the budget."""
    min_prompt_tokens_per_step: int = 0
    """Beside streams, prompts share in each step the budget divided by the number of streams, but never fewer tokens than
    this; 0 takes 128 on a CPU, where a step as large as the budget would hold up every stream for long, and on a GPU leaves
    prompts all of the budget."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    """Who goes first."""
    enable_prefix_caching: bool = True
    """Reuse the KV of equal beginnings."""
    max_steps_in_flight: int = 2
    """Steps planned and not yet finished."""
    max_num_queued_requests: int = 10_000
    """Requests that may wait; one more is refused."""
    kv_cache_bytes: int = 0
    """Memory for the KV cache; 0 takes `memory_fraction` instead."""
    memory_fraction: float = 0.0
    """Share of the memory still available once the weights are loaded, for the KV cache; 0 takes 0.4 of the machine's
    memory, which others use too, and 0.9 of a GPU's."""
    structured_output_backend: str = DEFAULT_BACKEND
    """The library that enforces forms of answers: `llguidance`, or `xgrammar` where it is installed."""
    record_steps: str = ""
    """A file to record every event and plan in, for replay; empty records nothing."""

    def __post_init__(self) -> None:
        if self.num_threads < 0:
            raise ConfigurationError(f"threads must not be negative (got {self.num_threads}); 0 chooses by itself")
        if self.max_model_len < AUTO_MAX_MODEL_LEN:
            raise ConfigurationError(f"max_model_len must be at least 1, or 'auto'; got {self.max_model_len}")
        if self.kv_cache_bytes < 0:
            raise ConfigurationError(f"kv_cache_memory must not be negative (got {self.kv_cache_bytes})")
        if not 0 <= self.memory_fraction <= 1:
            raise ConfigurationError(f"memory_fraction must be in (0, 1], not {self.memory_fraction:g}")
        check_backend(self.structured_output_backend)
        # Numbers that contradict each other are told before a model is loaded, not after.
        self.scheduler_config(num_blocks=1, max_model_len=1, is_on_cpu=self.device != "cuda")

    def scheduler_config(self, *, num_blocks: int, max_model_len: int, is_on_cpu: bool) -> SchedulerConfig:
        """The mind's part of this, with what only the loaded model, the memory and the device decide."""
        budget = self.max_num_batched_tokens or (CPU_TOKEN_BUDGET if is_on_cpu else GPU_TOKEN_BUDGET)
        least_for_prompts = min(CPU_MIN_PROMPT_TOKENS, budget) if is_on_cpu else 0
        return SchedulerConfig(
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_batched_tokens=budget,
            max_num_seqs=self.max_num_seqs,
            max_tokens_per_prompt_chunk=self.max_tokens_per_prompt_chunk or max(1, budget // 2),
            min_prompt_tokens_per_step=self.min_prompt_tokens_per_step or least_for_prompts,
            policy=self.policy,
            enable_prefix_caching=self.enable_prefix_caching,
            max_steps_in_flight=self.max_steps_in_flight,
            max_num_queued_requests=self.max_num_queued_requests,
        )


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the HTTP process keeps its engine process."""

    served_model_names: tuple[str, ...]
    """Names under which requests may ask for the model; the first is the one in answers."""
    on_engine_death: EngineDeath = EngineDeath.EXIT
    """What becomes of the server when its engine process ends unasked."""
    ping_interval_s: float = 1.0
    """How often an idle engine is asked for its numbers."""
    hang_timeout_s: float = 30.0
    """An engine that answers nothing for so long counts as hung."""
    step_timeout_s: float = 600.0
    """So long without a finished step, while requests run, counts as hung: above any honest step of a slow machine."""
    max_restarts: int = 5
    """Failures in a row after which a restarting server gives up; an engine that serves for a minute starts anew."""
    restart_backoff_s: float = 1.0
    """The wait before the first restart; doubled for each further failure in a row."""
    shutdown_timeout_s: float = 5.0
    """How long an engine that was told to shut down may take before it is killed."""

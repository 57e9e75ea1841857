"""The ops in C++ on the CPU.

Knows the extension. Does not know models, layers or the mind; `protocol.py` says what each operation means. Activations are
float32 between operations. A product with a quantised weight quantises its rows to int8, by blocks of 32 along the sum, as
llama.cpp does: on the weights' own numbers, an error of about 0.4 % of the result's size. Rows that meet INT8_CHANNEL
weights get one scale each, as those checkpoints mean it. With `dtype` bfloat16 rows that meet BF16 weights are rounded to
it. Keys and values are held in a format of their own. Attention reads it back as float32, so that holding them is the only
rounding, but for BF16 on processors that multiply it: there queries and softmax weights are rounded to BF16 as well. While a
tape is recorded, None stands for token ids, rows and placements.
"""

from collections.abc import Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.dequantize import Floats
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.native import _kernels, weights
from headrace.engine.ops.protocol import AttentionShape, Forward, QKNorm, SequenceSpan, Tensor
from headrace.engine.ops.storage import QUANTIZATIONS
from headrace.specs.model import Activation

Bits = npt.NDArray[np.int32]
"""One for each token, lowest first: [ceil(vocab_size / 32)]."""

VERSION = 3
"""Goes up whenever a kernel's results may change."""

KERNEL_FORMATS = frozenset(
    {
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"),
        *("INT4_G32", "INT4_G64", "INT4_G128", "INT8_CHANNEL"),
        *("F16", "BF16", "F32"),
    }
)
"""Storage formats of projections that are computed with as they are."""

PAGE_TOKENS = 16
"""Blocks of the cache are whole pages of so many tokens."""

KV_DTYPES = ("float32", "bfloat16", "int8", "fp8_e4m3")
"""How keys and values may be held; those of 8 bits with a float32 scale for each token and head."""

_KV_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8_e4m3": 1}
_SCALE_BYTES = {"float32": 0, "bfloat16": 0, "int8": 4, "fp8_e4m3": 4}

_ACTIVATIONS = {Activation.SILU: 0, Activation.GELU: 1, Activation.GELU_TANH: 2}


class _Awake:
    """The threads spin while it is held."""

    def __init__(self, engine: _kernels.Engine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine.wake()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._engine.sleep()


class NativeOps:
    """Implements `Ops`. Tensors are the extension's."""

    def __init__(
        self, *, dtype: str, num_threads: int, isa: str = "", kv_dtype: str = "", quantization: str = "auto"
    ) -> None:
        """`isa`: an instruction set by name, for tests; the best that the processor has, if empty. `kv_dtype`: one of
        KV_DTYPES; the compute dtype, if empty. `quantization`: what every matrix is turned into as it is loaded, one of
        `none` (the compute dtype), `q8_0`, `q4_0`, `q4_1`; or `auto` for what it is stored as."""
        assert dtype in ("float32", "bfloat16")
        assert kv_dtype in ("", *KV_DTYPES)
        self.dtype = dtype
        self.kv_dtype = kv_dtype or dtype
        self._quantization = quantization
        self._is_bf16 = dtype == "bfloat16"
        self._engine = _kernels.Engine(num_threads, isa)
        self._awake = _Awake(self._engine)
        self._recorded_embedding: tuple[weights.Embedding, np.float32] | None = None
        """While a tape is recorded: the table that its replay reads here, for want of a kernel."""
        self.processor = f"native-{VERSION}-cpu-{self._engine.isa}"
        threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
        self.device = f"native kernels on CPU ({self._engine.isa}), {threads}"

    def computing(self) -> _Awake:
        return self._awake

    def record(self, forward: Forward) -> Forward:
        """A tape: replayed by the extension alone, without the interpreter."""
        self._engine.record()
        try:
            tape = self._engine.finish(forward(None, None, None))
        finally:
            self._engine.give_up()
            embedding, self._recorded_embedding = self._recorded_embedding, None

        def replay(ids: npt.NDArray[np.int64], where: _kernels.Placement, rows: list[int]) -> Floats:
            given = ids if embedding is None else embedding[0].rows(ids, embedding[1])
            return self._engine.replay(tape, given, where, rows).numpy()

        # What the tape points to lives as long as what was recorded.
        replay.recorded = forward  # type: ignore[attr-defined]
        return replay

    # Loading

    def load_vector(self, tensor: HostTensor, *, plus: float = 0.0) -> Floats:
        return weights.load_vector(tensor) + np.float32(plus)

    def load_linear(self, parts: Sequence[HostTensor], biases: Sequence[HostTensor] = ()) -> _kernels.Linear:
        otherwise = "BF16" if self._is_bf16 else "F32"
        kernels = KERNEL_FORMATS
        if self._quantization == "none":
            kernels = frozenset({otherwise})
        elif self._quantization != "auto":
            parts = [weights.requantized(part, QUANTIZATIONS[self._quantization]) for part in parts]
        return weights.load_linear(self._engine, parts, biases, kernels=kernels, otherwise=otherwise)

    def load_embedding(self, table: HostTensor) -> weights.Embedding:
        return weights.Embedding(table)

    def rope_table(self, frequencies: Sequence[float], *, attention_factor: float, num_positions: int) -> tuple[Floats, int]:
        """cos and sin of each position, one position after another; and how many numbers a position has."""
        positions = np.arange(num_positions, dtype=np.float32)
        angles = np.outer(positions, np.array(frequencies, np.float32))
        table = np.concatenate((np.cos(angles), np.sin(angles)), axis=1) * np.float32(attention_factor)
        return np.ascontiguousarray(table, np.float32).reshape(-1), 2 * len(frequencies)

    def allocate_kv(self, shape: AttentionShape, *, num_blocks: int, block_size: int) -> _kernels.Cache:
        if block_size % PAGE_TOKENS:
            raise ConfigurationError(
                f"block_size {block_size} is not a multiple of {PAGE_TOKENS}, which the native kernels need; "
                "choose another, or ops torch"
            )
        softcap, window = shape.softcap or 0.0, shape.window or 0
        return self._engine.allocate_kv(
            shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.scale, softcap, window, num_blocks, block_size,
            self.kv_dtype,
        )  # fmt: skip

    def kv_bytes_per_token(self, shape: AttentionShape) -> int:
        key_dim, value_dim = -(-shape.head_dim // 4) * 4, -(-shape.head_dim // 16) * 16  # whole words, whole vectors
        per_head = (key_dim + value_dim) * _KV_BYTES[self.kv_dtype] + 2 * _SCALE_BYTES[self.kv_dtype]
        return shape.num_kv_heads * per_head

    # The step's metadata

    def token_ids(self, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.array(ids, np.int64)

    def row_ids(self, rows: Sequence[int]) -> list[int]:
        return list(rows)

    def place(self, spans: Sequence[SequenceSpan], *, block_size: int, windows: Sequence[int | None]) -> _kernels.Placement:
        del windows  # each layer's cache knows its own
        counts = [(span.num_computed_tokens, span.num_tokens) for span in spans]
        return _kernels.place(counts, [list(span.block_ids) for span in spans], block_size)

    def rotation(self, table: tuple[Floats, int], where: _kernels.Placement | None) -> tuple[Floats, int]:
        """The whole table: the placement has the positions."""
        del where
        return table

    # Computing

    def embed(
        self, ids: npt.NDArray[np.int64] | None, table: weights.Embedding, *, multiplier: float = 1.0
    ) -> _kernels.Tensor:
        factor = self._rounded(multiplier)
        if table.kernel is None and ids is not None:
            return self._engine.from_array(table.rows(ids, factor))
        if table.kernel is None:
            self._recorded_embedding = (table, factor)
        return self._engine.embed(ids, table.kernel, table.hidden_size, float(factor))

    def _rounded(self, x: float) -> np.float32:
        """To the compute dtype."""
        if not self._is_bf16:
            return np.float32(x)
        bits = weights.float_to_bf16(np.array([x], np.float32)).astype(np.uint32) << np.uint32(16)
        return np.float32(bits.view(np.float32)[0])

    def rms_norm(self, x: _kernels.Tensor, weight: Floats, *, eps: float) -> _kernels.Tensor:
        return self._engine.rms_norm(x, weight, eps)

    def linear(
        self, x: _kernels.Tensor, weight: _kernels.Linear, *, add_to: _kernels.Tensor | None = None
    ) -> _kernels.Tensor:
        return self._engine.linear(x, weight, add_to, self._is_bf16)

    def add(self, x: _kernels.Tensor, y: _kernels.Tensor, *, scale: float = 1.0) -> _kernels.Tensor:
        return self._engine.add(x, y, scale)

    def gated_linear(
        self, x: _kernels.Tensor, gate: _kernels.Linear, up: _kernels.Linear, activation: Activation
    ) -> _kernels.Tensor:
        return self._engine.gated_linear(x, gate, up, _ACTIVATIONS[activation], self._is_bf16)

    def rope_and_cache(
        self,
        qkv: _kernels.Tensor,
        kv: _kernels.Cache,
        where: _kernels.Placement | None,
        shape: AttentionShape,
        *,
        rotation: tuple[Floats, int] | None,
        norm: QKNorm | None,
    ) -> _kernels.Tensor:
        del shape  # the cache knows it
        table, rotary_dim = rotation if rotation is not None else (None, 0)
        if norm is None:
            return self._engine.rope_and_cache(qkv, kv, where, table, rotary_dim, None, None, 0.0)
        return self._engine.rope_and_cache(qkv, kv, where, table, rotary_dim, norm.query_weight, norm.key_weight, norm.eps)

    def attention(
        self, q: _kernels.Tensor, kv: _kernels.Cache, where: _kernels.Placement | None, shape: AttentionShape
    ) -> _kernels.Tensor:
        del shape  # the cache knows it
        return self._engine.attention(q, kv, where)

    def select_rows(self, x: _kernels.Tensor, rows: list[int] | None) -> _kernels.Tensor:
        return self._engine.select_rows(x, rows)

    def logits(
        self, x: _kernels.Tensor, weight: _kernels.Linear, *, multiplier: float = 1.0, softcap: float | None = None
    ) -> Tensor:
        logits = self._engine.logits(x, weight, multiplier, softcap or 0.0, self._is_bf16)
        return logits if logits.is_recorded else logits.numpy()

    # Sampling, of logits that `logits` gave

    def greatest(self, logits: Floats, allowed: Sequence[Bits | None]) -> list[int]:
        return self._engine.greatest(logits, allowed)

    def restrict(self, logits: Floats, restrictions: Sequence[tuple[int, Bits]]) -> None:
        self._engine.restrict(logits, restrictions)

    def draw(self, logits: Floats, draws: list[tuple[int, int, float, int, float, float, float]]) -> list[int]:
        return self._engine.draw(logits, draws)

    def tell(self, logits: Floats, tokens: list[int], num_top: int) -> list[tuple[float, int, list[int], list[float]]]:
        return self._engine.tell(logits, tokens, num_top)

    def copy_blocks(self, kv: _kernels.Cache, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            kv.copy_block(source, target)

    def make_finite(self, kv: _kernels.Cache, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            kv.make_finite(block)

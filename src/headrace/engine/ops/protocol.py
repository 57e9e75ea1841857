"""The operations that models are written in, each stated once: shapes, dtypes, meaning.

Knows what an operation means. Does not know how any is carried out, nor any model: layers compose these, models compose
layers, and an implementation (`torch/` today) may hold tensors however it likes. Rules that make an implementation
replaceable, and its calls recordable as a tape that is replayed with other sizes:

- a `Tensor` is opaque: layers pass it on, and never look at its shape, its dtype or its numbers;
- operations return new tensors; the only thing written in place is the KV cache;
- which operations are called, in which order, depends on the model alone, never on the step's sizes or values.

Shapes below: `num_tokens` rows of one step, all sequences one after another. "The compute dtype" is `Ops.dtype`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headrace.engine.ops.host_tensor import HostTensor
from headrace.specs.model import Activation

Tensor: TypeAlias = Any
"""Numbers on the device. Opaque: only the implementation that made it looks inside."""

Weight: TypeAlias = Any
"""A loaded projection or table, perhaps packed or quantised. Opaque."""

KVLayer: TypeAlias = Any
"""One layer's keys and values for every block. Opaque."""

Placement: TypeAlias = Any
"""Where the step's tokens stand: cache slots, context gathers and masks, computed once and used by every layer. Opaque."""

Rotation: TypeAlias = Any
"""cos and sin at the step's positions. Opaque."""

Forward: TypeAlias = Callable[[Tensor, Placement, Tensor], Tensor]
"""(token ids, placement, rows whose logits are wanted) -> logits: a model's pass over one step, caches and tables bound."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What one attention layer is, beside its weights."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Multiplies q.k."""
    softcap: float | None = None
    """s -> cap * tanh(s / cap) on the scaled scores."""
    window: int | None = None
    """A token sees itself and the `window - 1` tokens before it; None: all before it."""


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMSNorm over each query and each key head."""

    query_weight: Tensor
    key_weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's rows of the step, and where its keys and values live."""

    num_computed_tokens: int
    """Tokens whose keys and values are in the cache already: the first row's position."""
    num_tokens: int
    """Rows in this step, at least 1."""
    block_ids: Sequence[int]
    """The sequence's blocks in order; they cover `num_computed_tokens + num_tokens` tokens."""


class Ops(Protocol):
    """One implementation on one device in one dtype.

    On the CPU a row's bits depend on its own sequence alone: not on which other rows are computed with it, nor on how its
    sequence was cut into steps. The same request then gets the same tokens whatever runs beside it.
    """

    @property
    def processor(self) -> str:
        """What computes, down to what may change bits: part of the ExecutionIdentity, e.g. `torch-cpu-avx512_bf16`."""
        ...

    @property
    def device(self) -> str:
        """For people: `torch on CPU, 2 threads`."""
        ...

    @property
    def dtype(self) -> str:
        """Of activations and weights: `float32` or `bfloat16`."""
        ...

    @property
    def kv_dtype(self) -> str:
        """What keys and values are held in: `float32`, `bfloat16`, `int8` or `fp8_e4m3`. Holding is all that rounds them."""
        ...

    def computing(self) -> AbstractContextManager[object]:
        """Held around everything below that computes, by the thread that does."""
        ...

    def record(self, forward: Forward) -> Forward:
        """A function that gives the same bits: `forward` itself, or a recording of the operations that it calls.

        A recording calls `forward` once, now, with placeholders for its arguments; its caches, tables and weights must stay.
        """
        ...

    # Loading

    def load_vector(self, tensor: HostTensor, *, plus: float = 0.0) -> Tensor:
        """A norm's weight, `plus` added, kept in float32: [size]."""
        ...

    def load_linear(self, weights: Sequence[HostTensor], biases: Sequence[HostTensor] = ()) -> Weight:
        """Projections of one input, stacked: [num_out_0 + num_out_1 + ..., num_in]. `biases`: none, or one per weight.

        A part whose `interleaved_heads` is set has its rows reordered to halves first.
        """
        ...

    def load_embedding(self, table: HostTensor) -> Weight:
        """[vocab_size, hidden_size], for `embed`."""
        ...

    def rope_table(self, frequencies: Sequence[float], *, attention_factor: float, num_positions: int) -> Tensor:
        """cos and sin of `position * frequency`, times `attention_factor`, in float32, for positions below `num_positions`.

        `frequencies`: [rotary_dim / 2], in radians per position.
        """
        ...

    def allocate_kv(self, shape: AttentionShape, *, num_blocks: int, block_size: int) -> KVLayer:
        """One layer's keys and values, zeroed: never-written places must be finite."""
        ...

    def kv_bytes_per_token(self, shape: AttentionShape) -> int:
        """Bytes that `allocate_kv` takes per token place."""
        ...

    # The step's metadata

    def token_ids(self, ids: Sequence[int]) -> Tensor:
        """Ids on the device: [num_tokens]."""
        ...

    def row_ids(self, rows: Sequence[int]) -> Tensor:
        """Rows of the step, for `select_rows`: [num_rows]."""
        ...

    def place(self, spans: Sequence[SequenceSpan], *, block_size: int, windows: Sequence[int | None]) -> Placement:
        """Lays the step out. `windows`: the distinct windows of the model's layers.

        Spans of one token come first, the longest of them at the front: neighbours of like length share padding.
        """
        ...

    def rotation(self, table: Tensor, placement: Placement) -> Rotation:
        """The table's rows at the step's positions."""
        ...

    # Computing

    def embed(self, ids: Tensor, table: Weight, *, multiplier: float = 1.0) -> Tensor:
        """table[ids] * multiplier: [num_tokens, hidden_size]. The multiplier is rounded to the compute dtype first."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension, all in float32, rounded once at the end."""
        ...

    def linear(self, x: Tensor, weight: Weight, *, add_to: Tensor | None = None) -> Tensor:
        """x @ weight^T + bias (+ add_to), accumulated in float32: [num_tokens, num_out]."""
        ...

    def add(self, x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
        """x + scale * y."""
        ...

    def gated_linear(self, x: Tensor, gate: Weight, up: Weight, activation: Activation) -> Tensor:
        """activation(linear(x, gate)) * linear(x, up): [num_tokens, num_out]."""
        ...

    def rope_and_cache(
        self,
        qkv: Tensor,
        kv: KVLayer,
        placement: Placement,
        shape: AttentionShape,
        *,
        rotation: Rotation | None,
        norm: QKNorm | None,
    ) -> Tensor:
        """Norms and rotates queries and keys, writes keys and values to their slots, returns the queries for `attention`.

        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]. The rotation pairs dimension i with i + rotary_dim / 2
        (half-split), over the first rotary_dim dimensions of a head; `rotation` None leaves positions out.
        """
        ...

    def attention(self, q: Tensor, kv: KVLayer, placement: Placement, shape: AttentionShape) -> Tensor:
        """Causal attention of every row over its own sequence's cache, this step's tokens included.

        q: what `rope_and_cache` returned. Result: [num_tokens, num_heads * head_dim].
        """
        ...

    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """x[rows]: [num_rows, hidden_size]."""
        ...

    def logits(self, x: Tensor, weight: Weight, *, multiplier: float = 1.0, softcap: float | None = None) -> Tensor:
        """x @ weight^T * multiplier, soft-capped, in float32: [num_rows, vocab_size]."""
        ...

    def copy_blocks(self, kv: KVLayer, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks, one (from, to) after another."""
        ...

    def make_finite(self, kv: KVLayer, block_ids: Sequence[int]) -> None:
        """Replaces what is not finite in these blocks, so that a later owner's unwritten places cannot poison its sums."""
        ...

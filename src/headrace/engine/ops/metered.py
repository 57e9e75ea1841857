"""MeteredOps: another implementation's operations, each call timed and counted.

Knows what an operation has to read, write and compute, by its shapes and its weights' storage. Does not know how it is
carried out. Counts are of what is unavoidable: every weight, key and value once, whatever a kernel reads again.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from headrace.base.clock import Clock
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.protocol import (
    AttentionShape,
    Forward,
    KVLayer,
    Ops,
    Placement,
    QKNorm,
    Rotation,
    SequenceSpan,
    Tensor,
    Weight,
)
from headrace.engine.ops.storage import storage_bytes
from headrace.measure.report.roofline import KernelCall
from headrace.specs.model import Activation

Result = TypeVar("Result")

_FLOAT = 4
"""Bytes of an activation."""

Holding = Callable[[str], tuple[str, str]]
"""By the storage format in the file: the format in memory, and the arithmetic of products with it: f32, bf16 or int8."""


@dataclass(frozen=True, slots=True)
class _WeightFacts:
    weight: Weight
    """Kept, so that its identity stays its own."""
    num_in: int
    num_out: int
    num_bytes: int
    storage: str
    kind: str

    def operations(self, num_rows: int) -> int:
        return 2 * num_rows * self.num_in * self.num_out


class MeteredOps:
    """Implements `Ops`."""

    def __init__(self, ops: Ops, clock: Clock, holding: Holding) -> None:
        self._ops = ops
        self._clock = clock
        self._holding = holding
        self._weights: dict[int, _WeightFacts] = {}
        self._spans: Sequence[SequenceSpan] = ()
        self._calls: list[KernelCall] = []

    @property
    def processor(self) -> str:
        return self._ops.processor

    @property
    def device(self) -> str:
        return self._ops.device

    @property
    def dtype(self) -> str:
        return self._ops.dtype

    @property
    def kv_dtype(self) -> str:
        return self._ops.kv_dtype

    def computing(self) -> AbstractContextManager[object]:
        return self._ops.computing()

    def take_calls(self) -> list[KernelCall]:
        """Those that computed since they were last taken, in order."""
        calls, self._calls = self._calls, []
        return calls

    def _timed(
        self,
        name: str,
        compute: Callable[[], Result],
        *,
        operations: int,
        passed: int,
        streamed: int = 0,
        kind: str = "f32",
    ) -> Result:
        """`passed`: activations read and written, in numbers."""
        began = self._clock.now()
        result = compute()
        duration = self._clock.now() - began
        self._calls.append(KernelCall(name, duration, operations, kind, streamed, passed * _FLOAT))
        return result

    def record(self, forward: Forward) -> Forward:
        """Nothing is recorded: a replayed tape has no calls to time."""
        return forward

    # Loading

    def load_vector(self, tensor: HostTensor, *, plus: float = 0.0) -> Tensor:
        return self._ops.load_vector(tensor, plus=plus)

    def load_linear(self, weights: Sequence[HostTensor], biases: Sequence[HostTensor] = ()) -> Weight:
        weight = self._ops.load_linear(weights, biases)
        self._remember(weight, weights)
        return weight

    def load_embedding(self, table: HostTensor) -> Weight:
        weight = self._ops.load_embedding(table)
        self._remember(weight, [table])
        return weight

    def _remember(self, weight: Weight, tensors: Sequence[HostTensor]) -> None:
        held = [self._holding(tensor.storage) for tensor in tensors]
        kinds = {kind: prod(tensor.shape) for (_, kind), tensor in zip(held, tensors, strict=True)}
        self._weights[id(weight)] = _WeightFacts(
            weight=weight,
            num_in=tensors[0].shape[-1],
            num_out=sum(tensor.shape[0] for tensor in tensors),
            num_bytes=sum(storage_bytes(storage, t.shape) for (storage, _), t in zip(held, tensors, strict=True)),
            storage="+".join(dict.fromkeys(storage for storage, _ in held)),
            kind=max(kinds, key=lambda kind: kinds[kind]),
        )

    def rope_table(self, frequencies: Sequence[float], *, attention_factor: float, num_positions: int) -> Tensor:
        return self._ops.rope_table(frequencies, attention_factor=attention_factor, num_positions=num_positions)

    def allocate_kv(self, shape: AttentionShape, *, num_blocks: int, block_size: int) -> KVLayer:
        return self._ops.allocate_kv(shape, num_blocks=num_blocks, block_size=block_size)

    def kv_bytes_per_token(self, shape: AttentionShape) -> int:
        return self._ops.kv_bytes_per_token(shape)

    # The step's metadata

    def token_ids(self, ids: Sequence[int]) -> Tensor:
        return self._ops.token_ids(ids)

    def row_ids(self, rows: Sequence[int]) -> Tensor:
        return self._ops.row_ids(rows)

    def place(self, spans: Sequence[SequenceSpan], *, block_size: int, windows: Sequence[int | None]) -> Placement:
        self._spans = spans
        return self._ops.place(spans, block_size=block_size, windows=windows)

    def rotation(self, table: Tensor, placement: Placement) -> Rotation:
        return self._ops.rotation(table, placement)

    # Computing

    def embed(self, ids: Tensor, table: Weight, *, multiplier: float = 1.0) -> Tensor:
        facts = self._weights[id(table)]
        num_rows = len(ids)
        return self._timed(
            f"embed {facts.num_in} {facts.storage}",
            lambda: self._ops.embed(ids, table, multiplier=multiplier),
            operations=num_rows * facts.num_in,
            streamed=num_rows * facts.num_bytes // facts.num_out,
            passed=num_rows * facts.num_in,
        )

    def rms_norm(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        num_rows, size = x.shape
        return self._timed(
            f"rms_norm {size}",
            lambda: self._ops.rms_norm(x, weight, eps=eps),
            operations=4 * num_rows * size,
            passed=(2 * num_rows + 1) * size,
        )

    def linear(self, x: Tensor, weight: Weight, *, add_to: Tensor | None = None) -> Tensor:
        facts = self._weights[id(weight)]
        num_rows = x.shape[0]
        adds = add_to is not None
        return self._timed(
            f"linear {facts.num_in} > {facts.num_out} {facts.storage}",
            lambda: self._ops.linear(x, weight, add_to=add_to),
            operations=facts.operations(num_rows),
            kind=facts.kind,
            streamed=facts.num_bytes,
            passed=num_rows * (facts.num_in + facts.num_out * (2 if adds else 1)),
        )

    def add(self, x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
        num_rows, size = x.shape
        return self._timed(
            f"add {size}",
            lambda: self._ops.add(x, y, scale=scale),
            operations=2 * num_rows * size,
            passed=3 * num_rows * size,
        )

    def gated_linear(self, x: Tensor, gate: Weight, up: Weight, activation: Activation) -> Tensor:
        first, second = self._weights[id(gate)], self._weights[id(up)]
        num_rows = x.shape[0]
        return self._timed(
            f"gated_linear {first.num_in} > 2 x {first.num_out} {first.storage}",
            lambda: self._ops.gated_linear(x, gate, up, activation),
            operations=first.operations(num_rows) + second.operations(num_rows),
            kind=first.kind,
            streamed=first.num_bytes + second.num_bytes,
            passed=num_rows * (first.num_in + first.num_out),
        )

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
        num_rows, size = qkv.shape
        rotated = (shape.num_heads + shape.num_kv_heads) * shape.head_dim
        return self._timed(
            f"rope_and_cache {shape.num_heads}+2x{shape.num_kv_heads} heads of {shape.head_dim}",
            lambda: self._ops.rope_and_cache(qkv, kv, placement, shape, rotation=rotation, norm=norm),
            operations=num_rows * rotated * ((3 if rotation is not None else 0) + (4 if norm is not None else 0)),
            streamed=num_rows * self._ops.kv_bytes_per_token(shape),
            passed=num_rows * (size + shape.num_heads * shape.head_dim),
        )

    def attention(self, q: Tensor, kv: KVLayer, placement: Placement, shape: AttentionShape) -> Tensor:
        width = shape.num_heads * shape.head_dim
        read = sum(_tokens_read(span, shape.window) for span in self._spans)
        scored = sum(_scores(span, shape.window) for span in self._spans)
        return self._timed(
            f"attention {shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}",
            lambda: self._ops.attention(q, kv, placement, shape),
            operations=4 * width * scored,  # q.k and p.v, a multiplication and an addition each
            kind="bf16" if self._ops.dtype == "bfloat16" else "f32",
            streamed=read * self._ops.kv_bytes_per_token(shape),
            passed=2 * sum(span.num_tokens for span in self._spans) * width,
        )

    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        size = x.shape[1]
        return self._timed(
            f"select_rows {size}", lambda: self._ops.select_rows(x, rows), operations=0, passed=2 * len(rows) * size
        )

    def logits(self, x: Tensor, weight: Weight, *, multiplier: float = 1.0, softcap: float | None = None) -> Tensor:
        facts = self._weights[id(weight)]
        num_rows = x.shape[0]
        return self._timed(
            f"logits {facts.num_in} > {facts.num_out} {facts.storage}",
            lambda: self._ops.logits(x, weight, multiplier=multiplier, softcap=softcap),
            operations=facts.operations(num_rows),
            kind=facts.kind,
            streamed=facts.num_bytes if num_rows else 0,
            passed=num_rows * (facts.num_in + facts.num_out),
        )

    def copy_blocks(self, kv: KVLayer, pairs: Sequence[tuple[int, int]]) -> None:
        self._ops.copy_blocks(kv, pairs)

    def make_finite(self, kv: KVLayer, block_ids: Sequence[int]) -> None:
        self._ops.make_finite(kv, block_ids)


def _tokens_read(span: SequenceSpan, window: int | None) -> int:
    """Token places whose keys and values a span's rows see between them."""
    end = span.num_computed_tokens + span.num_tokens
    first = 0 if window is None else max(0, span.num_computed_tokens + 1 - window)
    return end - first


def _scores(span: SequenceSpan, window: int | None) -> int:
    """Pairs of a row and a place that it sees.

    >>> _scores(SequenceSpan(2, 3, ()), None), _scores(SequenceSpan(2, 3, ()), 4)
    (12, 11)
    """
    positions = range(span.num_computed_tokens, span.num_computed_tokens + span.num_tokens)
    return sum(position + 1 if window is None else min(window, position + 1) for position in positions)

"""What is counted of each operation, over ops that take a stated time and compute nothing."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.clock import ManualClock
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.metered import MeteredOps
from headrace.engine.ops.protocol import AttentionShape, SequenceSpan
from headrace.measure.report.roofline import KernelCall
from headrace.specs.model import Activation

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0)


class StatedOps:
    """Every operation takes 700 ns and gives a tensor of a stated shape."""

    dtype, processor, device = "float32", "native-test", "a test"

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        def operation(*arguments: Any, **_: Any) -> Any:
            self._clock.advance(700)
            return SimpleNamespace(shape=(3, 32), made_by=name)

        return operation

    def kv_bytes_per_token(self, shape: AttentionShape) -> int:
        return 2 * shape.num_kv_heads * shape.head_dim * 4


def rows(num_rows: int, size: int) -> Any:
    return SimpleNamespace(shape=(num_rows, size))


def tensor(storage: str, *shape: int) -> HostTensor:
    return HostTensor("a weight", storage, shape, memoryview(b""))


def holding(storage: str) -> tuple[str, str]:
    return (storage, "int8") if storage.startswith("Q") else ("F32", "f32")


@pytest.fixture
def ops() -> MeteredOps:
    clock = ManualClock()
    return MeteredOps(StatedOps(clock), clock, holding)


def only(ops: MeteredOps) -> KernelCall:
    (call,) = ops.take_calls()
    assert call.duration_ns == 700, "and nothing but the operation is timed"
    return call


def test_a_product_streams_its_weight_as_it_is_held_and_does_two_operations_a_number(ops: MeteredOps) -> None:
    weight = ops.load_linear([tensor("Q4_1", 32, 64), tensor("Q4_1", 16, 64)])
    ops.linear(rows(5, 64), weight)
    call = only(ops)
    assert call.name == "linear 64 > 48 Q4_1"
    assert (call.operations, call.kind) == (2 * 5 * 48 * 64, "int8")
    assert call.streamed_bytes == 48 * 64 // 32 * 20
    assert call.passed_bytes == 4 * 5 * (64 + 48)


def test_what_is_added_to_is_read_too(ops: MeteredOps) -> None:
    weight = ops.load_linear([tensor("F32", 48, 64)])
    ops.linear(rows(5, 64), weight, add_to=rows(5, 48))
    assert only(ops).passed_bytes == 4 * 5 * (64 + 48 + 48)


def test_a_format_that_is_held_as_another_counts_as_that(ops: MeteredOps) -> None:
    weight = ops.load_linear([tensor("F16", 48, 64)])
    ops.logits(rows(1, 64), weight)
    call = only(ops)
    assert (call.streamed_bytes, call.kind) == (48 * 64 * 4, "f32")


def test_a_gated_product_streams_both_weights(ops: MeteredOps) -> None:
    gate, up = ops.load_linear([tensor("Q8_0", 96, 64)]), ops.load_linear([tensor("Q8_0", 96, 64)])
    ops.gated_linear(rows(2, 64), gate, up, Activation.SILU)
    call = only(ops)
    assert call.streamed_bytes == 2 * 96 * 64 // 32 * 34
    assert call.operations == 2 * (2 * 2 * 96 * 64)


@pytest.mark.parametrize(
    ("spans", "window", "scores", "read"),
    [
        ([SequenceSpan(9, 1, ())], None, 10, 10),
        ([SequenceSpan(0, 4, ())], None, 1 + 2 + 3 + 4, 4),
        ([SequenceSpan(9, 1, ()), SequenceSpan(4, 2, ())], None, 10 + 5 + 6, 10 + 6),
        ([SequenceSpan(9, 1, ())], 4, 4, 4),
        ([SequenceSpan(2, 3, ())], 4, 3 + 4 + 4, 5),
    ],
)
def test_attention_reads_each_place_once_and_scores_what_each_row_sees(
    ops: MeteredOps, spans: Sequence[SequenceSpan], window: int | None, scores: int, read: int
) -> None:
    shape = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, window=window)
    ops.place(spans, block_size=16, windows=(window,))
    ops.attention(object(), object(), object(), shape)
    call = only(ops)
    assert call.operations == 4 * 4 * 8 * scores
    assert call.streamed_bytes == read * 2 * 2 * 8 * 4
    assert call.passed_bytes == 4 * 2 * sum(span.num_tokens for span in spans) * 4 * 8


def test_embedding_streams_a_row_for_each_token(ops: MeteredOps) -> None:
    table = ops.load_embedding(tensor("Q8_0", 100, 64))
    ops.embed([3, 4, 5], table)
    assert only(ops).streamed_bytes == 3 * 64 // 32 * 34


def test_small_operations_pass_their_rows_on(ops: MeteredOps) -> None:
    ops.rms_norm(rows(3, 64), object(), eps=1e-5)
    ops.add(rows(3, 64), rows(3, 64))
    ops.select_rows(rows(3, 64), [1])
    ops.rope_and_cache(rows(3, 64), object(), object(), SHAPE, rotation=object(), norm=None)
    norm, add, select, rope = ops.take_calls()
    assert norm.passed_bytes == 4 * (2 * 3 + 1) * 64
    assert add.passed_bytes == 4 * 3 * 3 * 64
    assert select.passed_bytes == 4 * 2 * 64
    assert rope.passed_bytes == 4 * 3 * (64 + 32)
    assert rope.streamed_bytes == 3 * 2 * 2 * 8 * 4


def test_what_does_not_compute_is_not_counted(ops: MeteredOps) -> None:
    ops.token_ids([1])
    ops.allocate_kv(SHAPE, num_blocks=1, block_size=16)
    ops.copy_blocks(object(), [(0, 1)])
    assert ops.take_calls() == []

"""The native ops against plain formulas in float64, on every instruction set that this processor has, and row by row."""

import math
import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu.test_ops_torch import Case, cases, dense_attention, host_tensor, make_case

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.dequantize import dequantize
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.protocol import AttentionShape, QKNorm, SequenceSpan
from headrace.engine.ops.storage import STORAGE_BLOCKS
from headrace.engine.ops.torch.ops import DTYPES
from headrace.specs.model import Activation

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

from headrace.engine.ops.native import _kernels
from headrace.engine.ops.native.ops import KV_DTYPES, NativeOps

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_ALL_ISAS = ("portable", "avx2", "avx512_vnni", "avx512_bf16", "amx")


def _has(isa: str) -> bool:
    try:
        _kernels.Engine(1, isa)
    except ValueError:
        return False
    return True


ISAS = [isa for isa in _ALL_ISAS if _has(isa)]
BLOCKED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "INT4_G32", "INT4_G64", "INT4_G128"]
"""Formats whose products round their rows to int8 by blocks of 32."""
FORMATS = [*BLOCKED, "INT8_CHANNEL", "F16", "BF16", "F32"]

_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where in a block its halves stand, if not at its beginning."""


def ops_of(dtype: str = "float32", *, isa: str = "", num_threads: int = 2, kv_dtype: str = "") -> NativeOps:
    return NativeOps(dtype=dtype, num_threads=num_threads, isa=isa, kv_dtype=kv_dtype)


def tensor(ops: NativeOps, x: Floats) -> _kernels.Tensor:
    return ops._engine.from_array(np.ascontiguousarray(x, np.float32))


def random_weight(storage: str, num_out: int, num_in: int, seed: int) -> HostTensor:
    """Random blocks, every bit pattern of the integers among them."""
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal((num_out, num_in)).astype(np.float32)
    match storage:
        case "F32":
            data = floats.tobytes()
        case "F16":
            data = floats.astype(np.float16).tobytes()
        case "BF16":
            data = (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        case "INT8_CHANNEL":
            rows = rng.integers(0, 256, (num_out, 4 + num_in), dtype=np.uint8)
            rows[:, :4] = rng.standard_normal((num_out, 1)).astype(np.float32).view(np.uint8)
            data = rows.tobytes()
        case _:
            data = _random_blocks(storage, num_out * num_in, rng)
    return HostTensor("w", storage, (num_out, num_in), memoryview(data))


def _random_blocks(storage: str, num_elements: int, rng: np.random.Generator) -> bytes:
    block = STORAGE_BLOCKS[storage]
    blocks = rng.integers(0, 256, (num_elements // block.num_elements, block.num_bytes), dtype=np.uint8)
    if storage.startswith("INT4"):
        # Scales that float16, bfloat16 or neither holds; zero points all 8, or any.
        bits = rng.standard_normal((len(blocks), 1)).astype(np.float32).view(np.uint32)
        bits &= np.uint32(rng.choice([0xFFFFE000, 0xFFFF0000, 0xFFFFFFFF]))
        blocks[:, :4] = bits.view(np.uint8)
        blocks[:, 4] = 8 if rng.integers(2) else blocks[:, 4] & 15
    for at in () if storage.startswith("INT4") else _HALVES.get(storage, (0,)):
        blocks[:, at : at + 2] = rng.standard_normal((len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.tobytes()


def block_numbers(storage: str) -> int:
    """Of how many numbers rows must be multiples."""
    return max(32, STORAGE_BLOCKS[storage].num_elements)


def numbers(weight: HostTensor) -> Doubles:
    return dequantize(weight.storage, weight.data, weight.shape).astype(np.float64)


def quantized_rows(x: Floats, storage: str) -> Doubles:
    """Rows as products with such weights see them: int8 by blocks of 32, or by whole rows."""
    if storage not in (*BLOCKED, "INT8_CHANNEL"):
        return x.astype(np.float64)
    blocks = x.reshape(len(x), -1, 32 if storage in BLOCKED else x.shape[1])
    scale = np.abs(blocks).max(axis=-1, keepdims=True) * np.float32(1 / 127)
    whole = np.round(blocks / np.where(scale > 0, scale, 1))
    seen: Doubles = (whole.astype(np.float64) * scale).reshape(x.shape)
    return seen


def leave_rubbish(ops: NativeOps, *, rows: int, num_out: int, num_in: int) -> None:
    """Fills what the next product will reuse, its scratch memory and its output, with what is not a number."""
    nothing = np.full((64, 2 * num_in), np.nan, np.float32)
    ops.linear(tensor(ops, nothing), ops.load_linear([random_weight("F32", 16, 2 * num_in, 0)]))
    assert np.isnan(tensor(ops, np.full((rows, num_out), np.nan, np.float32)).numpy()).all()


def relative_error(ours: Floats, expected: Doubles) -> float:
    return float(np.sqrt(np.mean((ours - expected) ** 2) / np.mean(expected**2)))


# Products


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", FORMATS)
@settings(max_examples=12)
@given(
    rows=st.integers(1, 64),
    num_out=st.integers(1, 70),
    num_blocks=st.integers(1, 5),
    has_bias=st.booleans(),
    adds=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_products_are_those_of_the_stored_numbers_with_rows_rounded_as_told(
    isa: str, storage: str, rows: int, num_out: int, num_blocks: int, has_bias: bool, adds: bool, seed: int
) -> None:
    ops, num_in = ops_of(isa=isa), num_blocks * block_numbers(storage)
    rng = np.random.default_rng(seed)
    weight = random_weight(storage, num_out, num_in, seed)
    x = rng.standard_normal((rows, num_in)).astype(np.float32)
    bias, residual = rng.standard_normal(num_out).astype(np.float32), rng.standard_normal((rows, num_out)).astype(np.float32)
    with ops.computing():
        loaded = ops.load_linear([weight], [host_tensor(torch.from_numpy(bias))] if has_bias else [])
        leave_rubbish(ops, rows=rows, num_out=num_out, num_in=num_in)
        ours = ops.linear(tensor(ops, x), loaded, add_to=tensor(ops, residual) if adds else None).numpy()
    expected = quantized_rows(x, storage) @ numbers(weight).T + (bias if has_bias else 0) + (residual if adds else 0)
    # Quotients next to a half may round to either side of it; each such choice is a 254th of a block's greatest number.
    tolerance = 2e-3 if storage in (*BLOCKED, "INT8_CHANNEL") else 1e-5
    assert relative_error(ours, expected) < tolerance


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", [*BLOCKED, "INT8_CHANNEL"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_sums_of_the_greatest_integers_do_not_overflow(isa: str, storage: str, sign: int, byte: int) -> None:
    ops, num_in = ops_of(isa=isa), 2 * max(64, block_numbers(storage))
    random = random_weight(storage, 16, num_in, 0)
    raw = np.frombuffer(random.data, np.uint8).reshape(-1, 4 + num_in if storage == "INT8_CHANNEL" else block_bytes(storage))
    blocks = np.full_like(raw, byte)
    kept = {"Q4_1": range(4), "Q5_1": range(4), "Q4_K": range(16), "Q5_K": range(16), "Q6_K": range(192, 210)}
    scales = list(kept.get(storage, range(5 if storage.startswith("INT4") else 4 if storage == "INT8_CHANNEL" else 2)))
    blocks[:, scales] = raw[:, scales]
    weight = HostTensor("w", storage, (16, num_in), memoryview(blocks.tobytes()))
    x = np.full((9, num_in), sign, np.float32)
    with ops.computing():
        ours = ops.linear(tensor(ops, x), ops.load_linear([weight])).numpy()
    size = np.abs(x).astype(np.float64) @ np.abs(numbers(weight)).T
    assert (np.abs(ours - x.astype(np.float64) @ numbers(weight).T) <= 1e-5 * size + 1e-6).all()


def block_bytes(storage: str) -> int:
    return STORAGE_BLOCKS[storage].num_bytes


@pytest.mark.parametrize("storage", [*BLOCKED, "INT8_CHANNEL"])
def test_rounding_rows_to_int8_costs_less_than_a_hundredth_of_the_result(storage: str) -> None:
    ops = ops_of()
    x = np.random.default_rng(0).standard_normal((64, 1536)).astype(np.float32)
    weight = random_weight(storage, 576, 1536, 0)
    with ops.computing():
        ours = ops.linear(tensor(ops, x), ops.load_linear([weight])).numpy()
    assert relative_error(ours, x.astype(np.float64) @ numbers(weight).T) < 0.01


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_bfloat16_meet_bfloat16_weights(isa: str) -> None:
    ops = ops_of("bfloat16", isa=isa)
    x = np.random.default_rng(0).standard_normal((19, 131)).astype(np.float32)
    weight = random_weight("BF16", 45, 131, 0)
    with ops.computing():
        ours = ops.linear(tensor(ops, x), ops.load_linear([weight])).numpy()
    assert relative_error(ours, x.astype(np.float64) @ numbers(weight).T) < 4e-3


def test_parts_in_different_formats_are_stacked() -> None:
    ops = ops_of()
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    parts = [random_weight(storage, n, 64, n) for storage, n in (("Q4_1", 20), ("Q8_0", 33), ("F32", 7), ("F32", 12))]
    with ops.computing():
        ours = ops.linear(tensor(ops, x), ops.load_linear(parts)).numpy()
        for part, start, end in zip(parts, (0, 20, 53, 60), (20, 53, 60, 72), strict=True):
            assert np.array_equal(ours[:, start:end], ops.linear(tensor(ops, x), ops.load_linear([part])).numpy())


def test_what_no_kernel_takes_is_held_as_the_compute_dtype() -> None:
    x = np.random.default_rng(0).standard_normal((5, 256)).astype(np.float32)
    weight = random_weight("Q3_K", 20, 256, 0)
    blocks = np.frombuffer(weight.data, np.uint8).reshape(20, -1).copy()
    blocks[:, -2:] = np.full((20, 1), 0.01, np.float16).view(np.uint8)  # d stands last
    weight = HostTensor("w", "Q3_K", weight.shape, memoryview(blocks.tobytes()))
    expected = x.astype(np.float64) @ numbers(weight).T
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 5e-3)):
        ops = ops_of(dtype)
        with ops.computing():
            assert relative_error(ops.linear(tensor(ops, x), ops.load_linear([weight])).numpy(), expected) < tolerance


def test_rows_of_interleaved_heads_are_brought_to_halves_bias_included() -> None:
    ops = ops_of()
    rows = torch.arange(12.0)  # two heads of x0 y0 x1 y1 x2 y2
    expected = np.array([0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11.0])
    with ops.computing():
        weight = ops.load_linear(
            [host_tensor(rows[:, None], interleaved_heads=2)], [host_tensor(rows * 10, interleaved_heads=2)]
        )
        ours = ops.linear(tensor(ops, np.ones((3, 1), np.float32)), weight).numpy()
    assert np.array_equal(ours, np.broadcast_to(expected * 11, (3, 12)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", Activation)
def test_gated_linear_multiplies_the_activated_gate_with_the_other_projection(isa: str, activation: Activation) -> None:
    ops = ops_of(isa=isa)
    torch.manual_seed(0)
    gate, up, x = (torch.randn(n, 64) for n in (100, 100, 9))
    bias = torch.randn(100)
    with ops.computing():
        gate_weight = ops.load_linear([host_tensor(gate)], [host_tensor(bias)])
        ours = ops.gated_linear(tensor(ops, x.numpy()), gate_weight, ops.load_linear([host_tensor(up)]), activation).numpy()
    formulas: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
        Activation.SILU: F.silu,
        Activation.GELU: F.gelu,
        Activation.GELU_TANH: lambda t: F.gelu(t, approximate="tanh"),
    }
    activated = formulas[activation](x.double() @ gate.double().T + bias.double())
    assert relative_error(ours, (activated * (x.double() @ up.double().T)).numpy()) < 1e-5


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("storage", FORMATS)
def test_the_bits_of_a_projected_row_do_not_depend_on_how_many_rows_there_are(isa: str, dtype: str, storage: str) -> None:
    ops = ops_of(dtype, isa=isa)
    rng = np.random.default_rng(0)
    num_in = 192 if 192 % block_numbers(storage) == 0 else 256
    x, residual = (rng.standard_normal((130, n)).astype(np.float32) for n in (num_in, 80))
    with ops.computing():
        weight, other = (ops.load_linear([random_weight(storage, 80, num_in, seed)]) for seed in (1, 2))
        whole = ops.linear(tensor(ops, x), weight, add_to=tensor(ops, residual)).numpy().copy()
        gated = ops.gated_linear(tensor(ops, x), weight, other, Activation.SILU).numpy().copy()
        for first, end in [*((0, n) for n in range(1, 36)), (3, 50), (1, 65), (64, 129), (129, 130)]:
            mine = tensor(ops, x[first:end])
            ours = ops.linear(mine, weight, add_to=tensor(ops, residual[first:end])).numpy()
            assert np.array_equal(ours, whole[first:end]), (first, end)
            both = ops.gated_linear(mine, weight, other, Activation.SILU).numpy()
            assert np.array_equal(both, gated[first:end]), (first, end)


@pytest.mark.parametrize("isa", ISAS)
@settings(deadline=None, max_examples=40)
@given(
    num_threads=st.integers(1, 3),
    parts=st.lists(st.tuples(st.sampled_from(FORMATS), st.integers(1, 200)), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_a_row_alone_has_the_bits_that_it_has_beside_others_however_many_tiles_there_are(
    isa: str, num_threads: int, parts: list[tuple[str, int]], seed: int
) -> None:
    ops = ops_of(isa=isa, num_threads=num_threads)
    num_in, num_out = 256, sum(n for _, n in parts)
    x = np.random.default_rng(seed).standard_normal((2, num_in)).astype(np.float32)
    with ops.computing():
        weight = ops.load_linear([random_weight(storage, n, num_in, seed) for storage, n in parts])
        both = ops.linear(tensor(ops, x), weight).numpy().copy()
        leave_rubbish(ops, rows=1, num_out=num_out, num_in=num_in)
        alone = ops.linear(tensor(ops, x[:1]), weight).numpy()
    assert np.array_equal(alone, both[:1])


@pytest.mark.skipif("amx" not in ISAS, reason="AMX is not there, or not granted")
@pytest.mark.parametrize("storage", [*BLOCKED, "INT8_CHANNEL"])
@settings(max_examples=20)
@given(rows=st.integers(1, 300), num_out=st.integers(1, 70), num_blocks=st.integers(1, 9), seed=st.integers(0, 1000))
def test_tile_products_have_the_bits_of_vector_products(
    storage: str, rows: int, num_out: int, num_blocks: int, seed: int
) -> None:
    num_in = num_blocks * block_numbers(storage)
    weight = random_weight(storage, num_out, num_in, seed)
    x = np.random.default_rng(seed).standard_normal((rows, num_in)).astype(np.float32)

    def result(isa: str) -> Floats:
        ops = ops_of(isa=isa)
        with ops.computing():
            leave_rubbish(ops, rows=rows, num_out=num_out, num_in=num_in)
            return ops.linear(tensor(ops, x), ops.load_linear([weight])).numpy().copy()

    assert np.array_equal(result("amx"), result("avx512_bf16"), equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_stays_so_and_spoils_no_other(isa: str, storage: str, poison: float) -> None:
    ops = ops_of(isa=isa)
    x = np.random.default_rng(0).standard_normal((20, max(64, block_numbers(storage)))).astype(np.float32)
    with ops.computing():
        weight = ops.load_linear([random_weight(storage, 40, x.shape[1], 0)])
        clean = ops.linear(tensor(ops, x), weight).numpy().copy()
        x[7, 33] = poison
        ours = ops.linear(tensor(ops, x), weight).numpy()
    assert not np.isfinite(ours[7]).any()
    assert np.array_equal(np.delete(ours, 7, axis=0), np.delete(clean, 7, axis=0))


def test_logits_are_scaled_and_capped() -> None:
    ops = ops_of()
    torch.manual_seed(0)
    table, x = torch.randn(50, 32), torch.randn(3, 32)
    with ops.computing():
        ours = ops.logits(tensor(ops, x.numpy()), ops.load_linear([host_tensor(table)]), multiplier=0.25, softcap=3.0)
    expected = 3 * torch.tanh(x.double() @ table.double().T * 0.25 / 3)
    assert relative_error(ours, expected.numpy()) < 1e-6


# Attention


def run_paged(ops: NativeOps, case: Case) -> list[Floats]:
    """What earlier steps would have computed, a span at a time in chunks; then one step of all spans."""
    shape = case.shape
    with ops.computing():
        kv = ops.allocate_kv(shape, num_blocks=case.num_blocks, block_size=case.block_size)
        kv.array()[:] = np.frombuffer(np.random.default_rng(0).bytes(kv.array().size), np.uint8)  # what others left
        ops.make_finite(kv, range(case.num_blocks))

        def write(spans: list[SequenceSpan], sequences: list[int]) -> tuple[_kernels.Tensor, _kernels.Placement]:
            rows = []
            for span, i in zip(spans, sequences, strict=True):
                first, end = span.num_computed_tokens, span.num_computed_tokens + span.num_tokens
                queries = torch.zeros(span.num_tokens, shape.num_heads, shape.head_dim)
                if span == case.spans[i]:
                    queries = case.queries[i]
                rows.append(torch.cat([queries, case.keys[i][first:end], case.values[i][first:end]], dim=1).flatten(1))
            placement = ops.place(spans, block_size=case.block_size, windows=[shape.window])
            qkv = tensor(ops, torch.cat(rows).numpy())
            return ops.rope_and_cache(qkv, kv, placement, shape, rotation=None, norm=None), placement

        for i, span in enumerate(case.spans):
            if span.num_computed_tokens:
                write([SequenceSpan(0, span.num_computed_tokens, span.block_ids)], [i])
        q, placement = write(case.spans, list(range(len(case.spans))))
        out = ops.attention(q, kv, placement, shape).numpy()
    ends = np.cumsum([span.num_tokens for span in case.spans])
    return [part.copy() for part in np.split(out, ends[:-1])]


def in_pages(case: Case) -> Case:
    """The same sequences in blocks of 32: two pages each."""
    lengths = [(span.num_computed_tokens, span.num_tokens) for span in case.spans]
    return make_case(case.shape, 32, lengths, random.Random(len(lengths)))


def as_held(x: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    """What the cache makes of keys or values: [tokens, heads, head_dim]."""
    if kv_dtype in ("float32", "bfloat16"):
        return x.to(DTYPES[kv_dtype]).float()
    most = np.float32(127 if kv_dtype == "int8" else 448)
    numbers = x.numpy()
    greatest = np.abs(numbers).max(axis=-1, keepdims=True)
    scaled = numbers * (most / greatest)
    codes = np.round(scaled) if kv_dtype == "int8" else torch.from_numpy(scaled).to(torch.float8_e4m3fn).float().numpy()
    return torch.from_numpy(codes * (greatest / most))


def held(case: Case, kv_dtype: str, isa: str) -> Case:
    """The case that is computed: of keys and values as the cache holds them, and of queries as they meet them."""
    keys, values = ([as_held(x, kv_dtype) for x in tensors] for tensors in (case.keys, case.values))
    queries = case.queries
    if multiplies_bfloat16(kv_dtype, isa):
        scale = 1.0 if isa != "amx" else case.shape.scale if case.shape.softcap else case.shape.scale * math.log2(math.e)
        queries = [as_held(x * scale, "bfloat16") / scale for x in case.queries]
    return Case(case.shape, case.block_size, case.spans, queries, keys, values, case.num_blocks)


def multiplies_bfloat16(kv_dtype: str, isa: str) -> bool:
    return kv_dtype == "bfloat16" and isa in ("avx512_bf16", "amx")


def error_allowed(kv_dtype: str, isa: str) -> float:
    """Of numbers about 1: where softmax weights are rounded to bfloat16, half a unit of its last place."""
    return 4e-3 if multiplies_bfloat16(kv_dtype, isa) else 2e-5


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60)
@given(case=cases())
def test_attention_in_bfloat16_over_any_ragged_batch_is_close_to_dense_attention(isa: str, case: Case) -> None:
    case = case if case.block_size == 16 else in_pages(case)
    for i, ours in enumerate(run_paged(ops_of("bfloat16", isa=isa), case)):
        expected = dense_attention(case, i, torch.bfloat16).numpy()
        assert np.abs(ours - expected).max() < 2e-2 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100)
@given(case=cases(), kv_dtype=st.sampled_from(KV_DTYPES))
def test_paged_attention_over_any_ragged_batch_equals_dense_attention_over_what_is_held(
    isa: str, case: Case, kv_dtype: str
) -> None:
    case = case if case.block_size == 16 else in_pages(case)
    for i, ours in enumerate(run_paged(ops_of(isa=isa, kv_dtype=kv_dtype), case)):
        expected = dense_attention(held(case, kv_dtype, isa), i, torch.float32).numpy()
        assert np.abs(ours - expected).max() < error_allowed(kv_dtype, isa) * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("window", "num_heads", "head_dim"), [(None, 9, 64), (700, 9, 64), (None, 3, 80), (40, 24, 6)])
def test_contexts_of_several_parts_are_joined_to_one(
    isa: str, kv_dtype: str, window: int | None, num_heads: int, head_dim: int
) -> None:
    shape = AttentionShape(num_heads=num_heads, num_kv_heads=3, head_dim=head_dim, scale=0.3, window=window)
    case = make_case(shape, 16, [(1600, 1), (1023, 1), (512, 1), (511, 1), (500, 40)], random.Random(0))
    for i, ours in enumerate(run_paged(ops_of(isa=isa, kv_dtype=kv_dtype), case)):
        expected = dense_attention(held(case, kv_dtype, isa), i, torch.float32).numpy()
        assert np.abs(ours - expected).max() < error_allowed(kv_dtype, isa) * max(1.0, np.abs(expected).max()), i


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("bfloat16", "bfloat16"), *(("float32", name) for name in KV_DTYPES)])
@pytest.mark.parametrize("window", [None, 50, 560])
@pytest.mark.parametrize("num_heads", [3, 9])
def test_the_bits_of_a_row_do_not_depend_on_its_neighbours_its_chunk_or_the_threads(
    isa: str, dtype: str, kv_dtype: str, window: int | None, num_heads: int
) -> None:
    shape = AttentionShape(num_heads=num_heads, num_kv_heads=num_heads // 3, head_dim=64, scale=0.125, window=window)
    lengths = [(1100, 1), (600, 1), (390, 1), (250, 1), (63, 1), (17, 1), (0, 1), (100, 150), (0, 140), (0, 2), (470, 60)]
    case = make_case(shape, 16, lengths, random.Random(1))
    ops = ops_of(dtype, isa=isa, kv_dtype=kv_dtype)
    many = ops_of(dtype, isa=isa, kv_dtype=kv_dtype, num_threads=16)  # they share the parts of a context
    together = run_paged(ops, case)
    assert all(np.array_equal(a, b) for a, b in zip(run_paged(many, case), together, strict=True))
    for i in range(len(case.spans)):
        span, queries = case.spans[i], case.queries[i]
        for num_last in {span.num_tokens, 1, min(span.num_tokens, 5), min(span.num_tokens, 37)}:
            begin = span.num_computed_tokens + span.num_tokens - num_last
            last = SequenceSpan(begin, num_last, span.block_ids)
            alone = Case(shape, 16, [last], [queries[-num_last:]], [case.keys[i]], [case.values[i]], case.num_blocks)
            assert np.array_equal(run_paged(ops, alone)[0], together[i][-num_last:]), (i, num_last)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_key_or_a_value_that_is_not_finite_spoils_its_own_sequence_only(isa: str, kv_dtype: str, poison: float) -> None:
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=32, scale=0.2)
    case = make_case(shape, 16, [(40, 1), (30, 1), (0, 30)], random.Random(0))
    clean = run_paged(ops_of(isa=isa, kv_dtype=kv_dtype), case)
    for tensors in (case.keys, case.values):
        spared = tensors[1].clone()
        tensors[1][3, 0, 7] = poison
        spoiled = run_paged(ops_of(isa=isa, kv_dtype=kv_dtype), case)
        assert np.array_equal(spoiled[0], clean[0])
        assert np.array_equal(spoiled[2], clean[2])
        assert not np.isfinite(spoiled[1][0, : 3 * 32]).all(), "heads that read it"
        assert np.array_equal(spoiled[1][0, 3 * 32 :], clean[1][0, 3 * 32 :]), "heads that do not"
        tensors[1] = spared


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rotary_dim", [32, 24])
def test_heads_are_normed_then_rotated_by_their_position(isa: str, rotary_dim: int) -> None:
    ops = ops_of(isa=isa)
    shape = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=32, scale=1.0)
    frequencies = [0.5 / (i + 1) for i in range(rotary_dim // 2)]
    torch.manual_seed(0)
    qkv = torch.randn(10, 8 * 32)
    weights = [(torch.rand(32) + 0.5) for _ in range(2)]
    norm = QKNorm(weights[0].numpy(), weights[1].numpy(), 1e-6)
    with ops.computing():
        kv = ops.allocate_kv(shape, num_blocks=8, block_size=16)
        placement = ops.place([SequenceSpan(37, 1, [5, 0, 2]), SequenceSpan(3, 9, [7])], block_size=16, windows=[None])
        table = ops.rope_table(frequencies, attention_factor=1.3, num_positions=64)
        rotation = ops.rotation(table, placement)
        q = ops.rope_and_cache(tensor(ops, qkv.numpy()), kv, placement, shape, rotation=rotation, norm=norm).numpy()
    heads = qkv.double().view(10, 8, 32)
    stored = kv.array().view(np.float32)[: 2 * 8 * 16 * 32].reshape(2, 8, 32, 16)  # keys: [head, block, dimension, token]
    for row, position in enumerate([37, *range(3, 12)]):
        block, offset = (2 if row == 0 else 7), position % 16
        for head in range(6):
            x = heads[row, head]
            x = x / torch.sqrt((x**2).mean() + 1e-6) * weights[head // 4].double()
            half = len(frequencies)
            angle = torch.tensor(frequencies, dtype=torch.float64) * position
            cos, sin = angle.cos() * 1.3, angle.sin() * 1.3
            a, b = x[:half].clone(), x[half : 2 * half].clone()
            expected = torch.cat([a * cos - b * sin, b * cos + a * sin, x[2 * half :]]).numpy()
            ours = q[row].reshape(4, 32)[head] if head < 4 else stored[head - 4, block, :, offset]
            assert np.abs(ours - expected).max() < 1e-5


# The plain operations and the cache


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1, 31, 96, 576])
def test_norms_and_sums_of_rows(isa: str, size: int) -> None:
    ops = ops_of(isa=isa)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((11, size)).astype(np.float32) * 30 for _ in range(2))
    stored = rng.standard_normal(size).astype(np.float32) * np.float32(0.1)
    with ops.computing():
        weight = ops.load_vector(host_tensor(torch.from_numpy(stored)), plus=1.0)
        normed = ops.rms_norm(tensor(ops, x), weight, eps=1e-5).numpy()
        added = ops.add(tensor(ops, x), tensor(ops, y), scale=0.25).numpy()
        some = ops.select_rows(tensor(ops, x), ops.row_ids([3, 0])).numpy()
    exact = x.astype(np.float64)
    assert relative_error(normed, exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * (1 + stored)) < 1e-6
    assert relative_error(added, exact + 0.25 * y.astype(np.float64)) < 1e-6
    assert np.array_equal(some, x[[3, 0]])


@pytest.mark.parametrize("storage", [name for name in FORMATS if _kernels.EmbeddingTable.knows(name)])
def test_rows_of_an_embedding_are_the_stored_numbers(storage: str) -> None:
    ops = ops_of()
    table = random_weight(storage, 30, 512, 0)
    ours = ops.embed(ops.token_ids([7, 0, 29, 7]), ops.load_embedding(table), multiplier=2.0).numpy()
    assert np.array_equal(ours, (2 * numbers(table)[[7, 0, 29, 7]]).astype(np.float32))


def test_rows_of_every_format_that_embeddings_of_gguf_come_in_are_read_by_a_kernel() -> None:
    formats = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32"]
    assert all(map(_kernels.EmbeddingTable.knows, formats))


def test_an_embedding_multiplier_is_rounded_to_the_compute_dtype_as_gemma_was_trained() -> None:
    ops = ops_of("bfloat16")
    table = ops.load_embedding(host_tensor(torch.ones(4, 8)))
    assert ops.embed(ops.token_ids([2]), table, multiplier=640**0.5).numpy()[0, 0] == 25.25


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("block_size", [16, 32])
def test_blocks_are_copied_in_order_and_made_finite_one_by_one(kv_dtype: str, block_size: int) -> None:
    ops = ops_of(kv_dtype=kv_dtype)
    shape = AttentionShape(num_heads=2, num_kv_heads=2, head_dim=4, scale=1.0)
    kv = ops.allocate_kv(shape, num_blocks=4, block_size=block_size)
    places = kv.array()
    assert not places.any()
    assert places.nbytes == ops.kv_bytes_per_token(shape) * 4 * block_size
    places[:] = np.frombuffer(np.random.default_rng(0).bytes(places.size), np.uint8)
    ops.make_finite(kv, range(4))
    size, scale_bytes = {"float32": (4, 0), "bfloat16": (2, 0), "int8": (1, 4), "fp8_e4m3": (1, 4)}[kv_dtype]
    block_bytes = block_size * (4 * size + scale_bytes)
    keys = places[: 2 * 4 * block_bytes].reshape(2, 4, block_bytes)  # [head, block]
    before = keys.copy()
    ops.copy_blocks(kv, [(0, 1), (1, 3)])
    assert np.array_equal(keys[:, 1], before[:, 0])
    assert np.array_equal(keys[:, 3], before[:, 0]), "the second copy sees the first"
    assert np.array_equal(keys[:, [0, 2]], before[:, [0, 2]])
    # The last number of a block: of its last token, or that token's scale.
    infinite = np.array([np.inf], np.float32).view(np.uint8)[4 - min(4, size + 3 * (size == 1)) :]
    keys[:, [0, 2], -len(infinite) :] = infinite
    ops.make_finite(kv, [0])
    assert not keys[:, 0, -len(infinite) :].any()
    assert np.array_equal(keys[:, 0, : -len(infinite)], before[:, 0, : -len(infinite)])
    assert (keys[:, 2, -len(infinite) :] == infinite).all(), "another's block is not touched"


def test_blocks_that_are_no_whole_pages_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="block_size 8 is not a multiple of 16"):
        ops_of().allocate_kv(AttentionShape(2, 2, 4, 1.0), num_blocks=4, block_size=8)


def test_more_threads_than_work_and_threads_that_sleep_give_the_same_bits() -> None:
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    weight = random_weight("Q4_1", 20, 64, 0)
    results = []
    for num_threads in (1, 2, 7):
        ops = ops_of(num_threads=num_threads)
        loaded = ops.load_linear([weight])
        results.append(ops.linear(tensor(ops, x), loaded).numpy().copy())
        with ops.computing():
            results.append(ops.linear(tensor(ops, x), loaded).numpy().copy())
    assert all(np.array_equal(result, results[0]) for result in results)


def test_threads_that_mostly_wait_for_one_another_leave_the_next_steps_to_one_of_them() -> None:
    alone = _kernels.num_steps_alone
    assert alone(10_000, 0, 0) == 0
    assert alone(10_000, 5_000, 0) == 0
    assert alone(10_000, 6_000, 0) == 4
    assert alone(10_000, 6_000, 4) == 8, "each time that it has not become better, it is tried less often"
    assert alone(10_000, 9_000, 64) == 64
    assert alone(10_000, 1_000, 64) == 0

"""The torch ops against plain formulas in float64, over drawn shapes; and that a row's bits are its own affair."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.protocol import AttentionShape, QKNorm, SequenceSpan
from headrace.engine.ops.torch.ops import DTYPES, TorchOps
from headrace.engine.ops.torch.placement import MAX_PADDED_PLACES
from headrace.specs.model import Activation

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}


def host_tensor(array: torch.Tensor, *, interleaved_heads: int = 0) -> HostTensor:
    data: npt.NDArray[np.float32] = array.float().contiguous().numpy()
    return HostTensor("w", "F32", tuple(array.shape), memoryview(data.tobytes()), interleaved_heads)


def ops_of(dtype: str) -> TorchOps:
    return TorchOps(dtype=dtype, device="cpu", num_threads=1)


def assert_close(ours: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=TOLERANCE[dtype] * scale)


# Attention


@dataclass
class Case:
    """Sequences with all of their queries, keys and values, of which a step computes some."""

    shape: AttentionShape
    block_size: int
    spans: list[SequenceSpan]
    queries: list[torch.Tensor]
    """Per sequence [num_tokens, num_heads, head_dim]"""
    keys: list[torch.Tensor]
    """Per sequence [num_computed_tokens + num_tokens, num_kv_heads, head_dim]"""
    values: list[torch.Tensor]
    num_blocks: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_kv_heads = draw(st.integers(1, 3))
    shape = AttentionShape(
        num_heads=num_kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([8, 32, 64])),
        scale=draw(st.sampled_from([0.125, 0.3])),
        softcap=draw(st.sampled_from([None, 5.0])),
        window=draw(st.sampled_from([None, 1, 7, 20])),
    )
    block_size = draw(st.sampled_from([1, 4, 16]))
    lengths = draw(
        st.lists(st.tuples(st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 50))), min_size=1, max_size=6)
    )
    lengths.sort(key=lambda pair: (pair[1] > 1, -pair[0]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return make_case(shape, block_size, lengths, rng)


def make_case(shape: AttentionShape, block_size: int, lengths: Sequence[tuple[int, int]], rng: random.Random) -> Case:
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    needed = [-(-(computed + new) // block_size) for computed, new in lengths]
    num_blocks = sum(needed) + 3
    free = list(range(num_blocks))
    rng.shuffle(free)
    spans, queries, keys, values = [], [], [], []
    for (computed, new), count in zip(lengths, needed, strict=True):
        spans.append(SequenceSpan(computed, new, [free.pop() for _ in range(count)]))
        queries.append(torch.randn(new, shape.num_heads, shape.head_dim, generator=generator))
        keys.append(torch.randn(computed + new, shape.num_kv_heads, shape.head_dim, generator=generator))
        values.append(torch.randn(computed + new, shape.num_kv_heads, shape.head_dim, generator=generator))
    return Case(shape, block_size, spans, queries, keys, values, num_blocks)


def run_paged(ops: TorchOps, case: Case) -> list[torch.Tensor]:
    """Writes what earlier steps would have written, then one step of all spans."""
    shape, block_size = case.shape, case.block_size
    dtype = DTYPES[ops.dtype]
    with ops.computing():
        kv = ops.allocate_kv(shape, num_blocks=case.num_blocks, block_size=block_size)
        kv.normal_(std=50.0)  # what others left
        flat = kv.view(2, shape.num_kv_heads, -1, shape.head_dim)
        for span, keys, values in zip(case.spans, case.keys, case.values, strict=True):
            for position in range(span.num_computed_tokens):
                slot = span.block_ids[position // block_size] * block_size + position % block_size
                flat[0, :, slot], flat[1, :, slot] = keys[position].to(dtype), values[position].to(dtype)
        placement = ops.place(case.spans, block_size=block_size, windows=[shape.window])
        new = [
            torch.cat([q, k[-len(q) :], v[-len(q) :]], dim=1)
            for q, k, v in zip(case.queries, case.keys, case.values, strict=True)
        ]
        qkv = torch.cat(new).flatten(1).to(dtype)
        q = ops.rope_and_cache(qkv, kv, placement, shape, rotation=None, norm=None)
        out = ops.attention(q, kv, placement, shape)
    return list(torch.split(out, [span.num_tokens for span in case.spans]))


def dense_attention(case: Case, sequence: int, dtype: torch.dtype) -> torch.Tensor:
    """softmax(q k^T) v written out, in float64 on the rounded inputs: [num_tokens, num_heads * head_dim]."""
    shape, span = case.shape, case.spans[sequence]
    q, k, v = (t[sequence].to(dtype).double() for t in (case.queries, case.keys, case.values))
    group = shape.num_heads // shape.num_kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * shape.scale
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    query = torch.arange(span.num_tokens)[:, None] + span.num_computed_tokens
    key = torch.arange(len(k))[None, :]
    hidden = key > query
    if shape.window is not None:
        hidden |= key <= query - shape.window
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


@settings(max_examples=150)
@given(case=cases(), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_paged_attention_over_any_ragged_batch_equals_dense_attention(case: Case, dtype: str) -> None:
    for i, ours in enumerate(run_paged(ops_of(dtype), case)):
        assert_close(ours, dense_attention(case, i, DTYPES[dtype]), dtype)


def test_long_prompts_and_contexts_of_very_different_lengths_are_attended_to_right() -> None:
    """Several tiles of one sequence, and single tokens that must not share one gather."""
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=64, scale=0.125)
    assert MAX_PADDED_PLACES < 900
    case = make_case(shape, 16, [(900, 1), (500, 1), (40, 1), (0, 1), (300, 290), (0, 257)], random.Random(0))
    for i, ours in enumerate(run_paged(ops_of("float32"), case)):
        assert_close(ours, dense_attention(case, i, torch.float32), "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 1), (4, 1), (9, 3), (2, 2)])
def test_the_bits_of_a_row_do_not_depend_on_its_neighbours_or_its_chunk(
    dtype: str, num_heads: int, num_kv_heads: int
) -> None:
    shape = AttentionShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=64, scale=0.125)
    lengths = [(600, 1), (390, 1), (333, 1), (250, 1), (200, 1), (63, 1), (17, 1), (0, 1), (100, 150), (0, 140), (0, 2)]
    case = make_case(shape, 16, lengths, random.Random(1))
    ops = ops_of(dtype)
    for i, together in enumerate(run_paged(ops, case)):
        alone = Case(shape, 16, [case.spans[i]], [case.queries[i]], [case.keys[i]], [case.values[i]], case.num_blocks)
        assert torch.equal(run_paged(ops, alone)[0], together), "alone"
        span = case.spans[i]
        last = SequenceSpan(span.num_computed_tokens + span.num_tokens - 1, 1, span.block_ids)
        cut = Case(shape, 16, [last], [case.queries[i][-1:]], [case.keys[i]], [case.values[i]], case.num_blocks)
        assert torch.equal(run_paged(ops, cut)[0], together[-1:]), "as a chunk of one"


# What comes before attention


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rotary_dim", [32, 24])
def test_heads_are_normed_then_rotated_by_their_position_and_values_left_alone(dtype: str, rotary_dim: int) -> None:
    ops = ops_of(dtype)
    shape = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=32, scale=1.0)
    spans = [SequenceSpan(37, 1, [5, 0, 2]), SequenceSpan(3, 9, [7])]
    frequencies = [0.5 / (i + 1) for i in range(rotary_dim // 2)]
    torch.manual_seed(0)
    qkv = torch.randn(10, 8 * 32).to(DTYPES[dtype])
    norm = QKNorm(torch.rand(32) + 0.5, torch.rand(32) + 0.5, 1e-6)
    with ops.computing():
        kv = ops.allocate_kv(shape, num_blocks=8, block_size=16)
        placement = ops.place(spans, block_size=16, windows=[None])
        table = ops.rope_table(frequencies, attention_factor=1.3, num_positions=64)
        q = ops.rope_and_cache(qkv.clone(), kv, placement, shape, rotation=ops.rotation(table, placement), norm=norm)
    heads = qkv.double().view(10, 8, 32)
    positions = [37, *range(3, 12)]
    for row, position in enumerate(positions):
        block, offset = ([5, 0, 2] if row == 0 else [7])[position // 16], position % 16
        for head in range(4):
            assert_close(q[row, head], _rotated(heads[row, head], norm.query_weight, frequencies, position), dtype)
        for head in range(2):
            expected = _rotated(heads[row, 4 + head], norm.key_weight, frequencies, position)
            assert_close(kv[0, head, block, offset], expected, dtype)
            assert torch.equal(kv[1, head, block, offset].double(), heads[row, 6 + head])
    written = int((kv != 0).any(dim=-1)[0, 0].sum())
    assert written == 10, "nothing else was written"


def _rotated(head: torch.Tensor, weight: torch.Tensor, frequencies: list[float], position: int) -> torch.Tensor:
    x = head / torch.sqrt((head**2).mean() + 1e-6) * weight.double()
    half = len(frequencies)
    angle = torch.tensor(frequencies, dtype=torch.float64) * position
    cos, sin = angle.cos() * 1.3, angle.sin() * 1.3
    a, b = x[:half].clone(), x[half : 2 * half].clone()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[2 * half :]])


# The plain operations


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    num_in=st.integers(1, 200),
    has_bias=st.booleans(),
    adds=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_linear_is_a_stack_of_projections_with_biases_and_a_residual(
    rows: int, sizes: list[int], num_in: int, has_bias: bool, adds: bool, dtype: str
) -> None:
    ops, torch_dtype = ops_of(dtype), DTYPES[dtype]
    torch.manual_seed(rows * 1000 + num_in)
    weights = [torch.randn(size, num_in).to(torch_dtype) for size in sizes]
    biases = [torch.randn(size).to(torch_dtype) for size in sizes] if has_bias else []
    x, residual = torch.randn(rows, num_in).to(torch_dtype), torch.randn(rows, sum(sizes)).to(torch_dtype)
    with ops.computing():
        weight = ops.load_linear([host_tensor(w) for w in weights], [host_tensor(b) for b in biases])
        ours = ops.linear(x, weight, add_to=residual if adds else None)
    expected = x.double() @ torch.cat(weights).double().T
    expected += torch.cat(biases).double() if has_bias else 0
    expected += residual.double() if adds else 0
    assert_close(ours, expected, dtype)
    assert ours.dtype == torch_dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", Activation)
def test_gated_linear_multiplies_the_activated_gate_with_the_other_projection(dtype: str, activation: Activation) -> None:
    ops, torch_dtype = ops_of(dtype), DTYPES[dtype]
    torch.manual_seed(0)
    gate, up, x = (torch.randn(n, 64).to(torch_dtype) for n in (100, 100, 9))
    bias = torch.randn(100).to(torch_dtype)
    with ops.computing():
        gate_weight = ops.load_linear([host_tensor(gate)], [host_tensor(bias)])
        ours = ops.gated_linear(x, gate_weight, ops.load_linear([host_tensor(up)]), activation)
    formulas: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
        Activation.SILU: F.silu,
        Activation.GELU: F.gelu,
        Activation.GELU_TANH: lambda t: F.gelu(t, approximate="tanh"),
    }
    activated = formulas[activation](x.double() @ gate.double().T + bias.double())
    assert_close(ours, activated * (x.double() @ up.double().T), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_of_a_projected_row_do_not_depend_on_how_many_rows_there_are(dtype: str) -> None:
    ops, torch_dtype = ops_of(dtype), DTYPES[dtype]
    torch.manual_seed(0)
    for num_in, num_out in [(576, 960), (1536, 576), (640, 2048), (96, 80), (14336, 128)]:
        x = torch.randn(130, num_in).to(torch_dtype)
        residual = torch.randn(130, num_out).to(torch_dtype)
        with ops.computing():
            weight = ops.load_linear([host_tensor(torch.randn(num_out, num_in) / 8)])
            other = ops.load_linear([host_tensor(torch.randn(num_out, num_in) / 8)])
            whole = ops.linear(x, weight, add_to=residual)
            gated = ops.gated_linear(x, weight, other, Activation.SILU)
            for rows in [*range(1, 36), 47, 64, 65, 100, 128, 129]:
                assert torch.equal(ops.linear(x[:rows], weight, add_to=residual[:rows]), whole[:rows]), rows
                assert torch.equal(ops.gated_linear(x[:rows], weight, other, Activation.SILU), gated[:rows]), rows


def test_rows_of_interleaved_heads_are_brought_to_halves_bias_included() -> None:
    ops = ops_of("float32")
    rows = torch.arange(12.0)  # two heads of x0 y0 x1 y1 x2 y2
    expected = torch.tensor([0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11.0])
    with ops.computing():
        weight = ops.load_linear(
            [host_tensor(rows[:, None], interleaved_heads=2)], [host_tensor(rows * 10, interleaved_heads=2)]
        )
        ours = ops.linear(torch.ones(3, 1), weight)
    assert torch.equal(ours, (expected * 11).expand(3, -1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rms_norm_rounds_once_at_the_end(dtype: str) -> None:
    ops, torch_dtype = ops_of(dtype), DTYPES[dtype]
    torch.manual_seed(0)
    x = (torch.randn(7, 96) * 30).to(torch_dtype)
    stored = torch.randn(96) * 0.1
    with ops.computing():
        weight = ops.load_vector(host_tensor(stored), plus=1.0)
        ours = ops.rms_norm(x, weight, eps=1e-5)
    exact = x.double() / torch.sqrt((x.double() ** 2).mean(-1, keepdim=True) + 1e-5) * (1 + stored.double())
    assert ours.dtype == torch_dtype
    if dtype == "bfloat16":
        mistakes = (ours != exact.to(torch.bfloat16)).double().mean()
        assert mistakes < 0.01, "twice rounded, one number in ten would differ"
    assert_close(ours, exact, dtype)


def test_logits_are_scaled_capped_and_float32() -> None:
    ops = ops_of("bfloat16")
    torch.manual_seed(0)
    table, x = torch.randn(50, 32).bfloat16(), torch.randn(3, 32).bfloat16()
    with ops.computing():
        weight = ops.load_linear([host_tensor(table)])
        ours = ops.logits(x, weight, multiplier=0.25, softcap=3.0)
    assert ours.dtype == torch.float32
    assert_close(ours, 3 * torch.tanh(x.double() @ table.double().T * 0.25 / 3), "bfloat16")


def test_an_embedding_multiplier_is_rounded_to_the_compute_dtype_as_gemma_was_trained() -> None:
    ops = ops_of("bfloat16")
    with ops.computing():
        table = ops.load_embedding(host_tensor(torch.ones(4, 8)))
        ours = ops.embed(ops.token_ids([2]), table, multiplier=640**0.5)
    assert float(ours[0, 0]) == 25.25, "sqrt(640) is 25.298, and 25.25 in bfloat16"


# The cache


def test_copied_blocks_carry_keys_and_values_in_order() -> None:
    ops = ops_of("float32")
    shape = AttentionShape(num_heads=2, num_kv_heads=2, head_dim=4, scale=1.0)
    kv = ops.allocate_kv(shape, num_blocks=4, block_size=2)
    kv.normal_()
    before = kv.clone()
    ops.copy_blocks(kv, [(0, 1), (1, 3)])
    assert torch.equal(kv[:, :, 1], before[:, :, 0])
    assert torch.equal(kv[:, :, 3], before[:, :, 0]), "the second copy sees the first"
    assert torch.equal(kv[:, :, [0, 2]], before[:, :, [0, 2]])


def test_making_blocks_finite_leaves_what_is_finite() -> None:
    ops = ops_of("float32")
    shape = AttentionShape(num_heads=1, num_kv_heads=1, head_dim=2, scale=1.0)
    kv = ops.allocate_kv(shape, num_blocks=2, block_size=1)
    kv.copy_(torch.tensor([[[[[1.0, torch.nan]], [[torch.nan, 2.0]]]], [[[[torch.inf, 3.0]], [[4.0, 5.0]]]]]))
    ops.make_finite(kv, [0])
    assert kv[0, 0, 0].tolist() == [[1.0, 0.0]]
    assert kv[1, 0, 0].isfinite().all()
    assert kv[0, 0, 1, 0, 0].isnan(), "another's block is not touched"


def test_bytes_of_a_token_are_those_that_are_allocated() -> None:
    shape = AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64, scale=1.0)
    for dtype in DTYPES:
        kv = ops_of(dtype).allocate_kv(shape, num_blocks=10, block_size=16)
        assert kv.nbytes == ops_of(dtype).kv_bytes_per_token(shape) * 160
        assert not kv.any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
def test_cuda_without_a_device_is_refused_plainly() -> None:
    with pytest.raises(ConfigurationError, match="finds no CUDA device; use device cpu"):
        TorchOps(dtype="bfloat16", device="cuda")


def test_without_onednn_projections_are_computed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    gate, up, x = torch.randn(20, 8), torch.randn(20, 8), torch.randn(5, 8)
    residual = torch.randn(5, 20)
    ops = ops_of("float32")

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        with ops.computing():
            gate_weight, up_weight = ops.load_linear([host_tensor(gate)]), ops.load_linear([host_tensor(up)])
            gated = ops.gated_linear(x, gate_weight, up_weight, Activation.GELU_TANH)
            return gated, ops.linear(x, up_weight, add_to=residual)

    packed = compute()
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    torch.testing.assert_close(compute(), packed)

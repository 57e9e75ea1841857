"""The cost of steps: formulas, shapes, files, and what is refused."""

import itertools
import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ConfigurationError
from headrace.base.ids import SequenceId, StepId
from headrace.engine.mind.step import ScheduledSequence, StepPlan
from headrace.sim.cost.curves import curves_of, was_measured
from headrace.sim.cost.fitted_steps import FittedSteps, weights_of
from headrace.sim.cost.gpu import COMPONENTS, GpuStepModel, Precision, Tuning
from headrace.sim.cost.kernels import blend
from headrace.sim.cost.least_squares import non_negative_least_squares
from headrace.sim.cost.shape import MoeMlp
from headrace.sim.cost.step_size import StepSize, busiest_rank, step_size
from headrace.sim.cost_model import EngineModel, FittedRange, GpuDeployment, ModelledStepCost, known_shape, read_engine
from headrace.specs.device import device
from headrace.specs.parallel import ParallelSpec


def entry(computed: int, count: int, *, samples: bool = True, number: int = 0) -> ScheduledSequence:
    return ScheduledSequence(SequenceId(number), computed, count, samples, 0, ())


def decoding(count: int, context: int) -> StepSize:
    return StepSize(num_decodes=count, decode_context=count * context, num_samples=count)


def prompt(count: int, before: int = 0) -> StepSize:
    return StepSize(
        num_chunks=1, chunk_tokens=count, chunk_context=before + count,
        chunk_pairs=count * before + count * (count + 1) // 2, num_samples=1,
    )  # fmt: skip


PLAIN = Precision()


def gpu(name: str, model: str, precision: Precision = PLAIN, **sizes: int) -> GpuStepModel:
    return GpuStepModel(
        shape=known_shape(model),
        device=device(name),
        curves=curves_of(name),
        parallel=ParallelSpec(**sizes),
        precision=precision,
    )


# A plan's size


def test_a_step_is_measured_by_what_its_sequences_attend_to() -> None:
    plan = StepPlan(StepId(0), (entry(10, 1), entry(0, 4, samples=False, number=1), entry(6, 3, number=2)))
    assert step_size(plan) == StepSize(
        num_decodes=1,
        decode_context=11,
        num_chunks=2,
        chunk_tokens=7,
        chunk_context=4 + 9,
        chunk_pairs=(1 + 2 + 3 + 4) + (7 + 8 + 9),
        num_samples=2,
    )


def test_the_first_token_of_a_prompt_of_one_is_a_prompt() -> None:
    size = step_size(StepPlan(StepId(0), (entry(0, 1),)))
    assert (size.num_decodes, size.num_chunks, size.chunk_pairs) == (0, 1, 1)


# Formulas


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 8))
def test_a_knee_lies_between_the_higher_roof_and_the_sum_of_both(first: int, second: int, sharpness: int) -> None:
    together = blend(first, second, sharpness)
    assert max(first, second) * 0.999999 <= together <= (first + second) * 1.000001


GPU_CASES = (
    ("h100_sxm", "llama-3.1-8b", Precision()),
    ("a100_sxm", "qwen3-32b", Precision()),
    ("l40s", "qwen3-8b", Precision(gemm="fp8")),
    ("h200_sxm", "deepseek-r1", Precision(gemm="fp8_block", experts="fp8_block", latent_projections="fp8_block")),
    ("b200_sxm", "gpt-oss-120b", Precision(experts="mxfp4", kv="fp8")),
    ("gb200", "kimi-k2.5", Precision(gemm="nvfp4", experts="nvfp4", kv="fp8")),
    ("b300_sxm", "qwen3.5-397b-a17b", Precision(gemm="fp8_block", experts="fp8_block")),
)


@pytest.mark.parametrize(("name", "model", "precision"), GPU_CASES)
def test_more_work_never_takes_less_time(name: str, model: str, precision: Precision) -> None:
    cost = gpu(name, model, precision, tensor_parallel_size=4)
    for sizes in (
        [decoding(count, 1000) for count in (1, 2, 4, 8, 16, 32, 64, 128, 256)],
        [decoding(16, context) for context in (10, 100, 1000, 10_000, 100_000)],
        [prompt(count) for count in (1, 16, 128, 1024, 8192)],
        [prompt(512, before) for before in (0, 512, 4096, 32_768)],
    ):
        times = [cost.step_us(size) for size in sizes]
        assert times == sorted(times)
        assert times[0] > 100  # no step is free


@pytest.mark.parametrize(("name", "model", "precision"), GPU_CASES)
def test_a_step_is_the_sum_of_its_components(name: str, model: str, precision: Precision) -> None:
    cost = gpu(name, model, precision, tensor_parallel_size=2)
    tuning = cost.tuning
    factors = {
        "host": tuning.host_us, "host_per_sequence": tuning.host_us_per_sequence, "launch": tuning.launch_us_per_layer
    }  # fmt: skip
    mixed = replace(prompt(300, 20), num_decodes=7, decode_context=900, num_samples=8)
    for size in (decoding(5, 300), prompt(700), mixed):
        total = sum(
            value * factors.get(component, getattr(tuning, component, 1.0))
            for component, value in zip(COMPONENTS, cost.components(size), strict=True)
        )
        assert cost.step_us(size) == pytest.approx(total)


def test_no_step_is_faster_than_reading_its_weights_once() -> None:
    """Dense weights at the full bandwidth: what no engine can beat."""
    cost = gpu("h100_sxm", "llama-3.1-70b", Precision(gemm="fp8"), tensor_parallel_size=2)
    embeddings = 2 * 128_256 * 8192 * 2 / 2
    floor_us = (cost.weight_bytes_per_gpu - embeddings) / device("h100_sxm").memory_bandwidth * 1e6
    assert floor_us < cost.step_us(decoding(1, 100)) < 3 * floor_us


def test_weights_and_caches_have_the_sizes_that_are_published() -> None:
    """Llama-3.1-70B: 70.6 thousand million parameters, 8 KV heads of 128 in 80 layers. DeepSeek-R1: 671 thousand million,
    576 elements a layer."""
    llama = gpu("h100_sxm", "llama-3.1-70b", tensor_parallel_size=8)
    assert llama.weight_bytes_per_gpu * 8 == pytest.approx(2 * 70.55e9, rel=0.005)
    assert llama.kv_bytes_per_token_per_gpu * 8 == 80 * 8 * 128 * 2 * 2
    deepseek = gpu(
        "h200_sxm", "deepseek-r1", Precision(gemm="fp8_block", experts="fp8_block"), data_parallel_size=8,
        expert_parallel_size=8,
    )  # fmt: skip
    moe = next(group for group in deepseek.shape.layers if isinstance(group.mlp, MoeMlp))
    assert isinstance(moe.mlp, MoeMlp)
    assert moe.count * moe.mlp.num_experts * 3 * 7168 * 2048 == pytest.approx(653.9e9, rel=0.001)
    assert deepseek.kv_bytes_per_token_per_gpu == 61 * 576 * 2


SPREAD = GpuDeployment(
    device="h200_sxm", model="deepseek-r1", data_parallel_size=8, expert_parallel_size=8,
    precision=Precision(gemm="fp8_block", experts="fp8_block"),
)  # fmt: skip


def test_an_engine_whose_ranks_have_as_much_takes_what_each_takes_and_with_one_prompt_less_than_with_one_each() -> None:
    rank = SPREAD.step_model()
    full = StepSize(num_decodes=16, decode_context=16_000, num_samples=16)
    all_ranks = StepSize(num_decodes=128, decode_context=128_000, num_samples=128)
    assert SPREAD.step_us()(all_ranks) == rank.step_us(full)
    one_prompt = StepSize(num_chunks=1, chunk_tokens=2_000, chunk_context=2_000, chunk_pairs=2_001_000, num_samples=1)
    assert SPREAD.step_us()(one_prompt) < rank.step_us(one_prompt), "whose experts would see eight"


@given(
    num_decodes=st.integers(0, 300), context=st.integers(1, 5_000), num_chunks=st.integers(0, 20),
    chunk=st.integers(1, 3_000), num_ranks=st.integers(1, 16),
)  # fmt: skip
def test_all_ranks_together_have_no_less_than_the_engine(
    num_decodes: int, context: int, num_chunks: int, chunk: int, num_ranks: int
) -> None:
    whole = StepSize(
        num_decodes=num_decodes, decode_context=num_decodes * context, num_chunks=num_chunks,
        chunk_tokens=num_chunks * chunk, chunk_context=num_chunks * chunk,
        chunk_pairs=num_chunks * chunk * (chunk + 1) // 2, num_samples=num_decodes,
    )  # fmt: skip
    part = busiest_rank(whole, num_ranks)
    for name in ("num_decodes", "decode_context", "num_chunks", "chunk_tokens", "chunk_context", "chunk_pairs"):
        assert num_ranks * getattr(part, name) >= getattr(whole, name) >= getattr(part, name)
    assert busiest_rank(whole, 1) == whole


def test_what_was_not_measured_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="latent attention in bfloat16/bfloat16 were not measured on NVIDIA A100"):
        gpu("a100_sxm", "deepseek-r1")
    with pytest.raises(ConfigurationError, match=r"experts in .*nvfp4"):
        gpu("h100_sxm", "qwen3-30b-a3b", Precision(experts="nvfp4"))
    with pytest.raises(ConfigurationError, match="no kernel of device 'rtx_pro_6000_server' was measured"):
        gpu("rtx_pro_6000_server", "qwen3-8b")
    with pytest.raises(ConfigurationError, match="did you mean 'deepseek-r1'"):
        known_shape("deepseek-r2")
    with pytest.raises(ConfigurationError, match="gemm must be one of"):
        Precision(gemm="fp16")


def test_a_relative_that_stands_in_is_named_as_an_extrapolation() -> None:
    assert not was_measured("gb300")
    stand_in = EngineModel(gpu=GpuDeployment(device="gb300", model="qwen3-8b"))
    assert "extrapolated" in stand_in.notes[0]
    assert EngineModel(gpu=GpuDeployment(device="h100_sxm", model="qwen3-8b")).notes == ()


def test_a_factor_moves_its_component_alone() -> None:
    deployment = GpuDeployment(device="h100_sxm", model="qwen3-8b", tuning=Tuning(gemm=2.0))
    plain = GpuDeployment(device="h100_sxm", model="qwen3-8b", tuning=Tuning())
    size = decoding(8, 500)
    gained = deployment.step_model().step_us(size) - plain.step_model().step_us(size)
    assert gained == pytest.approx(plain.step_model().components(size)[COMPONENTS.index("gemm")])


# Files


def test_an_engine_is_read_from_either_form_of_file() -> None:
    from_toml = read_engine(
        b'[scheduler]\nmax_model_len = 4096\nnum_blocks = 1000\n[gpu]\ndevice = "h200_sxm"\nmodel = "qwen3-8b"\n',
        is_json=False,
    )
    assert from_toml.gpu is not None
    again = read_engine(msgspec.json.encode(from_toml), is_json=True)
    assert again == from_toml
    plan = StepPlan(StepId(0), (entry(100, 1),))
    assert again.step_cost()(plan) == from_toml.step_cost()(plan) > 0


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"cots": {}}, "unknown field `cots`"),
        ({"cost": {"fixed": 1}}, "fixed"),
        ({"cost": {"fixed_ns": 1}, "gpu": {"device": "h100_sxm", "model": "qwen3-8b"}}, "cost and gpu"),
        ({"gpu": {"device": "h100_sxm"}}, "gpu needs a model"),
        ({"gpu": {"device": "h100_sxm", "model": "qwen3-8b", "tensor_parallel_size": 3}}, "must divide the model's 32 att"),
        ({"gpu": {"device": "h100_sxm", "model": "qwen3-8b", "precision": {"kv": "int8"}}}, "kv must be bfloat16 or fp8"),
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_engine(json.dumps(document).encode(), is_json=True).step_cost()


STEPS = FittedSteps(
    knots=(1, 8, 64), knot_us=(5000.0, 6000.0, 20_000.0), decode_context_us=0.5, chunk_pairs_us=0.01, num_decodes_us=20.0,
    num_chunks_us=50.0,
)  # fmt: skip


def test_steps_beyond_what_was_fitted_are_refused_unless_asked_for() -> None:
    fitted = FittedRange(max_tokens=64, max_decodes=8, max_context_per_sequence=1000)
    engine = EngineModel(steps=STEPS, fitted=fitted)
    cost = engine.step_cost()
    assert cost(StepPlan(StepId(0), (entry(999, 1),))) > 0
    with pytest.raises(ConfigurationError, match="a step of 65 tokens; the cost model was fitted up to 64"):
        cost(StepPlan(StepId(0), (entry(0, 65),)))
    with pytest.raises(ConfigurationError, match="9 sequences decoding at once"):
        cost(StepPlan(StepId(0), tuple(entry(5, 1, number=i) for i in range(9))))
    with pytest.raises(ConfigurationError, match="1201 tokens of context per sequence"):
        cost(StepPlan(StepId(0), (entry(1200, 1),)))
    bold = msgspec.structs.replace(engine, extrapolate=True).step_cost()
    assert bold(StepPlan(StepId(0), (entry(0, 65),))) > 20_000_000


def test_a_faster_machine_takes_proportionally_less() -> None:
    engine = EngineModel(steps=STEPS, speed_spread=0.05)
    plan = StepPlan(StepId(0), (entry(7, 1),))
    slow, fast = engine.speeds_90
    assert slow == pytest.approx(1 / fast)
    assert engine.step_cost(speed=fast)(plan) < engine.step_cost()(plan) < engine.step_cost(speed=slow)(plan)
    assert engine.step_cost(speed=2.0)(plan) == pytest.approx(engine.step_cost()(plan) / 2, abs=1)


@pytest.mark.parametrize(
    "engine",
    [
        EngineModel(steps=STEPS),
        EngineModel(gpu=GpuDeployment(device="h200_sxm", model="qwen3-8b", backend="vllm")),
        EngineModel(gpu=GpuDeployment(device="b200_sxm", model="gpt-oss-120b", backend="vllm", tensor_parallel_size=2)),
        EngineModel(gpu=GpuDeployment(device="h200_sxm", model="deepseek-r1", tensor_parallel_size=8)),
        EngineModel(gpu=GpuDeployment(device="b200_sxm", model="qwen3.5-397b-a17b", tensor_parallel_size=8)),
        EngineModel(gpu=GpuDeployment(device="h200_sxm", model="deepseek-r1", data_parallel_size=2, expert_parallel_size=2)),
    ],
)
def test_a_run_of_decode_steps_takes_what_its_steps_take(engine: EngineModel) -> None:
    """What a simulator that jumps relies on: the same integers, at once."""
    cost = engine.step_cost()
    assert isinstance(cost, ModelledStepCost)
    starts = [5, 900, 17]
    one_by_one = [
        cost(StepPlan(StepId(0), tuple(entry(start + step, 1, number=i) for i, start in enumerate(starts))))
        for step in range(20)
    ]
    assert cost.decode_run(starts, 20) == one_by_one


def test_a_deployment_that_was_measured_deviates_from_its_kernels_and_its_interval_is_narrower_than_a_strangers() -> None:
    known = GpuDeployment(device="h200_sxm", model="llama-3.1-70b", backend="vllm", precision=Precision(gemm="fp8"))
    stranger = GpuDeployment(device="gb300", model="mixtral-8x7b", backend="vllm")
    assert known.deviation is not None
    assert stranger.deviation is None
    size = decoding(16, 1000)
    assert known.step_us()(size) == pytest.approx(known.step_model().step_us(size) * known.deviation.factor(16))
    assert stranger.step_us()(size) == stranger.step_model().step_us(size)
    assert 0.1 < known.half_width_90 <= stranger.half_width_90
    assert msgspec.structs.replace(known, tuning=Tuning()).deviation is None


# Fitting


def test_a_curve_through_knots_is_straight_in_between() -> None:
    for size, expected in ((1, 5000.0), (8, 6000.0), (64, 20_000.0), (36, 13_000.0), (120, 34_000.0)):
        alone = StepSize(num_chunks=0, chunk_tokens=size)
        assert STEPS.step_us(alone) == pytest.approx(expected)


@given(st.integers(1, 5000))
def test_weights_of_knots_add_up_to_one_and_find_the_place(num_tokens: int) -> None:
    knots = (1, 2, 4, 16, 300)
    weights = weights_of(num_tokens, knots)
    assert sum(weight for _, weight in weights) == pytest.approx(1.0)
    assert sum(weight * knots[index] for index, weight in weights) == pytest.approx(num_tokens)


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=4, max_size=12),
    st.lists(st.integers(-20, 50), min_size=12, max_size=12),
)
def test_no_subset_of_columns_fits_better_without_negative_coefficients(rows: list[list[int]], targets: list[int]) -> None:
    """Against every choice of columns: the best of those whose plain solution is not negative."""
    floats = [[float(value) for value in row] for row in rows]
    wanted = [float(target) for target in targets[: len(rows)]]
    found = non_negative_least_squares(floats, wanted)
    assert all(value >= 0 for value in found)

    def loss(x: list[float]) -> float:
        return sum((sum(a * b for a, b in zip(row, x, strict=True)) - t) ** 2 for row, t in zip(floats, wanted, strict=True))

    best = loss(found)
    grid = (0.0, 0.5, 1.0, 2.0, 5.0)
    for candidate in itertools.product(grid, repeat=3):
        assert best <= loss(list(candidate)) + 1e-6 * (1 + loss(list(candidate)))
    for column, move in itertools.product(range(3), (-1e-3, 1e-3)):
        near = list(found)
        near[column] = max(0.0, near[column] + move)
        assert best <= loss(near) + 1e-6 * (1 + best)

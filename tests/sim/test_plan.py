"""The search for the cheapest fleet: what it finds keeps the promise, and nothing cheaper that it knows does."""

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headrace.base.errors import ConfigurationError
from headrace.cli.main import main
from headrace.cli.plan import _show
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import Fixed
from headrace.measure.workload.prompts import at, random_requests
from headrace.measure.workload.request import TextPrompt, Workload, WorkloadRequest
from headrace.sim.cost.gpu import Precision
from headrace.sim.cost_model import GpuDeployment
from headrace.sim.fleet_spec import TransferOverlap
from headrace.sim.plan import (
    ExpertLayout,
    Plan,
    Promise,
    Setup,
    Space,
    known_prices,
    longest,
    plan,
    read_prices,
    rehearse,
    shapes,
)  # fmt: skip
from headrace.sim.rate_match import Demand, answer_s, prompt_s

SPACE = Space(
    devices=("h100_sxm", "l40s"), tensor_parallel_sizes=(1, 2), token_budgets=(2048,), policies=("least-requests",),
    max_replicas=16,
)  # fmt: skip
PRICES = {"h100_sxm": 3.0, "l40s": 1.5}


def workload(rate: float = 40.0) -> Workload:
    requests = random_requests(80, inputs=Fixed(1_000), outputs=Fixed(60))
    return Workload(name="test", requests=tuple(at(requests, arrival_times(80, rate=rate))))


def planned(model: str = "llama-3.1-8b", ttft: float = 400.0, space: Space = SPACE) -> Plan:
    promise = Promise(slo_ms={"ttft": ttft, "tpot": 40.0})
    return plan(workload(), GpuDeployment(device="h100_sxm", model=model), promise, space, PRICES)


def test_the_best_fleet_keeps_the_promise_and_is_the_cheapest_of_those_that_do() -> None:
    found = planned()
    best = found.best
    assert best is not None
    assert best.kept_share >= 0.95
    assert best.price == min(one.price for one in found.candidates if one.keeps)
    assert best.price == best.num_replicas * best.shape.gpu.tensor_parallel_size * PRICES[best.shape.gpu.device]
    fewer = found.one_fewer
    assert best.num_replicas == 1 or (fewer is not None and not fewer.keeps and fewer.binds in ("ttft", "tpot"))


def test_what_does_not_fit_into_memory_is_left_out_and_told() -> None:
    found = planned("llama-3.1-70b")
    assert {"h100_sxm x1", "l40s x1", "l40s x2"} <= set(found.left_out)
    assert {one.shape.layout for one in found.candidates} == {"h100_sxm x2"}


def test_where_nothing_keeps_the_promise_no_fleet_is_named() -> None:
    found = planned(ttft=1.0)
    assert found.best is None
    assert found.candidates


def test_no_point_of_the_frontier_is_beaten_in_both() -> None:
    found = planned()
    for one in found.pareto:
        assert not any(
            other.interactivity > one.interactivity and other.throughput_per_gpu > one.throughput_per_gpu
            for other in found.candidates
        )


def test_prompts_in_words_cannot_be_planned_for() -> None:
    asked = Workload(name="words", requests=(WorkloadRequest(request_id="a", prompt=TextPrompt("hi"), num_output_tokens=1),))
    with pytest.raises(ConfigurationError, match="has a prompt in words"):
        longest(asked)


def test_prices_are_of_known_devices_and_above_nothing() -> None:
    assert all(price > 0 for price in known_prices().values())
    with pytest.raises(ConfigurationError, match="did you mean 'h100_sxm'"):
        read_prices(b"h100_smx = 3.0")
    with pytest.raises(ConfigurationError, match="above 0, not 0"):
        read_prices(b"h100_sxm = 0")
    with pytest.raises(ConfigurationError, match="it has no prices"):
        read_prices(b"")


def test_gpus_that_cannot_share_the_heads_evenly_are_left_out_and_told() -> None:
    found = planned(space=dataclasses.replace(SPACE, tensor_parallel_sizes=(3,)))
    assert not found.candidates
    assert all("must divide the model's 32 attention heads" in why for why in found.left_out.values())


def test_the_command_tells_the_fleet_and_what_binds_and_draws_the_frontier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, result, plot = (tmp_path / name for name in ("w.jsonl", "plan.json", "plan.svg"))
    words = "--dataset-name random --num-prompts 40 --request-rate 20 --input-len 500 --output-len 40"
    assert main(["bench", *words.split(), "--write-workload", str(file)]) == 0
    asked = ["--slo", "ttft:400", "--devices", "l40s", "--tensor-parallel-sizes", "1", "--token-budgets", "2048"]
    to = ["--result", str(result), "--plot", str(plot)]
    assert main(["plan", "llama-3.1-8b", "--workload", str(file), *asked, *to]) == 0
    told = capsys.readouterr().out
    assert "an hour" in told
    assert "90 % interval" in told
    written = json.loads(result.read_text())
    assert written["best"]["keeps"]
    assert plot.read_text().startswith("<svg")


def long_prompts() -> Workload:
    requests = random_requests(80, inputs=Fixed(4_000), outputs=Fixed(200))
    return Workload(name="long prompts", requests=tuple(at(requests, arrival_times(80, rate=12.0))))


def test_where_others_prompts_break_the_pace_of_answers_prompts_are_computed_apart() -> None:
    """A step with a chunk of 2,048 tokens takes ten times what a decode step does, and the pace is promised."""
    space = Space(devices=("h100_sxm",), tensor_parallel_sizes=(1,), token_budgets=(2048,), max_replicas=8)
    promise = Promise(slo_ms={"ttft": 2_000.0, "tpot": 9.0})
    found = plan(long_prompts(), GpuDeployment(device="h100_sxm", model="llama-3.1-8b"), promise, space, PRICES)
    best, other = found.best, found.best_of_other_kind
    assert best is not None and best.is_disaggregated
    assert other is None or (not other.is_disaggregated and other.price >= best.price)
    assert best.num_gpus == best.num_replicas + best.setup.num_prefill == best.price / PRICES["h100_sxm"]
    assert {one.binds for one in found.fewer} <= {"ttft", "tpot"}
    assert found.fewer, "with one fewer of either it would not be kept"


def test_only_what_is_asked_for_is_searched() -> None:
    for is_aggregated in (True, False):
        space = dataclasses.replace(SPACE, is_aggregated=is_aggregated, is_disaggregated=not is_aggregated)
        assert {one.is_disaggregated for one in planned(space=space).candidates} == {not is_aggregated}


@given(st.floats(0.01, 100), st.floats(0.1, 10), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=20)
def test_what_a_workload_needs_grows_with_its_prompts_and_answers(
    rate: float, pace: float, prompts: int, outputs: int
) -> None:
    gpu = GpuDeployment(device="h100_sxm", model="llama-3.1-8b")
    small = Demand(num_requests=10, prompt_tokens=500, new_tokens=500, output_tokens=50, span_s=10 / rate)
    more = dataclasses.replace(small, prompt_tokens=500 * prompts, new_tokens=500 * prompts, output_tokens=50 * outputs)
    assert prompt_s(gpu, more) >= prompt_s(gpu, small)
    room = {"num_tokens_of_kv": 400_000, "max_num_seqs": 256, "itl_ms": 10 * pace}
    assert answer_s(gpu, more, **room) >= answer_s(gpu, small, **room)  # type: ignore[arg-type]


def apart(**changed: object) -> Plan:
    """Fleets whose prompts are computed apart, and none else."""
    space = Space(
        devices=("h100_sxm",), tensor_parallel_sizes=(1,), token_budgets=(2048,), policies=("least-requests",),
        max_replicas=8, is_aggregated=False,
    )  # fmt: skip
    promise = Promise(slo_ms={"ttft": 2_000.0, "tpot": 9.0})
    deployment = GpuDeployment(device="h100_sxm", model="llama-3.1-8b")
    return plan(long_prompts(), deployment, promise, dataclasses.replace(space, **changed), PRICES)  # type: ignore[arg-type]


def test_no_ratio_of_prefill_to_decode_is_cheaper_than_the_one_that_is_found() -> None:
    """Every pair of numbers that costs less is rehearsed here, one after another."""
    found = apart()
    best = found.best
    assert best is not None and best.setup.prefill is not None
    promise = Promise(slo_ms={"ttft": 2_000.0, "tpot": 9.0})
    for num_prefill in range(1, 8):
        for num_replicas in range(1, 8):
            one = dataclasses.replace(best.setup, num_prefill=num_prefill, num_replicas=num_replicas)
            if one.price < best.price:
                assert not rehearse(long_prompts(), one, promise).keeps, one.name


def test_prompts_may_be_computed_on_other_devices_than_answers_where_that_is_wanted() -> None:
    devices = ("h100_sxm", "l40s")
    alike, mixed = (apart(devices=devices, mixes_devices=mixes) for mixes in (False, True))
    assert all(one.setup.prefill and one.setup.prefill.gpu.device == one.shape.gpu.device for one in alike.candidates)
    assert alike.best is not None and mixed.best is not None
    assert mixed.best.price <= alike.best.price
    told = {name for name in mixed.left_out if name.startswith("l40s x1 prefill with h100")}
    rehearsed = {one.setup.prefill.layout for one in mixed.candidates if one.setup.prefill}
    assert told or "l40s x1" in rehearsed, "a pair is rehearsed, or its reason is told"


def test_pairs_beyond_the_cheapest_by_closed_numbers_are_told() -> None:
    found = apart(tensor_parallel_sizes=(1, 2), max_pairs=1, max_replicas=4)
    assert "by closed numbers 1 other pairs are cheaper" in found.left_out.values() or found.best is not None


def test_a_planned_fleet_that_resembles_a_backend_has_its_front_end() -> None:
    gpu = GpuDeployment(device="h100_sxm", model="llama-3.1-8b")
    space = dataclasses.replace(SPACE, devices=("h100_sxm",), tensor_parallel_sizes=(1,), is_disaggregated=False)
    promise = Promise(slo_ms={"ttft": 2_000.0, "tpot": 40.0})
    alone, like = (
        plan(workload(), msgspec.structs.replace(gpu, backend=backend), promise, space, PRICES).best
        for backend in ("", "vllm")
    )
    assert alone is not None and like is not None
    of_alone, of_like = (one.summary.distributions["ttft"].mean for one in (alone, like))
    assert of_like > of_alone + like.shape.gpu.front_end.latency_us / 1e3


def test_of_a_model_with_experts_layouts_with_whole_experts_are_searched_too() -> None:
    space = dataclasses.replace(SPACE, devices=("h100_sxm",), tensor_parallel_sizes=(8,), max_replicas=4)
    both = planned("qwen3-235b-a22b", space=space, ttft=2_000.0)
    layouts = {one.shape.layout for one in both.candidates} | set(both.left_out)
    assert {"h100_sxm x8", "h100_sxm x8 EP8"} <= layouts
    only = planned(
        "qwen3-235b-a22b", ttft=2_000.0,
        space=dataclasses.replace(space, expert_layouts=(ExpertLayout.EXPERT,)),
    )  # fmt: skip
    assert {one.shape.layout for one in only.candidates} == {"h100_sxm x8 EP8"}


def test_a_narrow_screen_breaks_names_of_fleets_and_hides_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    found = apart()
    _show(Console(width=80), found, long_prompts(), Promise(slo_ms={"ttft": 2_000.0, "tpot": 9.0}))
    told = capsys.readouterr().out
    assert all(head in told for head in ("GPUs", "$/h", "kept", "tok/s per GPU", "tok/s per user"))
    assert found.best is not None and f"{found.best.price:,.2f}" in told


def layouts_of(model: str, size: int = 8, **fields: object) -> tuple[set[str], dict[str, str]]:
    """What is searched of one size on one device, and what is left out."""
    space = dataclasses.replace(SPACE, devices=("h200_sxm",), tensor_parallel_sizes=(size,), **fields)  # type: ignore[arg-type]
    gpu = GpuDeployment(
        device="h200_sxm", model=model, precision=Precision(gemm="fp8", experts="fp8", latent_projections="bfloat16")
    )
    left_out: dict[str, str] = {}
    found = shapes(gpu, space, {"h200_sxm": 4.0}, max_model_len=4_096, left_out=left_out)
    return {one.layout for one in found}, left_out


def test_attention_dp_is_searched_where_kv_cannot_be_split_over_all_gpus_and_told_where_it_can() -> None:
    latent, _ = layouts_of("deepseek-r1")
    assert latent == {"h200_sxm x8", "h200_sxm x8 EP8", "h200_sxm x8 DP8 EP8"}
    few_heads, _ = layouts_of("qwen3-235b-a22b")
    assert "h200_sxm x8 DP8 EP8" in few_heads, "four KV heads, eight GPUs"
    for model, size in (("qwen3-235b-a22b", 4), ("minimax-m2.5", 8)):
        searched, left_out = layouts_of(model, size)
        name = f"h200_sxm x{size} DP{size} EP{size}"
        assert name not in searched
        assert "would save no KV" in left_out[name] and f"over {size} GPUs" in left_out[name]
    dense, left_out = layouts_of("llama-3.1-70b")
    assert dense == {"h200_sxm x8"} and not left_out, "a dense model has one layout"


def test_an_engine_with_attention_dp_has_the_limits_of_all_its_ranks_and_more_room_for_kv() -> None:
    gpu = GpuDeployment(device="h200_sxm", model="deepseek-r1", precision=Precision(gemm="fp8", experts="fp8"))
    space = dataclasses.replace(SPACE, devices=("h200_sxm",), tensor_parallel_sizes=(8,))
    found = {one.layout: one for one in shapes(gpu, space, {"h200_sxm": 4.0}, max_model_len=4_096, left_out={})}
    split, spread = found["h200_sxm x8 EP8"], found["h200_sxm x8 DP8 EP8"]
    assert spread.scheduler.max_num_batched_tokens == 8 * split.scheduler.max_num_batched_tokens
    assert spread.scheduler.max_num_seqs == 8 * split.scheduler.max_num_seqs
    assert spread.scheduler.max_tokens_per_prompt_chunk == split.scheduler.max_tokens_per_prompt_chunk, "one rank's"
    assert spread.scheduler.num_blocks > 3 * split.scheduler.num_blocks, "each token's KV lies on one GPU"
    assert spread.gpu.num_gpus == split.gpu.num_gpus == 8
    assert spread.price == split.price


def test_many_short_prompts_go_through_an_engine_with_attention_dp_sooner_and_the_answer_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = random_requests(300, inputs=Fixed(500), outputs=Fixed(200))
    asked = Workload(name="many", requests=tuple(at(requests, arrival_times(300, rate=200.0))))
    gpu = GpuDeployment(device="h200_sxm", model="deepseek-r1", precision=Precision(gemm="fp8", experts="fp8"))
    space = dataclasses.replace(SPACE, devices=("h200_sxm",), tensor_parallel_sizes=(8,))
    promise = Promise(slo_ms={"ttft": 30_000.0, "tpot": 1_000.0})
    candidates = [
        rehearse(asked, Setup(shape=one, num_replicas=1 if one.gpu.data_parallel_size > 1 else 2), promise)
        for one in shapes(gpu, space, {"h200_sxm": 4.0}, max_model_len=2_048, left_out={})
    ]
    spread = next(one for one in candidates if one.has_attention_dp)
    others = [one for one in candidates if not one.has_attention_dp]
    assert len(others) == 2
    assert all(spread.throughput_per_gpu > one.throughput_per_gpu for one in others)
    _show(Console(width=200), Plan(candidates=tuple(candidates), left_out={}), asked, promise)
    told = capsys.readouterr().out
    assert "keep the same KV" in told and "Without attention-DP, the cheapest is 2 x h200_sxm x8" in told


def test_prompts_are_handed_over_as_is_asked() -> None:
    space = dataclasses.replace(SPACE, overlap=TransferOverlap.LAYERS)
    gpu = GpuDeployment(device="h100_sxm", model="llama-3.1-8b")
    one = next(shapes(gpu, space, PRICES, max_model_len=4_096, left_out={}))
    pools = Setup(shape=one, num_replicas=1, prefill=one, num_prefill=1).fleet().pools
    assert pools["prefill"].transfer.overlap is TransferOverlap.LAYERS
    assert pools["decode"].transfer.overlap is TransferOverlap.NONE

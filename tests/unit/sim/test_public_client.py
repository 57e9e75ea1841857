"""How measured deployments were started is known, and the replay does what engines that were started so do."""

import dataclasses
from collections.abc import Sequence

import pytest
from benchmarks.gpu_fits.points import Point
from benchmarks.gpu_fits.recipes import Recipe, recipe
from benchmarks.gpu_fits.replay import kv_capacity, replay

from headrace.sim.cost.curves import curves_of
from headrace.sim.cost.gpu import GpuStepModel, Precision
from headrace.sim.cost_model import known_shape
from headrace.specs.device import device
from headrace.specs.parallel import ParallelSpec

POINT = Point(
    row="a", run="llama-3.1-8b|h100_sxm|sglang|fp8|2026-03-25|0.5.9", model="llama-3.1-8b", family="llama-8b",
    device="h100_sxm", backend="sglang", parallel=ParallelSpec(), precision=Precision(), concurrency=8, isl=1024, osl=128,
    ttft_ms=1.0, tpot_ms=1.0, is_public_client=True, day="2026-03-25",
)  # fmt: skip


def model_of(point: Point) -> GpuStepModel:
    return GpuStepModel(shape=known_shape(point.model), device=device(point.device), curves=curves_of(point.device))


def ttft_ms(monkeypatch: pytest.MonkeyPatch, started: Recipe, point: Point = POINT) -> float:
    monkeypatch.setattr("benchmarks.gpu_fits.replay.recipe", lambda point: started)
    return _time(replay(point, model_of(point)).ttft.tolist())


def _time(components: Sequence[float]) -> float:
    """Microseconds, every component as it was measured."""
    return sum(components) - components[0] - components[-1] + 500.0 * components[0] + 50.0 * components[-1]


def test_an_engine_that_looks_seldom_finds_requests_later(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [ttft_ms(monkeypatch, Recipe(steps_between_looks=steps)) for steps in (1, 4, 16)]
    assert found == sorted(found)
    assert found[2] > 1.2 * found[0]


def test_prompts_that_wait_for_company_are_later_unless_they_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    point = dataclasses.replace(POINT, backend="trtllm")
    at_once = ttft_ms(monkeypatch, Recipe(), point)
    waiting = [ttft_ms(monkeypatch, Recipe(max_wait_steps=20, enough_tokens=share), point) for share in (0.01, 0.9)]
    assert waiting[0] == at_once
    assert waiting[1] > at_once


def test_a_small_largest_batch_makes_the_first_wave_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ttft_ms(monkeypatch, Recipe(max_num_seqs=2)) > 2 * ttft_ms(monkeypatch, Recipe())


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
def test_of_the_other_client_only_defaults_are_known(backend: str) -> None:
    started = recipe(dataclasses.replace(POINT, backend=backend, is_public_client=False))
    assert (started.steps_between_looks, started.max_wait_steps, started.token_budget) == (1, 0, 8192)


def test_launch_scripts_are_told_apart_by_what_a_row_says() -> None:
    seldom = dataclasses.replace(POINT, family="deepseek", device="b200_sxm", run=POINT.run.replace("h100", "b200"))
    assert recipe(seldom).steps_between_looks == 10
    assert recipe(dataclasses.replace(seldom, concurrency=16)).steps_between_looks == 30
    assert recipe(dataclasses.replace(seldom, device="h200_sxm")).steps_between_looks == 1
    waits = dataclasses.replace(POINT, family="llama-70b", backend="trtllm", osl=1024)
    assert (recipe(waits).max_wait_steps, recipe(waits).enough_tokens) == (20, 0.9)
    assert recipe(dataclasses.replace(waits, osl=8192)).max_wait_steps == 0


def test_more_of_a_memory_holds_more_tokens() -> None:
    model = model_of(POINT)
    capacities = [kv_capacity(POINT, model, Recipe(memory=share)) for share in (0.5, 0.7, 0.9)]
    assert capacities == sorted(capacities)
    of_free = kv_capacity(POINT, model, Recipe(memory=0.9, is_share_of_free=True))
    assert of_free > capacities[-1], "nine tenths of what weights leave are more than nine tenths of all less the weights"

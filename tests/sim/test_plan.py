"""The search for the cheapest fleet: what it finds keeps the promise, and nothing cheaper that it knows does."""

import json
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.main import main
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import Fixed
from headrace.measure.workload.prompts import at, random_requests
from headrace.measure.workload.request import TextPrompt, Workload, WorkloadRequest
from headrace.sim.cost_model import GpuDeployment
from headrace.sim.plan import Plan, Promise, Space, known_prices, longest, plan, read_prices

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
    with pytest.raises(ConfigurationError, match="must be above 0"):
        read_prices(b"h100_sxm = 0")


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

"""`headrace simulate --engine`: a file that describes an engine decides how long things take, and says how sure it is."""

import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cli.parser import EXIT_USAGE

SCHEDULER = {"max_model_len": 4096, "num_blocks": 2000}
STEPS = {
    "knots": [1, 64, 512], "knot_us": [5000.0, 20000.0, 150000.0], "decode_context_us": 0.5, "chunk_pairs_us": 0.01,
    "num_decodes_us": 20.0, "num_chunks_us": 50.0,
}  # fmt: skip


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "load.jsonl"
    drawn = ["--dataset-name", "random", "--num-prompts", "12", "--input-len", "100", "--output-len", "20"]
    words = ["bench", *drawn, "--request-rate", "5"]
    assert main([*words, "--write-workload", str(path)]) == 0
    return path


def rehearse(workload: Path, engine: dict[str, object]) -> tuple[int, Path]:
    path = workload.with_name("engine.json")
    path.write_text(json.dumps({"scheduler": SCHEDULER, **engine}))
    return main(["simulate", "--workload", str(workload), "--engine", str(path)]), path


def test_a_calibrated_engine_is_rehearsed_with_its_interval(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front_end = {"request_us": 500.0, "latency_us": 300.0}
    status, _ = rehearse(workload, {"steps": STEPS, "speed_spread": 0.05, "front_end": front_end})
    printed = capsys.readouterr().out
    assert status == 0
    assert "90 % interval of the prediction" in printed
    row = next(line.split() for line in printed.splitlines() if line.strip().startswith("E2EL p50"))
    low, middle, high = float(row[-2]), float(row[-3]), float(row[-1])
    assert low < middle < high
    assert high / low == pytest.approx(1.05 ** (2 * 1.645), rel=0.05)


def test_a_fleet_of_calibrated_engines_is_rehearsed_with_its_interval(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload.with_name("engine.json").write_text(json.dumps({"scheduler": SCHEDULER, "steps": STEPS, "speed_spread": 0.05}))
    fleet = workload.with_name("fleet.toml")
    fleet.write_text('[pools.main]\nnum_replicas = 3\nengine = "engine.json"\n')
    assert main(["simulate", str(fleet), "--workload", str(workload)]) == 0
    printed = capsys.readouterr().out
    row = next(line.split() for line in printed.splitlines() if line.strip().startswith("E2EL p50"))
    assert float(row[-2]) < float(row[-3]) < float(row[-1])


def test_a_step_beyond_what_a_pools_engine_was_fitted_on_is_refused(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = {"max_tokens": 50, "max_decodes": 64, "max_context_per_sequence": 4096}
    workload.with_name("engine.json").write_text(json.dumps({"scheduler": SCHEDULER, "steps": STEPS, "fitted": fitted}))
    fleet = workload.with_name("fleet.toml")
    fleet.write_text('[pools.main]\nnum_replicas = 1\nengine = "engine.json"\n')
    assert main(["simulate", str(fleet), "--workload", str(workload)]) == EXIT_USAGE
    assert "set extrapolate = true" in capsys.readouterr().err


def test_a_stated_cost_has_no_interval(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rehearse(workload, {"cost": {"fixed_ns": 1000}})[0] == 0
    assert "interval" not in capsys.readouterr().out


def test_a_gpu_that_is_not_here_is_rehearsed_and_a_stand_in_is_named(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearse(workload, {"gpu": {"device": "gb300", "model": "qwen3-8b"}})[0] == 0
    printed = capsys.readouterr().out
    assert "extrapolated" in printed
    assert "90 % interval" in printed


def test_a_step_beyond_what_was_fitted_ends_the_rehearsal_with_the_way_out(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = {"max_tokens": 50, "max_decodes": 64, "max_context_per_sequence": 4096}
    assert rehearse(workload, {"steps": STEPS, "fitted": fitted})[0] == EXIT_USAGE
    assert "set extrapolate = true" in capsys.readouterr().err
    assert rehearse(workload, {"steps": STEPS, "fitted": fitted, "extrapolate": True})[0] == 0


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"scheduler": {**SCHEDULER, "max_num_batched_token": 64}}, "did you mean 'max_num_batched_tokens'"),
        ({"scheduler": {"num_blocks": 2000}}, "[scheduler] needs max_model_len"),
        ({"cost": {"fixed_ns": -1}}, "fixed_ns of at least 1"),
        ({"cost": {"fixed_n": 1}}, "there is no key 'fixed_n' in [cost]; did you mean 'fixed_ns'?"),
        ({"front_end": {"chunk_us": -3.0}}, "chunk_us must not be negative, not -3"),
        ({"steps": {**STEPS, "knots": [1, 64]}}, "knot_us must have a time for each"),
        ({"speed_spread": -0.5}, "speed_spread must not be negative"),
        ({"gpu": {"device": "h100_sxm", "model": "qwen3-8b", "tuning": {"host_us": -1.0}}}, "host_us must not be negative"),
    ],
)
def test_what_is_wrong_in_an_engine_file_is_named(
    engine: dict[str, object], told: str, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, path = rehearse(workload, engine)
    assert status == EXIT_USAGE
    message = capsys.readouterr().err
    assert told in message and str(path) in message

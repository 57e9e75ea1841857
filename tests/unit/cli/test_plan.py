"""What `headrace plan` is asked in vain it says before it searches."""

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.measure.workload.workload_file import write_workload


def test_a_device_that_nobody_knows_is_refused_with_the_nearest_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_bytes(b"".join(write_workload(Workload(name="one", requests=(), seed=0, vocab_size=8))))
    status = main(["plan", "llama-3.1-8b", "--workload", str(path), "--slo", "ttft:500", "--devices", "h100_smx"])
    assert status == 2
    assert "no device is called 'h100_smx'; did you mean 'h100_sxm'?" in capsys.readouterr().err


def test_a_file_that_is_no_workload_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("[pools.a]\n")
    assert main(["plan", "llama-3.1-8b", "--workload", str(path), "--slo", "ttft:500"]) == 2
    assert f"headrace: {path}: line 1 does not introduce a workload" in capsys.readouterr().err


def test_a_workload_without_requests_is_nothing_to_plan_for_nor_to_rehearse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_bytes(b"".join(write_workload(Workload(name="none", requests=()))))
    for words in (["plan", "llama-3.1-8b", "--slo", "ttft:500"], ["simulate"]):
        assert main([*words, "--workload", str(path)]) == 2
        assert f"{path}: the workload 'none' has no requests" in capsys.readouterr().err


def test_a_promise_that_nothing_can_keep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "workload.jsonl"
    one = WorkloadRequest(request_id="a", prompt=TokenPrompt((Segment("x", 5),)), num_output_tokens=1)
    path.write_bytes(b"".join(write_workload(Workload(name="one", requests=(one,)))))
    assert main(["plan", "llama-3.1-8b", "--workload", str(path), "--slo", "ttft:0"]) == 2
    assert "--slo ttft must be above 0 ms" in capsys.readouterr().err

"""What `headrace plan` is asked in vain it says before it searches."""

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.measure.workload.request import Workload
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


def test_a_workload_without_requests_is_nothing_to_plan_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_bytes(b"".join(write_workload(Workload(name="none", requests=()))))
    assert main(["plan", "llama-3.1-8b", "--workload", str(path), "--slo", "ttft:500"]) == 2
    assert "the workload 'none' has no requests" in capsys.readouterr().err

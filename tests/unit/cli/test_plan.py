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


def asked(tmp_path: Path) -> list[str]:
    path = tmp_path / "workload.jsonl"
    one = WorkloadRequest(request_id="a", prompt=TokenPrompt((Segment("x", 50),)), num_output_tokens=5)
    path.write_bytes(b"".join(write_workload(Workload(name="one", requests=(one,)))))
    return ["plan", "llama-3.1-8b", "--workload", str(path), "--slo", "ttft:500"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--expert-layouts", "attention_dp"], "must be one of tensor, expert, attention-dp, not 'attention_dp'"),
        (["--kv-overlap", "layer"], "must be one of none, chunks, layers, not 'layer'; did you mean 'layers'?"),
        (["--slo", "ttft=500"], "an objective is a name and milliseconds, such as ttft:500, not 'ttft=500'"),
        (["--tensor-parallel-sizes", "0"], "--tensor-parallel-sizes: must be at least 1"),
    ],
)
def test_a_word_that_an_option_does_not_know_is_refused_with_those_that_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert _status([*asked(tmp_path), *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("h100 = 3", "no device is called 'h100'; did you mean 'h100_sxm'?"),
        ('h100_sxm = "3"', "the price of h100_sxm must be dollars an hour, above 0, not '3'"),
        ("h100_sxm = 0", "the price of h100_sxm must be dollars an hour, above 0, not 0"),
        ("h100_sxm = inf", "the price of h100_sxm must be dollars an hour, above 0, not inf"),
        ("h100_sxm = true", "the price of h100_sxm must be dollars an hour, above 0, not True"),
        ("[prices]\nh100_sxm = 3", "not in a table [prices]"),
        ("", "it has no prices"),
        ("h100_sxm", "it is no table of prices, such as h100_sxm = 6.88"),
    ],
)
def test_a_price_that_is_none_is_refused_by_the_name_of_its_device_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, told: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(content)
    assert main([*asked(tmp_path), "--prices", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"headrace: {path}: " in err and told in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--devices", "h100_sxm", "--tensor-parallel-sizes", "16"], "more GPUs than its 8 that are joined directly"),
        (["--devices", "h100_sxm", "--tensor-parallel-sizes", "3"], "must divide the model's 32 attention heads"),
        (["--devices", "rtx_pro_6000_server"], "it has no price"),
        (
            ["--devices", "h100_sxm", "--serving", "disaggregated", "--max-replicas", "1", "--tensor-parallel-sizes", "1"],
            "it takes a replica for each",
        ),
    ],
)
def test_where_nothing_could_be_rehearsed_the_plan_says_why_and_asks_for_no_more_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main([*asked(tmp_path), *words]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "nothing could be rehearsed: what was left out says why" in told
    assert why in told and "allow more replicas" not in told


def _status(words: list[str]) -> int:
    """Also where argparse leaves by itself."""
    try:
        return main(words)
    except SystemExit as left:
        return int(left.code or 0)

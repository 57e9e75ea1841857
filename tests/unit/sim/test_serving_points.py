"""Measured serving points are read for what they mean: squared sizes, repeated rows and unstated speculation are known."""

import csv
from pathlib import Path

import pytest
from benchmarks.gpu_fits.points import read_points

from headrace.specs.parallel import ParallelSpec

ROW = {
    "id": "a", "silicon_data_source": "x.csv; silicon_concurrency=32; measured=2026-02-03T00:00", "backend": "trtllm",
    "backend_version": "1.0", "model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "precision": "fp4",
    "mode": "agg", "isl": "1024", "osl": "1024", "batch_size": "4", "tp_size": "8", "attention_dp_size": "1",
    "moe_tp_size": "1", "moe_ep_size": "8", "silicon_ttft_ms": "200.0", "silicon_tpot_ms": "10.0",
}  # fmt: skip


def write(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows({**ROW, "silicon_ttft_ms": f"{200 + 7 * index}", **row} for index, row in enumerate(rows))
    return path


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        (("8", "1", "8", "1"), ParallelSpec(tensor_parallel_size=8)),
        (("64", "1", "8", "8"), ParallelSpec(tensor_parallel_size=8, expert_parallel_size=8)),
        (("16", "1", "4", "4"), ParallelSpec(tensor_parallel_size=4, expert_parallel_size=4)),
        (("1", "64", "8", "8"), ParallelSpec(data_parallel_size=8, expert_parallel_size=8)),
        (("4", "4", "1", "16"), ParallelSpec(data_parallel_size=4, expert_parallel_size=4)),
        (("1", "8", "1", "8"), ParallelSpec(data_parallel_size=8, expert_parallel_size=8)),
    ],
)
def test_squares_of_parallel_sizes_are_known_for_what_they_are(
    sizes: tuple[str, str, str, str], layout: ParallelSpec, tmp_path: Path
) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    (point,), _ = read_points(write(tmp_path / "rows.csv", dict(zip(names, sizes, strict=True))))
    assert point.parallel == layout
    assert point.concurrency == 32  # as stated by the source, not the batch of one rank


def test_every_row_that_is_left_out_has_its_reason(tmp_path: Path) -> None:
    twin = {"silicon_ttft_ms": "200.0"}
    points, left_out = read_points(
        write(
            tmp_path / "rows.csv",
            {},
            {**twin, "model_path": "deepseek-ai/DeepSeek-V3"},
            {"mode": "disagg"},
            {"backend_version": "1.2.0rc6.post3"},
            {"model_path": "nvidia/DeepSeek-R1-NVFP4"},
        )
    )
    assert [point.row for point in points] == ["a"]
    assert dict(left_out) == {
        "the same measurement again": 1,
        "disaggregated": 1,
        "speculative decoding that the row does not state": 1,
        "replicas of unknown number (nvidia/*)": 1,
    }

"""The measured serving points of aiconfigurator's sample, cleaned: one row is one deployment under one load.

Knows what the columns mean and where they mislead; knows no model of time. Each reason for leaving a row out is counted and
printed, so that nothing is dropped in silence. All of it was found by looking at the whole sample (see docs/cost-model.md).
"""

import csv
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.sim.cost.gpu import Precision
from headrace.specs.device import device
from headrace.specs.parallel import ParallelSpec

_MODELS = {
    "deepseek-ai/DeepSeek-R1": ("deepseek-r1", "deepseek"),
    "deepseek-ai/DeepSeek-V3": ("deepseek-r1", "deepseek"),
    "MiniMaxAI/MiniMax-M2.5": ("minimax-m2.5", "minimax"),
    "openai/gpt-oss-120b": ("gpt-oss-120b", "gpt-oss"),
    "meta-llama/Llama-3.1-70B": ("llama-3.1-70b", "llama-70b"),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", "llama-8b"),
    "Qwen/Qwen3-32B": ("qwen3-32b", "qwen3-32b"),
    "Qwen/Qwen3.5-397B-A17B": ("qwen3.5-397b-a17b", "qwen3.5"),
    "moonshotai/Kimi-K2.5": ("kimi-k2.5", "kimi"),
    "Qwen/Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b", "qwen3-235b"),
    "zhipuai/GLM-5": ("glm-5", "glm"),
}
_BLOCK_SCALED = ("deepseek", "minimax", "qwen3.5", "qwen3-235b", "glm", "kimi")
"""Families whose "fp8" checkpoints are scaled by blocks."""
_LATENT = ("deepseek", "kimi", "glm")
_SPECULATING = (("2026-01-14", "1.1.0rc2.post2"), (None, "1.2.0rc6.post3"))
"""(day, version) of TensorRT-LLM's DeepSeek runs whose steps give more than one token: nothing in the row says so."""


@dataclass(frozen=True, slots=True)
class Point:
    row: str
    """Its id in the sample."""
    run: str
    """What was deployed and measured together: points of one run share everything that a row does not say."""
    model: str
    family: str
    device: str
    backend: str
    parallel: ParallelSpec
    precision: Precision
    concurrency: int
    isl: int
    osl: int
    ttft_ms: float
    tpot_ms: float
    is_public_client: bool
    """Measured by the public benchmark's client (closed loop, lengths over [0.8 L, L]); else by another, unrecorded."""
    day: str

    @property
    def label(self) -> str:
        """The row's own word for its precision: bf16, fp8, fp4, int4."""
        return self.run.split("|")[3]

    @property
    def version(self) -> str:
        """Of the engine; may be empty."""
        return self.run.split("|")[5]

    @property
    def load(self) -> str:
        return "c <= 8" if self.concurrency <= 8 else "c 9-64" if self.concurrency <= 64 else "c > 64"


def read_points(path: Path) -> tuple[list[Point], Counter[str]]:
    """The aggregated points that can be predicted, and how many rows were left out for which reason."""
    left_out: Counter[str] = Counter()
    points: list[Point] = []
    seen: set[tuple[str, str, str, str]] = set()
    with path.open() as file:
        for row in csv.DictReader(file):
            reason = _reason_to_leave_out(row)
            latencies = (
                f"{float(row['silicon_ttft_ms']):.4g}", f"{float(row['silicon_tpot_ms']):.4g}", row["isl"], row["osl"]
            )  # fmt: skip
            parallel = None if reason else _parallel(row)
            if reason is None and parallel is None:
                reason = "a layout that contradicts itself"
            if reason is None and latencies in seen:
                reason = "the same measurement again"
            if reason is not None:
                left_out[reason] += 1
                continue
            assert parallel is not None
            seen.add(latencies)
            points.append(_point(row, parallel))
    return points, left_out


def read_decode_workers(path: Path) -> list[Point]:
    """Of the disaggregated rows those that say how many decode workers there were: one worker with its share of the users,
    `concurrency` being the sequences of all its attention ranks. Their TTFT is that of another pool, and means nothing."""
    points: list[Point] = []
    seen: set[tuple[str, str, str, str]] = set()
    with path.open() as file:
        for row in csv.DictReader(file):
            model = _MODELS.get(row["model_path"])
            if row["mode"] != "disagg" or not row["decode_num_workers"] or model is None:
                continue
            latencies = (row["silicon_ttft_ms"], row["silicon_tpot_ms"], row["isl"], row["osl"])
            tp, dp = int(row["decode_tp_size"]), max(1, int(row["decode_attention_dp_size"] or 1))
            ep = max(1, int(row["decode_moe_ep_size"] or 1))
            if latencies in seen or (tp * dp) % ep:
                continue
            seen.add(latencies)
            parallel = ParallelSpec(tensor_parallel_size=tp, data_parallel_size=dp, expert_parallel_size=ep)
            point = _point({**row, "batch_size": row["decode_batch_size"]}, parallel)
            points.append(replace(point, concurrency=int(row["decode_batch_size"]) * dp))
    return points


@dataclass(frozen=True, slots=True)
class DisaggregatedPoint:
    """Two pools under one load; the latencies of both points are those of the whole."""

    prefill: Point
    num_prefill: int
    decode: Point
    num_decode: int


def read_disaggregated(path: Path) -> tuple[list[DisaggregatedPoint], Counter[str]]:
    """The disaggregated rows that say how many workers there were, and how many rows were left out for which reason."""
    left_out: Counter[str] = Counter()
    points: list[DisaggregatedPoint] = []
    seen: set[tuple[str, str, str, str]] = set()
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["mode"] != "disagg":
                continue
            latencies = (row["silicon_ttft_ms"], row["silicon_tpot_ms"], row["isl"], row["osl"])
            sides = {side: _side(row, side) for side in ("prefill", "decode")}
            if not row["decode_num_workers"] or not row["prefill_num_workers"]:
                left_out["the numbers of workers are not stated"] += 1
            elif row["model_path"] not in _MODELS:
                left_out["a model whose shape is not known"] += 1
            elif latencies in seen:
                left_out["the same measurement again"] += 1
            elif sides["prefill"] is None or sides["decode"] is None:
                left_out["a layout that contradicts itself"] += 1
            elif "silicon_concurrency=" not in row["silicon_data_source"]:
                left_out["the number of users is not stated"] += 1
            else:
                seen.add(latencies)
                points.append(
                    DisaggregatedPoint(
                        _point(row, sides["prefill"]),
                        int(row["prefill_num_workers"]),
                        _point(row, sides["decode"]),
                        int(row["decode_num_workers"]),
                    )
                )
    return points, left_out


def _side(row: dict[str, str], side: str) -> ParallelSpec | None:
    tp, dp, ep = (max(1, int(row[f"{side}_{name}_size"] or 1)) for name in ("tp", "attention_dp", "moe_ep"))
    if (tp * dp) % ep:
        return None
    return ParallelSpec(tensor_parallel_size=tp, data_parallel_size=dp, expert_parallel_size=ep)


def _reason_to_leave_out(row: dict[str, str]) -> str | None:
    day, version = _day(row), row["backend_version"]
    model, system = row["model_path"], row["system"]
    if row["mode"] != "agg":
        return "disaggregated"
    if model not in _MODELS:
        return "replicas of unknown number (nvidia/*)"
    if system == "gb200" and model == "Qwen/Qwen3-32B":
        return "replicas of unknown number (gb200 Qwen3-32B)"
    if system == "gb200" and int(row["tp_size"]) >= 12:
        return "all GPUs of a disaggregated set-up in one number"
    if row["backend"] == "sglang" and system == "b200_sxm" and row["precision"] == "fp4" and day == "2025-11-10":
        return "a run that compiled while it was measured"
    if row["backend"] == "trtllm" and _MODELS[model][1] == "deepseek":
        for speculating_day, speculating_version in _SPECULATING:
            if version == speculating_version and speculating_day in (None, day):
                return "speculative decoding that the row does not state"
    return None


def _parallel(row: dict[str, str]) -> ParallelSpec | None:
    """Part of the rows carry squares of tp, ep or attention_dp; the same measurements appear with both readings."""
    tp, moe_tp, ep = int(row["tp_size"]), int(row["moe_tp_size"] or 1), int(row["moe_ep_size"] or 1)
    dp = max(1, int(row["attention_dp_size"] or 1))
    ep = max(1, ep)
    if dp in (16, 64):
        gpus = math.isqrt(dp)
        return ParallelSpec(data_parallel_size=gpus, expert_parallel_size=gpus)
    if dp > 1 and tp == dp and ep == dp * dp:
        return ParallelSpec(data_parallel_size=dp, expert_parallel_size=dp)
    if tp in (16, 64) and moe_tp * ep == tp:
        gpus = math.isqrt(tp)
        return ParallelSpec(tensor_parallel_size=gpus, expert_parallel_size=gpus if ep > 1 else 1)
    if dp > 1 and tp == dp:  # tp counts the same GPUs
        return ParallelSpec(data_parallel_size=dp, expert_parallel_size=ep if dp % ep == 0 else dp)
    gpus = tp * dp
    if gpus > 8 or gpus % ep or moe_tp * ep not in (1, gpus):
        return None
    return ParallelSpec(tensor_parallel_size=tp, data_parallel_size=dp, expert_parallel_size=ep)


def _point(row: dict[str, str], parallel: ParallelSpec) -> Point:
    model, family = _MODELS[row["model_path"]]
    source = row["silicon_data_source"]
    stated = re.search(r"silicon_concurrency=(\d+)", source)
    day, precision = _day(row), row["precision"] or "bf16"
    return Point(
        row=row["id"],
        run="|".join((model, row["system"], row["backend"], precision, day, row["backend_version"])),
        model=model,
        family=family,
        device=row["system"],
        backend=row["backend"],
        parallel=parallel,
        precision=_precision(family, precision, row["backend"], row["system"], row["backend_version"]),
        concurrency=int(stated.group(1)) if stated else int(row["batch_size"]),
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        ttft_ms=float(row["silicon_ttft_ms"]),
        tpot_ms=float(row["silicon_tpot_ms"]),
        is_public_client="auto-gap-analysis" not in source,
        day=day,
    )


def _precision(family: str, named: str, backend: str, system: str, version: str) -> Precision:
    """Checkpoints by their common knowledge, not by the row's label. The KV cache's dtype is in no row; where the public
    benchmark's launch scripts state it, it is theirs (`gpu_fits/recipes.py`)."""
    is_blackwell = device(system).architecture == "blackwell"
    is_narrow = named in ("fp8", "fp4") and (backend == "trtllm" or is_blackwell)
    match family, backend:
        case "llama-70b", "vllm":
            is_narrow = True  # kv-cache-dtype: fp8
        case "gpt-oss", "trtllm":
            is_narrow = is_blackwell  # kv_cache_config: dtype: auto on H200
        case "qwen3.5", "sglang":
            is_narrow = named in ("fp8", "fp4")  # --kv-cache-dtype fp8_e4m3
        case "minimax", "vllm" if named == "fp8" and is_blackwell:
            is_narrow = version >= "0.19"  # --kv-cache-dtype fp8 from there on
    kv = "fp8" if is_narrow else "bfloat16"
    if family == "gpt-oss":
        return Precision(experts="mxfp4", kv=kv)
    if named == "fp8":
        dense = "fp8_block" if family in _BLOCK_SCALED else "fp8"
        latent = "fp8_block" if family in _LATENT else "bfloat16"
        return Precision(gemm=dense, experts=dense, latent_projections=latent, kv=kv)
    if named == "fp4":
        return Precision(gemm="nvfp4", experts="nvfp4", kv=kv)
    if named == "int4":
        return Precision(experts="int4", kv=kv)
    return Precision(kv=kv)


def _day(row: dict[str, str]) -> str:
    source = row["silicon_data_source"]
    found = re.search(r"measured=(\d{4}-\d{2}-\d{2})", source) or re.search(r"(\d{4}-\d{2}-\d{2})", source)
    return found.group(1) if found else "unknown"

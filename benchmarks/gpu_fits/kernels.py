"""Fits `sim/cost/kernels.py` to measured kernel tables: one record of parameters for each device, kernel and dtype.

    python -m benchmarks.gpu_fits.kernels DATA     DATA is aiconfigurator's folder with perf/

Residuals are of logarithms under a soft L1 loss, so a few odd rows do not steer a curve. Shapes are those that serving
meets: products of 512 to 16,384; experts with skewed routing; decoding over at least 128 tokens of context.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as parquet
from scipy.optimize import least_squares

from headrace.sim.cost import kernels
from headrace.specs.device import device

TABLES = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s")
TARGET = Path(__file__).parents[2] / "src" / "headrace" / "sim" / "cost" / "gpu_kernels.json"
_MOST_ROWS = 2500
_WEIGHT_BYTES = {
    "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int4_wo": 0.53, "w4a16_mxfp4": 0.53125,
    "w4a8_mxfp4_mxfp8": 0.53125,
}  # fmt: skip
_PRODUCT = {
    "bfloat16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "int4_wo": "bfloat16",
    "w4a16_mxfp4": "bfloat16", "w4a8_mxfp4_mxfp8": "fp8",
}  # fmt: skip

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """One kernel's rows: what it was asked and how many microseconds it took."""

    device: str
    family: str
    kind: str
    record: type[msgspec.Struct]
    predict: Callable[[Any, dict[str, Array]], Array]
    columns: dict[str, Array]
    latency_us: Array


def rates(name: str, dtype: str) -> kernels.Rates:
    spec = device(name)
    return kernels.Rates(spec.peak(_PRODUCT.get(dtype, "bfloat16")) / 1e6, spec.memory_bandwidth / 1e6)


# What a table's columns mean


def _read(root: Path, name: str, pattern: str) -> list[dict[str, Array]]:
    found = sorted((root / "perf" / name).glob(pattern))
    return [{key: np.asarray(column) for key, column in parquet.read_table(path).to_pydict().items()} for path in found[-1:]]


def _select(columns: dict[str, Array], mask: Array) -> dict[str, Array]:
    return {key: column[mask] for key, column in columns.items()}


def _numbers(columns: dict[str, Array], *names: str) -> dict[str, Array]:
    return {name: columns[name].astype(float) for name in names}


def gemm_tables(root: Path, name: str) -> Iterator[Table]:
    for raw in _read(root, name, "gemm/vllm/*/gemm_perf.parquet"):
        for dtype in sorted(set(raw["gemm_dtype"])):
            mask = (raw["gemm_dtype"] == dtype) & (raw["n"] >= 512) & (raw["k"] >= 512) & (raw["n"] <= 16384)
            mask &= (raw["k"] <= 16384) & (raw["m"] <= 16384)
            if dtype == "fp8_block":  # below this the table shows the host's launches, not the kernel
                mask &= raw["latency"] > 0.2
            rows = _select(raw, mask)
            rate, wide = rates(name, dtype), _WEIGHT_BYTES[dtype]

            def predict(p: kernels.Gemm, c: dict[str, Array], rate: Any = rate, wide: float = wide) -> Array:
                return p.time_us(rate, c["m"], c["n"], c["k"], wide)

            yield Table(name, "gemm", dtype, kernels.Gemm, predict, _numbers(rows, "m", "n", "k"), rows["latency"] * 1e3)


def attention_tables(root: Path, name: str) -> Iterator[Table]:
    bf16 = rates(name, "bfloat16")
    for phase in ("generation", "context"):
        for raw in _read(root, name, f"attention/vllm/*/{phase}_attention_perf.parquet"):
            raw.setdefault("window_size", np.zeros(len(raw["latency"]), int))  # the oldest tables have none
            ratio = raw["num_heads"] / raw["num_key_value_heads"]
            mask = (ratio >= 4) & (ratio <= 16) & np.isin(raw["window_size"], (0, 128))
            if phase == "generation":
                mask &= raw["step"] >= 127
            for kv in sorted(set(raw["kv_cache_dtype"])):
                for dim in (64, 128, 256):
                    rows = _select(raw, mask & (raw["kv_cache_dtype"] == kv) & (raw["head_dim"] == dim))
                    if len(rows["latency"]) < 100:
                        continue
                    wide = 1.0 if kv == "fp8" else 2.0
                    columns = _numbers(rows, "batch_size", "num_heads", "num_key_value_heads", "head_dim")
                    window = np.where(rows["window_size"] == 0, np.inf, rows["window_size"])
                    if phase == "generation":
                        columns["context"] = rows["batch_size"] * np.minimum(rows["step"] + 1, window)

                        def decode(p: kernels.DecodeAttention, c: dict[str, Array], wide: float = wide) -> Array:
                            return p.time_us(
                                bf16, c["batch_size"], c["context"], c["num_heads"], c["num_key_value_heads"], c["head_dim"],
                                wide,
                            )  # fmt: skip

                        yield Table(
                            name, "decode_attention", f"{kv}/{dim}", kernels.DecodeAttention, decode, columns,
                            rows["latency"] * 1e3,
                        )  # fmt: skip
                    else:
                        isl = rows["isl"].astype(float)
                        seen = np.minimum(isl, window)
                        columns["pairs"] = rows["batch_size"] * (isl * seen - seen**2 / 2)
                        columns["tokens"] = rows["batch_size"] * isl

                        def prefill(p: kernels.PrefillAttention, c: dict[str, Array], wide: float = wide) -> Array:
                            return p.time_us(
                                bf16, c["pairs"], c["tokens"], c["tokens"], c["num_heads"], c["num_key_value_heads"],
                                c["head_dim"], wide,
                            )  # fmt: skip

                        yield Table(
                            name, "prefill_attention", f"{kv}/{dim}", kernels.PrefillAttention, prefill, columns,
                            rows["latency"] * 1e3,
                        )  # fmt: skip


def latent_tables(root: Path, name: str) -> Iterator[Table]:
    """DeepSeek-V3's attention module, projections included."""
    bf16_flops = rates(name, "bfloat16").flops
    for phase in ("generation", "context"):
        for raw in _read(root, name, f"mla/vllm/*/mla_{phase}_module_perf.parquet"):
            for kv in sorted(set(raw["kv_cache_dtype"])):
                for dtype in sorted(set(raw["gemm_type"])):
                    mask = (raw["kv_cache_dtype"] == kv) & (raw["gemm_type"] == dtype)
                    if phase == "generation":
                        mask &= raw["step"] >= 127
                    rows = _select(raw, mask)
                    heads = rows["num_heads"].astype(float)
                    projections = 7168 * (1536 + 576) + heads * (1536 * 192 + 512 * 256 + 128 * 7168)
                    columns = {"heads": heads, "projections": projections, "batch": rows["batch_size"].astype(float)}
                    rate, wide, kv_bytes = rates(name, dtype), _WEIGHT_BYTES[dtype], 1.0 if kv == "fp8" else 2.0
                    if phase == "generation":
                        columns["context"] = rows["batch_size"] * (rows["step"] + 1.0)

                        def decode(
                            p: kernels.LatentAttention, c: dict[str, Array], rate: Any = rate, wide: float = wide,
                            kv_bytes: float = kv_bytes,
                        ) -> Array:  # fmt: skip
                            return p.decode_us(
                                rate, bf16_flops, c["batch"], c["context"], c["heads"], 7168.0, c["projections"], wide,
                                576.0, kv_bytes,
                            )  # fmt: skip

                        predict: Any = decode
                    else:
                        isl = rows["isl"].astype(float)
                        columns["pairs"] = rows["batch_size"] * isl * isl / 2
                        columns["tokens"] = rows["batch_size"] * isl

                        def prefill(
                            p: kernels.LatentAttention, c: dict[str, Array], rate: Any = rate, wide: float = wide,
                            kv_bytes: float = kv_bytes,
                        ) -> Array:  # fmt: skip
                            return p.prefill_us(
                                rate, bf16_flops, c["pairs"], c["tokens"], c["tokens"], c["heads"], 7168.0, c["projections"],
                                wide, 576.0, kv_bytes, 320.0,
                            )  # fmt: skip

                        predict = prefill
                    family = "latent_decode" if phase == "generation" else "latent_prefill"
                    yield Table(
                        name, family, f"{kv}/{dtype}", kernels.LatentAttention, predict, columns, rows["latency"] * 1e3
                    )


def expert_tables(root: Path, name: str) -> Iterator[Table]:
    for raw in _read(root, name, "moe/vllm/*/moe_perf.parquet"):
        mask = (raw["distribution"] == "power_law_1.01") & (raw["num_experts"] >= 32) & (raw["topk"] >= 4)
        mask &= raw["moe_ep_size"] <= 16
        for dtype in sorted(set(raw["moe_dtype"])):
            for source in sorted(set(raw["kernel_source"][raw["moe_dtype"] == dtype])):
                rows = _select(raw, mask & (raw["moe_dtype"] == dtype) & (raw["kernel_source"] == source))
                if len(rows["latency"]) < 100:
                    continue
                columns = _numbers(rows, "num_tokens", "hidden_size", "topk", "num_experts", "moe_ep_size")
                columns["slice"] = rows["inter_size"] / rows["moe_tp_size"].astype(float)
                rate, wide = rates(name, dtype), _WEIGHT_BYTES[dtype]

                def predict(p: kernels.Experts, c: dict[str, Array], rate: Any = rate, wide: float = wide) -> Array:
                    return p.time_us(
                        rate, c["num_tokens"], c["hidden_size"], c["slice"], c["num_experts"], c["topk"], c["moe_ep_size"],
                        wide,
                    )  # fmt: skip

                kind = f"{dtype}/{source.removeprefix('vllm_')}"
                yield Table(name, "experts", kind, kernels.Experts, predict, columns, rows["latency"] * 1e3)


def collective_tables(root: Path, name: str) -> Iterator[Table]:
    for raw in _read(root, name, "comm/vllm/*/custom_allreduce_perf.parquet"):
        graph = np.char.endswith(raw["kernel_source"].astype(str), "graph")
        for gpus in (2, 4, 8):
            rows = _select(raw, graph & (raw["num_gpus"] == gpus))
            yield _collective(name, f"all_reduce/{gpus}", rows, 2 * (gpus - 1) / gpus)
    for raw in _read(root, name, "comm/nccl/*/nccl_perf.parquet"):
        for op in ("all_gather", "reduce_scatter", "alltoall"):
            for gpus in (2, 4, 8):
                rows = _select(raw, (raw["op_name"] == op) & (raw["num_gpus"] == gpus) & (raw["nccl_dtype"] == "half"))
                yield _collective(name, f"{op}/{gpus}", rows, (gpus - 1) / gpus)


def _collective(name: str, kind: str, rows: dict[str, Array], factor: float) -> Table:
    columns = {"bytes": rows["message_size"].astype(float) * 2.0}  # the tables count elements of two bytes
    return Table(
        name, "collective", kind, kernels.Collective, lambda p, c: p.time_us(c["bytes"], factor), columns,
        rows["latency"] * 1e3,
    )  # fmt: skip


# Fitting

_START = {
    "t0": (10.0, 0.05, 500.0), "em": (0.8, 0.05, 1.3), "ec": (0.6, 0.05, 1.3), "q": (1.5, 1.0, 8.0),
    "k0": (50.0, 0.1, 4000.0), "eq": (0.4, 0.02, 1.3), "rr": (0.1, 0.005, 10.0), "tb": (0.005, 1e-6, 0.1),
    "e1": (0.3, 0.05, 1.3), "e2": (0.8, 0.05, 1.3), "m0": (5.0, 0.01, 300.0), "skew": (1.05, 1.0, 4.0),
    "i0": (20.0, 0.01, 300.0), "im": (1.0, 0.01, 3.0), "ea": (0.3, 0.05, 1.3), "a": (8.0, 0.5, 100.0),
    "busbw": (150.0, 0.3, 900.0),
}  # fmt: skip


def fit(table: Table, seed: int = 0) -> tuple[msgspec.Struct, float, float]:
    """The record, and the median and 90th percentile of its relative error over all rows, those fitted included."""
    names = table.record.__struct_fields__
    bounds = dict(_START)
    if table.record is kernels.Collective:
        bounds["q"] = (0.7, 0.3, 2.0)
    start, low, high = (np.log([bounds[name][i] for name in names]) for i in range(3))
    chosen = np.random.default_rng(seed).permutation(len(table.latency_us))[:_MOST_ROWS]
    columns = {key: column[chosen] for key, column in table.columns.items()}
    target = np.log(table.latency_us[chosen])

    def residuals(x: Array) -> Array:
        record = table.record(**dict(zip(names, np.exp(x), strict=True)))
        return np.log(table.predict(record, columns)) - target

    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=300)
    record = table.record(**{name: float(f"{value:.4g}") for name, value in zip(names, np.exp(found.x), strict=True)})
    errors = np.abs(table.predict(record, table.columns) / table.latency_us - 1)
    return record, float(np.median(errors)), float(np.quantile(errors, 0.9))


def all_tables(root: Path) -> Iterator[Table]:
    for name in TABLES:
        for tables in (gemm_tables, attention_tables, latent_tables, expert_tables, collective_tables):
            yield from tables(root, name)


def main() -> None:
    root = Path(sys.argv[1])
    only = sys.argv[2:]
    fitted: dict[str, Any] = {}
    for table in all_tables(root):
        if only and table.device not in only:
            continue
        record, median, p90 = fit(table)
        fitted.setdefault(table.device, {}).setdefault(table.family, {})[table.kind] = {
            **msgspec.structs.asdict(record),
            "num_rows": len(table.latency_us), "median_error": round(median, 4), "p90_error": round(p90, 4),
        }  # fmt: skip
        print(
            f"{table.device} {table.family} {table.kind}: {len(table.latency_us)} rows, {median:.1%} / {p90:.1%}", flush=True
        )
    if only:
        return
    document = {
        "source": "kernel tables of ai-dynamo/aiconfigurator at 095f58a (Apache-2.0), fitted by gpu_fits/kernels.py",
        "errors": "relative, over all rows of the shapes that serving meets, those fitted included",
        "devices": fitted,
    }
    TARGET.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

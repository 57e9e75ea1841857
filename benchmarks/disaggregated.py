"""Measured disaggregated serving points beside pools in rehearsal: the real schedulers on both sides, the real router,
KV over links.

    python -m benchmarks.disaggregated DATA [--cache FILE]

DATA is aiconfigurator's folder with systems/silicon_sample.csv.

Needs scipy. Few of the public points say how many workers there were, of which layout. Each of those is rehearsed with
the benchmark's own client: closed loops, lengths from 0.8 to 1 of the nominal ones, ten requests a user. Of those ten
rounds as many are rehearsed as a point's share of the time allows, and the last stands for those after it; alike slices
of a large fleet are rehearsed as one. With attention-DP a worker is one engine whose sequences
are spread evenly over its ranks. Steps take what kernels took, links what network cards can do; what a front end and
a stream's first chunk add is fitted by backend, without the run that is predicted. Part of the points speculate without
saying so (`docs/cost-model.md`), which shows as predictions that are too slow; they stay in.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.gpu_fits.deployments_file import SHIPPED
from benchmarks.gpu_fits.handover import TERMS, Handover, fit_handover
from benchmarks.gpu_fits.points import DisaggregatedPoint, Point, read_disaggregated
from benchmarks.gpu_fits.recipes import Recipe
from benchmarks.gpu_fits.replay import kv_capacity, lengths
from benchmarks.gpu_fits.tuning import step_model
from benchmarks.harness import Figure, Result
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RequestRecord, RunFacts
from headrace.measure.workload.prompts import closed_loop
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.router.mind.disaggregation import DisaggregationConfig
from headrace.router.mind.endpoint import EndpointRole
from headrace.sim.cost_model import GpuDeployment
from headrace.sim.fleet import Fleet, Rehearsal
from headrace.sim.fleet_spec import ClientSpec, FleetSpec, NetworkSpec, PoolSpec, RouterSpec
from headrace.sim.front_end import NO_FRONT_END, FrontEndCost

_BLOCK_SIZE = 32
_MOST_BLOCKS = 200_000
_TOKEN_BUDGET = 8192
_WAVES = 10
_FEWEST_WAVES = 3
_MOST_TOKENS = 400_000
"""Of answers, for each point: as many rounds as that gives."""


@dataclass(frozen=True)
class Rehearsed:
    point: DisaggregatedPoint
    tpot_ms: float
    ttft_ms: float


@dataclass(frozen=True)
class Slice:
    """A part of a fleet that is like its other parts."""

    num_prefill: int
    num_decode: int
    """Workers."""
    num_users: int
    num_waves: int


def slice_of(point: DisaggregatedPoint, most_tokens: int) -> Slice:
    prefill, decode = point.num_prefill, point.num_decode
    users = point.decode.concurrency
    parts = math.gcd(prefill, decode, users)
    waves = most_tokens // (users // parts * point.decode.osl)
    return Slice(prefill // parts, decode // parts, users // parts, min(_WAVES, max(_FEWEST_WAVES, waves)))


def pool(point: Point, num_workers: int, role: EndpointRole, front_end: FrontEndCost = NO_FRONT_END) -> PoolSpec:
    model = step_model(point)
    layout = point.parallel
    ranks = layout.data_parallel_size
    room = max(kv_capacity(point, model, Recipe()), point.isl + point.osl)
    return PoolSpec(
        num_replicas=num_workers,
        role=role,
        front_end=front_end,
        scheduler=SchedulerConfig(
            max_model_len=math.ceil((point.isl + point.osl) / _BLOCK_SIZE) * _BLOCK_SIZE,
            num_blocks=min(_MOST_BLOCKS, ranks * (math.ceil(room / _BLOCK_SIZE) + 1)),
            block_size=_BLOCK_SIZE,
            max_num_batched_tokens=ranks * _TOKEN_BUDGET,
            max_tokens_per_prompt_chunk=_TOKEN_BUDGET,
            max_num_seqs=ranks * 1024,
        ),
        gpu=GpuDeployment(
            device=point.device,
            shape=model.shape,
            tensor_parallel_size=layout.tensor_parallel_size,
            data_parallel_size=layout.data_parallel_size,
            expert_parallel_size=layout.expert_parallel_size,
            precision=model.precision,
            tuning=model.tuning,
        ),
    )


def rehearse(point: DisaggregatedPoint, part: Slice, front_end: FrontEndCost = NO_FRONT_END) -> tuple[float, float]:
    """Mean TPOT and TTFT in ms over ten rounds, of two pools under the client's loop."""
    users = part.num_users
    drawn = lengths(point.decode, part.num_waves * users)
    requests = [
        WorkloadRequest(request_id=f"r{i}", prompt=TokenPrompt((Segment(f"r{i}", isl),)), num_output_tokens=osl)
        for i, (isl, osl) in enumerate(drawn)
    ]
    spec = FleetSpec(
        pools={
            "prefill": pool(point.prefill, part.num_prefill, EndpointRole.PREFILL),
            "decode": pool(point.decode, part.num_decode, EndpointRole.DECODE, front_end),
        },
        router=RouterSpec(policy="least-requests", disaggregation=DisaggregationConfig(min_uncached_tokens=0)),
        network=NetworkSpec(client_latency_us=100.0),
        client=ClientSpec(timeout_s=100_000.0),
    )
    workload = Workload(name=point.decode.row, requests=tuple(closed_loop(requests, num_users=users)))
    outcome = Fleet(spec, workload, Rehearsal(log_interval_ns=10**12)).run(
        RunFacts(source="simulated", duration_ns=Nanos(0))
    )
    return _mean_of_rounds(outcome.run.records, users, part.num_waves)


def _mean_of_rounds(records: Sequence[RequestRecord], users: int, waves: int) -> tuple[float, float]:
    """TPOT and TTFT: each round counts once, the last as often as rounds are missing."""
    tpots: list[list[float]] = [[] for _ in range(waves)]
    ttfts: list[list[float]] = [[] for _ in range(waves)]
    for record in records:
        assert record.first_chunk_ns is not None and not record.error
        wave = int(record.request_id[1:]) // users
        ttfts[wave].append((record.first_chunk_ns - record.sent_ns) / 1e6)
        tpots[wave].append((record.finished_ns - record.first_chunk_ns) / 1e6 / (record.num_output_tokens - 1))
    weights = [1.0] * (waves - 1) + [_WAVES - waves + 1.0]
    means = [sum(w * statistics.mean(of) for w, of in zip(weights, metric, strict=True)) for metric in (tpots, ttfts)]
    return means[0] / _WAVES, means[1] / _WAVES


def _errors(result: Result, name: str, measured: Sequence[float], predicted: Sequence[float]) -> None:
    ratios = [p / m for m, p in zip(measured, predicted, strict=True)]
    apart = sorted(100 * abs(ratio - 1) for ratio in ratios)
    result.figures += [
        Figure(f"{name}, median error", "%", (statistics.median(apart),)),
        Figure(f"{name}, 90th percentile", "%", (apart[int(0.9 * (len(apart) - 1))],)),
        Figure(f"{name}, median of predicted / measured", "", (statistics.median(ratios),)),
    ]


def rehearse_all(points: Sequence[DisaggregatedPoint], minutes: float) -> tuple[list[Rehearsed], Counter[str]]:
    """Those that can be, the fewest tokens first, as many as the time allows."""
    left_out: Counter[str] = Counter()
    done: list[Rehearsed] = []
    inside = sorted(points, key=lambda one: _work(slice_of(one, _MOST_TOKENS), one))
    began = time.process_time()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rehearsing", total=len(inside))
        for point in inside:
            bar.update(task, advance=1, description=f"{point.decode.model} on {point.decode.device}")
            if time.process_time() - began > 60 * minutes:
                left_out[f"no time was left of {minutes:g} minutes of a processor"] += 1
                continue
            try:
                tpot, ttft = rehearse(point, slice_of(point, _MOST_TOKENS))
            except ConfigurationError as error:
                left_out[f"no kernel of it was measured: {str(error)[:60]}"] += 1
                continue
            done.append(Rehearsed(point, tpot, ttft))
    return done, left_out


def read_or_rehearse(
    points: Sequence[DisaggregatedPoint], minutes: float, cache: Path | None
) -> tuple[list[Rehearsed], Counter[str]]:
    if cache is not None and cache.exists():
        stored = json.loads(cache.read_text())
        by_row = {point.decode.row: point for point in points}
        return [Rehearsed(by_row[row], tpot, ttft) for row, tpot, ttft in stored["done"]], Counter(stored["left_out"])
    done, left_out = rehearse_all(points, minutes)
    if cache is not None:
        rows = [(one.point.decode.row, one.tpot_ms, one.ttft_ms) for one in done]
        cache.write_text(json.dumps({"done": rows, "left_out": left_out}))
    return done, left_out


def _work(part: Slice, point: DisaggregatedPoint) -> int:
    return part.num_users * part.num_waves * point.decode.osl


def held_out(done: Sequence[Rehearsed]) -> np.ndarray[Any, Any]:
    """TTFT in ms of each, by terms that were fitted without its run."""
    runs = np.array([one.point.decode.run for one in done])
    found = np.zeros(len(done))
    for run in sorted(set(runs)):
        known = [one for one, name in zip(done, runs, strict=True) if name != run]
        fit = fitted(known)
        held = [one for one, name in zip(done, runs, strict=True) if name == run]
        found[runs == run] = fit.predict(*_columns(held)[:3])
    return found


def fitted(done: Sequence[Rehearsed]) -> Handover:
    return fit_handover(*_columns(done))


def _columns(done: Sequence[Rehearsed]) -> tuple[list[str], Any, Any, Any]:
    return (
        [one.point.decode.backend for one in done],
        np.array([one.tpot_ms for one in done]),
        np.array([one.ttft_ms for one in done]),
        np.array([one.point.decode.ttft_ms for one in done]),
    )


def ship(found: Handover, backends: Sequence[str]) -> None:
    """What fleets on a named backend are rehearsed with where nothing is stated."""
    document = json.loads(SHIPPED.read_text())
    document["handover"] = {
        name: dict(zip(TERMS, (float(f"{v:.3g}") for v in found.of(name)), strict=True)) for name in backends
    }
    SHIPPED.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, help="where rehearsals are kept, for another look at what is fitted")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="of one processor's time; what it is too short for is told"
    )
    options = parser.parse_args()
    points, left_out = read_disaggregated(options.data / "systems" / "silicon_sample.csv")
    sys.argv[1:] = ["DATA", f"--minutes {options.minutes:g}"]  # the result's command names no folder of this machine
    done, not_done = read_or_rehearse(points, options.minutes, options.cache)
    left_out += not_done
    result = Result(
        "disaggregated",
        f"{len(done)} of {len(points)} measured disaggregated serving points beside pools in rehearsal",
    )
    ttft = held_out(done)
    groups = {"all": np.ones(len(done), bool)}
    backends = np.array([one.point.decode.backend for one in done])
    groups |= {name: backends == name for name in sorted(set(backends))}
    for name, held in groups.items():
        rows = [one for one, is_in in zip(done, held, strict=True) if is_in]
        measured = [one.point.decode for one in rows]
        words = f"{name}, {len(rows)} points"
        _errors(result, f"TPOT, {words}", [one.tpot_ms for one in measured], [one.tpot_ms for one in rows])
        _errors(result, f"TTFT, nothing fitted, {words}", [one.ttft_ms for one in measured], [one.ttft_ms for one in rows])
        _errors(
            result, f"TTFT, front end and first chunk fitted on other runs, {words}", [one.ttft_ms for one in measured],
            list(ttft[held]),
        )  # fmt: skip
    found = fitted(done)
    for name in groups:
        if name != "all":
            a, k, s = found.of(name)
            result.notes.append(f"{name}: {a:.0f} ms and {k:.1f} tokens before a first chunk, {s:.2f} of what is rehearsed")
    result.notes += [f"left out: {count} rows, {reason}" for reason, count in left_out.most_common()]
    result.save()
    ship(found, [name for name in groups if name != "all"])


if __name__ == "__main__":
    main()

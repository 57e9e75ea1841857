"""Measured disaggregated serving points beside pools in rehearsal: the real schedulers on both sides, the real router, KV
over links.

Few of the public points say how many workers there were, of which layout. Each of those is rehearsed with the benchmark's
own client: closed loops, ten requests a user, lengths from 0.8 to 1 of the nominal ones. With attention-DP each rank is a
replica of its own here, and its steps take what they do when all ranks have as much. Nothing is fitted: steps take what
kernels took, links what network cards can do. Part of the points speculate without saying so (`docs/cost-model.md`), which
shows as predictions that are too slow; they stay in.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_fits.points import DisaggregatedPoint, Point, read_disaggregated
from benchmarks.gpu_fits.replay import kv_capacity, lengths
from benchmarks.gpu_fits.tuning import step_model
from benchmarks.harness import Figure, Result

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RunFacts
from headrace.measure.report.summary import summarize
from headrace.measure.workload.prompts import closed_loop
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.router.mind.disaggregation import DisaggregationConfig
from headrace.router.mind.endpoint import EndpointRole
from headrace.sim.cost_model import GpuDeployment
from headrace.sim.fleet import Fleet, Rehearsal
from headrace.sim.fleet_spec import ClientSpec, FleetSpec, NetworkSpec, PoolSpec, RouterSpec

_BLOCK_SIZE = 32
_MOST_BLOCKS = 200_000
_TOKEN_BUDGET = 8192
_WAVES = 10


def pool(point: Point, num_workers: int, role: EndpointRole) -> PoolSpec:
    model = step_model(point)
    layout = point.parallel
    room = max(kv_capacity(point, model), point.isl + point.osl)
    return PoolSpec(
        num_replicas=num_workers * layout.data_parallel_size,
        role=role,
        scheduler=SchedulerConfig(
            max_model_len=math.ceil((point.isl + point.osl) / _BLOCK_SIZE) * _BLOCK_SIZE,
            num_blocks=min(_MOST_BLOCKS, math.ceil(room / _BLOCK_SIZE) + 1),
            block_size=_BLOCK_SIZE,
            max_num_batched_tokens=_TOKEN_BUDGET,
            max_tokens_per_prompt_chunk=_TOKEN_BUDGET,
            max_num_seqs=1024,
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


def rehearse(point: DisaggregatedPoint, num_waves: int) -> tuple[float, float]:
    """Mean TPOT and TTFT in ms, of two pools under the client's loop."""
    users = point.decode.concurrency
    drawn = lengths(point.decode, num_waves * users)
    requests = [
        WorkloadRequest(request_id=f"r{i}", prompt=TokenPrompt((Segment(f"r{i}", isl),)), num_output_tokens=osl)
        for i, (isl, osl) in enumerate(drawn)
    ]
    spec = FleetSpec(
        pools={
            "prefill": pool(point.prefill, point.num_prefill, EndpointRole.PREFILL),
            "decode": pool(point.decode, point.num_decode, EndpointRole.DECODE),
        },
        router=RouterSpec(policy="least-requests", disaggregation=DisaggregationConfig(min_uncached_tokens=0)),
        network=NetworkSpec(client_latency_us=100.0),
        client=ClientSpec(timeout_s=100_000.0),
    )
    workload = Workload(name=point.decode.row, requests=tuple(closed_loop(requests, num_users=users)))
    outcome = Fleet(spec, workload, Rehearsal(log_interval_ns=10**12)).run(
        RunFacts(source="simulated", duration_ns=Nanos(0))
    )
    found = summarize(outcome.run).distributions
    return found["tpot"].mean, found["ttft"].mean


def _errors(result: Result, name: str, measured: Sequence[float], predicted: Sequence[float]) -> None:
    ratios = [p / m for m, p in zip(measured, predicted, strict=True)]
    apart = sorted(100 * abs(ratio - 1) for ratio in ratios)
    result.figures += [
        Figure(f"{name}, median error", "%", (statistics.median(apart),)),
        Figure(f"{name}, 90th percentile", "%", (apart[int(0.9 * (len(apart) - 1))],)),
        Figure(f"{name}, median of predicted / measured", "", (statistics.median(ratios),)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--max-users", type=int, default=512, help="larger loads are left out, for they take long")
    parser.add_argument("--num-waves", type=int, default=_WAVES, help="requests a user (the benchmark's own: 10)")
    options = parser.parse_args()
    points, left_out = read_disaggregated(options.data / "systems" / "silicon_sample.csv")
    sys.argv[1] = "DATA"  # the result's command names no folder of this machine
    compared: list[tuple[DisaggregatedPoint, float, float]] = []
    for point in points:
        if point.decode.concurrency > options.max_users:
            left_out[f"more than {options.max_users} users"] += 1
            continue
        try:
            tpot, ttft = rehearse(point, options.num_waves)
        except ConfigurationError as error:
            left_out[f"no kernel of it was measured: {str(error)[:60]}"] += 1
            continue
        compared.append((point, tpot, ttft))
        side = point.decode
        print(f"{side.row}: TPOT {tpot:.1f} of {side.tpot_ms:.1f}, TTFT {ttft:.0f} of {side.ttft_ms:.0f}", file=sys.stderr)
    result = Result(
        "disaggregated",
        f"{len(compared)} measured disaggregated serving points beside pools in rehearsal, kernels alone, nothing fitted",
    )
    groups = {"all": compared}
    for backend in sorted({point.decode.backend for point, _, _ in compared}):
        groups[backend] = [row for row in compared if row[0].decode.backend == backend]
    for name, rows in groups.items():
        measured = [point.decode for point, _, _ in rows]
        words = f"{name}, {len(rows)} points"
        _errors(result, f"TPOT, {words}", [one.tpot_ms for one in measured], [tpot for _, tpot, _ in rows])
        _errors(result, f"TTFT, {words}", [one.ttft_ms for one in measured], [ttft for _, _, ttft in rows])
    result.notes += [f"left out: {count} rows, {reason}" for reason, count in left_out.most_common()]
    result.save()


if __name__ == "__main__":
    main()

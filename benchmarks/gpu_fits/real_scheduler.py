"""The replay beside Headrace's own scheduler: the same closed loops through the real mind, step by step.

The replay stands for other engines' schedulers, so they need not agree; where both put prompts beside decodes under the same
budget, they should.
"""

import math
from collections.abc import Sequence

from benchmarks.gpu_fits.points import Point
from benchmarks.gpu_fits.recipes import recipe
from benchmarks.gpu_fits.replay import kv_capacity, lengths
from benchmarks.gpu_fits.tuning import step_model

from headrace.base.clock import Nanos
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RunFacts
from headrace.measure.report.summary import summarize
from headrace.measure.workload.prompts import closed_loop
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.sim.cost_model import ModelledStepCost
from headrace.sim.workload_run import run_workload

_MOST_STEPS = 100_000
_NUM_COMPARED = 8
_BLOCK_SIZE = 16


def is_comparable(point: Point) -> bool:
    """vLLM without attention-DP, and small enough to be stepped through."""
    sequence_steps = 10 * point.osl * point.concurrency
    return point.backend == "vllm" and point.parallel.data_parallel_size == 1 and sequence_steps <= _MOST_STEPS


def rehearse(point: Point) -> tuple[float, float]:
    """Mean TPOT and TTFT in ms with the real scheduler."""
    model, budget = step_model(point), recipe(point).token_budget
    drawn = lengths(point, 10 * point.concurrency)
    requests = [
        WorkloadRequest(request_id=f"r{i}", prompt=TokenPrompt((Segment(f"r{i}", isl),)), num_output_tokens=osl)
        for i, (isl, osl) in enumerate(drawn)
    ]
    config = SchedulerConfig(
        max_model_len=point.isl + point.osl,
        num_blocks=math.ceil(min(kv_capacity(point, model), 1e7) / _BLOCK_SIZE),
        block_size=_BLOCK_SIZE,
        max_num_batched_tokens=budget,
        max_tokens_per_prompt_chunk=budget,
        max_num_seqs=1024,
        max_steps_in_flight=1,
    )
    workload = Workload(name=point.row, requests=tuple(closed_loop(requests, num_users=point.concurrency)))
    run = run_workload(
        workload,
        config=config,
        cost=ModelledStepCost(model.step_us, None, 1.0),
        facts=RunFacts(source="simulated", duration_ns=Nanos(0)),
    )
    found = summarize(run).distributions
    return found["tpot"].mean, found["ttft"].mean


def differences(points: Sequence[Point], tpot_ms: Sequence[float], ttft_ms: Sequence[float]) -> list[tuple[float, float]]:
    """Relative, of the replay's figures from the real scheduler's, at some points where both are
    comparable."""
    candidates = [row for row in zip(points, tpot_ms, ttft_ms, strict=True) if is_comparable(row[0])]
    found = []
    for point, tpot, ttft in candidates[:: max(1, len(candidates) // _NUM_COMPARED)]:
        real_tpot, real_ttft = rehearse(point)
        found.append((tpot / real_tpot - 1.0, ttft / real_ttft - 1.0))
    return found

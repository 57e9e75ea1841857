"""How fast a fleet is rehearsed: 8 replicas beside real time, 64 replicas and 100,000 requests, and the cost of an event as
a fleet grows.

The workload is Mooncake's conversation trace (12,031 requests in 59 minutes; 12,035 prompt and 343 answer tokens on
average). More requests than it has come from copies of it at once, each with blocks of its own, so that a copy reuses what
the original reuses and nothing of another copy; arrivals of the copies are shifted by a share of the mean gap. Processor
time of one process, the report left out; the collector of cycles is at rest, as `headrace simulate` has it.
"""

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from benchmarks.harness import Figure, Result, Target

from headrace.base.clock import Nanos
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RunFacts
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.measure.workload.traces import read_mooncake
from headrace.sim.fleet import Fleet, FleetOutcome, Rehearsal
from headrace.sim.fleet_spec import FleetSpec, PoolSpec, RouterSpec

TRACE = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces" / "mooncake" / "conversation_trace.jsonl"
BLOCK_SIZE = 64
KV_TOKENS = 600_000
"""Near what an 8B model in BF16 leaves of an H100's memory."""
_IN_TURN = (8, 8, 64, 8, 512, 8, 64, 8)
"""Fleets that grow. The small ones are over in a moment, so they are asked again and again while the others run."""


def fleet(num_replicas: int, policy: str) -> FleetSpec:
    scheduler = SchedulerConfig(
        max_model_len=131_072,
        num_blocks=KV_TOKENS // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=8_192,
        max_tokens_per_prompt_chunk=8_192,
        max_num_seqs=256,
    )
    pool = PoolSpec(num_replicas=num_replicas, scheduler=scheduler)
    return FleetSpec(pools={"main": pool}, router=RouterSpec(policy=policy))


def copies(trace: Sequence[WorkloadRequest], num_requests: int) -> Workload:
    """So many requests of the trace and of copies of it."""
    num_copies = -(-num_requests // len(trace))
    gap_s = trace[-1].at_s / len(trace)
    made = (_copy(request, number, gap_s * number / num_copies) for request in trace for number in range(num_copies))
    return Workload(name="mooncake conversation", requests=tuple(itertools.islice(made, num_requests)))


def _copy(request: WorkloadRequest, number: int, later_s: float) -> WorkloadRequest:
    if number == 0:
        return request
    assert isinstance(request.prompt, TokenPrompt)
    segments = tuple(Segment(f"{number}/{segment.key}", segment.num_tokens) for segment in request.prompt.segments)
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id}.{number}",
        prompt=TokenPrompt(segments),
        at_s=request.at_s + later_s,
    )


def rehearse(spec: FleetSpec, workload: Workload) -> tuple[FleetOutcome, float]:
    """What came out, and the seconds of processor time that it took."""
    gc.collect()
    gc.freeze()
    gc.disable()
    began = time.process_time()
    outcome = Fleet(spec, workload, Rehearsal()).run(RunFacts(source="simulated", duration_ns=Nanos(0)))
    took_s = time.process_time() - began
    gc.enable()
    gc.unfreeze()
    assert not any(record.error for record in outcome.run.records), "a request failed, and nothing was wrong"
    return outcome, took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-requests", type=int, default=100_000)
    parser.add_argument("--policy", default="prefix-affinity")
    parser.add_argument("--num-rounds", type=int, default=1, help="of fleets of 8, 64 and 512, in turns")
    parser.add_argument("--only", nargs="+", choices=("small", "growth", "large"), default=("small", "growth", "large"))
    options = parser.parse_args()
    if not TRACE.exists():
        print(f"not measured: Mooncake's conversation trace is not at {TRACE}")
        return
    with TRACE.open("rb") as file:
        trace = read_mooncake(file)
    parts = "" if len(options.only) == 3 else "_" + "_".join(options.only)
    result = Result(
        f"simulation{parts}", "A fleet under Mooncake's conversation trace, rehearsed in one process on one core"
    )
    if "small" in options.only:
        outcome, took_s = rehearse(fleet(8, options.policy), Workload(name="mooncake", requests=tuple(trace)))
        pace = outcome.run.facts.duration_ns / 1e9 / took_s
        result.figures.append(Figure(f"8 replicas, {len(trace)} requests, the trace's own rate", "x real time", (pace,)))
        result.targets.append(Target("8 replicas at least 500 times as fast as real time", pace, "x", pace >= 500))
        result.notes.append(f"8 replicas: {outcome.num_steps} steps in {outcome.num_events} events, {took_s:.1f} s")
    if "growth" in options.only:
        costs: dict[int, list[float]] = {num_replicas: [] for num_replicas in _IN_TURN}
        for num_replicas in itertools.chain.from_iterable([_IN_TURN] * options.num_rounds):
            outcome, took_s = rehearse(fleet(num_replicas, options.policy), copies(trace[: 40 * 8], 40 * num_replicas))
            costs[num_replicas].append(took_s * 1e6 / outcome.num_events)
        for num_replicas in sorted(costs):
            result.figures.append(Figure(f"an event, {num_replicas} replicas", "us", tuple(costs[num_replicas])))
        ratio = statistics.median(costs[512]) / statistics.median(costs[8])
        result.targets.append(
            Target("an event costs the same in 512 replicas as in 8 (within 25 %)", ratio, "x", ratio < 1.25)
        )
    if "large" in options.only:
        outcome, took_s = rehearse(fleet(64, options.policy), copies(trace, options.num_requests))
        text = f"64 replicas, {options.num_requests} requests"
        result.figures.append(Figure(text, "s", (took_s,)))
        result.targets.append(Target(f"{text} in under 180 s on one core", took_s, "s", took_s < 180))
        result.notes.append(
            f"64 replicas: {outcome.num_steps} steps in {outcome.num_events} events, "
            f"{outcome.run.facts.duration_ns / 1e9:.0f} s simulated"
        )
    result.notes.append(f"policy {options.policy}, blocks of {BLOCK_SIZE} tokens, {KV_TOKENS} tokens of KV a replica")
    result.save()


if __name__ == "__main__":
    main()

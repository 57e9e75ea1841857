"""How many token places of the KV cache are held but hold nothing, and how long runs of neighbouring blocks sequences have,
on a mixed workload in rehearsal.

The mind is the real one; time is virtual and tensors are fingerprints, which changes nothing about who holds which block.
"""

import argparse
from itertools import pairwise

from benchmarks.harness import Figure, Result, Target

from headrace.base.clock import ManualClock, Nanos
from headrace.base.ids import BlockId, RequestId, SequenceId
from headrace.base.rng import stream
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import SampledToken, StepResult


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-requests", type=int, default=2_000)
    parser.add_argument("--num-seeds", type=int, default=5)
    options = parser.parse_args()
    measured = [rehearse(seed, options.num_requests) for seed in range(options.num_seeds)]
    figure = Figure("allocated but unused token places, mean over steps", "%", tuple(waste for waste, _ in measured))
    runs = Figure("neighbouring blocks in a row, mean over sequences and steps", "blocks", tuple(run for _, run in measured))
    Result(
        "kv_waste",
        "Prompts of 16 to 1,024 tokens, answers of 16 to 512 (log-uniform), 64 sequences at once, blocks of 16",
        figures=[figure, runs],
        targets=[Target("of the places held, under 4 % hold nothing", figure.median, "%", figure.median < 4)],
    ).save()


def rehearse(seed: int, num_requests: int) -> tuple[float, float]:
    """(percent of places unused, blocks in a row)"""
    rng = stream(seed, "kv_waste")
    clock = ManualClock()
    core = EngineCore(
        SchedulerConfig(max_model_len=2048, num_blocks=4096, max_num_seqs=64, max_num_queued_requests=num_requests)
    )
    for index in range(num_requests):
        prompt = tuple(rng.randrange(1, 49_000) for _ in range(round(16 * 64 ** rng.random())))
        sampling = SamplingParams(max_tokens=round(16 * 32 ** rng.random()))
        core.add_request(Request(request_id=RequestId(f"r{index}"), prompt_token_ids=prompt, sampling=sampling), clock.now())
    tables: dict[SequenceId, list[BlockId]] = {}  # as the plans tell a worker
    used: dict[SequenceId, int] = {}
    num_held = num_used = num_blocks = num_runs = 0
    while core.has_unfinished_requests:
        plan = core.begin_step(Nanos(0))
        assert plan is not None
        for sequence_id in plan.released_sequence_ids:
            del tables[sequence_id], used[sequence_id]
        for entry in plan.scheduled:
            if entry.block_ids:
                table = tables.setdefault(entry.sequence_id, [])
                table[entry.block_offset :] = entry.block_ids
            used[entry.sequence_id] = entry.num_computed_tokens + entry.num_tokens
        num_held += sum(map(len, tables.values())) * core.config.block_size
        num_blocks += sum(map(len, tables.values()))
        num_runs += sum(1 + sum(b != a + 1 for a, b in pairwise(table)) for table in tables.values())
        num_used += sum(used.values())
        sampled = tuple(SampledToken(1) if entry.samples else None for entry in plan.scheduled)
        core.finish_step(plan, StepResult(plan.step_id, sampled), Nanos(0))
    return 100 * (1 - num_used / num_held), num_blocks / num_runs


if __name__ == "__main__":
    main()

"""What deciding costs: `begin_step` and `finish_step` for 256 running sequences, with none and with 10,000 waiting."""

import argparse
import time
from random import Random

from benchmarks.harness import Figure, Result, Target

from headrace.base.clock import Nanos
from headrace.base.ids import RequestId
from headrace.base.rng import stream
from headrace.engine.host.config import CPU_MIN_PROMPT_TOKENS
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import SampledToken, StepResult

NUM_RUNNING = 256
NUM_WAITING = 10_000


def make_request(name: str, num_tokens: int, rng: Random) -> Request:
    token_ids = tuple(rng.randrange(1, 49_000) for _ in range(num_tokens))
    return Request(request_id=RequestId(name), prompt_token_ids=token_ids, sampling=SamplingParams(max_tokens=1_500))


def step_ms(core: EngineCore) -> float:
    """One step's decisions; what a worker would do in between is not counted."""
    began = time.perf_counter()
    plan = core.begin_step(Nanos(0))
    planned = time.perf_counter()
    assert plan is not None
    sampled = tuple(SampledToken(17) if entry.samples else None for entry in plan.scheduled)
    result = StepResult(plan.step_id, sampled)
    answered = time.perf_counter()
    core.finish_step(plan, result, Nanos(0))
    return 1e3 * ((time.perf_counter() - answered) + (planned - began))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=400)
    options = parser.parse_args()
    rng = stream(0, "planning")
    config = SchedulerConfig(
        max_model_len=2048,
        num_blocks=40_000,
        max_num_seqs=NUM_RUNNING,
        max_num_queued_requests=NUM_WAITING,
        min_prompt_tokens_per_step=CPU_MIN_PROMPT_TOKENS,
    )
    core = EngineCore(config, eos_token_ids=(2,))
    for index in range(NUM_RUNNING):
        core.add_request(make_request(f"running{index}", 300, rng), Nanos(0))
    while core.stats().num_waiting:
        step_ms(core)
    alone = [step_ms(core) for _ in range(options.num_runs)]
    for index in range(NUM_WAITING):
        core.add_request(make_request(f"waiting{index}", 50, rng), Nanos(0))
    crowded = [step_ms(core) for _ in range(options.num_runs)]
    figures = [
        Figure(f"{NUM_RUNNING} running", "ms", tuple(round(ms, 4) for ms in alone)),
        Figure(f"{NUM_RUNNING} running, {NUM_WAITING} waiting", "ms", tuple(round(ms, 4) for ms in crowded)),
    ]
    ratio = figures[1].median / figures[0].median
    Result(
        "planning",
        "begin_step + finish_step of one decode step, the model left out",
        figures=figures,
        targets=[
            Target("under 2 ms for 256 running sequences", figures[0].median, "ms", figures[0].median < 2),
            Target("10,000 waiting do not slow a step (within 10 %)", ratio, "x", ratio < 1.1),
        ],
    ).save()


if __name__ == "__main__":
    main()

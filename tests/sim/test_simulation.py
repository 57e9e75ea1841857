"""Rehearsal keeps its promises: rules hold under drawn scenarios, and the outcome depends on the inputs alone."""

import os
import subprocess
import sys
from functools import cache

import pytest

from headrace.base.clock import ManualClock, Nanos
from headrace.base.ids import RequestId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.sim.events import EventQueue, Rank
from headrace.sim.scenario import VOCAB_SIZE, draw_scenario, run_scenario
from headrace.sim.simulation import Arrival, Outcome, simulate
from headrace.sim.step_cost import LinearStepCost
from headrace.sim.worker import choose_any_of

NUM_SEEDS = 20
NUM_REQUESTS = 50
DIGEST_PROGRAM = """
from headrace.sim.scenario import run_scenario
for seed in range(5):
    print(run_scenario(seed, num_requests=40).digest)
"""


@cache
def run(seed: int) -> Outcome:
    return run_scenario(seed, num_requests=NUM_REQUESTS)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_every_request_ends_once_and_every_block_comes_back(seed: int) -> None:
    outcome = run(seed)
    scenario = draw_scenario(seed, num_requests=NUM_REQUESTS)
    for arrival in scenario.arrivals:
        request = arrival.request
        if request.request_id not in outcome.refused_requests:
            ends = [outcome.finish_reasons[(request.request_id, i)] for i in range(request.num_sequences)]
            assert set(ends) <= {"stop", "length", "abort"}


def test_the_drawn_scenarios_hold_beam_searches_that_end() -> None:
    ended = 0
    for seed in range(NUM_SEEDS):
        for arrival in draw_scenario(seed, num_requests=NUM_REQUESTS).arrivals:
            if arrival.request.sampling.beam_search is not None:
                ended += run(seed).finish_reasons.get((arrival.request.request_id, 0)) in ("stop", "length")
    assert ended > 30


def test_the_drawn_scenarios_do_press_on_the_limits() -> None:
    outcomes = [run(seed) for seed in range(NUM_SEEDS)]
    assert sum(outcome.stats.num_preemptions for outcome in outcomes) > 10
    assert sum(outcome.stats.num_evictions for outcome in outcomes) > 500
    assert sum(outcome.stats.prefix_cache_hits for outcome in outcomes) > 1_000
    assert sum(len(outcome.refused_requests) for outcome in outcomes) > 20
    assert sum(outcome.finish_counts.get("abort", 0) for outcome in outcomes) > 50


def test_two_processes_with_different_hash_seeds_give_the_same_digest() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST_PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "4711")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].split())) == 5, "different seeds differ"


def test_a_simulation_needs_no_torch() -> None:
    program = DIGEST_PROGRAM + "import sys\nassert 'torch' not in sys.modules and 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_answers_do_not_depend_on_how_the_engine_is_configured() -> None:
    scenario = draw_scenario(3, num_requests=30)
    answers = []
    for config in (
        SchedulerConfig(max_model_len=256, num_blocks=5_000, enable_prefix_caching=False, max_steps_in_flight=1),
        SchedulerConfig(max_model_len=256, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=8),
        SchedulerConfig(max_model_len=256, num_blocks=300, block_size=1, max_steps_in_flight=4),
    ):
        arrivals = [
            Arrival(arrival.at, Request(request_id=arrival.request.request_id, sampling=arrival.request.sampling,
                                        prompt_token_ids=arrival.request.prompt_token_ids))
            for arrival in scenario.arrivals
            # Beams that the smallest of these engines has no room for are refused there.
            if arrival.request.sampling.beam_search is None
            or len(arrival.request.prompt_token_ids) + arrival.request.sampling.max_tokens <= 80
        ]  # fmt: skip
        outcome = simulate(
            config=config, cost=LinearStepCost(), choose=choose_any_of(VOCAB_SIZE), arrivals=arrivals, eos_token_ids=(0,)
        )
        answers.append(outcome.answers)
    assert answers[0] == answers[1] == answers[2]


def test_virtual_time_is_the_stated_cost_of_the_steps() -> None:
    request = Request(
        request_id=RequestId("r"),
        prompt_token_ids=tuple(range(1, 11)),
        sampling=SamplingParams(max_tokens=3, ignore_eos=True),
    )
    outcome = simulate(
        config=SchedulerConfig(max_model_len=64, num_blocks=8),
        cost=LinearStepCost(fixed_ns=100, per_token_ns=10, per_context_token_ns=1),
        choose=choose_any_of(VOCAB_SIZE),
        arrivals=[Arrival(Nanos(1_000), request)],
    )
    assert outcome.finished_at == 1_000 + (100 + 100 + 10) + (100 + 10 + 11) + (100 + 10 + 12)


def test_events_of_one_moment_happen_by_rank_and_then_in_the_order_they_were_asked_for() -> None:
    queue = EventQueue(ManualClock())
    seen: list[str] = []
    for moment, rank, name in [
        (2, Rank.MESSAGE, "later"), (1, Rank.TURN, "turn"), (1, Rank.RESULT, "result"), (1, Rank.MESSAGE, "first"),
        (1, Rank.MESSAGE, "second"),
    ]:  # fmt: skip
        queue.schedule(Nanos(moment), rank, lambda name=name: seen.append(name))  # type: ignore[misc]
    while queue:
        queue.run_next()
    assert seen == ["first", "second", "result", "turn", "later"]

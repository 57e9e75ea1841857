"""A workload in rehearsal leaves what a live run would have left, and the real mind's cache finds what it shares."""

from pathlib import Path

import msgspec
import pytest

from headrace.base.clock import ManualClock, Nanos
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.step import StepPlan
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.result_file import read_results, write_result
from headrace.measure.report.summary import summarize
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import Fixed
from headrace.measure.workload.prompts import at, closed_loop, random_requests, sessions
from headrace.measure.workload.request import ChatPrompt, Segment, TextPrompt, TokenPrompt, Workload, WorkloadRequest
from headrace.measure.workload.traces import MOONCAKE_BLOCK_SIZE, read_mooncake
from headrace.sim.step_cost import LinearStepCost
from headrace.sim.workload_run import run_workload

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
FACTS = RunFacts(source="simulated", duration_ns=Nanos(0))
CONFIG = SchedulerConfig(max_model_len=4096, num_blocks=4096)


def rehearse(requests: list[WorkloadRequest], config: SchedulerConfig = CONFIG, **cost: int) -> Run:
    workload = Workload(name="test", requests=tuple(requests))
    return run_workload(workload, config=config, cost=LinearStepCost(**cost), facts=FACTS)


def test_latencies_are_those_of_the_stated_cost() -> None:
    """One request alone: a step for the prompt, and a step for each further token."""
    (record,) = rehearse(
        random_requests(1, inputs=Fixed(100), outputs=Fixed(4)), fixed_ns=1000, per_token_ns=10, per_context_token_ns=0
    ).records
    assert record.first_chunk_ns == 1000 + 100 * 10
    assert record.gaps_ns == (1010, 1010, 1010)
    assert (record.num_prompt_tokens, record.num_output_tokens, record.finish_reason) == (100, 4, "length")


def test_a_machine_that_slows_down_takes_longer_from_that_moment_on() -> None:
    """Half as fast after 3 µs: the steps that were submitted before are not longer."""
    clock = ManualClock()

    def cost(plan: StepPlan) -> Nanos:
        return Nanos(1000 if clock.now() < 3000 else 2000)

    workload = Workload(name="test", requests=tuple(random_requests(1, inputs=Fixed(10), outputs=Fixed(8))))
    config = msgspec.structs.replace(CONFIG, max_steps_in_flight=1)
    (record,) = run_workload(workload, config=config, cost=cost, facts=FACTS, clock=clock).records
    assert (record.first_chunk_ns, *record.gaps_ns) == (1000, 1000, 1000, 2000, 2000, 2000, 2000, 2000)


def test_every_request_ends_once_and_littles_law_is_exact() -> None:
    requests = at(random_requests(200, inputs=Fixed(50), outputs=Fixed(10)), arrival_times(200, rate=20))
    run = rehearse(requests)
    summary = summarize(run)
    assert summary.num_completed == 200
    assert summary.littles_law is not None
    assert abs(summary.littles_law.error) < 1e-9
    assert summary.distributions["server_queue_time"].count == 200


def test_the_same_workload_gives_the_same_records() -> None:
    requests = at(random_requests(50, inputs=Fixed(50), outputs=Fixed(10)), arrival_times(50, rate=20))
    assert rehearse(requests) == rehearse(requests)


def test_turns_arrive_a_think_time_after_the_turn_before_them_has_ended() -> None:
    requests = sessions(3, num_turns=3, inputs=Fixed(8), outputs=Fixed(4), think_time_s=1.0)
    records = {record.request_id: record for record in rehearse(requests).records}
    for request in requests:
        if request.after:
            ended = records[request.after].finished_ns
            assert records[request.request_id].intended_ns == ended + round(request.at_s * 1e9)


def test_a_refused_request_is_an_error_like_the_servers_and_its_followers_still_come() -> None:
    too_long = WorkloadRequest(request_id="a", prompt=TokenPrompt((Segment("a", 5000),)), num_output_tokens=1)
    after = WorkloadRequest(request_id="b", prompt=TokenPrompt((Segment("b", 5),)), num_output_tokens=1, after="a")
    run = rehearse([too_long, after])
    assert summarize(run).errors == {"http 400": 1}
    assert summarize(run).num_completed == 1


def test_a_conversation_of_texts_shares_its_beginning_with_its_next_turn() -> None:
    first = WorkloadRequest(
        request_id="a", prompt=ChatPrompt(({"role": "user", "content": "x" * 400},)), num_output_tokens=32
    )
    second = WorkloadRequest(
        request_id="b",
        prompt=ChatPrompt(({"role": "user", "content": "more"},), continues=True),
        num_output_tokens=4,
        after="a",
    )
    other = WorkloadRequest(request_id="c", prompt=TextPrompt("something else"), num_output_tokens=4)
    records = {record.request_id: record for record in rehearse([first, second, other]).records}
    assert records["b"].num_prompt_tokens > records["a"].num_prompt_tokens + 32
    assert (records["b"].num_cached_tokens or 0) >= records["a"].num_prompt_tokens - 16


def test_its_result_file_is_read_like_a_live_one() -> None:
    run = rehearse(random_requests(5, inputs=Fixed(50), outputs=Fixed(10)))
    assert read_results(write_result(run, summarize(run)), name="sim.json") == [run]
    assert run.facts.source == "simulated"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_the_minds_own_cache_finds_in_a_trace_what_the_trace_reuses() -> None:
    """One after another on a cache without limits. Of a prompt the mind can reuse full blocks, and never the last token."""
    path = TRACES / "mooncake" / "synthetic_trace.jsonl"
    lines = path.read_bytes().splitlines()[:200]
    requests = [msgspec.structs.replace(request, num_output_tokens=1) for request in read_mooncake(lines)]
    config = SchedulerConfig(
        max_model_len=131_072,
        num_blocks=20_000,
        block_size=MOONCAKE_BLOCK_SIZE,
        max_num_batched_tokens=131_072,
        max_tokens_per_prompt_chunk=131_072,
    )
    found = sum(record.num_cached_tokens or 0 for record in rehearse(closed_loop(requests, num_users=1), config).records)
    seen: set[int] = set()
    expected = 0
    for line in lines:
        row = msgspec.json.decode(line)
        full = row["hash_ids"][: row["input_length"] // MOONCAKE_BLOCK_SIZE]
        usable = full[: (row["input_length"] - 1) // MOONCAKE_BLOCK_SIZE]
        num_known = next((place for place, hash_id in enumerate(usable) if hash_id not in seen), len(usable))
        expected += num_known * MOONCAKE_BLOCK_SIZE
        seen.update(full)
    assert found == expected
    assert found > 0

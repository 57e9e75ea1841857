"""Workloads are what they say: rates, lengths, shared beginnings, sessions; and a seed gives the same one everywhere."""

import math
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ConfigurationError
from headrace.base.rng import stream
from headrace.engine.mind.block_hashing import chain
from headrace.engine.mind.prefix_cache import root_hash
from headrace.measure.workload.arrivals import arrival_times, ramp_times
from headrace.measure.workload.lengths import Empirical, Fixed, LogNormal, Uniform, parse_lengths
from headrace.measure.workload.prompts import (
    at,
    closed_loop,
    random_requests,
    sessions,
    shared_prefix_requests,
    with_bodies,
    with_models,
)
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest, token_ids
from headrace.measure.workload.reuse import reuse
from headrace.measure.workload.traces import (
    read_agentic_session,
    read_azure,
    read_messages,
    read_mooncake,
    read_servegen_client,
    speeded,
)
from headrace.measure.workload.workload_file import read_workload, write_workload

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"


def gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in zip([0.0, *moments], moments, strict=False)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness_that_were_asked_for(burstiness: float) -> None:
    found = gaps(arrival_times(20_000, rate=50.0, burstiness=burstiness, seed=3))
    assert statistics.fmean(found) == pytest.approx(1 / 50, rel=0.05)
    variation = statistics.pstdev(found) / statistics.fmean(found)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_an_infinite_rate_is_all_at_once_and_a_rate_of_nothing_is_an_error() -> None:
    assert arrival_times(3, rate=math.inf) == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigurationError, match="above 0"):
        arrival_times(3, rate=0.0)


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 55.0), ("exponential", math.sqrt(1000))])
def test_a_ramp_begins_and_ends_at_its_rates(strategy: str, middle: float) -> None:
    moments = ramp_times(1001, start_rps=10, end_rps=100, strategy=strategy, burstiness=math.inf)
    found = [1 / gap for gap in gaps(moments)]
    assert [found[0], found[500], found[1000]] == pytest.approx([10, middle, 100])


def test_lengths_have_their_distributions() -> None:
    rng = stream(0, "test")
    assert {Fixed(5).draw(rng) for _ in range(10)} == {5}
    assert {Uniform(2, 4).draw(rng) for _ in range(200)} == {2, 3, 4}
    drawn = [LogNormal(400, 0.5).draw(rng) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(400, rel=0.03)
    assert statistics.pstdev(drawn) / 400 == pytest.approx(0.5, rel=0.05)
    counted = Counter(Empirical({10: 3.0, 20: 1.0}).draw(rng) for _ in range(4000))
    assert counted[10] / 4000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "many", "uniform:5:2", "uniform:0:2", "lognormal:400", "empirical:", "normal:1:2"]
)
def test_what_is_no_distribution_of_lengths_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="uniform:64:256"):
        parse_lengths(text)


def test_members_of_a_group_share_their_beginning_to_the_token_and_nothing_else() -> None:
    requests = shared_prefix_requests(60, num_groups=3, num_prefix_tokens=40, suffixes=Fixed(8), outputs=Fixed(4))
    prompts = [token_ids(r.prompt.segments, seed=0, vocab_size=8000) for r in requests if isinstance(r.prompt, TokenPrompt)]
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 3
    assert len({tuple(prompt[40:]) for prompt in prompts}) == 60


def test_each_turn_of_a_session_begins_with_all_that_was_said_before_it() -> None:
    requests = sessions(2, num_turns=4, inputs=Fixed(6), outputs=Fixed(3), num_system_tokens=10, tool_turn_share=0.5)
    turns = [(before, after) for before, after in pairwise(requests) if after.after]
    assert len(turns) == 2 * 3
    for before, after in turns:
        assert after.after == before.request_id
        assert isinstance(before.prompt, TokenPrompt) and isinstance(after.prompt, TokenPrompt)
        assert after.prompt.segments[: len(before.prompt.segments)] == before.prompt.segments
        assert after.prompt.num_tokens == before.prompt.num_tokens + 3 + 6


def test_users_of_a_closed_loop_ask_one_after_another() -> None:
    requests = closed_loop(random_requests(10, inputs=Fixed(1), outputs=Fixed(1)), num_users=3)
    assert [request.after for request in requests] == ["", "", "", "r0", "r1", "r2", "r3", "r4", "r5", "r6"]


def test_mixes_are_drawn_by_weight_and_adapters_in_turn() -> None:
    requests = random_requests(3000, inputs=Fixed(1), outputs=Fixed(1))
    mixed = with_bodies(requests, {"plain": (1.0, {}), "json": (3.0, {"response_format": {"type": "json_object"}})})
    assert sum("response_format" in request.extra_body for request in mixed) / 3000 == pytest.approx(0.75, abs=0.03)
    turns = with_models(requests[:4], ["a", "b"], assignment="round-robin")
    assert [request.model for request in turns] == ["a", "b", "a", "b"]


@given(st.integers(0, 1 << 40), st.integers(1, 60), st.integers(2, 100_000))
def test_tokens_are_below_the_vocabulary_and_repeatable(seed: int, number: int, vocab_size: int) -> None:
    segments = [Segment("x", number), Segment("y", 3)]
    tokens = token_ids(segments, seed=seed, vocab_size=vocab_size)
    assert len(tokens) == number + 3
    assert all(0 <= token < vocab_size for token in tokens)
    assert tokens == token_ids(segments, seed=seed, vocab_size=vocab_size)


def test_a_workload_comes_back_from_its_file_and_a_damaged_file_is_named_by_its_line() -> None:
    requests = at(random_requests(5, inputs=Uniform(1, 9), outputs=Fixed(2)), arrival_times(5, rate=3))
    workload = Workload(name="w", requests=tuple(requests), seed=7)
    lines = list(write_workload(workload))
    assert read_workload(lines) == workload
    with pytest.raises(ConfigurationError, match="cut off"):
        read_workload(lines[:-1])
    with pytest.raises(ConfigurationError, match="line 3"):
        read_workload([lines[0], lines[1], b"{}", *lines[3:]])
    with pytest.raises(ConfigurationError, match="line 1"):
        read_workload([])


def test_a_request_cannot_wait_for_one_that_does_not_come_before_it() -> None:
    one = WorkloadRequest(request_id="a", prompt=TokenPrompt(()), num_output_tokens=1, after="b")
    with pytest.raises(ConfigurationError, match="comes after 'b'"):
        Workload(name="w", requests=(one,))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"at_s": -1.0}, "comes at_s -1; 0 or later"),
        ({"num_output_tokens": 0}, "wants 0 tokens; at least 1"),
        ({"prompt": TokenPrompt((Segment("x", -1),))}, "a segment of fewer than 0 tokens"),
    ],
)
def test_a_request_that_nobody_can_send_is_refused_by_name(wrong: dict[str, Any], told: str) -> None:
    good: dict[str, Any] = {"request_id": "a", "prompt": TokenPrompt((Segment("x", 1),)), "num_output_tokens": 1}
    with pytest.raises(ConfigurationError, match=f"request 'a' .*{told}"):
        Workload(name="w", requests=(WorkloadRequest(**{**good, **wrong}),))


# Traces, in small


def test_equal_hashes_of_a_mooncake_trace_are_equal_blocks() -> None:
    rows = [
        '{"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]}',
        '{"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]}',
    ]
    first, second = read_mooncake(rows)
    assert (second.at_s, second.num_output_tokens) == (1.5, 7)
    assert isinstance(first.prompt, TokenPrompt) and isinstance(second.prompt, TokenPrompt)
    assert (first.prompt.num_tokens, second.prompt.num_tokens) == (1300, 1100)
    a, b = (token_ids(prompt.segments, seed=0, vocab_size=8000) for prompt in (first.prompt, second.prompt))
    assert a[:1024] == b[:1024] and a[1024:1100] != b[1024:]
    with pytest.raises(ConfigurationError, match="line 2"):
        read_mooncake([rows[0], '{"timestamp": 0}'])


def test_azures_moments_count_from_the_first() -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319600,3180,8",
    ]
    first, second = read_azure(lines)
    assert (first.at_s, second.at_s, second.num_output_tokens) == (0.0, 0.052, 8)
    with pytest.raises(ConfigurationError, match="line 2"):
        read_azure([lines[0], "yesterday,1,2"])


def test_a_servegen_client_keeps_each_windows_rate_and_lengths() -> None:
    rates = ["0,2.0,1.0,Gamma,1.0,0.5", "600,0,0,,0,0", "1200,8.0,1.0,Weibull,1.0,0.125"]
    lengths = {"0": {"input_tokens": "{100: 1.0}", "output_tokens": "{10: 0.5, 20: 0.5}"}}
    requests = read_servegen_client("c", rates, lengths)
    by_window = Counter(int(request.at_s // 600) for request in requests)
    assert set(by_window) == {0, 2}
    assert by_window[0] == pytest.approx(1200, rel=0.1)
    assert by_window[2] == pytest.approx(4800, rel=0.1)
    assert {request.num_output_tokens for request in requests} == {10, 20}


def test_subagents_wait_for_the_turn_that_started_them_and_the_session_does_not_wait_for_them() -> None:
    def row(kind: str = "n", **more: object) -> dict[str, object]:
        return {"type": kind, "in": 100, "out": 5, "hash_ids": [1, 2], "think_time": 2.0, **more}

    subagent = {"type": "subagent", "agent_id": "a1", "requests": [row(), row()]}
    made = read_agentic_session({"id": "t", "block_size": 64, "requests": [row(), subagent, row()]})
    assert [(r.request_id, r.after, r.at_s) for r in made] == [
        ("t.0", "", 0.0), ("t.a1.0", "t.0", 2.0), ("t.a1.1", "t.a1.0", 2.0), ("t.2", "t.0", 2.0),
    ]  # fmt: skip


def test_messages_prompts_and_sharegpts_conversations_are_read() -> None:
    lines = [
        '{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 7}',
        '{"prompt": "once upon"}',
        '{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}',
    ]
    requests = read_messages(lines, outputs=Fixed(30))
    assert [request.num_output_tokens for request in requests] == [7, 30, 30]
    with pytest.raises(ConfigurationError, match="line 1 has neither"):
        read_messages(['{"text": "x"}'])


def test_a_trace_can_be_sped_up() -> None:
    requests = at(random_requests(2, inputs=Fixed(1), outputs=Fixed(1)), [4.0, 8.0])
    assert [request.at_s for request in speeded(requests, 4.0)] == [1.0, 2.0]


# Traces as they were published


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
@pytest.mark.parametrize(("name", "share"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_a_mooncake_trace_keeps_its_own_reuse_of_blocks(name: str, share: float) -> None:
    path = TRACES / "mooncake" / f"{name}_trace.jsonl"
    with path.open("rb") as file:
        found = reuse(read_mooncake(file)).segment_share
    seen: set[int] = set()
    num_found = num_blocks = 0
    for line in path.read_bytes().splitlines():
        for hash_id in msgspec.json.decode(line)["hash_ids"]:
            num_blocks += 1
            num_found += hash_id in seen
            seen.add(hash_id)
    assert found == num_found / num_blocks
    assert round(found, 3) == share


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_the_engines_own_hashes_find_in_a_traces_tokens_what_its_block_hashes_say() -> None:
    """Real tokens, hashed as the prefix cache hashes them, on a cache without limits."""
    with (TRACES / "mooncake" / "synthetic_trace.jsonl").open("rb") as file:
        requests = read_mooncake(file)[:150]
    root = root_hash(b"test", adapter="", cache_salt="")
    known: set[bytes] = set()
    num_found = num_blocks = 0
    for request in requests:
        assert isinstance(request.prompt, TokenPrompt)
        tokens = token_ids(request.prompt.segments, seed=0, vocab_size=8000)
        parent = root
        for start in range(0, len(tokens), 512):
            parent = chain(parent, tokens[start : start + 512])
            num_blocks += 1
            num_found += parent in known
            known.add(parent)
    expected = reuse(requests)
    assert (num_blocks, num_found) == (expected.num_segments, expected.num_segments_found)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
@pytest.mark.parametrize(("name", "number"), [("code", 8_819), ("conv", 19_366)])
def test_all_of_azures_rows_are_read(name: str, number: int) -> None:
    with (TRACES / "azure" / f"AzureLLMInferenceTrace_{name}.csv").open() as file:
        requests = read_azure(file)
    assert len(requests) == number
    assert 3400 < requests[-1].at_s < 3700, "an hour each"

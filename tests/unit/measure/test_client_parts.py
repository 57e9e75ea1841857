"""The client's pure parts: events out of bytes however they are cut, answers out of events, campaigns without a server."""

import asyncio
import io
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.unit.measure.records import request, run_of

from headrace.base.errors import ConfigurationError
from headrace.measure.bench.campaign import StopRule, highest_load, interleaved, sweep
from headrace.measure.bench.formats import (
    DONE,
    TOKENS,
    AnthropicFormat,
    AnthropicReader,
    BodyOptions,
    ChatReader,
    CompletionReader,
)
from headrace.measure.bench.http_client import Target
from headrace.measure.bench.live_view import ViewState
from headrace.measure.bench.runner import Progress
from headrace.measure.bench.server_facts import first_model
from headrace.measure.bench.sse import EventScanner
from headrace.measure.report.record import Run
from headrace.measure.workload.request import ChatPrompt, WorkloadRequest
from headrace.server.address import bind
from headrace.server.loading import answering_while_loading

STREAM = b'data: {"a": 1}\n\n: keep-alive\n\nevent: x\r\ndata: one\r\ndata: two\r\n\r\ndata:tight\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a": 1}', b"one\ntwo", b"tight", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    scanner = EventScanner()
    found = [event for a, b in pairwise(places) for event in scanner.feed(STREAM[a:b])]
    assert found == EVENTS


def test_the_first_chunk_of_a_chat_that_only_names_a_role_is_no_token() -> None:
    reader = ChatReader()
    assert reader.read(b'{"choices":[{"delta":{"role":"assistant","content":""}}]}') == 0
    assert reader.read(b'{"choices":[{"delta":{"content":"hi"}}]}') == TOKENS
    assert reader.read(b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}') == TOKENS
    assert reader.read(b'{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}') == TOKENS
    assert reader.read(b'{"choices":[{"delta":{},"finish_reason":"stop"}]}') == 0
    assert reader.read(b"[DONE]") == DONE
    assert (reader.texts, reader.finish_reason) == (["hi"], "stop")


def test_usage_says_how_many_tokens_there_were_and_how_many_were_cached() -> None:
    reader = CompletionReader()
    usage = b'{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}'
    assert reader.read(b'{"choices":[],"usage":%s}' % usage) == 0
    assert (reader.num_prompt_tokens, reader.num_output_tokens, reader.num_cached_tokens) == (9, 4, 8)
    assert reader.read(b'{"error":{"message":"gone"}}') == 0
    assert reader.error == "gone"


def test_an_answer_of_anthropics_api_is_read_and_its_cached_tokens_are_among_the_prompts() -> None:
    reader = AnthropicReader()
    events = [
        b'{"type":"message_start","message":{"usage":{"input_tokens":10,"cache_read_input_tokens":90,"output_tokens":1}}}',
        b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        b'{"type":"ping"}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}',
        b'{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{"}}',
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}',
        b'{"type":"message_stop"}',
    ]
    assert [reader.read(event) for event in events] == [0, 0, 0, TOKENS, TOKENS, 0, DONE]
    assert (reader.num_prompt_tokens, reader.num_cached_tokens, reader.num_output_tokens) == (100, 90, 5)
    assert reader.finish_reason == "end_turn"


def test_anthropics_body_has_the_system_prompt_apart() -> None:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
    asked = WorkloadRequest(request_id="a", prompt=ChatPrompt(messages), num_output_tokens=3)
    body = AnthropicFormat.body(asked, BodyOptions(model="m"), None)
    assert (body["system"], body["messages"], body["max_tokens"]) == ("Be brief.", [messages[1]], 3)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000, False, "")),
        ("localhost:9", Target("localhost", 9, False, "")),
        ("https://example.org/proxy/", Target("example.org", 443, True, "/proxy")),
    ],
)
def test_addresses_are_read(url: str, target: Target) -> None:
    assert Target.parse(url) == target


# Campaigns, against a made-up server


def measured(load: float, capacity: float) -> Run:
    """Every request is quick up to the capacity; beyond it, throughput stays and TTFT is long."""
    ttft = 50.0 if load <= capacity else 5000.0
    records = [request(n, intended=n * 1000 / load, chunks=[ttft, ttft + 10]) for n in range(50)]
    length = 50 * 1000 / min(load, capacity)
    return run_of(records, duration=length, slo_ms={"ttft": 100.0})


@pytest.mark.parametrize("capacity", [0.3, 7.0, 26.0, 500.0])
@pytest.mark.parametrize("start", [1.0, 20.0])
def test_the_highest_rate_that_keeps_a_promise_is_found_to_the_precision_asked_for(capacity: float, start: float) -> None:
    best, points = highest_load(lambda load: measured(load, capacity), start=start, kept_share=0.99, precision=0.02)
    assert best is not None
    assert capacity / 1.02 <= best.load <= capacity
    assert [point.load for point in points] == sorted(point.load for point in points)


def test_a_promise_that_no_rate_keeps_is_not_searched_for_ever() -> None:
    best, points = highest_load(lambda load: measured(load, 0.0000001), start=1.0, kept_share=0.99, most_runs=8)
    assert best is None
    assert len(points) == 8


def test_a_sweep_goes_on_while_its_rule_allows() -> None:
    loads = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    points, reason = sweep(loads, lambda load: measured(load, 5.0), StopRule(least_kept_share=0.9))
    assert [point.load for point in points] == [1.0, 2.0, 4.0, 8.0]
    assert "kept their promises" in reason
    points, reason = sweep(loads, lambda load: measured(load, 5.0), StopRule(least_growth=0.3))
    assert [point.load for point in points] == [1.0, 2.0, 4.0, 8.0]
    assert "grew by less" in reason
    assert sweep(loads, lambda load: measured(load, 5.0), StopRule())[1] == ""


def test_interleaved_rounds_alternate_who_goes_first() -> None:
    order: list[str] = []

    def of(name: str) -> Run:
        order.append(name)
        return measured(1.0, 5.0)

    first, second = interleaved(lambda: of("A"), lambda: of("B"), num_rounds=3, on_run=lambda what: None)
    assert "".join(order) == "ABBAAB"
    assert len(first) == len(second) == 3


def test_the_live_view_shows_rates_percentiles_and_a_late_client() -> None:
    state = ViewState("title")
    state.take(Progress(elapsed_s=1.0, num_total=100, num_done=10, num_chunks=100, ttft_ms=[10.0] * 10))
    state.take(
        Progress(elapsed_s=2.0, num_total=100, num_done=30, num_failed=2, num_chunks=400, num_in_flight=7, loop_lag_ms=50)
    )
    console = Console(width=100, record=True, file=io.StringIO(), force_terminal=True)
    console.print(state.drawing())
    shown = console.export_text()
    assert all(line.startswith(("│", "╭", "╰")) and len(line) == 100 for line in shown.splitlines())
    for text in (
        "title",
        "30 of 100 done",
        "7 in flight",
        "2 failed",
        "20.0 req/s",
        "300 chunks/s",
        "the client itself is 50 ms late",
    ):
        assert text in shown


@pytest.mark.parametrize("address", ["127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:1/"])
def test_a_server_that_is_not_there_is_told_apart_from_one_that_names_no_model(address: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{address} cannot be reached: .*refused; check --base-url"):
        first_model(address, {})


def test_a_server_that_still_loads_is_told_by_its_status_and_how_to_wait_for_it() -> None:
    async def ask_while_loading() -> None:
        with closing(bind("127.0.0.1", 0)) as listener:
            async with answering_while_loading(listener):
                await asyncio.to_thread(first_model, f"127.0.0.1:{listener.getsockname()[1]}", {})

    with pytest.raises(
        ConfigurationError, match="answers 503 Service Unavailable: say which model with --model, and bench waits"
    ):
        asyncio.run(ask_while_loading())


@pytest.mark.parametrize("address", ["http://127.0.0.1:eight", "ftp://127.0.0.1", "http://", "http://[::1"])
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is no address of a server; write for example http://127\.0\.0\.1:8000"):
        first_model(address, {})

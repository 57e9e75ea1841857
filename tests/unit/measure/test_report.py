"""Every figure against arithmetic done by hand, over logs made by hand. No clock and no server: these are exact."""

import io
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.unit.measure.records import MS, request, run_of

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.rng import stream
from headrace.cli.report_view import show_summary
from headrace.measure.report.comparison import compare, regressions
from headrace.measure.report.goodput import goodput, parse_objectives, read_objectives
from headrace.measure.report.page import render_page
from headrace.measure.report.record import ClientHealth, Run
from headrace.measure.report.result_file import read_results, result_document, write_result
from headrace.measure.report.statistics import distribution, resampled_means, resampled_percentiles, warm_up_length
from headrace.measure.report.summary import DEFAULT_SHARES, summarize, without_warm_up
from headrace.measure.report.timeline import littles_law, max_in_flight, stalls, timeline

numbers = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=200)


@given(numbers, st.sampled_from([0.0, 12.5, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentiles_means_and_deviations_are_numpys(values: list[float], share: float) -> None:
    found = distribution(values, [share])
    assert found is not None
    assert found.percentile(share) == pytest.approx(np.percentile(values, share), rel=1e-9, abs=1e-9)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9)
    assert found.std == pytest.approx(np.std(values), rel=1e-6, abs=1e-3)
    assert found.percentiles[0].num_above == sum(v > found.percentiles[0].value for v in values)


def test_nothing_measured_is_no_distribution_and_not_zero() -> None:
    assert distribution([], [50]) is None
    assert "ttft" not in summarize(run_of([request(end=5, error="connect")])).distributions


def test_latencies_count_from_the_intended_send_however_late_the_client_was() -> None:
    summary = summarize(run_of([request(intended=100, late=40, chunks=[60, 70, 90], end=95)]))
    found = {name: d.mean for name, d in summary.distributions.items()}
    assert found == {"ttft": 60, "itl": 15, "tpot": 17.5, "e2el": 95, "client_queue_time": 40, "interactivity": 1000 / 17.5}


def test_ttft_of_answers_that_failed_later_counts_and_their_end_to_end_does_not() -> None:
    summary = summarize(run_of([request(0, chunks=[10, 20]), request(1, chunks=[500], end=600, error="dropped")]))
    assert summary.distributions["ttft"].count == 2
    assert summary.distributions["ttft"].maximum == 500
    assert summary.distributions["e2el"].count == 1
    assert summary.errors == {"dropped": 1}


def test_throughput_counts_what_was_completed_over_the_whole_run() -> None:
    records = [request(n, intended=n * 100, chunks=[10, 20, 30], num_prompt_tokens=7) for n in range(10)]
    summary = summarize(run_of(records, duration=2000))
    assert (summary.request_throughput, summary.output_throughput, summary.total_token_throughput) == (5, 15, 50)
    assert summary.offered_rate == pytest.approx(10)
    assert summary.max_output_tokens_per_s == 30


def test_goodput_is_told_for_each_promise_and_for_all_together() -> None:
    records = [
        request(0, chunks=[100, 110, 120]),  # keeps both
        request(1, chunks=[300, 310, 320]),  # too late
        request(2, chunks=[100, 200, 300]),  # too slow
        request(3, chunks=[100, 110], end=120, error="dropped"),  # keeps nothing
        request(4, chunks=[50]),  # one token has no TPOT: that promise is kept
    ]
    found = goodput(records, {"ttft": 200.0, "tpot": 50.0}, Nanos(1000 * MS))
    assert found.per_objective == {"ttft": 3.0, "tpot": 3.0}
    assert found.shares == {"ttft": 0.6, "tpot": 0.6}
    assert (found.joint, found.joint_share) == (2.0, 0.4)


def test_a_promise_about_gaps_is_broken_by_one_gap() -> None:
    records = [request(0, chunks=[10, 20, 30]), request(1, chunks=[10, 20, 130])]
    assert goodput(records, {"itl": 50.0}, Nanos(1000 * MS)).joint == 1.0


def test_promises_are_read_from_words_and_from_a_file_and_misspellings_are_named() -> None:
    assert parse_objectives(["ttft:200", "e2el:5e3"]) == read_objectives("[slo]\nttft_ms = 200\ne2el_ms = 5000\n")
    with pytest.raises(ConfigurationError, match="did you mean 'ttft'"):
        parse_objectives(["tttf:200"])
    with pytest.raises(ConfigurationError, match="milliseconds"):
        parse_objectives(["ttft:fast"])
    with pytest.raises(ConfigurationError, match=r"\[slo\]"):
        read_objectives("ttft_ms = 200")


def test_a_silence_inside_an_answer_is_a_stall_and_a_slow_start_is_not() -> None:
    usual = [request(n, chunks=[10 + 10 * i for i in range(20)]) for n in range(10)]
    records = [*usual, request(10, chunks=[10, 20, 520, 530]), request(11, chunks=[3000, 3010])]
    found = stalls(records)
    assert [(stall.request_id, stall.from_ns, stall.duration_ns) for stall in found] == [("r10", 20 * MS, 500 * MS)]


def test_the_silence_before_a_failure_is_a_stall_too() -> None:
    found = stalls([request(0, chunks=[10, 20], end=5020, error="timeout")])
    assert [stall.duration_ns for stall in found] == [5000 * MS]


def test_in_flight_counts_from_send_to_end_and_one_that_ends_makes_room() -> None:
    records = [request(0, chunks=[100]), request(1, intended=50, late=50, chunks=[100])]
    assert max_in_flight(records) == 1
    line = timeline(records, Nanos(200 * MS), num_bins=4)
    assert line.in_flight == (1.0, 1.0, 1.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 100)), min_size=1, max_size=40))
def test_the_timeline_holds_every_token_and_every_moment_in_flight(spans: list[tuple[int, int]]) -> None:
    records = [request(n, intended=start, chunks=[length], num_output_tokens=3) for n, (start, length) in enumerate(spans)]
    line = timeline(records, Nanos(1000 * MS), num_bins=7)
    bin_s = line.bin_ns / 1e9
    assert sum(line.tokens_per_s) * bin_s == pytest.approx(3 * len(spans))
    assert sum(line.in_flight) * line.bin_ns == pytest.approx(sum(length for _, length in spans) * MS, rel=1e-6)


def test_littles_law_notices_a_request_that_the_records_lost() -> None:
    records = [request(n, intended=n * 10, chunks=[20]) for n in range(100)]
    law = littles_law(records[:-5], Nanos(1010 * MS), in_flight_integral_ns=100 * 20 * MS)
    assert law is not None
    assert law.error == pytest.approx(5 / 95)


def test_littles_law_is_steady_for_even_load_and_not_for_a_queue_that_grows() -> None:
    even = [request(n, intended=n * 10, chunks=[20]) for n in range(200)]
    growing = [request(n, intended=n * 10, chunks=[20 + n * 10]) for n in range(200)]
    for records, is_steady in ((even, True), (growing, False)):
        run = run_of(records)
        law = littles_law(run.records, run.facts.duration_ns, None)
        assert law is not None
        assert (abs(law.steady_error) < 0.05) == is_steady


def test_a_warm_up_is_found_and_leaving_it_out_moves_the_start() -> None:
    rng = stream(0, "test")
    cold = [request(n, intended=n * 10, chunks=[500 + rng.random() * 5]) for n in range(20)]
    warm = [request(n, intended=n * 10, chunks=[50 + rng.random() * 5]) for n in range(20, 200)]
    run = run_of([*cold, *warm])
    assert 20 <= summarize(run).num_warm_up <= 40
    kept = without_warm_up(run, 20)
    assert len(kept.records) == 180
    assert kept.records[0].intended_ns == 0
    assert summarize(kept).distributions["ttft"].maximum < 56


def test_noise_alone_is_hardly_ever_taken_for_a_warm_up() -> None:
    num_taken = 0
    for seed in range(200):
        rng = stream(seed, "noise")
        num_taken += warm_up_length([rng.expovariate(1.0) for _ in range(300)]) > 0
    assert num_taken <= 4


def test_of_each_kind_of_failure_the_first_reason_is_told_and_not_at_length() -> None:
    records = [
        request(0, chunks=[5.0]),
        request(1, end=1.0, error="http 400", error_detail="max_tokens is too large: 70"),
        request(2, end=1.0, error="http 400", error_detail="max_tokens is too large: 80"),
        request(3, end=1.0, error="http 500", error_detail="[bold]" + "x" * 5000),
        request(4, end=1.0, error="timeout"),
    ]
    summary = summarize(run_of(records))
    assert summary.warnings[0] == "http 400, the first: max_tokens is too large: 70"
    assert summary.warnings[1].startswith("http 500, the first: [bold]xxx") and len(summary.warnings[1]) < 250
    shown = io.StringIO()
    show_summary(Console(file=shown, width=300), run_of(records).facts, summary, (50.0,))
    assert "! http 500, the first: [bold]xxx" in shown.getvalue()


def test_a_client_that_was_late_or_busy_says_so_loudly() -> None:
    def health(cpu_s: float, lag_ms: int) -> ClientHealth:
        lag = Nanos(lag_ms * MS)
        return ClientHealth(cpu_s=cpu_s, wall_s=10, loop_lag_p99_ns=lag, send_lag_p99_ns=Nanos(0), send_lag_max_ns=lag)

    records = [request(chunks=[10])]
    assert not summarize(run_of(records, client=health(1, 1))).warnings
    for bad in (health(9.5, 1), health(1, 50)):
        assert "THE CLIENT WAS THE BOTTLENECK" in summarize(run_of(records, client=bad)).warnings[0]


def test_cached_and_accepted_shares_come_from_answers_or_from_the_servers_counters() -> None:
    told = [request(n, chunks=[10], num_prompt_tokens=100, num_cached_tokens=25) for n in range(4)]
    assert summarize(run_of(told)).cached_token_share == 0.25
    counters = {
        "vllm:prefix_cache_hits_total": 30.0, "vllm:prefix_cache_queries_total": 40.0,
        "vllm:spec_decode_num_accepted_tokens_total": 6.0, "vllm:spec_decode_num_draft_tokens_total": 10.0,
    }  # fmt: skip
    summary = summarize(run_of([request(chunks=[10])], server_counters=counters))
    assert (summary.cached_token_share, summary.acceptance_rate) == (0.75, 0.6)
    assert summarize(run_of([request(chunks=[10])])).cached_token_share is None


# Files


def a_run(*, scale: float = 1.0, number: int = 100, seed: int = 0, **facts: Any) -> Run:
    rng = stream(seed, "a run")
    records = []
    for n in range(number):
        first = (50 + 10 * rng.random()) * scale
        chunks = [first + i * (10 + rng.random()) * scale for i in range(5)]
        records.append(request(n, intended=n * 20.0, chunks=chunks, num_prompt_tokens=8, queued_ns=Nanos(3)))
    return run_of(records, **facts)


def test_a_run_comes_back_from_its_file_unchanged() -> None:
    run = a_run(label="x", slo_ms={"ttft": 55.0}, request_rate=50.0, metadata={"gpu": "none"})
    data = write_result(run, summarize(run), detailed=True)
    assert read_results(data, name="r.json") == [run]
    assert read_results(data + b"\n" + data + b"\n", name="r.json") == [run, run]


def test_vllms_own_file_with_its_lists_gives_the_same_figures() -> None:
    run = a_run(request_rate=50.0)
    document = result_document(run, summarize(run), detailed=True)
    del document["headrace"]
    (back,) = read_results(msgspec.json.encode(document), name="theirs.json")
    ours, theirs = summarize(run), summarize(back)
    for name in ("ttft", "itl", "tpot", "e2el"):
        assert theirs.distributions[name].mean == pytest.approx(ours.distributions[name].mean, rel=1e-6)
    assert theirs.request_throughput == pytest.approx(ours.request_throughput)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"headrace": {"version": 99}}', b'{"headrace": {"version": 1}}', b"\xff"]
)
def test_what_is_no_result_file_is_refused_with_its_name(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"some\.json"):
        read_results(data, name="some.json")


# Comparing


def test_a_slower_run_is_a_regression_and_the_same_run_is_none() -> None:
    first = a_run()
    assert not regressions(compare([first], [first]), tolerance=0.1)
    found = {row.name for row in regressions(compare([first], [a_run(scale=1.3, seed=1)]), tolerance=0.1)}
    assert {"mean_ttft_ms", "p99_e2el_ms", "mean_tpot_ms"} <= found
    assert not regressions(compare([a_run(scale=1.3)], [first]), tolerance=0.1), "faster is not worse"


def test_only_named_figures_are_judged_and_an_unknown_name_is_an_error() -> None:
    rows = compare([a_run()], [a_run(scale=1.3)])
    assert [row.name for row in regressions(rows, tolerance=0.1, names=["p99_ttft_ms"])] == ["p99_ttft_ms"]
    with pytest.raises(ConfigurationError, match="did you mean 'p99_ttft_ms'"):
        regressions(rows, tolerance=0.1, names=["p99_tfft_ms"])


def test_intervals_of_equal_distributions_hold_one_nearly_always() -> None:
    rows = [
        row
        for seed in range(20)
        for row in compare([a_run(seed=2 * seed)], [a_run(seed=2 * seed + 1)], seed=seed)
        if row.interval is not None
    ]
    missed = sum(row.is_certain for row in rows)
    assert missed / len(rows) < 0.15, "an interval of 95 % misses one time in twenty"


def test_percentiles_of_resamples_are_distributed_as_if_the_resamples_had_been_drawn() -> None:
    rng = stream(0, "values")
    values = [rng.expovariate(1.0) for _ in range(200)]
    quick = resampled_percentiles(values, 90, stream(1, "quick"), num_resamples=4000)
    drawn_rng = np.random.default_rng(0)
    drawn = [float(np.percentile(drawn_rng.choice(values, 200), 90)) for _ in range(4000)]
    assert np.mean(quick) == pytest.approx(np.mean(drawn), rel=0.01)
    assert np.percentile(quick, [2.5, 97.5]) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), rel=0.05)
    means = resampled_means(values, stream(1, "means"), num_resamples=2000)
    assert np.std(means) == pytest.approx(np.std(values) / np.sqrt(200), rel=0.1)


def test_rounds_are_compared_in_pairs_so_that_drift_cancels() -> None:
    """Each round is twice as slow as the one before; within each pair B is 10 % slower."""
    first = [a_run(scale=2.0**n, seed=n) for n in range(5)]
    second = [a_run(scale=1.1 * 2.0**n, seed=n) for n in range(5)]
    row = next(row for row in compare(first, second) if row.name == "mean_ttft_ms")
    assert row.interval is not None
    assert row.interval.low == pytest.approx(1.1, rel=0.01) and row.interval.high == pytest.approx(1.1, rel=0.01)


# The page


def test_the_page_stands_alone_and_shows_names_as_text() -> None:
    page = render_page([a_run(label="<script>alert(1)</script>", slo_ms={"ttft": 55.0})], shares=DEFAULT_SHARES)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not any(word in page for word in ("http://", "https://", "src=", "@import", "url("))
    assert page.count("<svg") == 6


def test_a_sweep_has_plots_against_its_load() -> None:
    runs = [a_run(request_rate=float(rate), slo_ms={"ttft": 55.0}) for rate in (1, 2, 4)]
    page = render_page(runs, shares=DEFAULT_SHARES)
    assert "Goodput against load" in page and "offered req/s" in page


def test_a_run_in_which_all_failed_has_a_page_and_a_file() -> None:
    run = run_of([request(n, end=5, error="connect") for n in range(3)])
    assert "3 failed" in render_page([run], shares=DEFAULT_SHARES)
    assert json.loads(write_result(run, summarize(run)))["failed"] == 3

"""The load generator against a server whose delays are known, over real sockets.

What is compared with the server's own notes is compared as counts and as orders (a moment cannot lie before what caused
it), or with limits that only a hang would break: how close the figures are is a matter for
`benchmarks/load_generator.py`, on a quiet machine.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.live_server import LiveServer
from tests.fakes import FakeEngine
from tests.known_delays import KnownServer, Script
from tests.patience import PATIENCE_S, eventually

from headrace.base.clock import Nanos
from headrace.cli.main import main
from headrace.measure.bench.formats import FORMATS, BodyOptions
from headrace.measure.bench.runner import LoadOptions, run_load
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.summary import summarize
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import Fixed
from headrace.measure.workload.prompts import at, closed_loop, random_requests, sessions
from headrace.measure.workload.request import ChatPrompt, Workload, WorkloadRequest

FACTS = RunFacts(source="live", duration_ns=Nanos(0))


def load(url: str, requests: list[WorkloadRequest], *, backend: str = "openai", **options: object) -> Run:
    workload = Workload(name="test", requests=tuple(requests), vocab_size=250)
    body = BodyOptions(model="fake-model", vocab_size=250)
    return run_load(workload, LoadOptions(url=url, format=FORMATS[backend], body=body, **options), FACTS)  # type: ignore[arg-type]


def some_requests(number: int, *, num_output_tokens: int = 8) -> list[WorkloadRequest]:
    return random_requests(number, inputs=Fixed(10), outputs=Fixed(num_output_tokens))


def open_loop(number: int, rate: float) -> list[WorkloadRequest]:
    return at(some_requests(number), arrival_times(number, rate=rate))


def test_no_figure_is_better_than_what_the_server_did_and_no_token_is_lost() -> None:
    script = Script(num_tokens=8, accept_ms=5, first_ms=20, gap_ms=10)
    with KnownServer(script) as server:
        run = load(server.url, open_loop(40, rate=100))
    summary = summarize(run)
    assert summary.num_completed == len(server.truth.requests) == 40
    assert summary.num_output_tokens == 40 * 8
    assert summary.distributions["itl"].count == 40 * 7
    for record in run.records:
        done = server.truth.requests[record.request_id]
        assert record.finished_ns - record.sent_ns >= done.end - done.received
        assert record.first_chunk_ns is not None
        assert record.first_chunk_ns - record.sent_ns >= done.chunks[0] - done.received


def test_a_server_that_freezes_for_a_second_shows_a_second_to_all_who_would_have_come_meanwhile() -> None:
    """Coordinated omission: a client that waited with the server would report one bad request, not as many as were due."""
    with KnownServer(Script(num_tokens=1, freeze_at_ms=300, freeze_ms=1000)) as server:
        run = load(server.url, open_loop(150, rate=100))
    summary = summarize(run)
    assert summary.distributions["ttft"].maximum >= 900
    waited = [record for record in run.records if record.finished_ns - record.intended_ns >= 400_000_000]
    assert len(waited) >= 40, "requests that were due in the first 600 ms of the freeze"


def test_a_closed_loop_never_has_more_in_flight_than_users() -> None:
    with KnownServer(Script(num_tokens=2, first_ms=5)) as server:
        run = load(server.url, closed_loop(some_requests(40), num_users=4))
    assert summarize(run).max_concurrent_requests == 4
    assert summarize(run).num_completed == 40


def test_a_limit_on_concurrency_counts_the_wait_where_requests_had_a_moment_of_their_own() -> None:
    with KnownServer(Script(num_tokens=1, first_ms=50)) as server:
        counted = load(server.url, open_loop(12, rate=1000), max_concurrency=2)
        uncounted = load(server.url, some_requests(12), max_concurrency=2, intends_when_free=True)
    assert summarize(counted).max_concurrent_requests <= 2
    assert summarize(counted).distributions["ttft"].maximum >= 5 * 50, "the last of six pairs waits for five"
    waits = [summarize(run).distributions["client_queue_time"].median for run in (uncounted, counted)]
    assert waits[0] < waits[1] / 2


def test_failures_are_counted_by_kind_and_what_came_before_them_is_kept() -> None:
    with KnownServer(Script(num_tokens=8, gap_ms=2, drop_every=5, refuse_every=4)) as server:
        run = load(server.url, open_loop(40, rate=400))
    summary = summarize(run)
    assert summary.errors == {"dropped": 6, "http 503": 10}
    assert all(len(record.gaps_ns) == 1 for record in run.records if record.error == "dropped")
    assert all(record.error_detail for record in run.records if record.error)


def test_a_stream_that_stalls_shows_as_a_stall() -> None:
    with KnownServer(Script(num_tokens=8, gap_ms=2, stall_every=10, stall_ms=600)) as server:
        run = load(server.url, open_loop(30, rate=200))
    summary = summarize(run)
    assert summary.num_stalls >= 3
    assert summary.longest_stall_ms >= 590


def test_several_tokens_in_a_chunk_count_as_tokens_in_tpot_and_as_one_gap() -> None:
    with KnownServer(Script(num_tokens=12, tokens_per_chunk=4, gap_ms=20)) as server:
        run = load(server.url, some_requests(3))
    assert all(record.num_output_tokens == 12 and len(record.gaps_ns) == 2 for record in run.records)


def test_nobody_there_is_an_error_of_its_own_kind() -> None:
    with KnownServer(Script()) as server:
        url = server.url
    assert summarize(load(url, some_requests(3))).errors == {"connect": 3}


def test_a_server_that_never_answers_runs_into_the_timeout() -> None:
    with KnownServer(Script(accept_ms=3_600_000)) as server:
        run = load(server.url, some_requests(3), timeout_s=0.3)
    assert summarize(run).errors == {"timeout": 3}


def test_littles_law_holds_by_a_counter_that_knows_no_records() -> None:
    with KnownServer(Script(num_tokens=4, first_ms=10, gap_ms=5)) as server:
        law = summarize(load(server.url, open_loop(60, rate=200), max_concurrency=5)).littles_law
    assert law is not None
    assert abs(law.error) < 0.01


def test_anthropics_api_is_measured_like_openais() -> None:
    with KnownServer(Script(num_tokens=5, gap_ms=5)) as server:
        run = load(server.url, some_requests(6), backend="anthropic")
    assert not summarize(run).errors
    assert all((r.num_prompt_tokens, r.num_output_tokens, len(r.gaps_ns)) == (10, 5, 4) for r in run.records)


def test_turns_of_a_session_follow_one_another() -> None:
    requests = sessions(3, num_turns=4, inputs=Fixed(5), outputs=Fixed(2), think_time_s=0.01)
    with KnownServer(Script(num_tokens=2)) as server:
        run = load(server.url, requests)
    moments = {record.request_id: record for record in run.records}
    for request in requests:
        if request.after:
            assert moments[request.request_id].intended_ns >= moments[request.after].finished_ns


def test_a_conversation_carries_the_answer_that_it_really_got() -> None:
    engine = FakeEngine()
    requests = [
        WorkloadRequest(request_id="a", prompt=ChatPrompt(({"role": "user", "content": "hello"},)), num_output_tokens=6),
        WorkloadRequest(
            request_id="b",
            prompt=ChatPrompt(({"role": "user", "content": "and then?"},), continues=True),
            num_output_tokens=6,
            after="a",
        ),
    ]
    with LiveServer(engine) as server:
        run = load(server.url, requests, backend="openai-chat", keep_texts=True)
    answer = next(record.text for record in run.records if record.request_id == "a")
    asked = engine.tokenizer.decode(engine.requests[1].prompt_token_ids, skip_special_tokens=False)
    assert f"hello<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\nand then?" in asked


def test_the_prompt_that_the_server_sees_is_the_workloads_to_the_token_and_its_cache_finds_what_is_shared() -> None:
    requests = random_requests(5, inputs=Fixed(16), outputs=Fixed(2), num_prefix_tokens=64)
    with LiveServer(FakeEngine()) as server:
        run = load(server.url, closed_loop(requests, num_users=1))
    assert [record.num_prompt_tokens for record in run.records] == [80] * 5
    assert [record.num_cached_tokens for record in run.records] == [0, 64, 64, 64, 64]


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_headraces_own_server_is_measured_over_both_of_its_apis(backend: str) -> None:
    with LiveServer(FakeEngine()) as server:
        run = load(server.url, some_requests(5), backend=backend)
    assert summarize(run).num_output_tokens == 5 * 8


def test_a_run_that_is_interrupted_reports_what_it_has(tmp_path: Path) -> None:
    usual = ["--model", "m", "--input-len", "10", "--output-len", "4", "--ready-check-timeout-sec", "0"]
    kept = ["--result-dir", str(tmp_path), "--result-filename", "r"]
    with KnownServer(Script(num_tokens=4, stall_every=50, stall_ms=3_600_000)) as server:
        command = [
            sys.executable,
            "-m",
            "headrace.cli.main",
            "bench",
            "--base-url",
            server.url,
            "--num-prompts",
            "60",
            *usual,
            *kept,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        eventually(lambda: server.num_done() == 59, "all answers but the one that stalls have ended")
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, shown
    assert "the run was interrupted" in shown
    result = json.loads((tmp_path / "r").read_text())
    assert result["completed"] + result["failed"] == 60
    assert 0 < result["completed"] < 60, "what was sent last may not have been read yet"


def test_a_run_whose_reader_has_left_leaves_its_files(tmp_path: Path) -> None:
    page, kept = tmp_path / "page.html", tmp_path / "r"
    command = [sys.executable, "-m", "headrace.cli.main", "bench", "--model", "m", "--input-len", "10", "--output-len", "4"]
    command += [
        "--num-prompts",
        "5",
        "--ready-check-timeout-sec",
        "0",
        "--html",
        str(page),
        "--result-dir",
        str(tmp_path),
        "--result-filename",
        "r",
    ]
    with KnownServer(Script(num_tokens=4, stall_every=5, stall_ms=1_000)) as server:
        process = subprocess.Popen([*command, "--base-url", server.url], stdout=subprocess.PIPE)
        eventually(lambda: server.num_done() == 4, "all answers but the one that stalls have ended")
        assert process.stdout is not None, "it was asked for"
        process.stdout.close()
        process.wait(timeout=PATIENCE_S)
    assert json.loads(kept.read_text())["completed"] == 5
    assert page.read_text().endswith("</html>\n")


# The command


def bench(url: str, *words: str) -> int:
    usual = ["--base-url", url, "--model", "fake-model", "--input-len", "10", "--output-len", "4", "--vocab-size", "250"]
    return main(["bench", *usual, *words])


def test_scripts_of_vllm_find_their_options_and_their_names(tmp_path: Path) -> None:
    with KnownServer(Script(num_tokens=4)) as server:
        status = bench(
            server.url,
            "--backend",
            "vllm",
            "--endpoint",
            "/v1/completions",
            "--dataset-name",
            "random",
            "--num-prompts",
            "20",
            "--random-input-len",
            "10",
            "--random-output-len",
            "4",
            "--request-rate",
            "200",
            "--burstiness",
            "1.0",
            "--seed",
            "1",
            "--percentile-metrics",
            "ttft,tpot,itl,e2el",
            "--metric-percentiles",
            "50,99",
            "--goodput",
            "ttft:500",
            "tpot:100",
            "--ignore-eos",
            "--save-result",
            "--save-detailed",
            "--result-dir",
            str(tmp_path),
            "--result-filename",
            "r.json",
            "--metadata",
            "gpu=none",
            "--num-warmups",
            "2",
            "--disable-tqdm",
        )
    assert status == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert {"date", "endpoint_type", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration",
            "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
            "output_throughput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests",
            "input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"} <= result.keys()  # fmt: skip
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert {
            f"mean_{name}_ms",
            f"median_{name}_ms",
            f"std_{name}_ms",
            f"p50_{name}_ms",
            f"p99_{name}_ms",
        } <= result.keys()
    assert (result["completed"], result["total_output_tokens"], result["gpu"]) == (20, 80, "none")
    assert len(result["itls"]) == 20 and all(len(gaps) == 3 for gaps in result["itls"])
    assert set(result["generated_texts"]) == {" word" * 4}


def test_a_sweep_ends_where_throughput_no_longer_grows_and_its_page_shows_all_runs(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with KnownServer(Script(num_tokens=2, first_ms=40)) as server:
        status = bench(
            server.url, "--num-prompts", "24", "--sweep-concurrency", "1,2,4,4,4,4", "--stop-growth", "0.5",
            "--html", str(page),
        )  # fmt: skip
    assert status == 0
    text = page.read_text()
    assert "1 at once" in text and "4 at once" in text and "4 at once #4" not in text
    assert "http://www" not in text and "<script" not in text, "the page needs no network"


def test_runs_of_two_servers_alternate_and_a_slower_one_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with KnownServer(Script(num_tokens=2, first_ms=5)) as a, KnownServer(Script(num_tokens=2, first_ms=200)) as b:
        status = bench(
            a.url, "--against", b.url, "--num-prompts", "8", "--num-users", "4", "--num-rounds", "3",
            "--result-dir", str(tmp_path), "--result-filename", "ab.json",
        )  # fmt: skip
    assert status == 0
    assert main(["compare", str(tmp_path / "ab-A.json"), str(tmp_path / "ab-B.json")]) == 1, "three rounds in each file"
    shown = capsys.readouterr().out
    assert shown.index("round 2 of 3, B") < shown.index("round 2 of 3, A"), "whoever was second goes first"
    assert "worse" in next(line for line in shown.splitlines() if "mean_ttft_ms" in line)


def test_a_real_run_and_its_rehearsal_are_compared_and_the_exit_status_tells(tmp_path: Path) -> None:
    workload, real, rehearsed = (tmp_path / name for name in ("w.jsonl", "real.json", "sim.json"))
    (tmp_path / "engine.toml").write_text("[cost]\nfixed_ns = 1_000_000_000\n")
    usual = ["--dataset-name", "workload", "--dataset-path", str(workload)]
    with KnownServer(Script(num_tokens=4)) as server:
        assert bench(server.url, "--num-prompts", "20", "--request-rate", "100", "--write-workload", str(workload)) == 0
        assert (
            bench(server.url, *usual, "--save-result", "--result-dir", str(tmp_path), "--result-filename", "real.json") == 0
        )
    slow = ["--engine", str(tmp_path / "engine.toml")]
    assert main(["simulate", "--workload", str(workload), "--result", str(rehearsed), *slow]) == 0
    assert main(["compare", str(real), str(real)]) == 0
    assert main(["compare", str(real), str(rehearsed)]) == 1, "a step of a second is a regression"
    assert json.loads(real.read_text()).keys() >= json.loads(rehearsed.read_text()).keys()


def test_a_server_that_refuses_the_first_request_ends_the_command_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LiveServer(FakeEngine()) as server:
        assert bench(server.url, "--num-prompts", "2", "--extra-body", '{"temprature": 1}') == 2
    assert "temprature" in capsys.readouterr().err

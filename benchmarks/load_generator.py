"""The load generator against servers whose delays are known: how far its figures are from the truth, and what a token
costs it.

    python -m benchmarks.load_generator [--aiperf PATH-OF-ITS-COMMAND]

The server (tests/known_delays.py) is a process of its own and notes when it did what, by the same clock. Figures are
compared as they are reported: mean, median, p99 and maximum of every kind of latency. With --aiperf, that load generator
drives the same server with the same streams; its processor time is what it needs for more requests, so that starting up
does not count.
"""

import argparse
import json
import os
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
from benchmarks.harness import Figure, Result, Target
from tests.known_delays import Done, KnownServer, Script, Truth
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.base.clock import Nanos
from headrace.measure.bench.formats import BodyOptions, CompletionsFormat
from headrace.measure.bench.runner import LoadOptions, run_load
from headrace.measure.report.latency import e2el_ms, itl_ms, ttft_ms
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.statistics import distribution
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import Fixed
from headrace.measure.workload.prompts import at, closed_loop, random_requests
from headrace.measure.workload.request import Workload, WorkloadRequest

NUM_RUNS = 3
STATISTICS = ("mean", "p50", "p99", "max")
NUM_STREAMS, TOKENS_PER_STREAM, STREAM_GAP_MS = 60, 200, 25.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--aiperf", type=Path)
    options = parser.parse_args()
    result = Result(
        "load_generator",
        "headrace bench's client against a server with known delays: figures beside the truth, and processor time a token",
    )
    for num_in_flight in (10, 100, 1000):
        measure_truth(num_in_flight, result)
    measure_freeze(result)
    measure_cost(result)
    if options.aiperf is not None:
        measure_aiperf(options.aiperf, result)
    result.save()


def drive(url: str, requests: list[WorkloadRequest]) -> Run:
    workload = Workload(name="known", requests=tuple(requests))
    facts = RunFacts(source="live", duration_ns=Nanos(0))
    return run_load(workload, LoadOptions(url=url, format=CompletionsFormat, body=BodyOptions(model="known")), facts)


def measure_truth(num_in_flight: int, result: Result) -> None:
    """Each user asks three times; gaps are long enough that the server's own work fits into them."""
    gap_ms = max(50.0, num_in_flight * 0.5)
    script = Script(num_tokens=10, accept_ms=20, first_ms=100, gap_ms=gap_ms, stall_every=7, stall_ms=gap_ms + 700)
    requests = closed_loop(random_requests(num_in_flight * 3, inputs=Fixed(20), outputs=Fixed(10)), num_users=num_in_flight)
    spread_s = gap_ms * 10 / 1000  # users begin one after another, as a server of one process can accept them
    requests = [
        msgspec.structs.replace(r, at_s=spread_s * index / num_in_flight) if not r.after else r
        for index, r in enumerate(requests)
    ]
    errors: dict[str, list[float]] = {}
    true_values: dict[str, list[float]] = {}
    lags = []
    for _ in range(NUM_RUNS):
        with KnownServer(script) as server:
            run = drive(server.url, requests)
        reported, true = latencies_ms(run, server.truth)
        for name in reported:
            ours, theirs = statistics(reported[name]), statistics(true[name])
            for statistic in STATISTICS:
                errors.setdefault(f"{name} {statistic}", []).append(ours[statistic] - theirs[statistic])
                true_values.setdefault(f"{name} {statistic}", []).append(theirs[statistic])
        assert run.facts.client is not None
        lags.append(run.facts.client.loop_lag_p99_ns / 1e6)
    worst = 0.0
    for name, values in errors.items():
        figure = Figure(f"{num_in_flight} in flight, {name}: error", "ms", tuple(values))
        result.figures.append(figure)
        percent = abs(figure.median) / median(true_values[name]) * 100
        worst = max(worst, min(abs(figure.median), percent))
    result.figures.append(Figure(f"{num_in_flight} in flight, the client's own loop lag p99", "ms", tuple(lags)))
    target = (
        f"{num_in_flight} in flight: every figure within 1 ms or 1 % of the truth (the worst, in the smaller of the two)"
    )
    result.targets.append(Target(target, worst, "ms or %", worst <= 1.0))


def latencies_ms(run: Run, truth: Truth) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """From the intended send: as reported, and to the moments at which the server wrote, by the clock that both share."""
    reported: dict[str, list[float]] = {"ttft": [], "itl": [], "e2el": []}
    true: dict[str, list[float]] = {"ttft": [], "itl": [], "e2el": []}
    start = run.facts.start_ns
    assert start is not None
    for record in run.records:
        assert not record.error, record
        done = truth.requests[record.request_id]
        intended = start + record.intended_ns
        reported["ttft"].append(ttft_ms(record) or 0.0)
        true["ttft"].append((done.chunks[0] - intended) / 1e6)
        reported["itl"] += itl_ms(record)
        true["itl"] += [(after - before) / 1e6 for before, after in pairwise(done.chunks)]
        reported["e2el"].append(e2el_ms(record) or 0.0)
        true["e2el"].append((done.end - intended) / 1e6)
    return reported, true


def statistics(values: list[float]) -> dict[str, float]:
    found = distribution(values, [50, 99])
    assert found is not None
    return {"mean": found.mean, "p50": found.percentile(50), "p99": found.percentile(99), "max": found.maximum}


def measure_freeze(result: Result) -> None:
    """Coordinated omission: a hundred requests were due while the server stood still for a second."""
    requests = at(random_requests(300, inputs=Fixed(20), outputs=Fixed(1)), arrival_times(300, rate=100))
    with KnownServer(Script(num_tokens=1, freeze_at_ms=500, freeze_ms=1000)) as server:
        run = drive(server.url, requests)
    waits = sorted((record.finished_ns - record.intended_ns) / 1e6 for record in run.records)
    slow = sum(wait >= 100 for wait in waits)
    result.figures.append(Figure("frozen for 1 s at 100 req/s: longest TTFT", "ms", (waits[-1],)))
    result.figures.append(Figure("frozen for 1 s at 100 req/s: requests that waited over 100 ms", "requests", (slow,)))
    result.targets.append(
        Target("a freeze of a second shows a second in the tail", waits[-1], "ms", 950 <= waits[-1] <= 1050)
    )


def stream_script() -> Script:
    return Script(num_tokens=TOKENS_PER_STREAM, gap_ms=STREAM_GAP_MS)


def measure_cost(result: Result) -> None:
    per_token, rates = [], []
    for _ in range(3):
        requests = random_requests(NUM_STREAMS * 2, inputs=Fixed(20), outputs=Fixed(TOKENS_PER_STREAM))
        with KnownServer(stream_script()) as server:
            run = drive(server.url, closed_loop(requests, num_users=NUM_STREAMS))
        assert run.facts.client is not None
        num_tokens = sum(record.num_output_tokens for record in run.records)
        per_token.append(run.facts.client.cpu_s / num_tokens * 1e6)
        rates.append(num_tokens / run.facts.client.wall_s)
    truth = list(server.truth.requests.values())
    reported = {
        "mean TTFT": sum((record.first_chunk_ns or 0) - record.sent_ns for record in run.records) / len(run.records) / 1e6,
        "mean ITL": sum(gap for record in run.records for gap in record.gaps_ns)
        / 1e6
        / sum(len(r.gaps_ns) for r in run.records),
    }
    for name, true in from_arrival(truth).items():
        result.figures.append(
            Figure(f"headrace: {name} from the send, error against the truth", "ms", (reported[name] - true,))
        )
    result.figures.append(Figure("headrace: processor time per streamed token", "us", tuple(per_token)))
    result.figures.append(Figure("headrace: streamed tokens a second during that", "tok/s", tuple(rates)))
    held = tuple(0.1 / (us * 1e-6) for us in per_token)
    figure = Figure("headrace: streamed tokens a second per 10 % of a core", "tok/s", held)
    result.figures.append(figure)
    result.targets.append(
        Target("at least 2,000 streamed tokens a second per 10 % of a core", figure.median, "tok/s", figure.median >= 2000)
    )


def measure_aiperf(command: Path, result: Result) -> None:
    """Processor time of it and its workers for many requests less that for few."""
    few, many = (run_aiperf(command, NUM_STREAMS * rounds) for rounds in (1, 4))
    num_more_tokens = NUM_STREAMS * 3 * TOKENS_PER_STREAM
    per_token = (many[0] - few[0]) / num_more_tokens * 1e6
    result.figures.append(Figure("aiperf: processor time per streamed token", "us", (per_token,)))
    result.figures.append(
        Figure("aiperf: streamed tokens a second per 10 % of a core", "tok/s", (0.1 / (per_token * 1e-6),))
    )
    for name, (theirs, true) in many[1].items():
        result.figures.append(Figure(f"aiperf: {name} from the send, error against the truth", "ms", (theirs - true,)))


def run_aiperf(command: Path, num_requests: int) -> tuple[float, dict[str, tuple[float, float]]]:
    with tempfile.TemporaryDirectory() as folder, KnownServer(stream_script()) as server:
        tokenizer = make_tokenizer(Path(folder) / "tokenizer")
        before = os.times()
        done = subprocess.run(
            [
                str(command), "profile", "--model", "known", "--url", server.url, "--endpoint-type", "completions",
                "--streaming", "--tokenizer", str(tokenizer), "--concurrency", str(NUM_STREAMS), "--request-count",
                str(num_requests), "--synthetic-input-tokens-mean", "20", "--output-tokens-mean",
                str(TOKENS_PER_STREAM), "--use-server-token-count", "--artifact-dir", folder, "--ui", "none",
            ],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        after = os.times()
        report = json.loads(next(Path(folder).rglob("profile_export_aiperf.json")).read_text())
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    truth = [done for done in server.truth.requests.values() if done.chunks]
    true = from_arrival(truth)
    found = {
        "mean TTFT": (report["time_to_first_token"]["avg"], true["mean TTFT"]),
        "mean ITL": (report["inter_token_latency"]["avg"], true["mean ITL"]),
    }
    return cpu_s, found


def from_arrival(truth: list[Done]) -> dict[str, float]:
    """Means by the server's notes alone, for clients whose moments of sending are not known."""
    gaps = [(after - before) / 1e6 for done in truth for before, after in pairwise(done.chunks)]
    return {
        "mean TTFT": sum((done.chunks[0] - done.received) / 1e6 for done in truth) / len(truth),
        "mean ITL": sum(gaps) / len(gaps),
    }


def make_tokenizer(folder: Path) -> Path:
    """It wants one to make prompts with, and would fetch one: a tokenizer of bytes does."""
    folder.mkdir()
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


if __name__ == "__main__":
    main()

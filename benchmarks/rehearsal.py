"""Rehearsal beside reality: workloads that the calibration has not seen, live at shares of saturation, and simulated.

    python -m benchmarks.rehearsal               all of these, one after another
    python -m benchmarks.rehearsal calibrate     a minute and a half: `headrace calibrate`
    python -m benchmarks.rehearsal live          two minutes: saturation, then half of it
    python -m benchmarks.rehearsal loaded        two minutes: 90 % and 100 % of saturation
    python -m benchmarks.rehearsal compare       simulates what was measured, and keeps the result

Each stage but the last wants the machine for itself. They hand on through a folder (`--work`, by default a temporary one).
"""

import argparse
import json
import tempfile
from pathlib import Path

import msgspec
from benchmarks.harness import Figure, Result, Target
from benchmarks.served import MODEL, serve

from headrace.base.clock import Nanos
from headrace.cli.main import main as headrace
from headrace.measure.bench.formats import BodyOptions, format_named
from headrace.measure.bench.runner import LoadOptions, run_load
from headrace.measure.bench.server_facts import first_model
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.summary import Summary, summarize
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import LogNormal
from headrace.measure.workload.prompts import at, closed_loop, random_requests
from headrace.measure.workload.request import Workload
from headrace.sim.cost_model import EngineModel, read_engine
from headrace.sim.workload_run import run_workload

STAGES = ("calibrate", "live", "loaded", "compare")
SERVE = ("--max-model-len", "2048")
INPUTS = LogNormal(mean=120, variation=0.8, most=900)
OUTPUTS = LogNormal(mean=40, variation=0.6, most=200)
NUM_USERS = 64
NUM_REQUESTS = {"saturation": 192, "50 %": 80, "90 %": 160, "100 %": 160}
SHARES = {"50 %": 0.5, "90 %": 0.9, "100 %": 1.0}
LIMITS = {
    "throughput": (0.03, "request throughput"), "e2el": (0.05, "median E2E"), "itl": (0.05, "median ITL"),
    "ttft": (0.10, "median TTFT"), "ttft_p99": (0.15, "p99 TTFT"),
}  # fmt: skip


def workload(name: str, rate: float | None) -> Workload:
    """Open loop at a rate; a closed loop of many users without one. Lengths, tokens and moments are a name's own."""
    seed = 7000 + list(NUM_REQUESTS).index(name)
    requests = random_requests(NUM_REQUESTS[name], inputs=INPUTS, outputs=OUTPUTS, seed=seed)
    if rate is None:
        requests = closed_loop(requests, num_users=NUM_USERS)
    else:
        requests = at(requests, arrival_times(len(requests), rate=rate, burstiness=1.0, seed=seed))
    return Workload(name=name, requests=tuple(requests), seed=seed, vocab_size=8000)


def live(work: Path, names: list[str]) -> None:
    rates = json.loads((work / "rates.json").read_text()) if (work / "rates.json").exists() else {}
    with serve(*SERVE) as server:
        load = LoadOptions(
            url=server.url,
            format=format_named("openai"),
            body=BodyOptions(model=first_model(server.url, {}), seed=0, vocab_size=8000, ignore_eos=True, extra_body={}),
            num_warm_ups=2,
        )
        for name in names:
            rate = None if name == "saturation" else SHARES[name] * rates["saturation"]
            run = run_load(workload(name, rate), load, RunFacts(source="live", duration_ns=Nanos(0)))
            if name == "saturation":
                rates["saturation"] = summarize(run).request_throughput
                (work / "rates.json").write_text(json.dumps(rates))
            (work / f"live-{name.split()[0]}.json").write_bytes(msgspec.json.encode(run))
            print(name, figures(summarize(run)))


def figures(summary: Summary) -> dict[str, float]:
    """Requests a second, and milliseconds."""
    found = summary.distributions
    return {
        "throughput": summary.request_throughput,
        "e2el": found["e2el"].median,
        "itl": found["itl"].median,
        "ttft": found["ttft"].median,
        "ttft_p99": found["ttft"].percentile(99.0),
    }


def simulate(engine: EngineModel, name: str, rate: float | None, speed: float = 1.0) -> dict[str, float]:
    run = run_workload(
        workload(name, rate),
        config=engine.scheduler,
        cost=engine.step_cost(speed=speed),
        facts=RunFacts(source="simulated", duration_ns=Nanos(0)),
        front_end=engine.front_end,
    )
    return figures(summarize(run))


def compare(work: Path) -> None:
    engine = read_engine((work / "engine.json").read_bytes(), is_json=True)
    rates = json.loads((work / "rates.json").read_text())
    result = Result("rehearsal", f"{MODEL} served over HTTP and rehearsed: relative errors of the rehearsal's figures")
    slow, fast = engine.speeds_90
    num_held = num_figures = 0
    for name in NUM_REQUESTS:
        path = work / f"live-{name.split()[0]}.json"
        if not path.exists():
            continue
        measured = figures(summarize(msgspec.json.decode(path.read_bytes(), type=Run)))
        rate = None if name == "saturation" else SHARES[name] * rates["saturation"]
        predicted, low, high = (simulate(engine, name, rate, speed) for speed in (1.0, slow, fast))
        for key, (limit, words) in LIMITS.items():
            error = predicted[key] / measured[key] - 1.0
            bounds = sorted((low[key], predicted[key], high[key]))
            held = bounds[0] <= measured[key] <= bounds[-1]
            num_held += held
            num_figures += 1
            label = f"{name}: {words}"
            result.figures.append(Figure(label, f"relative error (measured {measured[key]:.4g})", (error,)))
            result.notes.append(
                f"{label}: rehearsed {predicted[key]:.4g} [{bounds[0]:.4g} to {bounds[-1]:.4g}], live {measured[key]:.4g}"
            )
            if key != "ttft_p99" or name == "90 %":
                result.targets.append(Target(f"{label}: error within {limit:.0%}", 100 * error, "%", abs(error) <= limit))
    share = num_held / num_figures
    result.targets.append(Target("90 % intervals hold 85 to 95 % of figures", 100 * share, "%", 0.85 <= share <= 0.95))
    result.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=STAGES, help="one of them; without it all")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "headrace-rehearsal")
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    for stage in STAGES if options.stage is None else [options.stage]:
        run(stage, options.work)


def run(stage: str, work: Path) -> None:
    match stage:
        case "calibrate":
            headrace(["calibrate", MODEL, "--output", str(work / "engine.json"), "--serve-options", " ".join(SERVE)])
        case "live":
            live(work, ["saturation", "50 %"])
        case "loaded":
            live(work, ["90 %", "100 %"])
        case _:
            compare(work)


if __name__ == "__main__":
    main()

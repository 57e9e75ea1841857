"""Rehearsal beside reality: workloads that the calibration has not seen, live at shares of saturation, and simulated.

    python -m benchmarks.rehearsal               every piece that is missing, then the comparison
    python -m benchmarks.rehearsal --next        the next missing piece alone: less than a minute
    python -m benchmarks.rehearsal compare       simulates what was measured, and keeps the result

Pieces that measure want the machine for themselves; what they measured is kept in a folder (`--work`, by default a
temporary one), so that they can be taken one at a time, each in a quiet minute. Calibrations lie between the loads, and
are fitted together: a machine's speed drifts, and near saturation one per cent of it is ten of a latency. So that a
drift can be told from a fault of the model, every load is rehearsed once more at the speed that its own steps had;
targets are of the first rehearsal.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import msgspec
from benchmarks.harness import Figure, Result, Target
from benchmarks.served import MODEL, serve
from rich.console import Console

from headrace.base.clock import Nanos
from headrace.cli.calibrate import fit, measure
from headrace.engine.host.recording import read_recording
from headrace.measure.bench.formats import BodyOptions, format_named
from headrace.measure.bench.runner import LoadOptions, run_load
from headrace.measure.bench.server_facts import first_model
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.summary import Summary, summarize
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import LogNormal
from headrace.measure.workload.prompts import at, closed_loop, random_requests
from headrace.measure.workload.request import Workload
from headrace.sim.calibrate import Observed, merged, observe
from headrace.sim.cost_model import EngineModel
from headrace.sim.workload_run import run_workload

PIECES = ("calibrate-1", "saturation", "50 %", "calibrate-2", "90 %", "100 %", "calibrate-3")
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


def calibrate(work: Path, piece: str) -> None:
    observed = measure([MODEL, *SERVE], num_rounds=1, seed=int(piece[-1]), console=Console())
    path_of(work, piece).write_bytes(msgspec.json.encode(observed))


def live(work: Path, name: str) -> None:
    with serve(*SERVE, "--record-steps", str(steps_of(work, name))) as server:
        load = LoadOptions(
            url=server.url,
            format=format_named("openai"),
            body=BodyOptions(model=first_model(server.url, {}), seed=0, vocab_size=8000, ignore_eos=True, extra_body={}),
            num_warm_ups=2,
        )
        run = run_load(workload(name, rate(work, name)), load, RunFacts(source="live", duration_ns=Nanos(0)))
    path_of(work, name).write_bytes(msgspec.json.encode(run))
    print(name, figures(summarize(run)))


def measured(work: Path, name: str) -> Summary:
    return summarize(msgspec.json.decode(path_of(work, name).read_bytes(), type=Run))


def rate(work: Path, name: str) -> float | None:
    """Requests a second, of what the machine answered at most."""
    return SHARES[name] * measured(work, "saturation").request_throughput if name in SHARES else None


def speed(work: Path, name: str, engine: EngineModel) -> float:
    """Of the machine during a load, by its steps; 1: as it was while it was calibrated."""
    assert engine.steps is not None
    took = fitted = 0.0
    for step in observe(read_recording(steps_of(work, name)), ()).steps:
        took += step.duration_us
        fitted += sum(engine.steps.step_us(size) for size in step.sizes)
    return fitted / took


def steps_of(work: Path, name: str) -> Path:
    return path_of(work, name).with_suffix(".steps")


def path_of(work: Path, piece: str) -> Path:
    return work / f"{piece.replace(' %', '')}.json"


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
    observations = [
        msgspec.json.decode(path_of(work, piece).read_bytes(), type=Observed)
        for piece in PIECES
        if piece.startswith("calibrate")
    ]
    engine = fit(merged(observations), f"headrace serve {MODEL} {' '.join(SERVE)}", Console())
    (work / "engine.json").write_bytes(msgspec.json.encode(engine))
    result = Result("rehearsal", f"{MODEL} served over HTTP and rehearsed: relative errors of the rehearsal's figures")
    slow, fast = engine.speeds_90
    num_held = num_figures = 0
    errors: dict[str, list[float]] = {}
    for name in NUM_REQUESTS:
        found = figures(measured(work, name))
        own_speed = speed(work, name, engine)
        predicted, low, high, at_own = (simulate(engine, name, rate(work, name), s) for s in (1.0, slow, fast, own_speed))
        result.notes.append(f"{name}: the machine was {own_speed:.3f} times as fast as while it was calibrated")
        for key, (_, words) in LIMITS.items():
            error = predicted[key] / found[key] - 1.0
            bounds = sorted((low[key], predicted[key], high[key]))
            held = bounds[0] <= found[key] <= bounds[-1]
            num_held += held
            num_figures += 1
            label = f"{name}: {words}"
            result.figures.append(Figure(label, f"relative error (measured {found[key]:.4g})", (error,)))
            own = Figure(f"{label}, at the speed of its own steps", "relative error", (at_own[key] / found[key] - 1.0,))
            result.figures.append(own)
            result.notes.append(
                f"{label}: rehearsed {predicted[key]:.4g} [{bounds[0]:.4g} to {bounds[-1]:.4g}], live {found[key]:.4g}"
            )
            if name in SHARES and (key != "ttft_p99" or name == "90 %"):
                errors.setdefault(key, []).append(abs(error))
    for key, (limit, words) in LIMITS.items():
        typical = median(errors[key])
        where = "at 90 %" if key == "ttft_p99" else f"median error at {', '.join(SHARES)} of saturation"
        result.targets.append(Target(f"{words}, {where}: within {limit:.0%}", 100 * typical, "%", typical <= limit))
    share = num_held / num_figures
    result.targets.append(Target("90 % intervals hold 85 to 95 % of figures", 100 * share, "%", 0.85 <= share <= 0.95))
    result.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", nargs="?", choices=(*PIECES, "compare"), help="this one, whether it is there or not")
    parser.add_argument("--next", action="store_true", help="the next missing piece alone")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "headrace-rehearsal")
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    if options.piece is not None:
        run(options.work, options.piece)
        return
    missing = [*(piece for piece in PIECES if not path_of(options.work, piece).exists()), "compare"]
    for piece in missing[:1] if options.next else missing:
        run(options.work, piece)


def run(work: Path, piece: str) -> None:
    if piece == "compare":
        compare(work)
    elif piece.startswith("calibrate"):
        calibrate(work, piece)
    else:
        live(work, piece)


if __name__ == "__main__":
    main()

"""Rehearsal beside reality: workloads that the calibration has not seen, live at shares of saturation, and simulated.

    python -m benchmarks.rehearsal               every piece that is missing, then the comparison
    python -m benchmarks.rehearsal --next        the next missing piece alone: less than a minute
    python -m benchmarks.rehearsal compare       simulates what was measured, and keeps the result

Pieces that measure want the machine for themselves; what they measured is kept in a folder (`--work`, by default a
temporary one), so that they can be taken one at a time, each in a quiet minute.

A machine's speed drifts, and near saturation one per cent of it is ten of a latency. So calibrations and loads take turns:
each load is measured in three parts, one between each two calibrations, and rehearsed in the same parts, at the speed that
the calibrations just before and after it had; steps are fitted to all calibrations together. A figure is of the three parts'
requests together.

A shared machine's speed also changes within a part, and nobody can foretell that. So that it can be told from a fault of the
model, every part is rehearsed once more on a machine that drifts as the real one did: in each five seconds as fast as the
steps that it took in them, all together, were beside the fit. Targets are stated for both.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
from benchmarks.harness import Figure, Result, Target
from benchmarks.served import MODEL, serve
from rich.console import Console

from headrace.base.clock import Clock, ManualClock, Nanos
from headrace.base.units import nanos
from headrace.cli.calibrate import fit, measure
from headrace.engine.host.recording import Added, read_recording
from headrace.engine.mind.step import StepPlan
from headrace.measure.bench.formats import BodyOptions, format_named
from headrace.measure.bench.runner import LoadOptions, run_load
from headrace.measure.bench.server_facts import first_model
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.summary import summarize
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import LogNormal
from headrace.measure.workload.prompts import at, closed_loop, random_requests
from headrace.measure.workload.request import Workload
from headrace.sim.calibrate import Observed, TimedSteps, merged, observe
from headrace.sim.cost_model import EngineModel
from headrace.sim.step_cost import StepCost
from headrace.sim.workload_run import run_workload

NUM_PARTS = 3
SERVE = ("--max-model-len", "2048", "--max-num-seqs", "64")
INPUTS = LogNormal(mean=120, variation=0.8, most=900)
OUTPUTS = LogNormal(mean=40, variation=0.6, most=200)
NUM_USERS = 64
NUM_REQUESTS = {"saturation": 192, "50 %": 80, "90 %": 160, "100 %": 160}
"""Of one part."""
SHARES = {"50 %": 0.5, "90 %": 0.9, "100 %": 1.0}
LIMITS = {
    "throughput": (0.03, "request throughput"), "e2el": (0.05, "median E2E"), "itl": (0.05, "median ITL"),
    "ttft": (0.10, "median TTFT"), "ttft_p99": (0.15, "p99 TTFT"),
}  # fmt: skip


BLOCK_NS = 5_000_000_000
DRIFTING = ", on a machine that drifts as it did"


class Part(NamedTuple):
    """Of a load, the part after the calibration of the same number; saturation, which says what the others are shares of, is
    measured once."""

    load: str
    number: int

    def __str__(self) -> str:
        return f"{self.load} {self.number}"


def calibration(number: int) -> str:
    return f"calibration {number}"


CALIBRATIONS = tuple(calibration(number) for number in range(1, NUM_PARTS + 2))
PARTS = (Part("saturation", 1), *(Part(load, number) for number in range(1, NUM_PARTS + 1) for load in SHARES))
PIECES = (
    *(piece for number in range(1, NUM_PARTS + 1) for piece in (
        calibration(number), *(str(part) for part in PARTS if part.number == number)
    )),
    CALIBRATIONS[-1],
)  # fmt: skip


def workload(part: Part, rate: float | None) -> Workload:
    """Open loop at a rate; a closed loop of many users without one. Lengths, tokens and moments are a part's own."""
    number, seed = NUM_REQUESTS[part.load], 7000 + 10 * list(NUM_REQUESTS).index(part.load) + part.number
    requests = random_requests(number, inputs=INPUTS, outputs=OUTPUTS, seed=seed)
    if rate is None:
        requests = closed_loop(requests, num_users=NUM_USERS)
    else:
        requests = at(requests, arrival_times(number, rate=rate, burstiness=1.0, seed=seed))
    return Workload(name=str(part), requests=tuple(requests), seed=seed, vocab_size=8000)


def calibrate(work: Path, piece: str) -> None:
    observed = measure([MODEL, *SERVE], num_rounds=1, seed=int(piece[-1]), console=Console())
    path_of(work, piece).write_bytes(msgspec.json.encode(observed))


def live(work: Path, part: Part) -> None:
    with serve(*SERVE, "--record-steps", str(steps_of(work, part))) as server:
        load = LoadOptions(
            url=server.url,
            format=format_named("openai"),
            body=BodyOptions(model=first_model(server.url, {}), seed=0, vocab_size=8000, ignore_eos=True, extra_body={}),
            num_warm_ups=2,
        )
        run = run_load(workload(part, rate(work, part)), load, RunFacts(source="live", duration_ns=Nanos(0)))
    path_of(work, str(part)).write_bytes(msgspec.json.encode(run))
    print(part, figures([run]))


def measured(work: Path, part: Part) -> Run:
    return msgspec.json.decode(path_of(work, str(part)).read_bytes(), type=Run)


def rate(work: Path, part: Part) -> float | None:
    """Requests a second, of what the machine answered at most."""
    if part.load not in SHARES:
        return None
    return SHARES[part.load] * summarize(measured(work, Part("saturation", 1))).request_throughput


def observed(work: Path, piece: str) -> Observed:
    return msgspec.json.decode(path_of(work, piece).read_bytes(), type=Observed)


def speed(steps: Sequence[TimedSteps], engine: EngineModel) -> float:
    """Of the machine while it took these; 1: as it was on average while it was calibrated."""
    assert engine.steps is not None
    took = sum(step.duration_us for step in steps)
    return sum(engine.steps.step_us(size) for step in steps for size in step.sizes) / took


class Recorded(NamedTuple):
    """Of a part's recording, which is read once."""

    arrived: list[Nanos]
    """Its requests, warm-ups left out."""
    steps: Sequence[TimedSteps]


def recorded(work: Path, part: Part) -> Recorded:
    recording = list(read_recording(steps_of(work, part)))
    arrived = [event.now for event in recording if isinstance(event, Added)]
    return Recorded(arrived[-NUM_REQUESTS[part.load] :], observe(recording, ()).steps)


def drift(work: Path, part: Part, engine: EngineModel, taken: Recorded) -> Callable[[Nanos], float]:
    """The machine's speed at a moment of this part, counted from its beginning."""
    began = taken.arrived[0] - nanos(min(request.at_s for request in workload(part, rate(work, part)).requests))
    blocks: dict[int, list[TimedSteps]] = {}
    for step in taken.steps:
        blocks.setdefault((step.ended - began) // BLOCK_NS, []).append(step)
    speeds = {block: speed(found, engine) for block, found in blocks.items() if is_telling(found)}
    return lambda now: speeds[min(speeds, key=lambda block: abs(block - now // BLOCK_NS))]


def is_telling(steps: Sequence[TimedSteps]) -> bool:
    return sum(step.duration_us for step in steps) * 1000 > BLOCK_NS / 20


def steps_of(work: Path, part: Part) -> Path:
    return path_of(work, str(part)).with_suffix(".steps")


def path_of(work: Path, piece: str) -> Path:
    return work / f"{piece.replace(' %', '').replace(' ', '-')}.json"


def figures(runs: Sequence[Run]) -> dict[str, float]:
    """Of all their requests together: requests a second, and milliseconds."""
    facts = msgspec.structs.replace(runs[0].facts, duration_ns=Nanos(sum(run.facts.duration_ns for run in runs)))
    summary = summarize(Run(facts=facts, records=tuple(record for run in runs for record in run.records)))
    found = summary.distributions
    return {
        "throughput": summary.request_throughput,
        "e2el": found["e2el"].median,
        "itl": found["itl"].median,
        "ttft": found["ttft"].median,
        "ttft_p99": found["ttft"].percentile(99.0),
    }


class DriftingStepCost(NamedTuple):
    """Another cost, on a machine whose speed changes: a neighbour comes or goes, a clock falls."""

    cost: StepCost
    clock: Clock
    speed_at: Callable[[Nanos], float]

    def __call__(self, plan: StepPlan) -> Nanos:
        return Nanos(max(1, round(self.cost(plan) / self.speed_at(self.clock.now()))))


def simulate(engine: EngineModel, part: Part, rate: float | None, speed: float | Callable[[Nanos], float]) -> Run:
    """`speed`: the same all the time, or at a moment."""
    clock: ManualClock | None = None
    cost: StepCost
    if callable(speed):
        clock = ManualClock()
        cost = DriftingStepCost(engine.step_cost(), clock, speed)
    else:
        cost = engine.step_cost(speed=speed)
    return run_workload(
        workload(part, rate),
        config=engine.scheduler,
        cost=cost,
        facts=RunFacts(source="simulated", duration_ns=Nanos(0)),
        front_end=engine.front_end,
        clock=clock,
    )


def compare(work: Path) -> None:
    calibrations = [observed(work, piece) for piece in CALIBRATIONS]
    engine = fit(merged(calibrations), f"headrace serve {MODEL} {' '.join(SERVE)}", Console())
    (work / "engine.json").write_bytes(msgspec.json.encode(engine))
    result = Result("rehearsal", f"{MODEL} served over HTTP and rehearsed: relative errors of the rehearsal's figures")
    speeds = [speed(one.steps, engine) for one in calibrations]
    result.notes.append(f"speed in calibrations, their mean 1: {', '.join(f'{one:.3f}' for one in speeds)}")
    slow, fast = engine.speeds_90
    num_held = num_figures = 0
    errors: dict[tuple[str, str], list[float]] = {}
    for name in NUM_REQUESTS:
        parts = [part for part in PARTS if part.load == name]
        near = [(speeds[part.number - 1] + speeds[part.number]) / 2 for part in parts]
        taken = [recorded(work, part) for part in parts]
        own = [speed(one.steps, engine) for one in taken]
        found = figures([measured(work, part) for part in parts])

        def rehearsed(speeds: Sequence[float | Callable[[Nanos], float]], parts: Sequence[Part] = parts) -> dict[str, float]:
            runs = [simulate(engine, part, rate(work, part), one) for part, one in zip(parts, speeds, strict=True)]
            return figures(runs)

        predicted, drifting = (
            rehearsed(near),
            rehearsed([drift(work, part, engine, one) for part, one in zip(parts, taken, strict=True)]),
        )
        low, high = rehearsed([one * slow for one in near]), rehearsed([one * fast for one in near])
        pairs = ", ".join(f"{one:.3f} ({other:.3f})" for one, other in zip(own, near, strict=True))
        result.notes.append(f"{name}: speed of its own steps (and of the calibrations beside it): {pairs}")
        for key, (_, words) in LIMITS.items():
            error = predicted[key] / found[key] - 1.0
            bounds = sorted((low[key], predicted[key], high[key]))
            held = bounds[0] <= found[key] <= bounds[-1]
            num_held += held
            num_figures += 1
            label = f"{name}: {words}"
            result.figures.append(Figure(label, f"relative error (measured {found[key]:.4g})", (error,)))
            of_drifting = drifting[key] / found[key] - 1.0
            result.figures.append(Figure(f"{label}{DRIFTING}", "relative error", (of_drifting,)))
            result.notes.append(
                f"{label}: rehearsed {predicted[key]:.4g} [{bounds[0]:.4g} to {bounds[-1]:.4g}], live {found[key]:.4g}"
            )
            if name in SHARES and (key != "ttft_p99" or name == "90 %"):
                errors.setdefault((key, ""), []).append(abs(error))
                errors.setdefault((key, DRIFTING), []).append(abs(of_drifting))
    for how in ("", DRIFTING):
        for key, (limit, words) in LIMITS.items():
            typical = median(errors[key, how])
            where = "at 90 %" if key == "ttft_p99" else f"median error at {', '.join(SHARES)} of saturation"
            result.targets.append(Target(f"{words}, {where}{how}: within {limit:.0%}", 100 * typical, "%", typical <= limit))
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
    elif piece in CALIBRATIONS:
        calibrate(work, piece)
    else:
        live(work, next(part for part in PARTS if str(part) == piece))


if __name__ == "__main__":
    main()

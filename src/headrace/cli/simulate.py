"""`headrace simulate`: the engine's mind in rehearsal, under drawn scenarios or a recording of a real engine.

Composes the simulator and prints; decides nothing.
"""

import argparse
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.units import seconds
from headrace.cli.engine_file import read_engine_file
from headrace.cli.garbage import collector_at_rest
from headrace.cli.interval_view import show_interval
from headrace.cli.output_files import output_file, write_output
from headrace.cli.parser import at_least_one, whole_number
from headrace.cli.report_view import report_console, show_summary
from headrace.cli.simulate_cases import case_names, run_cases, show_story
from headrace.cli.simulate_fleet import add_options, run_fleet
from headrace.cli.workload_files import read_workload_to_do
from headrace.engine.host.recording import read_recording
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.result_file import write_result
from headrace.measure.report.summary import DEFAULT_SHARES, summarize
from headrace.measure.workload.reuse import reuse
from headrace.sim.cost_model import EngineModel
from headrace.sim.fault_cases import CASES
from headrace.sim.replay import replay
from headrace.sim.scenario import run_scenario
from headrace.sim.shrink import describe, shorten_scenario
from headrace.sim.simulation import Outcome
from headrace.sim.workload_run import run_workload

_SHOWN_ROWS = 20


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "simulate",
        help="rehearse the engine's decisions in virtual time",
        description="Rehearses a fleet that a file describes under a workload, with the real router and schedulers in "
        "virtual time. Without a fleet: runs the real scheduler under scenarios drawn from seeds, checking every invariant "
        "after every event; or replays a recording (serve --record-steps) and compares the plans byte for byte.",
    )
    add_options(parser)
    parser.add_argument("--seed", type=whole_number, help="the first seed (default 0, or the fleet file's)")
    parser.add_argument("--num-seeds", type=at_least_one, default=1, help="how many seeds, counted up (default 1)")
    parser.add_argument(
        "--num-requests", type=at_least_one, help="requests per scenario (default 100), or per fleet of a case (default 30)"
    )
    parser.add_argument(
        "--case",
        metavar="CASE",
        help="rehearse small fleets under drawn faults, checking every rule after every event, and that all ends once all "
        f"is healed: {', '.join(CASES)}, or all",
    )
    parser.add_argument("--num-jobs", type=at_least_one, default=1, help="with --case: over so many processes (default 1)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="replay a recording instead of drawing scenarios")
    parser.add_argument(
        "--workload", type=Path, metavar="FILE", help="rehearse a workload that `headrace bench --write-workload` wrote"
    )
    parser.add_argument(
        "--result", type=output_file, metavar="FILE", help="with --workload: write the result file, as bench does"
    )
    parser.add_argument(
        "--engine",
        type=Path,
        metavar="FILE",
        help="with --workload: the engine, as `headrace calibrate` wrote it, or a TOML file with tables [scheduler] "
        "(max_model_len, num_blocks, …) and [cost] (fixed_ns, per_token_ns, per_context_token_ns) or [gpu] (device, model, "
        "tensor_parallel_size, …); absent ones have defaults",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 if every rule held, 1 if not, with the one line that reproduces the failure."""
    console = report_console()
    _check_belongs(options)
    if options.fleet is not None:
        if options.workload is None:
            raise ConfigurationError("a fleet needs something to do: add --workload FILE")
        return run_fleet(options, read_workload_to_do(options.workload), console)
    if options.case is not None:
        return run_cases(
            case_names(options.case),
            first_seed=options.seed or 0,
            num_seeds=options.num_seeds,
            num_requests=options.num_requests or 30,
            num_jobs=options.num_jobs,
            console=console,
        )
    if options.replay is not None:
        return _replay(options.replay, console)
    if options.workload is not None:
        return _run_workload(options.workload, options.engine, options.result, console)
    return _simulate(options.seed or 0, options.num_seeds, options.num_requests or 100, console)


_TAKEN_BY = {
    "fleet": ("workload", "result", "seed", "goodput", "interval", "html", "replay_html", "trace_file", "event_log",
              "log_interval"),
    "case": ("seed", "num_seeds", "num_requests", "num_jobs"),
    "replay": (),
    "workload": ("engine", "result"),
    "": ("seed", "num_seeds", "num_requests"),
}  # fmt: skip
"""By what asks for a rehearsal (the first that is given counts): the options that it has a use for."""


def _check_belongs(options: argparse.Namespace) -> None:
    """Raises ConfigurationError where an option would be left unheard."""
    given = {name for name, value in vars(options).items() if value != options.parser.get_default(name)} - {"parser", "run"}
    asked = next(name for name in _TAKEN_BY if name in given or not name)
    if idle := sorted(given - {asked, *_TAKEN_BY[asked]}):
        what = {"": "drawn scenarios", "workload": "--workload without a fleet", "fleet": "a fleet"}.get(asked, f"--{asked}")
        words = " and ".join("a fleet" if name == "fleet" else f"--{name.replace('_', '-')}" for name in idle)
        raise ConfigurationError(f"there is no use for {words} with {what}")


def _run_workload(path: Path, engine: Path | None, result: Path | None, console: Console) -> int:
    """A workload against the mind of one engine of stated size and speed."""
    workload = read_workload_to_do(path)
    model = _read_engine(engine)
    facts = RunFacts(
        source="simulated",
        duration_ns=Nanos(0),
        backend="simulated",
        workload=workload.name,
        seed=workload.seed,
        reusable_token_share=reuse(workload.requests).token_share,
    )

    def rehearse(speed: float) -> Run:
        cost = model.step_cost(speed=speed)
        return run_workload(workload, config=model.scheduler, cost=cost, facts=facts, front_end=model.entrance)

    with console.status("rehearsing"), collector_at_rest():
        run = rehearse(1.0)
        bounds = [summarize(rehearse(speed)) for speed in model.speeds_90] if model.has_interval else []
    summary = summarize(run)
    show_summary(console, run.facts, summary, DEFAULT_SHARES)
    if bounds:
        show_interval(console, summary, bounds)
    for note in model.notes:
        console.print(f"[yellow]! {note}[/]")
    if result is not None:
        write_output(result, write_result(run, summary) + b"\n")
        console.print(f"[dim]result: {result}[/]")
    return 0 if summary.num_completed else 1


def _read_engine(path: Path | None) -> EngineModel:
    """A KV cache of a million tokens and the stated cost of a step, unless a file says otherwise."""
    if path is None:
        return EngineModel()
    return read_engine_file(path)


def _replay(path: Path, console: Console) -> int:
    outcome = replay(read_recording(path))
    if outcome.difference is None:
        console.print(f"{outcome.num_steps} steps of {outcome.num_requests} requests: every plan is equal, byte for byte")
        return 0
    console.print(f"[red]the plans part after {outcome.num_steps} equal steps[/red]\n{outcome.difference}")
    return 1


def _simulate(first_seed: int, num_seeds: int, num_requests: int, console: Console) -> int:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("seed", "ended", "gone", "refused", "steps", "preempted", "evicted", "hits", "time", "digest"):
        table.add_column(column, justify="right", no_wrap=True)
    with Progress(console=console, transient=True) as progress:
        for seed in progress.track(range(first_seed, first_seed + num_seeds), description="rehearsing"):
            try:
                outcome = run_scenario(seed, num_requests=num_requests)
            except Exception as failure:  # whatever broke: the seed reproduces it
                console.print(f"seed {seed}: {describe(failure)}", style="red", markup=False)
                console.print(f"reproduce with: headrace simulate --seed {seed} --num-requests {num_requests}")
                story = shorten_scenario(seed, num_requests=num_requests)
                if story is not None:
                    show_story(console, story)
                return 1
            if num_seeds <= _SHOWN_ROWS:
                table.add_row(str(seed), *_describe(outcome))
    if num_seeds <= _SHOWN_ROWS:
        console.print(table)
    console.print(f"{num_seeds} {'seed' if num_seeds == 1 else 'seeds'}: every invariant held after every event")
    return 0


def _describe(outcome: Outcome) -> list[str]:
    stats, counts = outcome.stats, outcome.finish_counts
    hit_rate = stats.prefix_cache_hits / stats.prefix_cache_queries if stats.prefix_cache_queries else 0.0
    return [
        str(counts.get("stop", 0) + counts.get("length", 0)),
        str(counts.get("abort", 0)),
        str(len(outcome.refused_requests)),
        str(stats.num_steps),
        str(stats.num_preemptions),
        str(stats.num_evictions),
        f"{hit_rate:.0%}",
        f"{seconds(outcome.finished_at):.1f} s",
        outcome.digest[:8],
    ]

"""`headrace simulate FLEET.toml`: a whole fleet in rehearsal, reported as `bench` reports a real one.

Composes, prints and writes files; decides nothing.
"""

import argparse
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from headrace.base.clock import Nanos
from headrace.base.system_clock import SystemClock
from headrace.base.units import nanos, seconds
from headrace.cli.fleet_file import read_fleet
from headrace.cli.garbage import collector_at_rest
from headrace.cli.interval_view import show_interval
from headrace.cli.output_files import output_file, write_output
from headrace.cli.parser import number
from headrace.cli.report_view import show_summary
from headrace.measure.report.goodput import parse_objectives
from headrace.measure.report.page import render_page
from headrace.measure.report.record import RunFacts
from headrace.measure.report.result_file import write_result
from headrace.measure.report.summary import DEFAULT_SHARES, Summary, summarize
from headrace.measure.workload.request import Workload
from headrace.measure.workload.reuse import reuse
from headrace.sim.fleet import Fleet, FleetOutcome, Rehearsal
from headrace.sim.fleet import Progress as FleetProgress
from headrace.sim.fleet_page import fleet_page
from headrace.sim.fleet_spec import FleetSpec
from headrace.sim.perfetto import perfetto_trace

_LEAST_LOG_INTERVAL_S = 1e-3
"""More moments than that of a simulated second nobody could look at."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fleet", nargs="?", type=Path, metavar="FLEET.toml", help="a fleet to rehearse; needs --workload")
    parser.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:MS", help="with a fleet: promises, such as ttft:500 tpot:50"
    )
    parser.add_argument(
        "--interval",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with a fleet whose steps' cost knows how far it may be off ([gpu], or a calibrated engine): rehearse it at "
        "the slow and the fast end, too, for a 90 %% interval (default: yes)",
    )
    parser.add_argument("--html", type=output_file, metavar="FILE", help="with a fleet: write the report as one page")
    parser.add_argument(
        "--replay-html",
        type=output_file,
        metavar="FILE",
        help="with a fleet: write a page on which the run can be looked at moment by moment",
    )
    parser.add_argument(
        "--trace-file", type=output_file, metavar="FILE", help="with a fleet: write a trace that ui.perfetto.dev opens"
    )
    parser.add_argument(
        "--event-log",
        type=output_file,
        metavar="FILE",
        help="with a fleet: write what each replica was like over time, as JSON",
    )
    parser.add_argument(
        "--log-interval",
        type=number(least=_LEAST_LOG_INTERVAL_S),
        default=1.0,
        metavar="S",
        help="with a fleet: how often the log takes figures down, in simulated seconds (default 1)",
    )


def run_fleet(options: argparse.Namespace, workload: Workload, console: Console) -> int:
    """Exit status: 0 if any request was answered."""
    spec = read_fleet(options.fleet)
    if options.seed is not None:
        spec = msgspec.structs.replace(spec, seed=options.seed)
    facts = _facts(spec, workload, options)
    outcome = _rehearse(spec, workload, facts, options, console)
    summary = summarize(outcome.run)
    show_summary(console, outcome.run.facts, summary, DEFAULT_SHARES)
    if spec.is_disaggregated:
        _show_transfers(console, outcome.run.facts)
    if options.interval and any(pool.replica.has_interval for pool in spec.pools.values()):
        show_interval(console, summary, _bounds(spec, workload, facts, options, console))
    for note in dict.fromkeys(note for pool in spec.pools.values() for note in pool.replica.notes):
        console.print(f"[yellow]! {note}[/]")
    for fault in spec.faults:
        if nanos(fault.at_s) > outcome.run.facts.duration_ns:
            ended_s = seconds(outcome.run.facts.duration_ns)
            what = f"{fault.kind} of {fault.replica}" if fault.replica else str(fault.kind)
            console.print(f"[yellow]! the {what} at {fault.at_s:g} s never came: the run ended at {ended_s:.1f} s[/]")
    console.print(f"[dim]digest: {outcome.digest}[/]")
    if options.result is not None:
        write_output(options.result, write_result(outcome.run, summary) + b"\n")
        console.print(f"[dim]result: {options.result}[/]")
    if options.html is not None:
        write_output(options.html, render_page([outcome.run], shares=DEFAULT_SHARES))
        console.print(f"[dim]page: {options.html}[/]")
    if options.replay_html is not None:
        write_output(options.replay_html, fleet_page(outcome.log, outcome.run))
        console.print(f"[dim]replay: {options.replay_html}[/]")
    if options.trace_file is not None:
        write_output(options.trace_file, perfetto_trace(outcome.log))
        console.print(f"[dim]trace: {options.trace_file}; open it at https://ui.perfetto.dev[/]")
    if options.event_log is not None:
        write_output(options.event_log, msgspec.json.encode(outcome.log))
        console.print(f"[dim]log: {options.event_log}[/]")
    return 0 if summary.num_completed else 1


def _show_transfers(console: Console, facts: RunFacts) -> None:
    count, failed, num_bytes, num_ahead = (
        facts.server_counters[f"headrace:kv_{name}_total"]
        for name in ("transfers", "transfer_failures", "transfer_bytes", "transfer_bytes_ahead")
    )
    trouble = f"; [yellow]{failed:,.0f} failed[/]" if failed else ""
    ahead = f", {num_ahead / num_bytes:.0%} of it while prompts were computed" if num_ahead else ""
    console.print(f"KV handed over: {count:,.0f} prompts, {num_bytes / 1e9:,.1f} GB{ahead}{trouble}")


def _bounds(
    spec: FleetSpec, workload: Workload, facts: RunFacts, options: argparse.Namespace, console: Console
) -> list[Summary]:
    """Of the same fleet with every pool as slow, and then as fast, as its cost may be off, nine times in ten."""
    bounds = []
    for end in (0, 1):
        pools = {
            name: msgspec.structs.replace(pool, speed=pool.speed * pool.replica.speeds_90[end])
            for name, pool in spec.pools.items()
        }
        bounds.append(
            summarize(_rehearse(msgspec.structs.replace(spec, pools=pools), workload, facts, options, console).run)
        )
    return bounds


def _facts(spec: FleetSpec, workload: Workload, options: argparse.Namespace) -> RunFacts:
    pools = ", ".join(f"{pool.num_replicas} x {name}" for name, pool in spec.pools.items())
    devices = sorted({pool.device for pool in spec.pools.values() if pool.device})
    return RunFacts(
        source="simulated",
        duration_ns=Nanos(0),
        backend="simulated",
        model=spec.model,
        workload=workload.name,
        seed=spec.seed,
        slo_ms=parse_objectives(options.goodput),
        reusable_token_share=reuse(workload.requests).token_share,
        metadata={"fleet": f"{pools}; {spec.router.policy}", **({"devices": ", ".join(devices)} if devices else {})},
    )


def _rehearse(
    spec: FleetSpec, workload: Workload, facts: RunFacts, options: argparse.Namespace, console: Console
) -> FleetOutcome:
    clock = SystemClock()
    began = clock.now()
    columns = (
        TextColumn("rehearsing"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar, collector_at_rest():
        task = bar.add_task("", total=len(workload.requests))

        def show(progress: FleetProgress) -> None:
            simulated, wall = seconds(progress.now), seconds(clock.now() - began)
            pace = f"{simulated:,.0f} s simulated in {wall:,.1f} s ({simulated / wall:,.0f}x)"
            bar.update(task, completed=progress.num_ended, description=pace)

        how = Rehearsal(
            on_progress=show,
            log_interval_ns=nanos(options.log_interval),
            keeps_spans=options.trace_file is not None or options.event_log is not None,
        )
        outcome = Fleet(spec, workload, how).run(facts)
    wall = seconds(clock.now() - began)
    simulated = seconds(outcome.run.facts.duration_ns)
    console.print(
        f"[dim]{simulated:,.1f} s simulated in {wall:,.1f} s ({simulated / wall:,.0f}x real time): "
        f"{outcome.num_steps:,} steps, {outcome.num_events:,} events[/]"
    )
    return outcome

"""`headrace roofline`: what this machine can do at most, and how near to it each kernel of a model's steps comes.

Composes a worker, its ceilings and the report; decides nothing.
"""

import argparse
import json
import platform
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headrace.base.errors import ConfigurationError
from headrace.base.system_clock import SystemClock
from headrace.cli.model_names import resolve_model
from headrace.cli.output_files import output_file, write_output
from headrace.cli.packaged_models import DEFAULT_MODEL
from headrace.cli.parser import at_least_one
from headrace.cli.report_view import report_console
from headrace.engine.ops.registry import HOW_TO_COMPUTE, NO_KERNELS, has_kernels
from headrace.engine.worker.cores import num_compute_threads
from headrace.engine.worker.roofline import RooflineConfig, RooflineRun
from headrace.engine.worker.worker import WorkerConfig
from headrace.measure.report.roofline import Ceilings, MeasuredPhase, PlacedPhase, place, result_of
from headrace.measure.report.roofline_plot import roofline_svg
from headrace.measure.report.table import figure

_STEPS = RooflineConfig()


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "roofline",
        help="show how near each kernel comes to what this machine can do",
        description="Measures this machine's ceilings (bytes read from each level of memory, operations by kind), runs "
        "decode steps and a prompt of a model with every operation timed, and places each kernel under its roof. On a "
        "machine that does other work meanwhile, the figures say so only by being lower.",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", default=DEFAULT_MODEL, help=f"as for serve ({DEFAULT_MODEL})")
    parser.add_argument("--threads", type=at_least_one, default=0, help="threads that compute (default: one per core)")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="as for serve")
    parser.add_argument("--ops", choices=("auto", "native", "torch"), default="auto", help="as for serve")
    parser.add_argument(
        "--batch-sizes", type=at_least_one, nargs="+", metavar="N", default=list(_STEPS.batch_sizes),
        help="sequences of a decode step (default: 1 16)",
    )  # fmt: skip
    parser.add_argument(
        "--context", type=at_least_one, default=_STEPS.context, help="tokens that each sequence has (default: %(default)s)"
    )
    parser.add_argument(
        "--prompt-length",
        type=at_least_one,
        default=_STEPS.prompt_length,
        help="tokens of the prompt (default: %(default)s)",
    )
    parser.add_argument("--plot", type=output_file, metavar="FILE", help="write the plot, an SVG")
    parser.add_argument("--result", type=output_file, metavar="FILE", help="write every figure, as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    console = report_console()
    if not has_kernels():
        raise ConfigurationError(f"the ceilings are measured by the native kernels' library: {NO_KERNELS}. {HOW_TO_COMPUTE}")
    steps = RooflineConfig(
        batch_sizes=tuple(options.batch_sizes), context=options.context, prompt_length=options.prompt_length
    )
    path = resolve_model(options.model, console=console)
    num_threads = options.threads or num_compute_threads()
    worker = WorkerConfig(
        model_path=str(path),
        device="cpu",
        dtype=options.dtype,
        ops=options.ops,
        num_threads=num_threads,
        enforce_eager=True,  # each operation is called, and timed, by itself
    )
    ceilings, measured, roofline = _measure(worker, steps, num_threads, console)
    phases = [place(phase, ceilings, resident_bytes=_streamed(phase)) for phase in measured]
    title = f"{path.name}, {roofline.worker.device}"
    _show_ceilings(console, ceilings)
    for phase in phases:
        _show_phase(console, phase)
    console.print(_EXPLANATION)
    if options.plot is not None:
        _write(options.plot, roofline_svg(title, ceilings, phases), console)
    if options.result is not None:
        facts = {
            "model": path.name,
            "device": roofline.worker.device,
            "dtype": roofline.worker.dtype,
            "platform": platform.platform(),
        }
        _write(options.result, json.dumps(result_of(ceilings, phases, facts), indent=1) + "\n", console)
    return 0


def _measure(
    worker: WorkerConfig, steps: RooflineConfig, num_threads: int, console: Console
) -> tuple[Ceilings, list[MeasuredPhase], RooflineRun]:
    # Here, not above: without the extension this module must still explain itself.
    from headrace.engine.ops.native.ceilings import NUM_STEPS, measure_ceilings

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring the machine", total=NUM_STEPS + steps.num_steps)
        ceilings = measure_ceilings(num_threads, step=lambda what: progress.update(task, description=what, advance=1))
        progress.update(task, description="loading the model")
        roofline = RooflineRun(
            worker, steps, SystemClock(), on_step=lambda phase: progress.update(task, description=phase, advance=1)
        )
        measured = list(roofline.measure())
    return ceilings, measured, roofline


def _streamed(phase: MeasuredPhase) -> int:
    """Bytes of weights, keys and values in a step."""
    return sum(call.streamed_bytes for call in phase.steps[0])


_EXPLANATION = (
    "[dim]Each byte counts once: weights, keys and values as streamed, activations as passed on. of roof: the time that\n"
    "the ceilings allow, by the time taken. bound: the arithmetic; stream (weights, keys, values) or pass (activations) at\n"
    "the level named; call: too short for anything but being called.[/]"
)


def _show_ceilings(console: Console, ceilings: Ceilings) -> None:
    table = Table("ceiling", "1 thread", f"{ceilings.num_threads} threads", "", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in table.columns[1:3]:
        column.justify = "right"
    for level in ceilings.levels:
        table.add_row(f"read {level.name}", *(f"{figure(r / 1e9)} GB/s" for r in (level.one_thread, level.all_threads)), "")
    for peak in ceilings.peaks:
        rates = (f"{figure(r / 1e9)} Gop/s" for r in (peak.one_thread, peak.all_threads))
        table.add_row(peak.kind, *rates, f"[dim]{peak.instruction}[/]")
    console.print(table)


def _show_phase(console: Console, phase: PlacedPhase) -> None:
    console.print(f"[bold]{phase.name}[/]: {figure(phase.step_ns / 1e6)} ms a step, {figure(_rate(phase))} tokens/s")
    names = ("kernel", "calls", "ms", "share", "GB/s", "Gop/s", "op/B", "bound", "of roof")
    table = Table(*names, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for kernel in phase.kernels:
        place_name = "" if kernel.bound.value in ("compute", "call") else f" {kernel.level}"
        table.add_row(
            kernel.name,
            str(kernel.num_calls),
            figure(kernel.step_ns / 1e6),
            f"{kernel.step_ns / phase.step_ns:.0%}",
            figure(kernel.bytes_per_s / 1e9),
            figure(kernel.operations_per_s / 1e9),
            figure(kernel.intensity),
            f"{kernel.kind if kernel.bound == 'compute' else kernel.bound.value}{place_name}",
            f"{kernel.share_of_roof:.0%}",
        )
    table.add_section()
    table.add_row(
        "outside the kernels", "", figure(phase.outside_ns / 1e6), f"{phase.outside_ns / phase.step_ns:.0%}", *[""] * 5
    )
    table.add_row(
        "the whole step", "", figure(phase.step_ns / 1e6), "100%", *[""] * 4, f"{phase.roof_ns / phase.step_ns:.0%}"
    )
    console.print(table)


def _rate(phase: PlacedPhase) -> float:
    return phase.num_tokens / phase.step_ns * 1e9


def _write(path: Path, text: str, console: Console) -> None:
    write_output(path, text)
    console.print(f"[dim]{path}[/]")

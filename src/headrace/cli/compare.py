"""`headrace compare`: two result files side by side, real or simulated, with an exit status for a gate."""

import argparse
from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.cli.output_files import output_file, write_output
from headrace.cli.parser import number, whole_number
from headrace.cli.report_view import report_console, show_comparison
from headrace.measure.report.comparison import compare, regressions
from headrace.measure.report.page import render_page
from headrace.measure.report.record import Run
from headrace.measure.report.result_file import read_results
from headrace.measure.report.summary import DEFAULT_SHARES


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compare",
        help="compare two result files of bench or simulate",
        description="Shows the second result beside the first: ratios, with intervals from drawing requests again (or "
        "rounds, if both files hold at least three). Ends with status 1 if a figure got worse by more than --tolerance and "
        "chance does not explain it.",
    )
    parser.add_argument("first", type=Path, help="the reference: a result file of headrace, or of vllm with --save-detailed")
    parser.add_argument("second", type=Path, help="what is judged")
    parser.add_argument(
        "--tolerance",
        type=number(least=0),
        default=0.1,
        metavar="SHARE",
        help="how much worse is still no regression (default 0.1)",
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="judge this figure only (such as p99_ttft_ms); may be given several times (default: all)",
    )
    parser.add_argument("--html", type=output_file, metavar="FILE", help="write both as one page that needs no network")
    parser.add_argument("--seed", type=whole_number, default=0, help="of the drawing (default 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 if nothing got worse, 1 if something did."""
    console = report_console()
    first, second = _read(options.first), _read(options.second)
    rows = compare(first, second, seed=options.seed)
    found = regressions(rows, tolerance=options.tolerance, names=options.metric)
    names = (_name(options.first, first), _name(options.second, second))
    show_comparison(console, rows, names if names[0] != names[1] else ("first", "second"), found)
    if options.html is not None:
        write_output(options.html, render_page([*first, *second], shares=DEFAULT_SHARES))
        console.print(f"[dim]page: {options.html}[/]")
    if found:
        console.print(f"[bold red]{len(found)} worse by more than {options.tolerance:.0%}[/]")
    return 1 if found else 0


def _read(path: Path) -> list[Run]:
    try:
        return read_results(path.read_bytes(), name=str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None


def _name(path: Path, runs: list[Run]) -> str:
    label = runs[-1].facts.label or path.stem
    return f"{label} ({runs[-1].facts.source}{f', {len(runs)} runs' if len(runs) > 1 else ''})"

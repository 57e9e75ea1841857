"""Summaries and comparisons on a terminal. Knows Rich; computes nothing."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.measure.report.comparison import Row
from headrace.measure.report.record import RunFacts
from headrace.measure.report.summary import Summary
from headrace.measure.report.table import FOOTNOTE, distribution_header, distribution_rows, facts, figure

_WIDTH_OF_A_FILE = 120


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process as if something had failed; `main.py` knows better."""
        self.quiet = True
        raise BrokenPipeError


def report_console() -> Console:
    """As wide as the terminal; where there is none, as wide as the tables need."""
    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(highlight=False, width=_WIDTH_OF_A_FILE)


def show_summary(console: Console, run: RunFacts, summary: Summary, shares: Sequence[float]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for fact in facts(run, summary):
        table.add_row(fact.name, f"[bold]{fact.value}[/]", f"[dim]{fact.note}[/]")
    console.print(table)
    console.print()
    latencies = Table(*distribution_header(shares), box=None, header_style="dim", padding=(0, 1))
    for column in latencies.columns:
        column.no_wrap = True
        column.justify = "right" if column is not latencies.columns[0] else "left"
    for row in distribution_rows(summary, shares):
        latencies.add_row(*row)
    console.print(latencies)
    console.print(f"[dim]{FOOTNOTE}[/]")
    for warning in summary.warnings:
        console.print(
            f"[bold {'red' if warning.isupper() or warning.startswith('THE') else 'yellow'}]! {escape(warning)}[/]"
        )


def show_comparison(console: Console, rows: Sequence[Row], names: tuple[str, str], regressions: Sequence[Row]) -> None:
    table = Table("", *names, "ratio", "95 % interval", "", box=None, header_style="dim", padding=(0, 1))
    table.columns[0].no_wrap = True
    for column in table.columns[1:5]:
        column.justify = "right"
    for row in rows:
        interval = "" if row.interval is None else f"{row.interval.low:.3f} to {row.interval.high:.3f}"
        verdict = _verdict(row, row in regressions)
        table.add_row(row.name, figure(row.first), figure(row.second), f"{row.ratio:.3f}", interval, verdict)
    console.print(table)


def _verdict(row: Row, is_regression: bool) -> str:
    if is_regression:
        return "[bold red]regression[/]"
    if not row.is_certain:
        return ""
    is_better = (row.ratio < 1) == row.is_less_better
    return "[green]better[/]" if is_better else "[yellow]worse[/]"

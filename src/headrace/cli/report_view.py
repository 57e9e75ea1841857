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
    rows = [distribution_header(shares), *distribution_rows(summary, shares)]
    for group in _columns_that_fit(rows, console.width):
        latencies = Table(box=None, header_style="dim", padding=(0, 1))
        for place in group:
            latencies.add_column(rows[0][place], justify="right" if place else "left", no_wrap=True)
        for row in rows[1:]:
            latencies.add_row(*(row[place] for place in group))
        console.print(latencies)
    console.print(f"[dim]{FOOTNOTE}[/]")
    for warning in summary.warnings:
        console.print(
            f"[bold {'red' if warning.isupper() or warning.startswith('THE') else 'yellow'}]! {escape(warning)}[/]"
        )


def _columns_that_fit(rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns in groups, one below another, each beside the first column: 80 letters have no room for all percentiles."""
    widths = [max(len(row[place]) for row in rows) + 2 for place in range(len(rows[0]))]
    groups = [[0]]
    for place in range(1, len(widths)):
        if len(groups[-1]) > 1 and sum(widths[other] for other in (*groups[-1], place)) > width:
            groups.append([0])
        groups[-1].append(place)
    return groups


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

"""A prediction's interval, as a table: the same figures from the slowest and the fastest rehearsal beside the middle one's.

Knows which figures are predicted; does not know what was rehearsed.
"""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from headrace.measure.report.summary import Summary


def show_interval(console: Console, summary: Summary, bounds: Sequence[Summary]) -> None:
    """The same figures on the slowest and on the fastest machine that the cost model allows, nine times in ten."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title="90 % interval of the prediction", title_justify="left")
    for column in ("", "rehearsed", "from", "to"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for name, read in _PREDICTED.items():
        value, *ends = (read(one) for one in (summary, *bounds))
        if value is not None and all(end is not None for end in ends):
            low, *_, high = sorted(number for number in (value, *ends) if number is not None)
            table.add_row(name, f"{value:.4g}", f"{low:.4g}", f"{high:.4g}")
    console.print(table)


def _of(metric: str, share: float) -> Callable[[Summary], float | None]:
    def read(summary: Summary) -> float | None:
        found = summary.distributions.get(metric)
        return None if found is None else found.percentile(share)

    return read


_PREDICTED: dict[str, Callable[[Summary], float | None]] = {
    "requests/s": lambda summary: summary.request_throughput,
    "answer tokens/s": lambda summary: summary.output_throughput,
    **{
        f"{metric.upper()} p{share:g} (ms)": _of(metric, share)
        for metric in ("ttft", "tpot", "itl", "e2el")
        for share in (50.0, 99.0)
    },
}
"""What is shown with an interval, and where it stands in a summary."""

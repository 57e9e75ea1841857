"""The live view of a run, in a process of its own: drawing in the client's would make the client late.

`LiveView` is the client's end: it writes a line of JSON now and then, and never waits for the view. Run as a program,
this module reads those lines and draws them with Rich on the terminal.
"""

import contextlib
import subprocess
import sys
from collections import deque

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.measure.bench.runner import Progress
from headrace.measure.report.statistics import percentile
from headrace.measure.report.table import figure

_NUM_KEPT = 2000
"""Latencies that the view's percentiles are made of: the most recent."""
_LATE_MS = 10.0


class LiveView:
    """`with LiveView("…") as view: run_load(…, on_progress=view.show)`"""

    def __init__(self, title: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", __name__, title], stdin=subprocess.PIPE)

    def __enter__(self) -> "LiveView":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()

    def show(self, progress: Progress) -> None:
        if self._process.stdin is not None and self._process.poll() is None:
            with contextlib.suppress(OSError):  # the view was closed: the run goes on
                self._process.stdin.write(msgspec.json.encode(progress) + b"\n")
                self._process.stdin.flush()


class ViewState:
    """What is drawn, from all that was told so far."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._ttft_ms: deque[float] = deque(maxlen=_NUM_KEPT)
        self._e2el_ms: deque[float] = deque(maxlen=_NUM_KEPT)
        self._last = Progress()
        self._rates = (0.0, 0.0)
        self._longest_gap_ms = 0.0

    def take(self, progress: Progress) -> None:
        elapsed_s = progress.elapsed_s - self._last.elapsed_s
        if elapsed_s > 0:
            num_done, num_chunks = progress.num_done - self._last.num_done, progress.num_chunks - self._last.num_chunks
            self._rates = (num_done / elapsed_s, num_chunks / elapsed_s)
        self._ttft_ms.extend(progress.ttft_ms)
        self._e2el_ms.extend(progress.e2el_ms)
        self._longest_gap_ms = max(self._longest_gap_ms, progress.longest_gap_ms)
        self._last = progress

    def drawing(self) -> Panel:
        last = self._last
        counts = Table.grid(padding=(0, 3))
        counts.add_row(
            f"[bold]{last.num_done:,}[/] of {last.num_total:,} done",
            f"[bold]{last.num_in_flight:,}[/] in flight",
            f"[bold red]{last.num_failed:,} failed[/]" if last.num_failed else "0 failed",
            f"{last.elapsed_s:.0f} s",
        )
        counts.add_row(f"[bold]{figure(self._rates[0])}[/] req/s", f"[bold]{figure(self._rates[1])}[/] chunks/s", "", "")
        latencies = Table("", "p50", "p90", "p99", box=None, header_style="dim", padding=(0, 2))
        for name, values in (("TTFT ms", self._ttft_ms), ("E2E ms", self._e2el_ms)):
            ordered = sorted(values)
            latencies.add_row(name, *(figure(percentile(ordered, s)) if ordered else "" for s in (50, 90, 99)))
        latencies.add_row("longest gap ms", "", "", figure(self._longest_gap_ms))
        bar = Table.grid(expand=True)  # a bar alone would not end its line
        bar.add_row(ProgressBar(total=max(1, last.num_total), completed=last.num_done))
        parts: list[RenderableType] = [bar, counts, latencies]
        if last.loop_lag_ms > _LATE_MS:
            parts.append(Text(f"the client itself is {last.loop_lag_ms:.0f} ms late", style="bold red"))
        return Panel(Group(*parts), title=self._title, title_align="left", border_style="dim")


def main() -> None:
    state = ViewState(sys.argv[1] if len(sys.argv) > 1 else "")
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live,
    ):
        for line in sys.stdin.buffer:
            state.take(msgspec.json.decode(line, type=Progress))
            live.update(state.drawing(), refresh=True)


if __name__ == "__main__":
    main()

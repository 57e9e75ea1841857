"""What a report says on a terminal, it says on a narrow one."""

import re
from io import StringIO

import pytest
from rich.console import Console
from tests.unit.measure.records import request, run_of

from headrace.cli.report_view import show_summary
from headrace.measure.report.summary import DEFAULT_SHARES, summarize
from headrace.measure.report.table import distribution_header, distribution_rows


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_every_figure_of_a_report_is_shown_however_narrow_the_terminal(width: int) -> None:
    records = [request(n, intended=3000.0 * n, chunks=[1234.5 * (n + 1), 4000.0 * (n + 1)]) for n in range(40)]
    run = run_of(records, slo_ms={"ttft": 2000.0})
    summary = summarize(run)
    output = StringIO()
    show_summary(Console(file=output, width=width, highlight=False), run.facts, summary, DEFAULT_SHARES)
    said = output.getvalue()
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= width
    for row in (distribution_header(DEFAULT_SHARES), *distribution_rows(summary, DEFAULT_SHARES)):
        for cell in row:
            assert re.search(rf"(^|\s){re.escape(cell)}(\s|$)", said, re.MULTILINE), cell

"""What was measured beside the peers: kept part by part, told as a table and a plot.

A file for each instruction set that the kernels choose: what is true of one processor is not of another. Knows the result
file's form, which is that of every benchmark here. Measures nothing.
"""

import json
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import RESULTS, circumstances
from benchmarks.peers.load import TAINTED_CORES
from benchmarks.peers.measures import Measured
from rich import box
from rich.console import Console
from rich.table import Table

from headrace.engine.ops.native._kernels import best_isa

OURS = "headrace"


class Report:
    """Parts measured at different times, in one file: each says when, at which commit, and beside what."""

    def __init__(self, path: Path | None = None) -> None:
        """Without `path`: that of this processor."""
        self._path = path = path or RESULTS / f"peers_{best_isa()}.json"
        self._parts: dict[str, Any] = json.loads(path.read_text())["parts"] if path.exists() else {}

    def keep(self, part: str, measured: Sequence[Measured], minutes: float) -> None:
        self._parts[part] = {
            **circumstances(),
            "time": time.strftime("%H:%M"),
            "minutes": round(minutes, 1),
            "measures": [_measure(one) for one in measured],
        }
        self._path.write_text(json.dumps(self._document(), indent=1) + "\n")
        self._path.with_suffix(".svg").write_text(bars(self.measures))

    @property
    def measures(self) -> list[dict[str, Any]]:
        return [measure for part in self._parts.values() for measure in part["measures"]]

    def _document(self) -> dict[str, Any]:
        return {
            "name": self._path.stem,
            "what": "SmolLM2-135M beside other engines, each in an environment of its own, in turns on one machine",
            "command": "python -m benchmarks.peers",
            **circumstances(),
            "figures": [figure for measure in self.measures for figure in _figures(measure)],
            "targets": [target for measure in self.measures for target in _targets(measure)],
            "notes": [
                f"{who}: {why}" for measure in self.measures for who, why in measure["failures"].items()
            ] + [_TAINTED] * any(_is_tainted(one) for measure in self.measures for one in measure["who"].values())
            + self._other_processors(),
            "parts": self._parts,
        }  # fmt: skip

    def _other_processors(self) -> list[str]:
        """Parts that were not measured on this one."""
        here = circumstances()["processor"]
        return [
            f"{name}: measured on {part['processor']}" for name, part in self._parts.items() if part["processor"] != here
        ]

    def show(self, console: Console) -> None:
        table = Table("measure", "who", "median", "range", "runs", "", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in table.columns[2:5]:
            column.justify = "right"
        for measure in self.measures:
            ratio = _ratio(measure)
            for index, (who, one) in enumerate(ordered(measure)):
                is_ours = who.startswith(OURS)
                runs = one["runs"]
                marks = f"{one['num_tainted']} tainted" if one["num_tainted"] else ""
                if index == 0 and ratio is not None:
                    marks = f"{marks} [bold]{ratio:.2f}x the best peer[/]".strip()
                table.add_row(
                    f"{measure['name']}, {measure['unit']}" if index == 0 else "",
                    f"[bold]{who}[/]" if is_ours else who,
                    f"{one['median']:.4g}",
                    f"{min(runs):.4g} to {max(runs):.4g}",
                    str(len(runs)),
                    marks,
                )
            for who, why in measure["failures"].items():
                table.add_row("", who, "-", "", "", f"[dim]{escape(why[:80])}[/]")
            table.add_section()
        console.print(table)


_TAINTED = f"some runs are tainted: other work took more than {TAINTED_CORES:g} of a processor meanwhile"


def _measure(measured: Measured) -> dict[str, Any]:
    names = dict.fromkeys(run.who for run in measured.runs)
    who = {}
    for name in names:
        runs = [run for run in measured.runs if run.who == name]
        clean = [run.value for run in runs if run.other_cores <= TAINTED_CORES]
        values = [run.value for run in runs]
        who[name] = {
            "median": median(clean or values),  # of the runs that nothing disturbed, where there are any
            "runs": values,
            "other_cores": [run.other_cores for run in runs],
            "num_tainted": len(values) - len(clean),
        }
    return {
        "name": measured.name,
        "unit": measured.unit,
        "is_less_better": measured.is_less_better,
        "factor": measured.factor,
        "who": who,
        "failures": measured.failures,
    }


def _is_tainted(one: dict[str, Any]) -> bool:
    return bool(one["num_tainted"])


def ordered(measure: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The best first."""
    return sorted(measure["who"].items(), key=lambda item: item[1]["median"], reverse=not measure["is_less_better"])


def _best(measure: dict[str, Any], *, ours: bool) -> dict[str, Any] | None:
    return next((one for who, one in ordered(measure) if who.startswith(OURS) == ours), None)


def _ratio(measure: dict[str, Any]) -> float | None:
    """How many times better than the best peer; None where either is missing."""
    mine, theirs = _best(measure, ours=True), _best(measure, ours=False)
    if mine is None or theirs is None or not mine["median"] or not theirs["median"]:
        return None
    ratio: float = theirs["median"] / mine["median"] if measure["is_less_better"] else mine["median"] / theirs["median"]
    return ratio


def _figures(measure: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": f"{measure['name']}: {who}", "unit": measure["unit"], "runs": one["runs"], "median": one["median"],
         "min": min(one["runs"]), "max": max(one["runs"])}
        for who, one in measure["who"].items()
    ]  # fmt: skip


def _targets(measure: dict[str, Any]) -> list[dict[str, Any]]:
    ratio = _ratio(measure)
    if measure["factor"] is None or ratio is None:
        return []
    theirs = next(who for who, _ in ordered(measure) if not who.startswith(OURS))
    text = f"{measure['name']}: at least {measure['factor']:g}x the best peer ({theirs})"
    return [{"text": text, "reached": ratio, "unit": "x", "is_met": ratio >= measure["factor"]}]


# The plot: for each measure bars beside one another, the best one full

_WIDTH, _BAR, _GAP, _LEFT = 860, 18, 30, 300
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2937}.head{font-weight:600}.page{fill:#fff}.ours{fill:#2563eb}"
    ".peer{fill:#9ca3af}.tainted{fill-opacity:.45}@media(prefers-color-scheme:dark){text{fill:#e5e7eb}.page{fill:#111827}}"
)


def bars(measures: Sequence[dict[str, Any]]) -> str:
    """An SVG file. Pale bars are of runs that were disturbed."""
    parts: list[str] = []
    y = 20
    for measure in measures:
        if not measure["who"]:
            continue
        better = "less is better" if measure["is_less_better"] else "more is better"
        parts.append(f'<text class="head" x="10" y="{y}">{escape(measure["name"])}, {measure["unit"]} ({better})</text>')
        longest = max(one["median"] for one in measure["who"].values()) or 1.0
        for who, one in ordered(measure):
            y += _BAR + 4
            width = max(1.0, one["median"] / longest * (_WIDTH - _LEFT - 90))
            kind = ("ours" if who.startswith(OURS) else "peer") + (" tainted" if one["num_tainted"] else "")
            parts.append(f'<text x="{_LEFT - 8}" y="{y}" text-anchor="end">{escape(who)}</text>')
            parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y - 13}" width="{width:.1f}" height="{_BAR - 2}"/>')
            parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y}">{one["median"]:.4g}</text>')
        y += _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" role="img">'
        f'<style>{_STYLE}</style><rect class="page" width="{_WIDTH}" height="{y}"/>{"".join(parts)}</svg>\n'
    )

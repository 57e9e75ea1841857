"""What `results/` holds, as tables: all of it in `results/README.md`, a line for each benchmark in the project's README.

Run after the others; a test compares. Knows the README's markers and the results' fields. Measures nothing.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
ALL_RESULTS = RESULTS / "README.md"

BEGIN = "<!-- Made by `python -m benchmarks.update_readme` of benchmarks/results/; not written by hand. -->\n"
END = "<!-- end of the table -->\n"


def summary() -> str:
    """A line for each result: the first thing that was asked, and how much of all that was asked was reached."""
    results = _results()
    if not results:
        return "Nothing has been measured yet.\n"
    rows = ["| benchmark | first of what was asked | measured | targets met |\n|---|---|---|---|\n"]
    rows += [_summary_row(result) for result in results]
    all_of_it = ALL_RESULTS.relative_to(ROOT)
    return "".join(rows) + f"\n[Everything that was asked and measured]({all_of_it}), {_where(results)}"


def full_table() -> str:
    """For each result a row that says what was done, then one for each target; and where they were measured."""
    results = _results()
    rows = [BEGIN, "# Measured\n\n| asked for | measured |\n|---|---|\n"]
    for result in results:
        rows.append(_heading(result))
        rows += [_row(target) for target in result["targets"]] or [_first_figure(result)]
    return "".join(rows) + f"\nMeasured {_where(results)}"


def _results() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def _where(results: list[dict[str, Any]]) -> str:
    machines = sorted({f"{r['processor']}, {r['num_cores']} cores" for r in results})
    return f"on {'; on '.join(machines)}. Spread, commit and command of each are in its file; `make bench` measures again.\n"


def _summary_row(result: dict[str, Any]) -> str:
    name, targets = result["name"], result["targets"]
    first, measured = (targets[0]["text"], _measured(targets[0])) if targets else _first(result)
    met = f"{sum(target['is_met'] for target in targets)} of {len(targets)}" if targets else ""
    return f"| [{name}](benchmarks/results/{name}.json) | {first} | {measured} | {met} |\n"


def _heading(result: dict[str, Any]) -> str:
    what = result["what"].replace("|", "\\|")
    return f"| *{what}* | [{result['name']}]({result['name']}.json) |\n"


def _row(target: dict[str, Any]) -> str:
    return f"| {target['text']} | {_measured(target)} |\n"


def _measured(target: dict[str, Any]) -> str:
    verdict = "" if target["is_met"] else ", missed"
    return f"**{_number(target['reached'])}** {target['unit']}{verdict}"


def _first_figure(result: dict[str, Any]) -> str:
    """Where nothing was asked for."""
    name, measured = _first(result)
    return f"| {name} | {measured} |\n"


def _first(result: dict[str, Any]) -> tuple[str, str]:
    figure = result["figures"][0]
    return figure["name"], f"**{_number(figure['median'])}** {figure['unit']}"


def _number(value: float) -> str:
    """Three digits, and never an exponent.

    >>> _number(1006.4), _number(2.0239), _number(0.0), _number(32)
    ('1,006', '2.02', '0', '32')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_table(readme: str) -> str:
    """The README with the table as it should be."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "README.md has lost the markers of its table"
    return before + begin + summary() + end + after


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
    ALL_RESULTS.write_text(full_table())
    print(full_table())

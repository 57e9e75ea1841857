"""The README's table of measured numbers, made of what `results/` holds. Run after the others; a test compares the two.

Knows the README's markers and the results' fields. Measures nothing.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"

BEGIN = "<!-- Made by `python -m benchmarks.update_readme` of benchmarks/results/; not written by hand. -->\n"
END = "<!-- end of the table -->\n"


def measured_table() -> str:
    """For each result a row that says what was done, then one for each target; and where they were measured."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    if not results:
        return "Nothing has been measured yet.\n"
    rows = ["| asked for | measured |\n|---|---|\n"]
    for result in results:
        rows.append(_heading(result))
        rows += [_row(target) for target in result["targets"]] or [_first_figure(result)]
    machines = sorted({f"{r['processor']}, {r['num_cores']} cores, torch {r['torch']}" for r in results})
    where = (
        f"\nOn {'; on '.join(machines)}. Spread, commit and command of each are in its file; `make bench` measures again.\n"
    )
    return "".join(rows) + where


def _heading(result: dict[str, Any]) -> str:
    what = result["what"].replace("|", "\\|")
    return f"| *{what}* | [{result['name']}](benchmarks/results/{result['name']}.json) |\n"


def _row(target: dict[str, Any]) -> str:
    verdict = "" if target["is_met"] else ", missed"
    return f"| {target['text']} | **{_number(target['reached'])}** {target['unit']}{verdict} |\n"


def _first_figure(result: dict[str, Any]) -> str:
    """Where nothing was asked for."""
    figure = result["figures"][0]
    return f"| {figure['name']} | **{_number(figure['median'])}** {figure['unit']} |\n"


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
    return before + begin + measured_table() + end + after


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
    print(measured_table())

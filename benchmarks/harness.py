"""How every benchmark here is run and kept: interleaved runs, medians with their spread, and all that a figure needs to be
believed (processor, commit, command, what else the machine was doing).

Knows nothing of what is measured.
"""

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.kernels_build import named_build, use_named_build

use_named_build()

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity. `runs` are in the order in which they were taken."""

    name: str
    unit: str
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def __str__(self) -> str:
        spread = f" [{min(self.runs):.4g} to {max(self.runs):.4g}, {len(self.runs)} runs]" if len(self.runs) > 1 else ""
        return f"{self.name}: {self.median:.4g} {self.unit}{spread}"


@dataclass(frozen=True, slots=True)
class Target:
    """What was asked for, what came out."""

    text: str
    reached: float
    unit: str
    is_met: bool

    def __str__(self) -> str:
        return f"{'met' if self.is_met else 'MISSED'}: {self.text}; measured {self.reached:.4g} {self.unit}"


@dataclass(slots=True)
class Result:
    name: str
    what: str
    """One sentence: what was done, and beside what."""
    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def save(self) -> None:
        """Prints it, and keeps it with its circumstances in `results/`."""
        document = {
            "name": self.name,
            "what": self.what,
            "command": f"python -m benchmarks.{self.name}" + "".join(f" {argument}" for argument in sys.argv[1:]),
            **circumstances(),
            "figures": [{**asdict(f), "median": f.median, "min": min(f.runs), "max": max(f.runs)} for f in self.figures],
            "targets": [asdict(target) for target in self.targets],
            "notes": self.notes,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n")
        print(f"\n{self.what}")
        for line in (*self.figures, *self.targets, *self.notes):
            print(f"  {line}")


def circumstances() -> dict[str, object]:
    """Where and on what a figure was taken."""
    return {
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        **({"kernels": named_build()} if named_build() else {}),
    }


def interleave(
    contenders: dict[str, Callable[[], float]], *, num_runs: int, num_warm_ups: int = 1
) -> dict[str, list[float]]:
    """Runs each contender in turn, A B A B ..., so that a machine whose speed drifts drifts for all of them."""
    runs: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(-num_warm_ups, num_runs):
        for name, run in contenders.items():
            gc.collect()
            value = run()
            print(f"  {'warm-up' if index < 0 else f'run {index + 1}'} {name}: {value:.4g}", flush=True)
            if index >= 0:
                runs[name].append(value)
    return runs


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, ...]:
    """Pair by pair, in the order of the runs."""
    return tuple(a / b for a, b in zip(numerators, denominators, strict=True))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            facts = dict(line.strip().split(":", 1) for line in file if ":" in line)
        named = {key.strip(): value.strip() for key, value in facts.items()}
        return (
            f"{named.get('model name', platform.machine())} (family {named.get('cpu family')}, model {named.get('model')})"
        )
    except OSError:
        return platform.processor() or platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    return f"{commit}+changes" if git("status", "--porcelain", "--", "src", "benchmarks/*.py") else commit

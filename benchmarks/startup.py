"""From the start of the process to the first token, with the seconds of each phase."""

import argparse
import re
import time

import httpx
from benchmarks.harness import Figure, Result, Target
from benchmarks.served import MODEL, await_first_token, serve


def first_token_s() -> tuple[float, dict[str, float]]:
    began = time.perf_counter()
    with serve() as served:
        await_first_token(served.url, {"model": MODEL, "prompt": "Water flows"})
        seconds = time.perf_counter() - began
        metrics = httpx.get(f"{served.url}/metrics").text
    phases = re.findall(r'^headrace:startup_seconds\{.*phase="(\w+)".*\} (\S+)$', metrics, flags=re.MULTILINE)
    return seconds, {name: float(value) for name, value in phases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=5)
    options = parser.parse_args()
    first_token_s()  # warms the disk's cache
    runs = [first_token_s() for _ in range(options.num_runs)]
    figures = [Figure("process start to first token", "s", tuple(total for total, _ in runs))]
    for name in runs[0][1]:
        figures.append(Figure(f"phase {name}", "s", tuple(phases[name] for _, phases in runs)))
    took = figures[0].median
    targets = [Target("the first token comes within a second of the process's start", took, "s", took < 1)]
    Result("startup", "headrace serve of the default model, files in the page cache", figures, targets).save()


if __name__ == "__main__":
    main()

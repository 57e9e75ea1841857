"""`headrace simulate --case`: small fleets under drawn faults, seed after seed, over as many processes as asked for.

Prints what was rehearsed, and for each failure the one line that reproduces it.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

from rich.console import Console
from rich.progress import Progress

from headrace.base.errors import ConfigurationError, nearest
from headrace.sim.fault_cases import CASES, CaseOutcome, run_case

ALL = "all"
_MOST_SHOWN = 10
_SEEDS_AT_ONCE = 8
"""Of one task of a process: enough that handing it over costs nothing."""


def case_names(wanted: str) -> list[str]:
    if wanted == ALL:
        return list(CASES)
    if wanted not in CASES:
        known = ", ".join([ALL, *CASES])
        raise ConfigurationError(f"there is no case {wanted!r}{nearest(wanted, [ALL, *CASES])} (known: {known})")
    return [wanted]


def run_cases(
    names: list[str], *, first_seed: int, num_seeds: int, num_requests: int, num_jobs: int, console: Console
) -> int:
    """Exit status: 0 if every rule held in every case."""
    totals: Counter[str] = Counter()
    failures: list[str] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rehearsing", total=len(names) * num_seeds)
        for counts, failed in _batches(names, first_seed, num_seeds, num_requests, num_jobs):
            totals.update(counts)
            failures += failed
            progress.advance(task, counts["seeds"])
            for line in failed[: max(0, _MOST_SHOWN - len(failures) + len(failed))]:
                console.print(line, style="red", highlight=False)
    console.print(
        f"{totals['seeds']:,} fleets, {totals['requests']:,} requests, {totals['dispatches']:,} dispatches: "
        f"{totals['failed']:,} ended with an error that their clients saw, {totals['retries']:,} were sent again by them"
    )
    if failures:
        console.print(f"[bold red]{len(failures)} of {totals['seeds']:,} broke a rule[/]")
        return 1
    console.print("every invariant held after every event, and all that was asked has ended")
    return 0


_Batch = tuple[Counter[str], list[str]]


def _batches(names: list[str], first: int, num_seeds: int, num_requests: int, num_jobs: int) -> Iterator[_Batch]:
    tasks = (
        (name, range(start, min(start + _SEEDS_AT_ONCE, first + num_seeds)), num_requests)
        for start in range(first, first + num_seeds, _SEEDS_AT_ONCE)
        for name in names
    )
    if num_jobs == 1:
        for one in tasks:
            yield _run_batch(*one)
        return
    with ProcessPoolExecutor(num_jobs) as pool:
        running: set[Future[_Batch]] = {pool.submit(_run_batch, *one) for one in islice(tasks, 2 * num_jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(_run_batch, *one) for one in islice(tasks, len(done))}
            for future in done:
                yield future.result()


def _run_batch(name: str, seeds: range, num_requests: int) -> _Batch:
    counts: Counter[str] = Counter(seeds=len(seeds))
    failures = []
    for seed in seeds:
        try:
            outcome = run_case(seed, name, num_requests=num_requests)
        except Exception as failure:  # whatever broke: the seed reproduces it
            what = f"{type(failure).__name__}: {failure}"
            failures.append(
                f"{name}, seed {seed}: {what}\n"
                f"reproduce with: headrace simulate --seed {seed} --case {name} --num-requests {num_requests}"
            )
        else:
            counts.update(_counts(outcome))
    return counts, failures


def _counts(outcome: CaseOutcome) -> dict[str, int]:
    return {
        "requests": outcome.num_requests,
        "failed": outcome.num_failed,
        "retries": outcome.num_retries,
        "dispatches": outcome.num_dispatches,
    }

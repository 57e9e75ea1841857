"""`headrace simulate --case`: small fleets under drawn faults, seed after seed, over as many processes as asked for.

Prints what was rehearsed, for each failure the one line that reproduces it, and of the first failure the shortest story.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

from rich.console import Console
from rich.progress import Progress

from headrace.base.errors import ConfigurationError, nearest
from headrace.cli.garbage import collector_at_rest
from headrace.sim.fault_cases import CASES, CaseOutcome, run_case
from headrace.sim.fleet_spec import FaultKind
from headrace.sim.shrink import ShortFailure, describe, shorten_case

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
    failures: list[_Failure] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rehearsing", total=len(names) * num_seeds)
        for counts, failed in _batches(names, first_seed, num_seeds, num_requests, num_jobs):
            totals.update(counts)
            failures += failed
            progress.advance(task, counts["seeds"])
            for failure in failed[: max(0, _MOST_SHOWN - len(failures) + len(failed))]:
                console.print(f"{failure.name}, seed {failure.seed}: {failure.what}", style="red", markup=False)
                words = f"--seed {failure.seed} --case {failure.name} --num-requests {num_requests}"
                console.print(f"reproduce with: headrace simulate {words}", style="red", markup=False)
    console.print(
        f"{totals['seeds']:,} fleets, {totals['requests']:,} requests, {totals['dispatches']:,} dispatches: "
        f"{totals['failed']:,} ended with an error that their clients saw, {totals['retries']:,} were sent again by them"
    )
    if failures:
        first = min(failures)
        with console.status("looking for its shortest story"):
            story = shorten_case(first.seed, first.name, num_requests=num_requests)
        if story is not None:
            console.print(f"\n{first.name}, seed {first.seed}, in short:")
            show_story(console, story)
        console.print(f"[bold red]{len(failures)} of {totals['seeds']:,} broke a rule[/]")
        return 1
    console.print("every invariant held after every event, and all that was asked has ended")
    return 0


def show_story(console: Console, story: ShortFailure) -> None:
    """What it takes for a rule to break, and what happened last."""
    faults = [
        f"{fault.kind} {fault.replica} at {fault.at_s:.2f} s".replace("  ", " ")
        + ("" if fault.kind is FaultKind.STORM else f" for {fault.duration_s:g} s")
        for fault in story.faults
    ]
    if story.has_message_trouble:
        faults.append("messages that are lost, doubled or passed on the way")
    requests = ", ".join(story.requests) or "none"
    console.print(f"it takes the requests {requests}; and of trouble {'; '.join(faults) or 'none'}", markup=False)
    for line in story.lines:
        console.print(line, markup=False)


@dataclass(frozen=True, slots=True, order=True)
class _Failure:
    seed: int
    name: str
    what: str


_Batch = tuple[Counter[str], list[_Failure]]


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
    with collector_at_rest():
        for seed in seeds:
            try:
                outcome = run_case(seed, name, num_requests=num_requests)
            except Exception as failure:  # whatever broke: the seed reproduces it
                failures.append(_Failure(seed, name, describe(failure)))
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

"""What else this machine does while something is measured: processor time that is not ours, by the kernel's own count.

Two-thread figures are wrecked by any other running process, so each run carries what ran beside it, and a run with too much
of it is marked.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

TAINTED_CORES = 0.1
"""Processors' worth of other work above which a run is tainted."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    all_s: float
    """Busy seconds of all processors, stolen ones included."""
    own_s: float
    """Of this process and all below it."""


class OtherLoad:
    """`with OtherLoad() as other: …`; then `other.cores` says how many processors were busy with something else."""

    cores = 0.0

    def __enter__(self) -> Self:
        self._began = _moment()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        ended = _moment()
        passed = max(ended.at - self._began.at, 1e-3)
        busy, own = ended.all_s - self._began.all_s, ended.own_s - self._began.own_s
        self.cores = round(max(0.0, (busy - own) / passed), 3)

    @property
    def is_tainted(self) -> bool:
        return self.cores > TAINTED_CORES


def _moment() -> _Moment:
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    own = sum(_ticks(pid) for pid in tree(os.getpid()))
    return _Moment(time.monotonic(), (user + nice + system + irq + softirq + steal) / _TICKS, own / _TICKS)


def _ticks(pid: int) -> int:
    """Of a process and of those below it that it has collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            try:
                waiting += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def resident_bytes(pid: int) -> int:
    """Of a process and all below it; what they share counts once."""
    total = 0
    for process in tree(pid):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total

"""This machine's ceilings, measured through the extension.

Knows caches by what the system says of them. Does not know kernels or models.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.engine.ops.native import _kernels
from headrace.measure.report.roofline import Ceilings, MemoryLevel, OperationPeak

KINDS = ("f32", "bf16", "int8", "bf16 tiles", "int8 tiles")

_NUM_TRIES = 3
"""Of each figure; the best counts, since everything that disturbs makes it smaller."""
_TRY_S = 0.06

_KIB, _MIB = 1024, 1024 * 1024
_USUAL_CACHES = {"L1": 32 * _KIB, "L2": 1 * _MIB, "L3": 32 * _MIB}
"""Where the system does not tell."""
_LEAST_MEMORY_READ = 128 * _MIB
_SHARE_THAT_FITS = 0.5
"""Of a cache: the rest holds what else there is."""


def measure_ceilings(num_threads: int, *, step: Callable[[str], None] = lambda _: None, root: Path = Path("/")) -> Ceilings:
    """Takes about three seconds. `step` hears what is measured next; `root` is where `sys` is looked for."""
    caches = cache_sizes(root)
    threads_of_a_core = min(num_sharing for _, num_sharing in caches.values())
    levels = []
    for name, (num_bytes, num_sharing) in caches.items():
        step(f"reading from {name}")
        # A thread has a core of its own, and so have those with which it shares this cache.
        shared = max(1, min(num_sharing // threads_of_a_core, num_threads))
        at_once = int(num_bytes * _SHARE_THAT_FITS)
        levels.append(
            MemoryLevel(
                name,
                num_bytes * -(-num_threads // shared),
                _best_read_rate(at_once, 1),
                _best_read_rate(at_once // shared, num_threads),
            )
        )
    step("reading from memory")
    largest = max(4 * max(size for size, _ in caches.values()), _LEAST_MEMORY_READ)
    levels.append(
        MemoryLevel(
            "DRAM",
            0,
            _best_read_rate(largest, 1),
            _best_read_rate(-(-largest // num_threads), num_threads),
        )
    )
    return Ceilings(num_threads, tuple(levels), tuple(_peaks(num_threads, step)))


NUM_STEPS = len(_USUAL_CACHES) + 1 + len(KINDS)
"""How often `measure_ceilings` calls `step`, on most machines."""


def _peaks(num_threads: int, step: Callable[[str], None]) -> Iterator[OperationPeak]:
    for kind in KINDS:
        step(f"computing in {kind}")
        instruction, _ = _kernels.operation_rate(kind, 1, 0.001)
        if instruction:
            one, all_ = (_best_operation_rate(kind, threads) for threads in (1, num_threads))
            yield OperationPeak(kind, instruction, one, all_)


def _best_read_rate(bytes_per_thread: int, num_threads: int) -> float:
    return max(_kernels.read_rate(bytes_per_thread, num_threads, _TRY_S) for _ in range(_NUM_TRIES))


def _best_operation_rate(kind: str, num_threads: int) -> float:
    return max(_kernels.operation_rate(kind, num_threads, _TRY_S)[1] for _ in range(_NUM_TRIES))


def cache_sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Bytes of the first processor's data caches, by level, and how many processors share each."""
    found: dict[str, tuple[int, int]] = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size, sharing = (
                (folder / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind in ("Data", "Unified") and match and int(match[1]):
            unit = {"": 1, "K": _KIB, "M": _MIB, "G": 1024 * _MIB}[match[2]]
            found[f"L{level}"] = (int(match[1]) * unit, _num_listed(sharing))
    return found or {name: (size, 1) for name, size in _USUAL_CACHES.items()}


def _num_listed(text: str) -> int:
    """How many a list of ranges names.

    >>> _num_listed("0-3,8,10-11")
    7
    """
    ranges = (part.split("-") for part in text.split(","))
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)

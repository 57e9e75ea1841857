"""The roofline (Williams, Waterman, Patterson, "Roofline", 2009): each kernel of a step under the machine's ceilings.

Knows rates, counts and times, and which of the ceilings binds. Does not know how any of them was measured, nor what
computes.

A kernel must at least read what it streams (weights, keys and values) from where the model fits, read and write what it
passes on (activations) in the nearest cache that holds it, and do its operations. No kernel is quicker than the slowest of
the three alone: that is its roof. What it takes longer is what could be gained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A cache, or the memory behind all of them."""

    name: str
    """`L1`, `L2`, `L3` or `DRAM`."""
    num_bytes: int
    """What all threads together can hold in it; of memory, 0."""
    one_thread: float
    """Bytes read in a second by one thread."""
    all_threads: float
    """By all of them."""


@dataclass(frozen=True, slots=True)
class OperationPeak:
    """Operations in a second; a multiplication and an addition are two."""

    kind: str
    """`f32`, `bf16` or `int8` by vectors; `bf16 tiles` or `int8 tiles` by matrix instructions."""
    instruction: str
    one_thread: float
    all_threads: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    num_threads: int
    levels: tuple[MemoryLevel, ...]
    """From the nearest to the farthest; the last is memory."""
    peaks: tuple[OperationPeak, ...]
    """Kinds for which the processor has an instruction."""

    def level_of(self, num_bytes: int) -> MemoryLevel:
        """The nearest level that holds so much."""
        return next((level for level in self.levels if num_bytes <= level.num_bytes), self.levels[-1])

    def peak_of(self, kind: str) -> OperationPeak:
        """The tiles', where there are some; float32's where there is none for the kind: it is then done by expanding."""
        by_kind = {peak.kind: peak for peak in self.peaks}
        return by_kind.get(f"{kind} tiles") or by_kind.get(kind, by_kind["f32"])


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of an operation in a step: what it had to do, and how long it took."""

    name: str
    """The operation and its shape, for example `linear 576 > 960 Q4_1`."""
    duration_ns: int
    operations: int = 0
    kind: str = "f32"
    """The arithmetic of nearly all of them."""
    streamed_bytes: int = 0
    """Weights, keys and values: each byte once."""
    passed_bytes: int = 0
    """Activations read and written."""


class Bound(StrEnum):
    COMPUTE = "compute"
    STREAM = "stream"
    PASS = "pass"
    CALL = "call"
    """The roof is so quick that calling the kernel, and waking threads for it, takes most of the time."""


CALL_BOUND_SHARE = 0.1
CALL_BOUND_NS = 20_000
"""A call that is shorter than this, and reaches less than that share of its roof, is bound by being called."""


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """All calls of one kernel in a step, under the ceilings."""

    name: str
    num_calls: int
    """In a step."""
    kind: str
    step_ns: float
    """Of all its calls in one step; the median over the steps."""
    operations: int
    streamed_bytes: int
    passed_bytes: int
    roof_ns: float
    """What the ceilings allow at best."""
    bound: Bound
    level: str
    """Where the streamed bytes, or where there are none the passed ones, come from."""

    @property
    def operations_per_s(self) -> float:
        return self.operations / self.step_ns * 1e9

    @property
    def bytes_per_s(self) -> float:
        return (self.streamed_bytes + self.passed_bytes) / self.step_ns * 1e9

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / max(1, self.streamed_bytes + self.passed_bytes)

    @property
    def share_of_roof(self) -> float:
        return self.roof_ns / self.step_ns


@dataclass(frozen=True, slots=True)
class PlacedPhase:
    """One kind of step: its kernels, the slowest first, and what was not in any of them."""

    name: str
    num_tokens: int
    """Rows of a step."""
    step_ns: float
    """The whole step, from plan to result; the median."""
    kernels: tuple[PlacedKernel, ...]

    @property
    def kernels_ns(self) -> float:
        return sum(kernel.step_ns for kernel in self.kernels)

    @property
    def outside_ns(self) -> float:
        """Python around the calls, sampling, and the measuring itself."""
        return max(0.0, self.step_ns - self.kernels_ns)

    @property
    def roof_ns(self) -> float:
        return sum(kernel.roof_ns for kernel in self.kernels)


@dataclass(slots=True)
class MeasuredPhase:
    """What was measured of one kind of step: each step's calls, and how long it took as a whole."""

    name: str
    num_tokens: int
    steps: list[list[KernelCall]] = field(default_factory=list)
    durations_ns: list[int] = field(default_factory=list)


def place(phase: MeasuredPhase, ceilings: Ceilings, *, resident_bytes: int) -> PlacedPhase:
    """`resident_bytes`: what a step streams in all. What does not fit in a cache comes from memory, step after step.

    >>> levels = (MemoryLevel("L1", 1_000, 1e9, 2e9), MemoryLevel("DRAM", 0, 1e8, 1e8))
    >>> ceilings = Ceilings(2, levels, (OperationPeak("f32", "fma", 1e9, 2e9),))
    >>> step = [KernelCall("linear", 400_000, operations=20_000, streamed_bytes=10_000, passed_bytes=100)]
    >>> kernel = place(MeasuredPhase("decode", 1, [step], [500_000]), ceilings, resident_bytes=10_000).kernels[0]
    >>> kernel.bound.value, kernel.level, round(kernel.share_of_roof, 3)
    ('stream', 'DRAM', 0.25)
    """
    assert phase.steps, "a phase without a step"
    names = dict.fromkeys(call.name for step in phase.steps for call in step)
    home = ceilings.level_of(resident_bytes)
    kernels = [_place(name, phase.steps, ceilings, home) for name in names]
    kernels.sort(key=lambda kernel: -kernel.step_ns)
    return PlacedPhase(phase.name, phase.num_tokens, median(phase.durations_ns), tuple(kernels))


def _place(name: str, steps: Sequence[Sequence[KernelCall]], ceilings: Ceilings, home: MemoryLevel) -> PlacedKernel:
    by_step = [[call for call in step if call.name == name] for step in steps]
    calls = max(by_step, key=len)
    step_ns = max(1.0, median(float(sum(call.duration_ns for call in step)) for step in by_step))
    peak = ceilings.peak_of(calls[0].kind)
    limits: dict[Bound, float] = dict.fromkeys((Bound.COMPUTE, Bound.STREAM, Bound.PASS), 0.0)
    near = ceilings.level_of(max(call.passed_bytes for call in calls))
    for call in calls:
        limits[Bound.COMPUTE] += call.operations / peak.all_threads * 1e9
        limits[Bound.STREAM] += call.streamed_bytes / home.all_threads * 1e9
        limits[Bound.PASS] += call.passed_bytes / near.all_threads * 1e9
    bound = max(limits, key=lambda limit: limits[limit])
    roof_ns = limits[bound]
    streamed = sum(call.streamed_bytes for call in calls)
    level = home if streamed else near
    if step_ns / len(calls) < CALL_BOUND_NS and roof_ns < CALL_BOUND_SHARE * step_ns:
        bound = Bound.CALL
    return PlacedKernel(
        name=name,
        num_calls=len(calls),
        kind=peak.kind,
        step_ns=step_ns,
        operations=sum(call.operations for call in calls),
        streamed_bytes=streamed,
        passed_bytes=sum(call.passed_bytes for call in calls),
        roof_ns=roof_ns,
        bound=bound,
        level=level.name,
    )


def result_of(ceilings: Ceilings, phases: Sequence[PlacedPhase], facts: Mapping[str, object]) -> dict[str, object]:
    """For a result file: plain numbers, in SI units."""
    return {
        **facts,
        "num_threads": ceilings.num_threads,
        "ceilings": {
            "bytes_per_s": {
                level.name: {"one_thread": level.one_thread, "all_threads": level.all_threads} for level in ceilings.levels
            },
            "operations_per_s": {
                peak.kind: {
                    "instruction": peak.instruction,
                    "one_thread": peak.one_thread,
                    "all_threads": peak.all_threads,
                }
                for peak in ceilings.peaks
            },
        },
        "phases": [_phase_result(phase) for phase in phases],
    }


def _phase_result(phase: PlacedPhase) -> dict[str, object]:
    return {
        "name": phase.name,
        "num_tokens": phase.num_tokens,
        "step_s": phase.step_ns / 1e9,
        "outside_kernels_s": phase.outside_ns / 1e9,
        "roof_s": phase.roof_ns / 1e9,
        "kernels": [
            {
                "name": kernel.name,
                "num_calls": kernel.num_calls,
                "step_s": kernel.step_ns / 1e9,
                "operations": kernel.operations,
                "kind": kernel.kind,
                "streamed_bytes": kernel.streamed_bytes,
                "passed_bytes": kernel.passed_bytes,
                "operations_per_s": kernel.operations_per_s,
                "bytes_per_s": kernel.bytes_per_s,
                "bound": kernel.bound.value,
                "level": kernel.level,
                "share_of_roof": kernel.share_of_roof,
            }
            for kernel in phase.kernels
        ],
    }

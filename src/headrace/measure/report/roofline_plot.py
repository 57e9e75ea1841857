"""The roofline as an SVG file: operations per byte against operations per second, both by powers of ten.

Knows geometry. Does not know how anything was measured.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

from headrace.measure.report.roofline import Ceilings, PlacedKernel, PlacedPhase
from headrace.measure.report.table import figure

_LEAST_WIDTH, _HEIGHT = 900, 560
_NUM_NAMED = 8
"""Kernels of a phase that have a number in the plot and a name under it: the slowest."""
_COLUMN, _LINE = 275, 17
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 24, 92, 52
_COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_SHOWN_SHARE = 0.005
"""Of its step: a kernel that takes less is left out."""

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2937; } .dim { fill: #6b7280; }
.title { font-size: 15px; font-weight: 600; } .number { font-size: 10px; fill: #fff; text-anchor: middle; }
.grid { stroke: #e5e7eb; } .roof { stroke: #374151; stroke-width: 1.5; fill: none; } .far { stroke-dasharray: 5 4; }
.page { fill: #fff; } circle { stroke: #fff; stroke-width: 1; fill-opacity: .85; }
@media (prefers-color-scheme: dark) { text { fill: #e5e7eb; } .dim { fill: #9ca3af; } .page { fill: #111827; }
.grid { stroke: #1f2937; } .roof { stroke: #d1d5db; } circle { stroke: #111827; } }
"""


class _Plane:
    """Both axes go by powers of ten."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], width: float) -> None:
        self.low_x, self.high_x = x
        self.low_y, self.high_y = y
        self.right = width - _RIGHT

    def x(self, value: float) -> float:
        share = math.log10(max(value, self.low_x) / self.low_x) / math.log10(self.high_x / self.low_x)
        return _LEFT + share * (self.right - _LEFT)

    def y(self, value: float) -> float:
        share = math.log10(max(value, self.low_y) / self.low_y) / math.log10(self.high_y / self.low_y)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def roofline_svg(title: str, ceilings: Ceilings, phases: Sequence[PlacedPhase]) -> str:
    """A whole file, as wide as its phases need. A circle's area is its kernel's share of its step."""
    width, height = max(_LEAST_WIDTH, _LEFT + len(phases) * _COLUMN), _HEIGHT + (_NUM_NAMED + 1) * _LINE
    plane = _plane(ceilings, phases, width)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" width="{width}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="26">{escape(title)}</text>',
        *_grid(plane),
        *_roofs(ceilings, plane),
    ]
    for index, phase in enumerate(phases):
        color = _COLORS[index % len(_COLORS)]
        x = _LEFT + index * _COLUMN
        parts.append(f'<circle cx="{x + 6}" cy="46" r="6" fill="{color}"/>')
        parts.append(f'<text x="{x + 18}" y="50">{escape(phase.name)}</text>')
        for number, kernel in enumerate(_shown(phase), 1):
            name = str(number) if number <= _NUM_NAMED else ""
            parts += _kernel(kernel, phase, color, plane, name)
            if name:
                words = f"{number} {kernel.name}: {kernel.share_of_roof:.0%}"
                parts.append(f'<text x="{x}" y="{_HEIGHT + number * _LINE}" style="fill: {color}">{escape(words)}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def _shown(phase: PlacedPhase) -> list[PlacedKernel]:
    return [k for k in phase.kernels if k.operations and k.step_ns >= _SHOWN_SHARE * phase.step_ns]


def _plane(ceilings: Ceilings, phases: Sequence[PlacedPhase], width: float) -> _Plane:
    """Whole powers of ten around everything that is shown."""
    kernels = [kernel for phase in phases for kernel in _shown(phase)]
    intensities = [kernel.intensity for kernel in kernels] or [1.0]
    rates = [kernel.operations_per_s / 1e9 for kernel in kernels] or [1.0]
    top = max(peak.all_threads for peak in ceilings.peaks) / 1e9
    return _Plane(_powers(min(intensities), max(intensities)), _powers(min(rates), max(top, *rates)), width)


def _powers(low: float, high: float) -> tuple[float, float]:
    """The powers of ten around two numbers, at least one power apart.

    >>> _powers(0.3, 42.0), _powers(1.0, 1.0)
    ((0.1, 100.0), (1.0, 10.0))
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return 10.0**first, 10.0 ** max(last, first + 1)


def _grid(plane: _Plane) -> Iterator[str]:
    for exponent in range(round(math.log10(plane.low_x)), round(math.log10(plane.high_x)) + 1):
        x = plane.x(10.0**exponent)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        yield f'<text class="dim" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{10.0**exponent:g}</text>'
    for exponent in range(round(math.log10(plane.low_y)), round(math.log10(plane.high_y)) + 1):
        y = plane.y(10.0**exponent)
        yield f'<line class="grid" x1="{_LEFT}" x2="{plane.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="dim" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**exponent:g}</text>'
    middle = (_LEFT + plane.right) / 2
    words = "operations per byte read and written; below, each with its share of its roof"
    yield f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">{words}</text>'
    yield f'<text x="{_LEFT}" y="{_TOP - 12}">Gop/s</text>'


def _roofs(ceilings: Ceilings, plane: _Plane) -> Iterator[str]:
    """A slope for each level of memory, up to the highest peak; a flat line for each peak."""
    top = max(peak.all_threads for peak in ceilings.peaks) / 1e9
    for index, level in enumerate(ceilings.levels):
        rate = level.all_threads / 1e9
        start = max(plane.low_x, plane.low_y / rate)
        end = min(top / rate, plane.high_x)
        if start >= end:
            continue
        far = " far" if index < len(ceilings.levels) - 1 else ""
        yield (
            f'<line class="roof{far}" x1="{plane.x(start):.1f}" y1="{plane.y(start * rate):.1f}" '
            f'x2="{plane.x(end):.1f}" y2="{plane.y(end * rate):.1f}"/>'
        )
        yield (
            f'<text class="dim" x="{plane.x(start) + 6:.1f}" y="{plane.y(start * rate) - 6:.1f}">'
            f"{level.name} {figure(rate)} GB/s</text>"
        )
    slowest = ceilings.levels[-1].all_threads
    for peak in ceilings.peaks:
        y, start = plane.y(peak.all_threads / 1e9), plane.x(min(peak.all_threads / slowest, plane.high_x))
        nearest = plane.x(min(peak.all_threads / ceilings.levels[0].all_threads, plane.high_x))
        yield f'<line class="roof" x1="{min(start, nearest):.1f}" x2="{plane.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        words = f"{peak.kind} {figure(peak.all_threads / 1e9)} Gop/s ({peak.instruction})"
        yield f'<text class="dim" x="{plane.right}" y="{y - 5:.1f}" text-anchor="end">{escape(words)}</text>'


def _kernel(kernel: PlacedKernel, phase: PlacedPhase, color: str, plane: _Plane, number: str) -> Iterator[str]:
    share = kernel.step_ns / max(phase.step_ns, 1.0)
    x, y = plane.x(kernel.intensity), plane.y(kernel.operations_per_s / 1e9)
    radius = 6 + 14 * math.sqrt(min(share, 1.0))
    words = (
        f"{kernel.name}: {figure(kernel.operations_per_s / 1e9)} Gop/s, {figure(kernel.bytes_per_s / 1e9)} GB/s, "
        f"{share:.0%} of its step, {kernel.share_of_roof:.0%} of its roof ({kernel.bound.value})"
    )
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{color}"><title>{escape(words)}</title></circle>'
    yield f'<text class="number" x="{x:.1f}" y="{y + 3.5:.1f}">{number}</text>'

"""Plots as SVG: lines, points and marks on two axes. Knows geometry and ticks; not what is plotted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from headrace.measure.report.table import figure

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 12, 34
_NUM_COLORS = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[Point]
    is_scatter: bool = False
    has_points: bool = False


@dataclass(frozen=True, slots=True)
class Marks:
    """Moments on the x axis."""

    name: str
    places: Sequence[float] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    is_log: bool
    start: float
    """In pixels."""
    end: float

    def place(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.is_log else value
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(exponents) <= 4 else (1,)
            return [s * 10.0**e for e in exponents for s in steps if self.low <= s * 10.0**e <= self.high * 1.0001]
        step = _nice_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def plot(
    lines: Sequence[Line],
    *,
    x_name: str,
    y_name: str,
    log_x: bool = False,
    y_top: float | None = None,
    marks: Marks | None = None,
) -> str:
    """The y axis begins at 0, always: a cut axis makes small differences look large."""
    xs = [x for line in lines for x, _ in line.points if not log_x or x > 0]
    ys = [y for line in lines for _, y in line.points]
    if not xs:
        return "<p>nothing to show</p>"
    x_axis = _x_axis(xs, log_x)
    y_axis = _Axis(0.0, y_top or max(max(ys) * 1.08, 1e-9), False, _HEIGHT - _BOTTOM, _TOP)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    parts += _grid(x_axis, y_axis, x_name, y_name)
    if marks is not None:
        parts += [_mark(x_axis.place(at), marks.name, at) for at in marks.places]
    for index, line in enumerate(lines):
        color = f"var(--c{index % _NUM_COLORS})"
        placed = [(x_axis.place(x), y_axis.place(y)) for x, y in line.points]
        if not line.is_scatter:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(
                f'<polyline class="line" points="{path}" stroke="{color}"><title>{escape(line.name)}</title></polyline>'
            )
        if line.is_scatter or line.has_points:
            radius = 1.7 if line.is_scatter else 3.5
            for (x, y), (px, py) in zip(line.points, placed, strict=True):
                title = escape(f"{line.name}: {figure(y)} at {figure(x)} {x_name}")
                parts.append(
                    f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{radius}" fill="{color}"><title>{title}</title></circle>'
                )
    return _legend(lines) + "".join(parts) + "</svg>"


def _x_axis(xs: Sequence[float], is_log: bool) -> _Axis:
    low, high = (min(xs), max(xs)) if is_log else (min(0.0, *xs), max(xs))
    if is_log:
        low, high = low * 0.9, high * 1.1
        if high / low < 4:  # too narrow for ticks at 1, 2 and 5
            low, high = low / 2, high * 2
    elif high == low:
        high = low + 1
    return _Axis(low, high, is_log, _LEFT, _WIDTH - _RIGHT)


def _grid(x_axis: _Axis, y_axis: _Axis, x_name: str, y_name: str) -> list[str]:
    parts = []
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    for value in x_axis.ticks():
        x = x_axis.place(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        if x < _WIDTH - _RIGHT - 30:  # there the axis has its name
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_tick(value)}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="end">{escape(x_name)}</text>')
    parts.append(f'<text x="{_LEFT - 46}" y="{_TOP}">{escape(y_name)}</text>' if y_name and y_name != "share" else "")
    return parts


def _mark(x: float, name: str, at: float) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_TOP + 9}" stroke="var(--alarm)" stroke-width="2">'
        f"<title>{escape(name)}: {figure(at)} s</title></line>"
    )


def _legend(lines: Sequence[Line]) -> str:
    """Above the plot, so that it covers nothing; only where there is something to tell apart."""
    if len(lines) < 2:
        return ""
    entries = (
        f'<span><i style="background:var(--c{index % _NUM_COLORS})"></i>{escape(line.name)}</span>'
        for index, line in enumerate(lines)
    )
    return f'<div class="legend">{"".join(entries)}</div>'


def _nice_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least as large.

    >>> _nice_step(0.7), _nice_step(130.0)
    (1.0, 200.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.9999)


def _tick(value: float) -> str:
    """Short: 2k for 2000.

    >>> _tick(2000.0), _tick(0.5), _tick(15.0)
    ('2k', '0.5', '15')
    """
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{round(value, 6):g}"

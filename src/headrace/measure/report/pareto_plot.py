"""Throughput per GPU against interactivity as an SVG file: what is rehearsed as points, the frontier as a line.

Knows geometry. Does not know what the points are, but for their names.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 24, 64, 56
_LINE = 16
"""From one line of a label to the next."""
_LETTER = 7.2
"""The widest that one of a name's letters is on average."""
_COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_NUM_TICKS = 5

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2937; } .dim { fill: #6b7280; }
.title { font-size: 15px; font-weight: 600; }
.grid { stroke: #e5e7eb; } .frontier { stroke: #374151; stroke-width: 1.5; fill: none; } .page { fill: #fff; }
.chosen { fill: none; stroke: #dc2626; stroke-width: 2; } .label { paint-order: stroke; stroke: #fff; stroke-width: 4; }
@media (prefers-color-scheme: dark) { text { fill: #e5e7eb; } .dim { fill: #9ca3af; } .page { fill: #111827; }
.label { stroke: #111827; } .grid { stroke: #1f2937; } .frontier { stroke: #d1d5db; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    x: float
    """Tokens per second of one user."""
    y: float
    """Tokens per second of one GPU."""
    label: str
    """Shown when it is pointed at; beside the chosen point always, in as many lines as it has."""
    series: str
    is_square: bool = False
    """In place of a circle: what is disaggregated."""
    is_on_frontier: bool = False
    is_chosen: bool = False


def pareto_svg(title: str, points: Sequence[ParetoPoint]) -> str:
    """A whole file. Points of one series share a colour; the chosen one has a ring."""
    series = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(sorted({p.series for p in points}))}
    legend, top = _legend(series, any(point.is_square for point in points))
    widest, highest = (_round_end(max((getattr(point, axis) for point in points), default=1.0)) for axis in "xy")

    def place(point: ParetoPoint) -> tuple[float, float]:
        x = _LEFT + point.x / widest * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - point.y / highest * (_HEIGHT - top - _BOTTOM)

    frontier = sorted(place(point) for point in points if point.is_on_frontier)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" width="{_WIDTH}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="26">{escape(title)}</text>',
        *legend,
        *_axes(widest, highest, top),
        f'<polyline class="frontier" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in frontier)}"/>',
    ]
    for point in sorted(points, key=lambda point: point.is_chosen):  # its words lie above all others
        x, y = place(point)
        parts.append(_mark(x, y, point, series[point.series]))
        if point.is_chosen:
            parts.append(f'<circle class="chosen" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
            side, anchor = (13, "start") if x < _WIDTH / 2 else (-13, "end")
            lines = point.label.splitlines()
            first = min(y + 4, _HEIGHT - _BOTTOM - 4 - _LINE * (len(lines) - 1))  # above the axis' own numbers
            for number, line in enumerate(lines):
                at = f'x="{x + side:.1f}" y="{first + _LINE * number:.1f}"'
                parts.append(f'<text class="label" {at} text-anchor="{anchor}">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _legend(series: Mapping[str, str], has_squares: bool) -> tuple[list[str], float]:
    """What colours and forms mean, in as many lines as that takes; and where the plot may begin below it."""
    entries: list[tuple[str, str | None]] = [*series.items()]
    if has_squares:
        entries.append(("circles aggregated, squares disaggregated", None))
    parts, x, y = [], float(_LEFT), float(_TOP - 15)
    for name, color in entries:
        width = _LETTER * len(name) + (15 if color else 0)
        if x > _LEFT and x + width > _WIDTH - _RIGHT:
            x, y = float(_LEFT), y + _LINE
        if color:
            parts.append(f'<circle cx="{x + 5:.0f}" cy="{y - 4:.0f}" r="5" fill="{color}"/>')
            parts.append(f'<text x="{x + 15:.0f}" y="{y:.0f}">{escape(name)}</text>')
        else:
            parts.append(f'<text class="dim" x="{x:.0f}" y="{y:.0f}">{escape(name)}</text>')
        x += width + 15
    return parts, y + 15


def _mark(x: float, y: float, point: ParetoPoint, color: str) -> str:
    paint = f'fill="{color}" fill-opacity=".8"><title>{escape(point.label)}</title>'
    if point.is_square:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {paint}</rect>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {paint}</circle>'


def _round_end(greatest: float) -> float:
    """Where an axis ends, so that a fifth of it is a round number.

    >>> _round_end(111.0), _round_end(4419.0), _round_end(0.0)
    (150.0, 5000.0, 1.0)
    """
    if greatest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(greatest))
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 10) if step * power > greatest)


def _tick(value: float) -> str:
    """Of an axis that begins at 0 and ends at a round number.

    >>> _tick(8.0), _tick(24.0), _tick(0.6000000000000001), _tick(1500.0)
    ('8', '24', '0.6', '1,500')
    """
    return f"{value:,.6g}"


def _axes(widest: float, highest: float, top: float) -> list[str]:
    parts = []
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for tick in range(_NUM_TICKS + 1):
        share = tick / _NUM_TICKS
        x, y = _LEFT + share * (right - _LEFT), bottom - share * (bottom - top)
        parts += [
            f'<line class="grid" x1="{x:.1f}" y1="{top:.0f}" x2="{x:.1f}" y2="{bottom}"/>',
            f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>',
            f'<text class="dim" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_tick(share * widest)}</text>',
            f'<text class="dim" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_tick(share * highest)}</text>',
        ]
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 14}" text-anchor="middle">tokens per second of one user</text>')
    parts.append(
        f'<text transform="translate(18 {(top + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        "tokens per second of one GPU</text>"
    )
    return parts

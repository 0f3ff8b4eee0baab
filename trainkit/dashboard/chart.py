"""Learning curves as one SVG picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 900, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 34
MAX_POINTS = 200
"""Points of one curve; a longer curve is thinned out."""
FARTHEST = 1e300
"""Farthest value from zero in a picture, so that differences of values are finite."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One line of the picture.

    Attributes:
        label: shown when the pointer is over the line.
        points: (x, y).
        stands_out: drawn on top and in a stronger colour.
    """

    label: str
    points: Points
    stands_out: bool = False


def picture(curves: Sequence[Curve], x_name: str, y_name: str) -> str:
    """Return the curves in one frame, or a line of text if there is no point."""
    drawn = [
        Curve(each.label, [(x, _near(y)) for x, y in thinned(each.points)], each.stands_out)
        for each in curves
        if each.points
    ]
    if not drawn:
        return f'<p class="quiet">No report has a finite {escape(y_name)} yet.</p>'
    xs = [x for curve in drawn for x, _ in curve.points]
    ys = [y for curve in drawn for _, y in curve.points]
    across = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = _Axis(min(ys), max(ys), HEIGHT - BOTTOM, TOP)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="learning curves">']
    for value in up.ticks:
        y = up.place(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts += [
        f'<text x="{across.place(value):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{value:g}</text>'
        for value in across.ticks
    ]
    parts += [_line(curve, across, up) for curve in sorted(drawn, key=lambda each: each.stands_out)]
    parts.append(f'<text class="name" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end">')
    parts.append(f'{escape(x_name)}</text><text class="name" x="{LEFT}" y="10">{escape(y_name)}</text></svg>')
    return "".join(parts)


def thinned(points: Points, limit: int = MAX_POINTS) -> Points:
    """Return at most `limit` of the points, spread evenly, the first and the last among them."""
    if len(points) <= limit:
        return points
    step = (len(points) - 1) / (limit - 1)
    return [points[round(place * step)] for place in range(limit)]


def _near(value: float) -> float:
    return min(max(value, -FARTHEST), FARTHEST)


def _line(curve: Curve, across: _Axis, up: _Axis) -> str:
    kind = "best" if curve.stands_out else "one"
    title = f"<title>{escape(curve.label)}</title>"
    if len(curve.points) == 1:
        x, y = curve.points[0]
        at = f'cx="{across.place(x):.1f}" cy="{up.place(y):.1f}"'
        return f'<circle class="dot {kind}" {at} r="3">{title}</circle>'
    path = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in curve.points)
    return f'<polyline class="{kind}" points="{path}">{title}</polyline>'


class _Axis:
    """Axis from `low` to `high` between two edges of the frame."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        largest = max(abs(low), abs(high))
        if high - low <= max(largest * 1e-12, 1e-300):  # equal, up to rounding
            margin = max(0.5, largest * 0.1)
            low, high = low - margin, high + margin
        self._low, self._high, self._start, self._end = low, high, start, end

    def place(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    @property
    def ticks(self) -> list[float]:
        """About five round values on the axis."""
        rough = (self._high - self._low) / 5
        scale = 10.0 ** math.floor(math.log10(rough))
        step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough)
        first = math.ceil(self._low / step)
        count = math.floor(self._high / step) - first + 1
        return [float(f"{(first + place) * step:.12g}") for place in range(count)]

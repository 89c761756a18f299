"""Curves over time as an SVG drawing."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10

from attrs import frozen
from markupsafe import Markup, escape

WIDTH, HEIGHT = 720, 240
#: Margins in pixels, with the numbers of the axes: left, below, and on the other two sides.
LEFT_MARGIN, BOTTOM_MARGIN, MARGIN = 70, 34, 12
TICKS = 5


@frozen
class StepCurve:
    """A curve: its name, and its points in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


def chart(lines: Sequence[StepCurve], x: str, y: str) -> Markup:
    """Draw step curves, whose values hold until the next point.

    `x` and `y` are the titles of the axes. The y axis begins at zero. Empty where no line has a point.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return Markup("")
    far, high = max(p[0] for p in points) or 1.0, max(p[1] for p in points) or 1.0
    across, up = ticks(far), ticks(high)
    right, top = max(far, across[-1]), max(high, up[-1])

    def place(px: float, py: float) -> tuple[float, float]:
        return (
            LEFT_MARGIN + (WIDTH - LEFT_MARGIN - MARGIN) * px / right,
            HEIGHT - BOTTOM_MARGIN - (HEIGHT - BOTTOM_MARGIN - MARGIN) * py / top,
        )

    drawn = [_grid(place(0, value), f"{value:g}", level=True) for value in up]
    drawn += [_grid(place(value, 0), f"{value:g}", level=False) for value in across]
    drawn += [
        Markup('<polyline class="line{}" points="{}"><title>{}</title></polyline>').format(
            number % 6,
            " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(*p) for p in _steps(line, far))),
            line.name,
        )
        for number, line in enumerate(lines)
        if line.points
    ]
    drawn += [
        Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH - MARGIN, HEIGHT - 4, x),
        Markup('<text x="{}" y="{}">{}</text>').format(LEFT_MARGIN + 4, MARGIN + 2, y),
    ]
    return Markup('<svg viewBox="0 0 {} {}" class="chart" role="img">{}</svg>').format(
        WIDTH, HEIGHT, Markup("").join(drawn)
    )


def ticks(most: float, count: int = TICKS) -> list[float]:
    """Return round numbers from 0 to the first that reaches `most`.

    Their distance is 1, 2 or 5 times a power of ten.
    """
    rough = most / count
    power = 10.0 ** floor(log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * 0.999)
    return [round(n * step, 12) for n in range(ceil(round(most / step, 6)) + 1)]


def _steps(line: StepCurve, end: float) -> list[tuple[float, float]]:
    """Return the corners of a curve whose values hold until the next point, up to `end`."""
    corners = [line.points[0]]
    for px, py in line.points[1:]:
        corners += [(px, corners[-1][1]), (px, py)]
    return [*corners, (end, corners[-1][1])]


def _grid(place: tuple[float, float], label: str, level: bool) -> Markup:
    px, py = place
    end = (WIDTH - MARGIN, py) if level else (px, MARGIN)
    at = (LEFT_MARGIN - 6, py + 4, "end") if level else (px, py + 16, "middle")
    return Markup(
        '<line class="grid" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
    ).format(px, py, *end, *at, escape(label))

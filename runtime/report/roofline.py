"""Roofline of launches: operations a second by operations a byte, in SVG.

A point is a launch with its useful operations and distinct bytes; both axes are logarithmic. The roof is the bandwidth
of the device's memory up to its f32 peak; matrix instructions reach beyond that peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10

from attrs import frozen
from markupsafe import Markup

from ...ir import Target
from .chart import BOTTOM_MARGIN, HEIGHT, LEFT_MARGIN, MARGIN, WIDTH


@frozen
class LaunchPoint:
    """Launch with its work and seconds.

    `limit` is the number of a colour.
    """

    name: str
    operations: float
    nbytes: float
    seconds: float
    limit: int

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.operations / self.nbytes

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds


@frozen
class _Axis:
    """Logarithmic axis between powers of ten, over a range of pixels."""

    low: int
    high: int
    first: float
    last: float

    @classmethod
    def over(cls, values: Sequence[float], first: float, last: float) -> _Axis:
        low, high = floor(log10(min(values))), ceil(log10(max(values)))
        return cls(low, max(high, low + 1), first, last)

    def place(self, value: float) -> float:
        return self.first + (self.last - self.first) * (log10(value) - self.low) / (self.high - self.low)

    def ticks(self) -> Iterator[tuple[float, str]]:
        for power in range(self.low, self.high + 1):
            yield self.place(10.0**power), f"1e{power}"


def roofline(points: Sequence[LaunchPoint], target: Target) -> Markup:
    """Draw launches below the roof of a target.

    Empty where no launch has operations, bytes and a time, or the target no figures.
    """
    drawn = [point for point in points if min(point.operations, point.nbytes, point.seconds) > 0]
    if not drawn or min(target.PERF_peak, target.BW_global) <= 0:
        return Markup("")
    ridge = target.PERF_peak / target.BW_global
    x = _Axis.over([ridge, *(point.intensity for point in drawn)], LEFT_MARGIN, WIDTH - MARGIN)
    y = _Axis.over([target.PERF_peak, *(point.rate for point in drawn)], HEIGHT - BOTTOM_MARGIN, MARGIN)
    parts = [*_grid(x, y), _roof(x, y, target, ridge), *(_mark(x, y, point) for point in drawn)]
    labels = Markup('<text x="{}" y="{}" text-anchor="end">operations a byte</text><text x="{}" y="{}">{}</text>')
    parts.append(labels.format(WIDTH - MARGIN, HEIGHT - 4, LEFT_MARGIN + 4, MARGIN + 10, "operations a second"))
    return Markup('<svg viewBox="0 0 {} {}" class="chart" role="img">{}</svg>').format(
        WIDTH, HEIGHT, Markup("").join(parts)
    )


def _grid(x: _Axis, y: _Axis) -> Iterator[Markup]:
    line = '<line class="grid" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'
    text = '<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
    for place, label in x.ticks():
        yield Markup(line + text).format(place, y.first, place, y.last, place, y.first + 16, "middle", label)
    for place, label in y.ticks():
        yield Markup(line + text).format(x.first, place, x.last, place, x.first - 6, place + 4, "end", label)


def _roof(x: _Axis, y: _Axis, target: Target, ridge: float) -> Markup:
    """Return the line of the bandwidth up to the ridge, and of the peak after it."""
    begin = max(10.0**x.low, 10.0**y.low / target.BW_global)
    corners = [(begin, begin * target.BW_global), (ridge, target.PERF_peak), (10.0**x.high, target.PERF_peak)]
    places = " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in corners)
    title = f"{target.BW_global / 1e9:,.0f} GB/s, {target.PERF_peak / 1e12:,.1f} TFLOP/s of f32"
    return Markup('<polyline class="roof" points="{}"><title>{}</title></polyline>').format(places, title)


def _mark(x: _Axis, y: _Axis, point: LaunchPoint) -> Markup:
    title = f"{point.name}: {point.intensity:.3g} operations a byte, {point.rate / 1e9:.4g} GFLOP/s"
    return Markup('<circle class="mark{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>').format(
        point.limit, x.place(point.intensity), y.place(point.rate), title
    )

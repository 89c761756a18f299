"""Curves of regret over kernels as SVG, both axes by logarithms, with bands for intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BELOW = 640, 360, 60, 30, 150, 50
#: Regret in percent at the ends of the axis.
LEAST, MOST = 0.1, 1000.0
COLOURS = ("#1b6ca8", "#999999", "#2e8b57", "#8fbc5a", "#c0392b", "#8e44ad", "#e08e0b", "#444444")
Curves = Mapping[str, Sequence[tuple[float, float, float]]]


def write_curves(path: Path, after: Sequence[int], curves: Curves, title: str) -> None:
    """Write the picture of means and intervals by strategy."""
    path.write_text("\n".join(_picture(after, curves, title)) + "\n", encoding="utf-8")


def _picture(after: Sequence[int], curves: Curves, title: str) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BELOW

    def across(n: float) -> float:
        return LEFT + (log10(n) - log10(after[0])) / (log10(after[-1]) - log10(after[0])) * (right - LEFT)

    def down(value: float) -> float:
        share = (log10(min(max(value, LEAST), MOST)) - log10(LEAST)) / (log10(MOST) - log10(LEAST))
        return bottom - share * (bottom - TOP)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-weight="bold">Regret after so many kernels, {escape(title)}</text>',
    ]
    for value in (0.1, 1.0, 10.0, 100.0, 1000.0):
        y = down(value)
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g} %</text>')
    lines += [f'<text x="{across(n):.1f}" y="{bottom + 18}" text-anchor="middle">{n}</text>' for n in after]
    lines.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">kernels compiled</text>')
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        pairs = list(zip(after, points, strict=True))
        upper = [f"{across(n):.1f},{down(p[2]):.1f}" for n, p in pairs]
        lower = [f"{across(n):.1f},{down(p[1]):.1f}" for n, p in reversed(pairs)]
        middle = " ".join(f"{across(n):.1f},{down(p[0]):.1f}" for n, p in pairs)
        lines.append(f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" fill-opacity="0.12"/>')
        lines.append(f'<polyline points="{middle}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 14 + 18 * number
        lines.append(f'<line x1="{right + 14}" y1="{y - 4}" x2="{right + 34}" y2="{y - 4}" stroke="{colour}" '
                     'stroke-width="2"/>')  # fmt: skip
        lines.append(f'<text x="{right + 40}" y="{y}">{escape(name)}</text>')
    return [*lines, "</svg>"]

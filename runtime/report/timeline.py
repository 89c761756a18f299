"""Timeline of a run: launches as wide as their times."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from markupsafe import Markup

from .chart import ticks

#: Pixels of the drawing, of the bars and of the axis below them.
WIDTH, BAR_HEIGHT, AXIS_HEIGHT = 1000, 28, 18


@frozen
class TimelineBar:
    """Launch of a timeline.

    `link` leads to its description, `limit` is the number of a colour.
    """

    title: str
    link: str
    seconds: float
    limit: int


def timeline(bars: Sequence[TimelineBar]) -> Markup:
    """Draw the launches of a run.

    Empty where they take no time.
    """
    whole = sum(bar.seconds for bar in bars)
    if whole <= 0:
        return Markup("")
    scale, parts, begin = WIDTH / whole, [], 0.0
    for bar in bars:
        box = '<rect class="mark{}" x="{:.2f}" y="0" width="{:.2f}" height="{}"><title>{}</title></rect>'
        drawn = Markup(box).format(bar.limit, begin * scale, bar.seconds * scale, BAR_HEIGHT, bar.title)
        parts.append(Markup('<a href="{}">{}</a>').format(bar.link, drawn))
        begin += bar.seconds
    for value in (tick for tick in ticks(1e6 * whole) if tick <= 1e6 * whole):
        text = '<text x="{:.1f}" y="{}" text-anchor="{}">{:g} us</text>'
        place = 1e-6 * value * scale
        anchor = "start" if value == 0 else "end" if place > WIDTH - 40 else "middle"
        parts.append(Markup(text).format(place, BAR_HEIGHT + 14, anchor, value))
    return Markup('<svg viewBox="0 0 {} {}" class="timeline" role="img">{}</svg>').format(
        WIDTH, BAR_HEIGHT + AXIS_HEIGHT, Markup("").join(parts)
    )

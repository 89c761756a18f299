"""Data flow between launches, as arcs beside a table of launches."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ..plan import Plan

#: Pixels: the height of a row of the table, and the width of the drawing.
ROW, WIDTH = 26, 120
#: Pixels by which an arc reaches further to the left for each doubling of its rows.
_STEP = 14


@frozen
class Arc:
    """Arc from a writing launch to a reader, as an SVG path."""

    writer: int
    reader: int
    path: str


def arcs(plan: Plan) -> Iterator[Arc]:
    """Yield the arcs of a plan, those of a reader together."""
    for reader, writers in enumerate(sources(plan)):
        for writer in writers:
            yield Arc(writer, reader, _path(writer, reader))


def sources(plan: Plan) -> Iterator[list[int]]:
    """Yield for each launch the earlier launches whose results it reads.

    These are the last writers of each of its buffers. Views of a buffer are the buffer; for a buffer written in pieces
    the last writer stands for all.
    """
    written: dict[str, int] = {}
    for number, _ in enumerate(plan.steps):
        group = plan.groups[number] if number < len(plan.groups) else {}
        yield sorted({written[b] for b in _buffers(plan, group.get("inputs")) if b in written})
        written.update(dict.fromkeys(_buffers(plan, group.get("outputs")), number))


def _buffers(plan: Plan, tensors: object) -> Iterator[str]:
    for name in tensors if isinstance(tensors, (list, tuple)) else ():
        yield plan.storages[name].buffer if name in plan.storages else name


def _path(first: int, last: int) -> str:
    """Return an arc whose reach grows with the logarithm of the rows that it spans."""
    top, bottom = (first + 0.5) * ROW, (last + 0.5) * ROW
    reach = min(WIDTH - 8, _STEP * (last - first).bit_length())
    return f"M{WIDTH} {top:g} C{WIDTH - reach * 1.33:g} {top:g} {WIDTH - reach * 1.33:g} {bottom:g} {WIDTH} {bottom:g}"

"""Loads of windows as vectors: what neighbouring outputs share begins anywhere, and is as long as taps and outputs make
it, but most of it lies in whole vectors.

    x[8*t + w - 3] over w < 14     ->     w = 0 .. 2 by itself, 3 .. 6 and 7 .. 10 as vectors, 11 .. 13 by itself
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Load, Var, as_index, substitute, substitute_guards, vector_address, vector_guards, vector_widths


def pieces(load: Load, var: Var, aligned: int) -> Sequence[range]:
    """Return which elements along a variable one access moves each time, where the buffer is aligned to some bytes:
    vectors as long as they are aligned, and in range together.
    """
    widths = [n for n in vector_widths(load.dtype) if aligned % (n * load.dtype.size) == 0]
    found: list[range] = []
    start = 0
    while start < var.extent:
        width = next((n for n in widths if start + n <= var.extent and _moves(load, var, start, n)), 1)
        found.append(range(start, start + width))
        start += width
    return found


def part(load: Load, var: Var, lanes: range) -> tuple[Load, Var]:
    """Return a load over some of its elements along a variable, and the variable that counts these."""
    lane = Var(var.name, len(lanes))
    here = {var: as_index(lane) + lanes.start}
    address, guards = substitute(load.address, here), substitute_guards(load.guards, here)
    return Load(load.space, load.buffer, address, load.dtype, guards, load.fill), lane


def _moves(load: Load, var: Var, start: int, width: int) -> bool:
    """Whether one access may move some elements."""
    found, lane = part(load, var, range(start, start + width))
    return vector_address(found.address, lane) is not None and vector_guards(found.guards, lane) is not None

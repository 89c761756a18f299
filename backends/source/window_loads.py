"""Vector loads of windows that neighbouring outputs share.

A window may begin at any element and have any length, but most of it is in aligned vectors.

    x[8*t + w - 3] over w < 14     ->     w = 0 .. 2 singly, 3 .. 6 and 7 .. 10 as vectors, 11 .. 13 singly
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Load, Var, as_index, substitute, substitute_guards, vector_address, vector_guards, vector_widths


def split_accesses(load: Load, var: Var, aligned: int) -> Sequence[range]:
    """Return the elements of each access along a variable.

    Vectors are as long as the buffer's alignment in bytes allows, and in range together.
    """
    widths = [n for n in vector_widths(load.dtype) if aligned % (n * load.dtype.size) == 0]
    found: list[range] = []
    start = 0
    while start < var.extent:
        width = next((n for n in widths if start + n <= var.extent and _moves(load, var, start, n)), 1)
        found.append(range(start, start + width))
        start += width
    return found


def slice_load(load: Load, var: Var, lanes: range) -> tuple[Load, Var]:
    """Return a load of some elements along a variable, with its variable."""
    lane = Var(var.name, len(lanes))
    here = {var: as_index(lane) + lanes.start}
    address, guards = substitute(load.address, here), substitute_guards(load.guards, here)
    return Load(load.space, load.buffer, address, load.dtype, guards, load.fill), lane


def _moves(load: Load, var: Var, start: int, width: int) -> bool:
    """Return whether one access may move some elements."""
    found, lane = slice_load(load, var, range(start, start + width))
    return vector_address(found.address, lane) is not None and vector_guards(found.guards, lane) is not None

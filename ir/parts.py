"""Which axis of a tensor that one segment leaves to the next may come in parts, one after another.

    h[i, j] = f(sum_c x[i, c] * w[j, c]);   y[i, k] = sum_j h[i, j] * v[j, k]
      ->   for each part of j:  h of that part;   y[i, k] += sum over the part of h[i, j] * v[j, k]

A block then has room for a part of h, not for all of it. That asks nothing of f, and of the sums only that each takes
every element of h that it needs along that one axis, once.
"""

from __future__ import annotations

from functools import lru_cache

from .expr import Read
from .index import Var, as_index
from .segment import FusedGroup, Output, Reduction, Segment
from .walk import reads, variables

#: Elements of an axis between two products from which on tiles come in parts of it, whatever the products are.
LONG_AXIS = 1024


def axis_in_parts(group: FusedGroup) -> int | None:
    """Return the position of the axis of the first of two segments along which the last one adds up whatever it reads
    of that segment; None where there is no such axis, or are not two segments.
    """
    return _axis(group.segments, group.shared) if len(group.segments) == 2 else None


def takes_parts(group: FusedGroup) -> int | None:
    """Return that axis where tiles are to come in parts of it: of several products, or where no tile has all of it."""
    axis = axis_in_parts(group)
    if axis is None or (not sizes_depend(group) and group.segments[0].axes[axis].extent <= LONG_AXIS):
        return None
    return axis


def sizes_depend(group: FusedGroup) -> bool:
    """Whether the sizes of a group's segments have to fit one another: those of few points do."""
    return len(group.segments) > 2 or (len(group.segments) > 1 and any(len(s.reductions) > 1 for s in group.segments))


@lru_cache(maxsize=4096)
def _axis(segments: tuple[Segment, ...], shared: tuple[str, ...]) -> int | None:
    first, last = segments
    written = {o.tensor: o for o in first.outputs}
    if {*written} != {*shared} or any(o.extra or o.guards or o.into for o in first.outputs):
        return None
    own = {r.name for r in last.reductions}
    if not own or any(r.tensor in written for o in last.outputs for r in reads(o.body)):
        return None
    found = {_summed(reduction, written, own, first.axes) for reduction in last.reductions}
    return found.pop() if len(found) == 1 else None


def _summed(reduction: Reduction, written: dict[str, Output], own: set[str], axes: tuple[Var, ...]) -> int | None:
    """Return the axis of the first segment that a reduction of the last one runs along in all that it reads of it."""
    every = reads(reduction.body)
    passed = [r for r in every if r.tensor in written]
    if len(reduction.reduce) != 1 or reduction.along or not passed or any(r.tensor in own for r in every):
        return None
    found = {_along(read, written[read.tensor], reduction.reduce[0], axes) for read in passed}
    return found.pop() if len(found) == 1 else None


def _along(read: Read, output: Output, row: Var, axes: tuple[Var, ...]) -> int | None:
    """Return the axis that a variable takes the elements of, one by one, in a tensor that an output writes."""
    moving = [d for d, index in enumerate(read.indices) if row in variables(index)]
    if len(moving) != 1 or read.guards or read.indices[moving[0]] != as_index(row):
        return None
    place = next((n for n, axis in enumerate(axes) if output.write[moving[0]] == as_index(axis)), None)
    return place if place is not None and axes[place].extent == row.extent > 1 else None

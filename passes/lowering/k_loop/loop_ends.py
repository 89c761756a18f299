"""Ends of K loops by data.

K blocks that add nothing, or to nothing, are left out. Two rules, both exact: a sum that outputs read under a condition
alone is not completed by blocks where the condition fails; and terms whose factors are all 0 from a place of k on end
there.

    y[p, r] = sum_k a[p, r, k] * b[g[p], k] if g[p] < 8 else 0      ->  one K block where g[p] >= 8
    y[g, n] = sum_m (a[m] if m < size[g] else 0) * (b[m, n] if m < size[g] else 0)      ->  K blocks before size[g]

A condition counts where it is the same for all threads of a block, and in a loop without barriers where a thread has
one element of the axes that it depends on. The first K block of a loop with barriers always runs: so a compiler sees
one beginning of asynchronous products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from ....ir import (
    Call,
    Define,
    Expr,
    Guard,
    Index,
    InRange,
    Reduction,
    ReductionSchedule,
    Var,
    as_index,
    clamp,
    delinearise,
    indirects,
    reads,
    substitute,
    variables,
)
from ...geometry import ending_guards
from ..index_values import resolve
from ..layout import AxisBinding
from ..segment_state import SegmentState


def loop_end(state: SegmentState, shared: Sequence[Reduction], schedule: ReductionSchedule, step: Var) -> Var | None:
    """Return the definition before which the K loop of reductions ends.

    None where it takes all K blocks.
    """
    if len(state.group.segments) > 1 or step.extent == 1 or len(schedule.dims) > 1:
        return None
    block_k = schedule.dims[0].block_k
    found = [{*_unused_ends(state, r, step.extent), *_zero_ends(r, block_k)} for r in shared]
    common = sorted(set.intersection(*found), key=lambda index: index.text)
    free = schedule.is_direct
    least = 0 if free else 1
    ends = [clamp(end, least, step.extent) for index in common if (end := _loop_index(state, index, free)) is not None]
    if not ends:
        return None
    until = Var(f"{step.name}end", step.extent + 1)
    state.layout.defines.append(Define(until, reduce(_minimum, ends)))
    return until


def _minimum(a: Index, b: Index) -> Index:
    """Return the lesser of two indices."""
    return b + clamp(a - b, (a - b).bounds()[0], 0)


def _unused_ends(state: SegmentState, reduction: Reduction, trips: int) -> Iterator[Index]:
    """Yield the end that each condition gives under which alone the sum is read."""
    common: set[Guard] | None = None
    others = (r.body for r in state.frame.segment.reductions if r is not reduction)
    for body in (*others, *(o.body for o in state.frame.segment.outputs)):
        asked = _conditions(body, reduction.name)
        common = asked if common is None else common if asked is None else common & (asked or set())
    for guard in sorted(common or (), key=lambda guard: guard.text):
        if indirects(guard.index) and guard.index.bounds()[0] >= guard.low:
            yield clamp(as_index(guard.high) - guard.index, 0, 1) * trips


def _conditions(body: Expr, name: str) -> set[Guard] | None:
    """Return the conditions under which an expression reads a sum, None where it never does."""
    if all(read.tensor != name for read in reads(body)):
        return None
    if isinstance(body, Call) and body.fn == "select":
        condition, value, other = body.args
        if isinstance(condition, InRange) and all(read.tensor != name for read in reads(other)):
            return {*condition.guards, *(_conditions(value, name) or ())}
    return set()


def _zero_ends(reduction: Reduction, block_k: int) -> Iterator[Index]:
    """Yield the end that each condition gives without which all factors are 0."""
    for guard in ending_guards(reduction):
        (axis,) = (axis for axis in reduction.reduce if axis.extent > 1)
        yield (as_index(guard.high + block_k - 1) - (guard.index - axis)) // block_k


def _loop_index(state: SegmentState, index: Index, free: bool) -> Index | None:
    """Return an index in block coordinates, None where it differs within a block.

    In a loop that is `free` of barriers, the index of a thread's only element along a dim serves too.
    """
    places: dict[Var, Index] = {}
    frame = state.frame
    for dim, start, share in zip(frame.schedule.dims, frame.starts, frame.shares, strict=True):
        if dim.block == 1 or dim.extent == 1:
            flat = start
        elif free and dim.thread == 1:
            flat = clamp(start + share.value, 0, dim.extent - 1)
        else:
            continue
        places.update(zip(dim.axes, delinearise(flat, [a.extent for a in dim.axes]), strict=True))
    if not variables(index) <= {*places}:
        return None
    return resolve(substitute(index, places), state.context(AxisBinding({}, (), (), {}), {}))

"""Mask-block skipping: the loop over row blocks ends at the mask bound.

    z[i, j] = s[i, j] if j - i <= offset else -inf;   m = max_j z;   t = sum_j exp(z - m);   y = sum_j exp(z - m) * v[j]
      ->  a block of rows i0 .. i1 takes the parts that begin at j <= i1 + offset

Where scores are -inf, the maximum of a row does not change, and the exponentials are 0, also for fully masked rows
(`streamed_rows.py`). The other factors of skipped parts are not read: an infinity or NaN in them reaches no result.

The bound is an index of the block number, and of integers in memory, the same for all threads of a block. Blocks with
most work begin first.
`geometry/mask_bounds.py` finds mask bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ....ir import ZERO, Define, Guard, Index, Item, Phase, Var, as_index, clamp, delinearise
from ...geometry import TileChain, mask_bound, tile_bounds
from ..index_values import resolve
from ..k_loop import guard_fetch
from ..layout import BlockLayout
from ..segment_state import SegmentState


def streamed_loop_end(layout: BlockLayout, last: SegmentState, before: int = 0) -> Var | None:
    """Return the variable that bounds the loop over parts.

    The loop begins after the parts that are taken `before` it. None where every block takes all of them.
    """
    edge, part = mask_bound(layout.group), layout.part
    dims = last.frame.schedule.dims
    place = next((d for d, dim in enumerate(dims) if edge and dim.axes == (edge.row,)), None)
    if edge is None or part is None or (place is None and edge.slope):
        return None
    length = layout.part_length
    rows = (last.frame.starts[place], dims[place].block) if place is not None else (ZERO, 1)
    context = last.context(last.bind((), (), ()), {})
    end = clamp(resolve(edge.end_of_rows(*rows), context), before, part.extent * length)
    parts = (end + (length - 1)) // length - before
    if parts == as_index(part.extent - before):
        return None
    until = Var("parts", part.extent + 1 - before)
    if edge.slope > 0 and place is not None:
        _longest_first(layout, place)
    layout.defines.append(Define(until, parts))
    return until


def masked_parts(layout: BlockLayout, chain: TileChain, last: SegmentState) -> tuple[Var | None, bool]:
    """Return the variable that bounds the parts of a chain.

    It is at least 1: products of a loop that may have no iteration are serialised. The second result is true where the
    last parts come first, as the mask leaves out the first ones.
    """
    part, length, place = layout.part, layout.part_length, chain.rows[1]
    rows = last.frame.schedule.dims[place].block
    for edge in tile_bounds(layout.group.segments, chain.column, chain.rows) if part is not None else ():
        assert part is not None, "a loop over parts"
        start = last.frame.starts[place]
        if edge.begins:
            begin = clamp(edge.begin_of_rows(start, rows), 0, part.extent * length - 1)
            parts = as_index(part.extent) - begin // length
        else:
            end = resolve(edge.end_of_rows(start, rows), last.context(last.bind((), (), ()), {}))
            parts = (clamp(end, 1, part.extent * length) + (length - 1)) // length
        if parts == as_index(part.extent):
            continue
        until = Var("parts", part.extent + 1)
        _longest_first(layout, place, (edge.slope > 0) == edge.begins)
        layout.defines.append(Define(until, parts))
        return until, edge.begins
    return None, False


def guard_copies(items: Sequence[Item], at: Index, until: Var | None) -> list[Item]:
    """Return the copies of a part, guarded by the loop's end."""
    if until is None:
        return [*items]
    exists = Guard(as_index(until) - at - 1, 0, until.extent)
    return [guard_fetch(item, exists) if isinstance(item, Phase) else item for item in items]


def _longest_first(layout: BlockLayout, place: int, ascending: bool = False) -> None:
    """Number blocks so that those with the longest rows, the last or the first ones, start first, for balance.

    `place` is the dim of rows. Blocks of the other dims are taken in sections whose tensors lie in L2: else the blocks
    of a wave would read all keys from memory.
    """
    counts, block = [d.blocks for d in layout.schedule.segments[-1].dims], as_index(layout.block)
    names = [Var(f"b{d}", count) for d, count in enumerate(counts)]
    inner, rows, counts[place] = layout.schedule.blocks // counts[place], counts[place], 1
    section = _section(layout, inner)
    other = block // (section * rows) * section + block % section
    values = dict(zip(names, delinearise(other, counts), strict=True))
    number = block // section % rows
    values[names[place]] = number if ascending else as_index(rows - 1) - number
    layout.defines = [evolve(d, value=values.get(d.var, d.value)) for d in layout.defines]


def _section(layout: BlockLayout, count: int) -> int:
    """Return how many of `count` blocks of other dims than the rows read no more than L2 holds."""
    nbytes = sum(layout.group.tensors[t].nbytes for t in layout.group.inputs)
    most = layout.target.l2_bytes * count // nbytes
    return max(n for n in range(1, count + 1) if count % n == 0 and n <= max(most, 1))

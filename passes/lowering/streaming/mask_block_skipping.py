"""Mask-block skipping: loops take the parts within mask bounds.

    z[i, j] = s[i, j] if -w < j - i <= n else -inf;   m = max_j z;   t = sum_j exp(z - m);   y = sum_j exp(z - m) * v[j]
      ->  a block of rows i0 .. i1 takes the parts that begin at j <= i1 + n, and end at j > i0 - w

Where scores are -inf, the maximum of a row does not change, and the exponentials are 0, also for fully masked rows
(`streamed_rows.py`). The other factors of skipped parts are not read: an infinity or NaN in them reaches no result.

The bounds are indices of the block number, and of integers in memory, the same for all threads of a block. Blocks with
most work begin first.
`geometry/mask_bounds.py` finds mask bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from ....ir import PERSISTENT, ZERO, Define, Guard, Index, Item, Phase, Var, as_index, clamp, delinearise, substitute
from ...geometry import ONE_ROW, MaskBound, balanced_section, persistent_blocks
from ..index_values import resolve
from ..k_loop import guard_fetch
from ..layout import BlockLayout
from ..segment_state import SegmentState


@frozen
class TakenParts:
    """Parts that a block takes, from `first` on.

    Places count them from 0, up to the definition `until` where not every block takes all parts.
    """

    part: Var
    first: Index = Index()
    until: Var | None = None

    @property
    def place(self) -> Var:
        """The variable of places: `part` where no part is left out before."""
        return self.part if self.first == Index() else Var("place", self.part.extent)

    def values(self, at: Index) -> dict[Var, Index]:
        """Return the part at a place, and its place."""
        return {self.place: at, self.part: self.first + at}


def taken_parts(
    layout: BlockLayout, last: SegmentState, bounds: Sequence[MaskBound], least: int = 0, before: int = 0
) -> TakenParts:
    """Return the parts within mask bounds.

    Blocks take at `least` so many: products of a loop that may have no iteration are serialised. The loop begins after
    the parts that are taken `before` it.
    """
    part, length, dims, ascending = layout.part, layout.part_length, last.frame.schedule.dims, False
    if part is None:
        return TakenParts(Var("part", 1))
    first, end, found = Index(), as_index(part.extent), list[tuple[int | None, bool]]()
    for bound in bounds:
        place = next((d for d, dim in enumerate(dims) if dim.axes == (bound.row,)), None)
        if (place is None and bound.row != ONE_ROW) or any(begins == bound.begins for _, begins in found):
            continue
        start, rows = (ZERO, 1) if place is None else (last.frame.starts[place], dims[place].block)
        if bound.begins:
            first = clamp(bound.begin_of_rows(start, rows), 0, part.extent * length - 1) // length
        else:
            end = resolve(bound.end_of_rows(start, rows), last.context(last.bind((), (), ()), {}))
            end = (clamp(end, least, part.extent * length) + (length - 1)) // length
        if (first != Index()) if bound.begins else (end != as_index(part.extent)):
            found.append((place, bound.begins))
            ascending = (bound.slope > 0) == bound.begins
    if not found:
        return TakenParts(part)
    if (rows_dim := found[-1][0]) is not None:
        _longest_first(layout, rows_dim, ascending)
    if first != Index():
        begin = Var("begin", part.extent)
        layout.defines.append(Define(begin, first))
        first = as_index(begin)
        end = clamp(end - first, least, part.extent)
    until = Var("parts", part.extent + 1 - before)
    layout.defines.append(Define(until, end - before))
    return TakenParts(part, first, until)


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
    section = _section(layout, inner, rows)
    other = block // (section * rows) * section + block % section
    values = dict(zip(names, delinearise(other, counts), strict=True))
    number = block // section % rows
    values[names[place]] = number if ascending else as_index(rows - 1) - number
    layout.defines = [evolve(d, value=values.get(d.var, d.value)) for d in layout.defines]


def alternate_turns(layout: BlockLayout) -> None:
    """Reverse the tiles of every other turn of a persistent grid.

    Tiles lie in order of their work, so that a block that takes the longest tile of a turn takes the shortest one of
    the next:

        8 7 6 5 4 3 2 1   ->   turn 0: 8 7 6 5;   turn 1: 1 2 3 4
    """
    blocks, launched = layout.schedule.blocks, layout.launched
    if blocks % launched and blocks // launched % 2:
        return  # a turn of few tiles has none to exchange
    at = as_index(layout.block)
    place = at % (2 * launched)
    there = clamp(place, 0, launched - 1) - clamp(place, launched, 2 * launched - 1) + launched
    tile = Var("tile", blocks)
    moved = {layout.block: as_index(tile)}
    layout.defines = [evolve(d, value=substitute(d.value, moved)) for d in layout.defines]
    layout.defines.insert(0, Define(tile, at // launched * launched + there))


def _section(layout: BlockLayout, count: int, rows: int) -> int:
    """Return how many of `count` blocks of other dims than the rows read no more than L2 holds.

    In a persistent grid they fill an even number of turns, where that is possible.
    """
    nbytes, blocks = sum(layout.group.tensors[t].nbytes for t in layout.group.inputs), layout.schedule.blocks
    most, step = max(layout.target.l2_bytes * count // nbytes, 1), 1
    if layout.schedule.segments[-1].reductions[0].tma == PERSISTENT:
        step = balanced_section(rows, persistent_blocks(blocks, layout.target.NUM_SM))
        step = step if count % step == 0 else 1
    return max(n for n in range(step, count + 1, step) if count % n == 0 and n <= max(most, step))

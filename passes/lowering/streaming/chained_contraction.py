"""Chained contraction by parts: a loop over parts around two segments.

    for each part:  the products of the first segment; their tile, to shared memory; its part of the sums of the last

Sums live in registers across iterations. Copies are in flight meanwhile: the first K blocks of a part during the sums
of the part before it, those of the sums during the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ....ir import Barrier, Guard, Index, Item, Loop, Phase, Reduction, Root, Var, as_index
from ..k_loop import guard_fetch, split_prologue
from ..layout import BlockLayout
from ..outputs import emit_outputs
from ..reductions import reduction_loop
from ..segment_state import SegmentState
from ..substitute_phase import substitute_phase


def lower_chained_contraction(
    layout: BlockLayout, states: Sequence[SegmentState], segment: Callable[[SegmentState], None]
) -> list[Item]:
    """Return the items of two segments with a streamed tile.

    `segment` lowers the first segment, which leaves its tile in parts, into its state.
    """
    first, last = states
    part = layout.part
    assert part is not None, "tiles that come in parts"
    segment(first)
    last.staged_elements = dict(first.staged_elements)
    last.shares = {s.var: s for s in last.frame.shares}
    sums = [i for n, r in enumerate(last.frame.segment.reductions) for i in part_loop(last, n, r)]
    ahead, products = _split_prologues(first.items)
    early, sums = _split_prologues(sums)
    following = [part_copies(item, part, {part: as_index(part) + 1}) for item in ahead]
    turn = [*early, *products, Barrier(), *following, *sums, Barrier()]
    begin = [part_copies(item, part, {part: Index()}) for item in ahead]
    items: list[Item] = [instance_phase(last, "begin", map(last.initialise, last.frame.segment.reductions))]
    items += [*begin, Loop(part, tuple(turn))]
    emit_outputs(last, last.frame.segment.outputs)
    return [*items, *last.items]


def _split_prologues(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the prologue copies of several K loops, and the items without them."""
    early: list[Item] = []
    rest: list[Item] = []
    left = list(items)
    while left:
        copies, left = split_prologue(left)
        early += copies
        end = next((n for n, item in enumerate(left) if isinstance(item, Loop)), len(left) - 1)
        rest, left = [*rest, *left[: end + 1]], left[end + 1 :]
    return early, rest


def part_copies(item: Item, part: Var, values: Mapping[Var, Index]) -> Item:
    """Return the copies of a part, guarded by its existence.

    `values` are its number and place.
    """
    exists = Guard(values[part], 0, part.extent)
    return guard_fetch(substitute_phase(item, values), exists) if isinstance(item, Phase) else item


def substitute_parts(items: Iterable[Item], values: Mapping[Var, Index]) -> list[Item]:
    """Return the items of a part.

    Phases whose condition no such part satisfies are left out.
    """
    if all(index == as_index(var) for var, index in values.items()):
        return [*items]
    found = [substitute_phase(item, values) if isinstance(item, Phase) else item for item in items]
    return [i for i in found if not isinstance(i, Phase) or not any(g.index.is_const for g in i.when)]


def part_loop(state: SegmentState, number: int, reduction: Reduction) -> list[Item]:
    """Return the K loop that continues a reduction over a part."""
    prefix = f"{state.frame.prefix}r{number}"
    return reduction_loop(state, [reduction], state.frame.schedule.reductions[number], prefix, state.layout.part_length)


def instance_phase(state: SegmentState, name: str, roots: Iterable[Root]) -> Phase:
    """Return a phase over the instances of a segment."""
    return state.phase("compute", name, tuple(roots), (), {s.var: s for s in state.frame.shares})

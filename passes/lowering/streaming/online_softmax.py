"""Online softmax: process long rows block by block and rescale running sums.

    m = max_j z[j];   t = sum_j exp(z[j] - m);   w[j] = exp(z[j] - m);   y = (sum_j w[j] * v[j]) / t
      ->  for each part:  m' = max(m, max of the part);   c = exp(m - m');   t = t * c + sum of exp(z[j] - m')
                          y = y * c + sum of exp(z[j] - m') * v[j];   m = m'

The rewrite is an algebraic identity: the summand is `h(z, m)` with `h(z, m') = h(z, m) * c(m, m')`, and sums of
products with it scale likewise. The exponential of a difference is the one supported function with such a `c`. As long
as all of a row is -inf, the shift is 0, so that the sums stay 0.

The loop over parts holds all three segments: a part of the contraction's results, its rows, their part of the sums.
Accumulators live in registers across iterations; each row's scale passes through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....ir import Barrier, Index, Item, Loop, as_index
from ...geometry import mask_bounds
from ..k_loop import split_prologue
from ..layout import BlockLayout
from ..outputs import emit_outputs
from ..segment_state import SegmentState
from .chained_contraction import instance_phase, part_copies, part_loop
from .mask_block_skipping import guard_copies, taken_parts
from .streamed_rows import StreamedRows


def lower_online_softmax(
    layout: BlockLayout,
    states: Sequence[SegmentState],
    lower_segment: Callable[[SegmentState], None],
) -> list[Item]:
    """Return the items of three segments with streamed rows.

    The items are the initialisation, the loop over parts and the epilogue. `lower_segment` lowers the first segment
    into its state.
    """
    first, rows, last = states
    part = layout.part
    assert part is not None, "rows that come in parts"
    for state in (rows, last):
        state.shares = {s.var: s for s in state.frame.shares}
    lower_segment(first)
    shift = StreamedRows(layout, rows)
    begin: list[Item] = [instance_phase(rows, "begin", map(rows.initialise, rows.frame.segment.reductions))]
    begin.append(instance_phase(last, "begin", map(last.initialise, last.frame.segment.reductions)))
    last.staged_elements = dict(first.staged_elements)
    sums = [i for n, r in enumerate(last.frame.segment.reductions) for i in part_loop(last, n, r)]
    # While reduction threads work on rows, the first copies of the sums' K loop and of the next part's contraction are
    # in flight.
    ahead, product = split_prologue(first.items)
    until = taken_parts(layout, last, [b for b in mask_bounds(layout.group) if not b.begins]).until
    after = as_index(part) + 1
    following = guard_copies([part_copies(item, part, {part: after}) for item in ahead], after, until)
    early, sums = split_prologue(sums)
    turn = [*product, Barrier(), *following, *early, *shift.items(), Barrier(), shift.rescale(last), *sums, Barrier()]
    copied = guard_copies([part_copies(item, part, {part: Index()}) for item in ahead], Index(), until)
    items = [*begin, *copied, Loop(part, tuple(turn), until)]
    for state in (rows, last):
        state.shares = {s.var: s for s in state.frame.shares}
        emit_outputs(state, [o for o in state.frame.segment.outputs if state is last or not o.extra])
    between = [Barrier()] if rows.items else []
    return [*items, *rows.items, *between, *last.items]

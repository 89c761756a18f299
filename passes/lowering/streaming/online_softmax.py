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

from collections.abc import Callable, Iterable, Sequence
from math import inf

from attrs import evolve, frozen

from ....ir import (
    COMBINERS,
    Accumulate,
    Barrier,
    DType,
    Guard,
    Index,
    Item,
    Literal,
    Load,
    Loop,
    Op,
    Phase,
    Reduction,
    RegisterRead,
    Root,
    Store,
    Test,
    Value,
    Var,
    as_index,
    linearise,
    reads,
    row_major,
    substitute,
    walk,
)
from ...geometry import axis_places, is_row_maximum
from ..index_values import value_of
from ..k_loop import split_prologue
from ..layout import SCALES, BlockLayout
from ..outputs import emit_output, shared_store
from ..segment_state import SegmentState, row_share
from .chained_contraction import instance_phase, part_copies, part_loop
from .mask_block_skipping import guard_copies, skipped_terms, streamed_loop_end

# ---- lowering


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
    shift = _Rows(layout, rows)
    begin: list[Item] = [instance_phase(rows, "begin", map(rows.initialise, rows.frame.segment.reductions))]
    begin.append(instance_phase(last, "begin", map(last.initialise, last.frame.segment.reductions)))
    last.staged_elements = dict(first.staged_elements)
    sums = [i for n, r in enumerate(last.frame.segment.reductions) for i in part_loop(last, n, r)]
    # While reduction threads work on rows, the first copies of the sums' K loop and of the next part's contraction are
    # in flight.
    ahead, product = split_prologue(first.items)
    until = streamed_loop_end(layout, last)
    following = guard_copies([part_copies(item, part, as_index(part) + 1) for item in ahead], as_index(part) + 1, until)
    early, sums = split_prologue(sums)
    turn = [*product, Barrier(), *following, *early, *shift.items(), Barrier(), shift.rescale(last), *sums, Barrier()]
    copied = guard_copies([part_copies(item, part, Index()) for item in ahead], Index(), until)
    items = [*begin, *copied, Loop(part, tuple(turn), until)]
    if until is not None:
        items += skipped_terms(last, until)
    for state in (rows, last):
        state.shares = {s.var: s for s in state.frame.shares}
        for number, output in enumerate(state.frame.segment.outputs):
            if state is last or not output.extra:
                emit_output(state, output, f"out{number}")
        state.flush("exit")
    between = [Barrier()] if rows.items else []
    return [*items, *rows.items, *between, *last.items]


@frozen
class _Rows:
    """The rows' segment of an online softmax. Besides its reductions, each row has registers for the previous maximum,
    the shift of a part, the scale of the running sums, and the part's own reduction.
    """

    layout: BlockLayout
    state: SegmentState

    def items(self) -> list[Item]:
        """Return the items that process the rows of a part."""
        state = self.state
        greatest, *others = state.frame.segment.reductions
        (dim,) = state.frame.schedule.reductions[0].dims
        local = Var(f"{state.frame.prefix}w", dim.block_k)
        share, unrolled = row_share(state.frame, local)
        assert self.layout.part is not None
        binding = state.bind((dim,), (local,), (as_index(self.layout.part) * dim.block_k,))
        valid = tuple(g for v, g in binding.valid.items() if v == local)
        row, shares = (
            tuple(v for v in unrolled if v.extent > 1),
            {s.var: s for s in state.frame.shares} | {local: share},
        )
        dtype = self._dtype(greatest)
        most = self._value(greatest)
        before, shift, scale = (self._value(greatest, what) for what in ("before", "shift", "scale"))
        context = state.context(binding, {})
        nothing = Op("eq", (most, Literal(-inf, dtype)), DType.BOOL)
        finite = Op("select", (nothing, Literal(0.0, dtype), most), dtype)
        wide = [o for o in state.frame.segment.outputs if o.extra]
        bodies = (*(r.body for r in others), *(o.body for o in wide))
        shifts = {n: shift for body in bodies for n in walk(body) if is_row_maximum(n, greatest.name)}
        shifted = evolve(context, staged={**context.staged, **shifts})
        found: list[Item] = [
            self._phase("before", self._set(greatest, "before", most)),
            state.phase("compute", f"{state.frame.prefix}greatest",
                        self._part(greatest, value_of(greatest.body, context), local, valid), row, shares),
            self._phase("most", [self._add(greatest, self._value(greatest, "part"))]),
            self._phase("shift", self._set(greatest, "shift", finite)),
            self._phase("scale", self._set(greatest, "scale", Op("exp", (Op("sub", (before, shift), dtype),), dtype))),
        ]  # fmt: skip
        roots = [r for other in others for r in self._part(other, value_of(other.body, shifted), local, valid)]
        roots += [shared_store(state, o, binding, (), value_of(o.body, shifted)) for o in wide]
        found.append(state.phase("exit", "rows", tuple(roots), row, shares))
        lane = Guard(as_index(state.frame.lane), 0, 1)
        store = Store("shared", SCALES, self._place(state), scale, dtype, () if lane.always else (lane,))
        found.append(self._phase("scaled", [store]))
        for other in others:
            found.append(self._phase(f"again{other.name}", [evolve(self._add(other, scale), combine="prod")]))
            found.append(self._phase(f"sum{other.name}", [self._add(other, self._value(other, "part"))]))
        return found

    def rescale(self, last: SegmentState) -> Phase:
        """Return the phase that rescales the last segment's sums.

        Each is multiplied by the scale of its row.
        """
        output = next(o for o in self.state.frame.segment.outputs if o.extra)
        body = last.frame.segment.reductions[0].body
        indices = next(r.indices for r in reads(body) if r.tensor == output.tensor)
        binding = last.bind((), (), ())
        box, places = self.layout.boxes[output.tensor], axis_places(self.state.frame.segment, output.tensor)
        at: dict[int, Index] = {}
        for index, base, place in zip(indices, box.base, places, strict=True):
            if place is not None:
                at[place] = substitute(index, binding.places) - base
        address = linearise([at.get(n, Index()) for n in range(len(self._extents()))], row_major(self._extents()))
        tiles = tuple(map(as_index, last.frame.tiles))
        roots = []
        for reduction in last.frame.segment.reductions:
            dtype = self.layout.group.tensors[reduction.name].dtype
            value = Load("shared", SCALES, address, self._dtype(self.state.frame.segment.reductions[0]))
            roots.append(Accumulate(reduction.name, tiles, "prod", value, (), dtype))
        return instance_phase(last, "scale", roots)

    def _extents(self) -> tuple[int, ...]:
        return tuple(d.block for d in self.state.frame.schedule.dims)

    def _place(self, state: SegmentState) -> Index:
        return linearise(tuple(map(as_index, state.frame.tiles)), row_major(self._extents()))

    def _dtype(self, reduction: Reduction) -> DType:
        return self.layout.group.tensors[reduction.name].dtype

    def _value(self, reduction: Reduction, what: str = "") -> RegisterRead:
        """Return the read of a row's register."""
        name = f"{reduction.name}.{what}" if what else reduction.name
        return RegisterRead(name, tuple(map(as_index, self.state.frame.tiles)), self._dtype(reduction))

    def _add(self, reduction: Reduction, value: Value, what: str = "") -> Accumulate:
        """Return the accumulation of a value into a row's register."""
        held = self._value(reduction, what)
        return Accumulate(held.name, held.at, reduction.combine, value, (), held.dtype)

    def _set(self, reduction: Reduction, what: str, value: Value) -> list[Root]:
        """Return the roots that assign a row's register."""
        held = self._value(reduction, what)
        begin = evolve(self.state.initialise(reduction), name=held.name, combine="sum")
        return [begin, Accumulate(held.name, held.at, "sum", value, (), held.dtype)]

    def _part(self, reduction: Reduction, value: Value, local: Var, valid: tuple[Guard, ...]) -> tuple[Root, ...]:
        """Return the roots that reduce the values of a part into registers of their own."""
        held = self._value(reduction, "part")
        if valid:
            identity = Literal(COMBINERS[reduction.combine].identity(value.dtype), value.dtype)
            value = Op("select", (Test(valid), value, identity), value.dtype)
        over = Accumulate(held.name, held.at, reduction.combine, value, (local,), held.dtype)
        begin, end = self.state.initialise(reduction), self.state.lane_reduce(reduction)
        return evolve(begin, name=held.name), over, evolve(end, name=held.name)

    def _phase(self, name: str, roots: Iterable[Root]) -> Phase:
        return instance_phase(self.state, name, roots)

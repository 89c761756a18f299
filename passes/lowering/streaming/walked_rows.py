"""Walked rows: a thread takes the elements of a row one after another and carries the state of prefix scans.

    acc[i, r] = acc[i, r - 1] + f(x[i, r]);   y[i, r] = g(acc[i, r], x[i, r])
      ->  carry = 0;   for each block of r:   for each r of it:  state = carry + f(x[i, r]);  y[i, r] = g(state, x[i, r])
                                              carry = state

No thread needs values of another one, so rows of any length take one trip over memory. Neighbouring threads have
neighbouring rows: their accesses are coalesced where memory runs along the instances. The loads of a block do not
depend on the state, and are in flight together.
"""

from __future__ import annotations

from attrs import evolve

from ....ir import (
    COMBINERS,
    SCAN_MODES,
    Convert,
    Index,
    Initialise,
    Item,
    Literal,
    Loop,
    Op,
    ReduceDim,
    Reduction,
    RegisterRead,
    RegisterWrite,
    Root,
    Test,
    Var,
    as_index,
)
from ..index_values import Context, value_of
from ..outputs import store_value
from ..segment_state import SegmentState


def walk_rows(state: SegmentState) -> None:
    """Emit the states' beginnings, and the loop over blocks of the row's elements."""
    frame, segment = state.frame, state.frame.segment
    (dim,) = {d for r in frame.schedule.reductions for d in r.dims}
    backwards = SCAN_MODES[segment.reductions[0].along][0]
    step = Var(f"{frame.prefix}it", dim.trips)
    block = as_index(dim.trips - 1) - step if backwards else as_index(step)
    begin = [
        Initialise(_carry(state, r).name, _shape(state), r.combine, _carry(state, r).dtype) for r in segment.reductions
    ]
    state.items.append(state.phase("compute", "init", begin, (), {}))
    roots: list[Root] = []
    before = {r.name: _carry(state, r) for r in segment.reductions}
    for number in range(dim.block_k):
        place = block * dim.block_k + (dim.block_k - 1 - number if backwards else number)
        before = _element(state, dim, place, number, before, roots)
    carry = [
        RegisterWrite(held.name, held.at, _shape(state), before[r.name], held.dtype)
        for r in segment.reductions
        for held in (_carry(state, r),)
    ]
    body: tuple[Item, ...] = (
        state.phase("exit", "walk", roots, (), state.shares),
        state.phase("compute", "carry", carry, (), state.shares),
    )
    state.items += [Loop(step, body)] if dim.trips > 1 else body


def _element(
    state: SegmentState,
    dim: ReduceDim,
    place: Index,
    number: int,
    before: dict[str, RegisterRead],
    roots: list[Root],
) -> dict[str, RegisterRead]:
    """Add the roots of one element of the row; return the states after it."""
    segment = state.frame.segment
    local = Var(f"{state.frame.prefix}w", 1)
    binding = state.bind((evolve(dim, block_k=1),), (local,), (place,))
    missing = (binding.valid[local],) if local in binding.valid else ()
    context = state.context(binding, {})
    after: dict[str, RegisterRead] = {}
    held = dict(context.held)
    for reduction in segment.reductions:
        old = before[reduction.name]
        new = evolve(old, name=f"{reduction.name}.{number}")
        value = value_of(reduction.body, _with_states(context, held))
        function = COMBINERS[reduction.combine]
        if missing:
            value = Op("select", (Test(missing), value, Literal(function.identity(value.dtype), value.dtype)), value.dtype)
        value = value if value.dtype is old.dtype else Convert(value, old.dtype)
        combined = Op(function.fn, (old, value), old.dtype)
        roots.append(RegisterWrite(new.name, new.at, _shape(state), combined, new.dtype))
        after[reduction.name] = new
        held[reduction.name] = old if SCAN_MODES[reduction.along][1] else new
    for output in segment.outputs:
        roots.append(store_value(state, output, binding, (), _with_states(context, held)))
    return after


def _with_states(context: Context, held: dict[str, RegisterRead]) -> Context:
    """Return a context that reads states of one element."""
    return evolve(context, held=dict(held))


def _carry(state: SegmentState, reduction: Reduction) -> RegisterRead:
    """Return the state before a block."""
    return state.register(reduction, "carry")


def _shape(state: SegmentState) -> tuple[int, ...]:
    """Return the rows of a thread along each dim."""
    return tuple(d.thread for d in state.frame.schedule.dims)

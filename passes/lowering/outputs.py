"""Stores of outputs: in the collected phase, or in a loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import evolve

from ...ir import (
    APPEND,
    COMBINERS,
    Accumulate,
    Barrier,
    Expr,
    Guard,
    Index,
    Item,
    Literal,
    Op,
    Output,
    ReduceDim,
    RegisterRead,
    RegisterWrite,
    Root,
    Store,
    Test,
    Value,
    Var,
    as_index,
    is_exchange,
    linearise,
    map_guards,
    substitute,
    substitute_guards,
)
from ..geometry import axis_places, tensors_in_place
from .index_values import Context, resolve, strides_of, value_of
from .kept_sums import KeptSum, add_up_sums, leave_sums
from .layout import AxisBinding, read_padding, unique_writer_guards
from .row_cache import block_trips, row_parts
from .segment_state import SegmentState, row_share

#: Accesses of a reduction thread in one trip over a row that no reduction runs over.
ROW_STEPS = 8


def emit_outputs(state: SegmentState, outputs: Iterable[Output]) -> None:
    """Emit stores of outputs, and sums that keep axes of rows."""
    last: list[Item] = []
    for number, (row, found) in enumerate(groupby(outputs, key=lambda output: output.extra)):
        if row:
            last += _emit_rows(state, tuple(found), f"out{number}")
        else:
            _emit_values(state, found)
    _hold_outputs(state)
    state.flush("exit")
    state.items += last


def _emit_values(state: SegmentState, outputs: Iterable[Output]) -> None:
    """Add the stores of an instance's own values to the collected phase."""
    once = (Guard(as_index(state.frame.lane), 0, 1), Guard(state.frame.rank, 0, 1))
    guards, binding = tuple(guard for guard in once if not guard.always), state.bind((), (), ())
    state.roots += [_store(state, output, binding, guards) for output in outputs]


def _emit_rows(state: SegmentState, outputs: Sequence[Output], name: str) -> list[Item]:
    """Emit the stores of outputs along one row: they join the collected phase, or share a loop over a long row.

    Return the items after all stores.
    """
    frame, row = state.frame, outputs[0].extra
    dim = ReduceDim(row, _row_chunk(state, row))
    local = Var(f"{frame.prefix}w", dim.block_k)
    share, unrolled = row_share(frame, local)
    sums = {o: KeptSum(state, o, dim, local) for o in outputs if o in frame.segment.kept_sums}

    def roots(start: Index, staged: Mapping[Expr, Value]) -> Iterator[Root]:
        binding = state.bind((dim,), (local,), (start,))
        for output in outputs:
            if output in sums:
                yield from sums[output].add(binding, state.context(binding, staged))
            elif output.across:
                yield _add_row(state, output, binding, local)
            else:
                yield _store(state, output, binding, (), staged)

    every = tuple(sums.values())
    looped = dim.trips > frame.schedule.cluster
    by_trip = looped and any(each.vectors for each in every)
    state.roots += [each.begin() for each in every if not each.vectors]
    if looped:
        state.flush(f"before_{name}")
        for part in row_parts(state, [o.body for o in outputs], dim, local, f"{frame.prefix}{name}"):
            shares = state.shares | {local: share}
            phases = [state.phase("exit", name, tuple(roots(part.start, part.staged)), unrolled, shares)]
            phases += [leave_sums(state, every, part.start)] if by_trip else []
            state.items += part.items(*phases)
    else:
        state.roots += roots(frame.rank * dim.block_k, {})
        state.row += [v for v in unrolled if v not in state.row]
        state.shares[local] = share
    first = frame.rank * (block_trips(frame.schedule, dim) * dim.block_k)
    return [*([] if by_trip else [leave_sums(state, every, first)]), *add_up_sums(state, every)] if every else []


def column_register(output: Output) -> str:
    """Return the name of a column sum's registers."""
    return f"{output.tensor}.column"


def _add_row(state: SegmentState, output: Output, binding: AxisBinding, local: Var) -> Accumulate:
    """Return the accumulation of a tile's rows in column sums.

    Elements beyond the last row, or past its end, are the identity.
    """
    dtype, combine = state.group.tensors[output.tensor].dtype, str(output.across)
    value = value_of(output.body, state.context(binding, {}))
    if missing := tuple(binding.valid.values()):
        identity = Literal(COMBINERS[combine].identity(value.dtype), value.dtype)
        value = Op("select", (Test(missing), value, identity), value.dtype)
    over = tuple(state.frame.tiles)
    return Accumulate(column_register(output), (as_index(local),), combine, value, over, dtype)


def _hold_outputs(state: SegmentState) -> None:
    """Split the collected stores of an exchange that replace elements.

    Registers hold the values until all threads have read:

        m[2*t] = f(m[t], m[t + 4])   ->   held = f(m[t], m[t + 4]);   barrier;   m[2*t] = held
    """
    replaced = tensors_in_place(state.group) if is_exchange(state.group) else {}
    if not any(output.tensor in replaced for output in state.frame.segment.outputs):
        return
    at, shape = tuple(map(as_index, state.frame.tiles)), tuple(d.thread for d in state.frame.schedule.dims)
    writes, stores = list[Root](), list[Root]()
    for number, root in enumerate(r for r in state.roots if isinstance(r, Store)):
        held = RegisterRead(f"{state.frame.prefix}held{number}", at, root.value.dtype)
        writes.append(RegisterWrite(held.name, at, shape, root.value, held.dtype))
        stores.append(evolve(root, value=held))
    state.items += [state.phase("compute", "held", writes, state.row, state.shares), Barrier()]
    state.roots = stores


def _row_chunk(state: SegmentState, extra: tuple[Var, ...]) -> int:
    """Return the elements of a row per trip of an output loop: those of the reduction over the same row, else at most
    `ROW_STEPS` per reduction thread.
    """
    for reduction, schedule in zip(state.frame.segment.reductions, state.frame.schedule.reductions, strict=True):
        if reduction.reduce == extra and len(schedule.dims) == 1:
            return schedule.dims[0].block_k
    length = 1
    for axis in extra:
        length *= axis.extent
    step = state.frame.schedule.reduction_threads * state.frame.schedule.row_vector
    return min(ROW_STEPS, -(-length // step)) * step


def _store(
    state: SegmentState,
    output: Output,
    binding: AxisBinding,
    guards: tuple[Guard, ...],
    staged: Mapping[Expr, Value] | None = None,
) -> Store:
    return store_value(state, output, binding, guards, state.context(binding, staged or {}))


def store_value(
    state: SegmentState, output: Output, binding: AxisBinding, guards: tuple[Guard, ...], context: Context
) -> Store:
    """Return the store of an output's element, whose values `context` gives."""
    value = value_of(output.body, context)
    dtype = state.group.tensors[output.tensor].dtype
    if output.tensor in state.layout.boxes:
        return shared_store(state, output, binding, guards, value)
    places = [resolve(substitute(i, binding.places), context) for i in output.write]
    address = linearise(places, strides_of(output.tensor, context))
    written = map_guards(substitute_guards(output.guards, binding.places), lambda index: resolve(index, context))
    every = (*binding.valid.values(), *guards, *written)
    once = unique_writer_guards(state.layout, state.frame)
    size = state.group.tensors[output.tensor].size if output.into == APPEND else 0
    return Store("global", output.tensor, address, value, dtype, (*every, *once), output.into, size=size)


def shared_store(
    state: SegmentState, output: Output, binding: AxisBinding, guards: tuple[Guard, ...], value: Value
) -> Store:
    """Return the store of a tensor that a later segment reads.

    Beyond the end of a row it stores zeros, which products add up; beyond the ends of a box, the fill value of its
    reads.
    """
    layout, tiles = state.layout, state.frame.tiles
    if is_exchange(state.group):
        return _exchanged_store(state, output, binding, guards, value)
    dtype = state.group.tensors[output.tensor].dtype
    whole = zip(output.write, axis_places(state.frame.segment, output.tensor), strict=True)
    bases = layout.boxes[output.tensor].base
    places = [
        substitute(i, binding.places) - base if place is None else as_index(tiles[place])
        for (i, place), base in zip(whole, bases, strict=True)
    ]
    if missing := [binding.valid[v] for v in binding.locals[len(tiles) :] if v in binding.valid]:
        nothing = Literal(0.0 if dtype.is_float else 0, value.dtype)
        value = Op("select", (Test(tuple(missing)), value, nothing), value.dtype)
    if beyond := read_padding(state.group, output.tensor):
        dims, fill = beyond
        shape = state.group.tensors[output.tensor].shape
        # By places in the box: a tile may extend beyond an axis of one element, whose index is always 0.
        ends = (Guard(places[d] + bases[d], 0, shape[d]) for d in dims)
        inside = tuple(guard for guard in ends if not guard.always)
        nothing = Literal(fill if dtype.is_float else int(fill), value.dtype)
        value = Op("select", (Test(inside), value, nothing), value.dtype) if inside else value
    address = linearise(places, layout.pitches[output.tensor])
    return Store("shared", layout.names[output.tensor], address, value, dtype, guards)


def _exchanged_store(
    state: SegmentState, output: Output, binding: AxisBinding, guards: tuple[Guard, ...], value: Value
) -> Store:
    """Return the store of an element that another thread of the block reads, if it is there."""
    layout, dtype = state.layout, state.group.tensors[output.tensor].dtype
    bases = layout.boxes[output.tensor].base
    places = [substitute(i, binding.places) - base for i, base in zip(output.write, bases, strict=True)]
    every = (*binding.valid.values(), *guards, *substitute_guards(output.guards, binding.places))
    address = linearise(places, layout.pitches[output.tensor])
    return Store("shared", layout.names[output.tensor], address, value, dtype, every)

"""Reductions: initialisation, K loop or resident row, and cross-thread combination."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import e, inf, log2, prod

from attrs import evolve

from ...ir import (
    SORT_ORDERS,
    WITH_PRODUCER,
    Accumulate,
    Convert,
    DType,
    Expr,
    Index,
    Initialise,
    Item,
    LaneExchange,
    Literal,
    Op,
    Phase,
    ReduceDim,
    Reduction,
    ReductionSchedule,
    RegisterRead,
    Root,
    Value,
    Var,
    as_index,
    delinearise,
    factors,
    is_tiled,
    reads,
    streamed_variables,
    walk,
)
from ..geometry import (
    drop_conversions,
    exchanges_lanes,
    is_row_maximum,
    reads_shared_matrices,
    running_maximum,
)
from .index_values import value_of
from .k_loop import (
    SharedPipeline,
    bulk_k_loop,
    bulk_pipeline,
    combine_warps,
    k_loop,
    loop_end,
    multiplication,
    produced_k_loop,
    reduced_vector,
    scaled_sums,
    staged_tiles,
    stepped_k_loop,
    tile_load,
    vector_share,
    warp_sum_register,
    warpgroup_k_loop,
)
from .layout import AxisBinding
from .row_cache import row_parts
from .segment_state import SegmentState, row_share

#: Sequential terms of a thread from which on it sums each K block separately.
MIN_BLOCKED_TERMS = 256


def resident_reductions(state: SegmentState, shared: Sequence[Reduction], schedule: ReductionSchedule) -> None:
    """Reduce a row that reduction threads hold in one trip.

    Loads are shared with other row statements of the phase. Threads combine the values of reductions that do not
    depend on one another together. Where blocks share a row, sums that a maximum shifts are relative to that of their
    thread until then: blocks exchange values once.
    """
    ends: dict[str, Root] = {}
    shifts: dict[Expr, Value] = {}
    several = state.frame.schedule.cluster > 1
    sums = {r.name: _rescaled_sums(r, shared) if several else [] for r in shared}

    def combine() -> None:
        state.roots += ends.values()
        for greatest in (r for r in shared if r.name in ends and sums[r.name]):
            state.roots += _settle_shifts(state, greatest, sums[greatest.name])
            state.roots += _hold_exponentials(state, greatest, sums[greatest.name], shifts, schedule)
        ends.clear()

    for reduction in shared:
        own = next((name for name, found in sums.items() if any(r is reduction for r, _ in found)), "")
        if reduction.along or any(r.tensor in ends and r.tensor != own for r in reads(reduction.body)):
            combine()
        *roots, ends[reduction.name] = _resident_reduction(state, reduction, schedule, shifts, own)
        state.roots += roots
        if sums[reduction.name]:
            state.roots += state.assign(reduction, "before", state.register(reduction))
            state.roots += _assign_shift(state, reduction, shared, _resident_binding(state, schedule)[0], shifts, {})
    combine()


def _assign_shift(
    state: SegmentState,
    greatest: Reduction,
    shared: Sequence[Reduction],
    binding: AxisBinding,
    shifts: dict[Expr, Value],
    staged: Mapping[Expr, Value],
) -> list[Root]:
    """Return the assignment of a running maximum's shift, 0 as long as all elements are -inf.

    Enter its reads, and the exponentials that it shifts: those of halves are powers of two.
    """
    held, sums = state.register(greatest, "shift"), _rescaled_sums(greatest, shared)
    shifts |= {n: held for r, _ in sums for n in walk(r.body) if is_row_maximum(n, greatest.name)}
    for reduction, _ in sums:
        body = _shifted_factor(reduction, greatest)
        value = value_of(body, state.context(binding, {**staged, **shifts}))
        if isinstance(value, Op) and value.dtype.arithmetic is not value.dtype:
            exponent = Op("mul", (*value.args, Literal(log2(e), value.dtype)), value.dtype)
            shifts[body] = Op("near_exp2", (exponent,), value.dtype)
    return state.assign(greatest, "shift", _finite(state.register(greatest)))


def _shifted_factor(reduction: Reduction, greatest: Reduction) -> Expr:
    """Return the exponential that a maximum shifts, a factor of a sum's terms."""
    return next(p for p in factors(reduction.body) if any(r.tensor == greatest.name for r in reads(p)))


def _finite(greatest: Value) -> Value:
    """Return a maximum, 0 instead of -inf."""
    nothing = Op("eq", (greatest, Literal(-inf, greatest.dtype)), DType.BOOL)
    return Op("select", (nothing, Literal(0.0, greatest.dtype), greatest), greatest.dtype)


def _settle_shifts(state: SegmentState, greatest: Reduction, sums: Sequence[tuple[Reduction, Expr]]) -> list[Root]:
    """Return the rescaling of combined sums to their own shift: where that is -inf, sums are no numbers."""
    context = state.context(state.bind((), (), ()), {})
    return [_rescale(state, r, _ratio(state.register(greatest), value_of(shift, context))) for r, shift in sums]


def _hold_exponentials(
    state: SegmentState,
    greatest: Reduction,
    sums: Sequence[tuple[Reduction, Expr]],
    shifts: Mapping[Expr, Value],
    schedule: ReductionSchedule,
) -> list[Root]:
    """Return the assignment of the ratio of a thread's exponentials to those of the row; later statements multiply.

    Threads have the same elements in all of them.
    """
    if any(loop.dims != schedule.dims for loop in state.frame.schedule.reductions):
        return []
    binding, _ = _resident_binding(state, schedule)
    (reduction, shift), *_ = sums
    body = _shifted_factor(reduction, greatest)
    own, ratio = value_of(body, state.context(binding, shifts)), state.register(greatest, "ratio")
    held = ratio if ratio.dtype is own.dtype else Convert(ratio, own.dtype)
    state.held[body] = Op("mul", (own, held), own.dtype)
    whole = value_of(shift, state.context(state.bind((), (), ()), {}))
    return state.assign(greatest, "ratio", _ratio(state.register(greatest, "before"), whole))


def _resident_binding(state: SegmentState, schedule: ReductionSchedule) -> tuple[AxisBinding, Var]:
    """Return the binding of a resident row's elements, and the variable that numbers a block's."""
    (dim,) = schedule.dims
    local = Var(f"{state.frame.prefix}w", dim.block_k)
    return state.bind((dim,), (local,), (state.frame.rank * dim.block_k,)), local


def _resident_reduction(
    state: SegmentState, reduction: Reduction, schedule: ReductionSchedule, shifts: Mapping[Expr, Value], shifted: str
) -> list[Root]:
    """Return the roots of a reduction of a resident row, or along it, the combination across threads last."""
    binding, local = _resident_binding(state, schedule)
    share, unrolled = row_share(state.frame, local)
    begin, end = state.initialise(reduction), state.lane_reduce(reduction, shifted)
    before, each = scaled_sums(state, reduction, binding, (local,), shifts if shifted else {}, {})
    roots: list[Root] = [*before]
    if reduction.along in SORT_ORDERS:
        # The keys of a sort have registers of their own besides the resulting places.
        keys, dtype = f"{reduction.name}.keys", each.value.dtype.accumulator
        roots.append(evolve(begin, name=keys, dtype=dtype))
        each, end = evolve(each, name=keys, dtype=dtype), evolve(end, keys=keys, extent=schedule.dims[0].extent)
    state.row += [v for v in unrolled if v not in state.row]
    state.shares[local] = share
    return [*roots, begin, each, end]


def looped_reduction(
    state: SegmentState, shared: Sequence[Reduction], schedule: ReductionSchedule, prefix: str
) -> None:
    """Emit initialisation, K loop and combination of reductions in one loop."""
    begin = [evolve(state.initialise(r), name=warp_sum_register(r, state.frame.schedule)) for r in shared]
    begin += [_initialise_block(state, r) for r in _blocked_reductions(state, shared, schedule) if not schedule.mma]
    state.items.append(state.phase("compute", "init", tuple(begin), (), {}))
    state.items += reduction_loop(state, shared, schedule, prefix)
    if schedule.mma and exchanges_lanes(shared[0], schedule, state.frame.schedule.dims, [shared[0].name]):
        state.items.append(LaneExchange(shared[0].name, schedule.columns))
    if schedule.mma and state.frame.schedule.reduction_threads > 1:
        combine_warps(state, shared[0])
    elif not schedule.mma:
        _combine(state, shared, prefix)


def reduction_loop(
    state: SegmentState, shared: Sequence[Reduction], schedule: ReductionSchedule, prefix: str, part: int = 0
) -> list[Item]:
    """Return the K loop of some reductions.

    With `part`, the loop covers that many elements of the streamed dim, if there is one.
    """
    reduction = shared[0]
    parted = streamed_variables(state.group)
    coming = [bool(part) and (not parted or bool(parted & {*dim.axes})) for dim in schedule.dims]
    trips = [part // d.block_k if comes else d.trips for d, comes in zip(schedule.dims, coming, strict=True)]
    step = Var(f"{prefix}it", prod(trips))
    lanes = state.frame.schedule.reduction_threads
    row = not schedule.mma and (lanes > 1 or state.frame.schedule.row_vector > 1)
    locals_ = tuple(Var(f"{prefix}k{d}", dim.block_k) for d, dim in enumerate(schedule.dims))
    shares, unrolled = dict(state.shares), list(locals_)
    if row:
        shares[locals_[0]], pair = row_share(state.frame, locals_[0])
        unrolled = list(pair)
    stepped = schedule.mma and schedule.prefetch
    until = None if part or stepped else loop_end(state, shared, schedule, step)
    starts = _chunk_starts(schedule, as_index(step), trips)
    if part:
        assert state.layout.part is not None
        begin = as_index(state.layout.part) * part
        starts = tuple(begin + s if comes else s for s, comes in zip(starts, coming, strict=True))
    binding = state.bind(schedule.dims, locals_, starts)
    tiles = staged_tiles(state, reduction, schedule, binding, prefix)
    width = 1 if row else reduced_vector(state, reduction, tiles, binding, locals_[-1])
    if width > 1:
        shares[locals_[-1]], pair = vector_share(locals_[-1], width)
        unrolled[-1:] = pair
    ring = SharedPipeline(state, schedule, tiles, step, prefix, until=until)
    bulk = bulk_pipeline(ring) if reads_shared_matrices(schedule.mma) else None
    slot = (as_index(step) if bulk is None else bulk.place(step)) % schedule.stages
    staged: dict[Expr, Value] = {operand: tile_load(tile, buffer, slot) for operand, (tile, buffer) in tiles.items()}
    covered = {e: t.covered for e, (t, _) in tiles.items()}
    if schedule.mma:
        found = multiplication(state, reduction, schedule, binding, locals_[0], step, staged, covered, prefix)
        if reads_shared_matrices(schedule.mma):
            if bulk is None:
                return warpgroup_k_loop(ring, found)
            of_bulk = produced_k_loop if schedule.tma >= WITH_PRODUCER else bulk_k_loop
            return of_bulk(bulk, found)
        return stepped_k_loop(ring, found) if schedule.prefetch else k_loop(ring, found.all_steps())
    long = [] if part else _blocked_reductions(state, shared, schedule)
    roots: list[Root] = [root for r in long for root in (_add_block(state, r), _initialise_block(state, r))]
    roots += _accumulate_all(state, shared, binding, locals_, staged, covered, long)
    items = k_loop(ring, state.phase("compute", f"r{prefix[-1]}", tuple(roots), unrolled, shares))
    rest = tuple(_add_block(state, r) for r in long)
    return [*items, *([state.phase("compute", f"{prefix}rest", rest, (), state.shares)] if rest else [])]


def _blocked_reductions(
    state: SegmentState, shared: Sequence[Reduction], schedule: ReductionSchedule
) -> list[Reduction]:
    """Return the reductions that sum each K block separately."""
    total, terms = (prod(sizes) for sizes in zip(*((d.trips, d.trips * d.block_k) for d in schedule.dims), strict=True))
    return [r for r in shared if _is_blocked(state, r, total, terms // state.frame.schedule.reduction_threads)]


def _is_blocked(state: SegmentState, reduction: Reduction, chunks: int, terms: int) -> bool:
    """Return whether a thread sums so many terms, of several K blocks, that rounding shows. Contractions keep the usual
    order.
    """
    segment = state.frame.segment
    plain = reduction.combine == "sum" and state.group.tensors[reduction.name].dtype.is_float and not reduction.along
    own = [r.name for r in segment.reductions]
    return plain and chunks > 1 and terms >= MIN_BLOCKED_TERMS and not is_tiled(reduction, segment.axes, own)


def _block_sum_name(reduction: Reduction) -> str:
    """Return the name of the register of a K block's sum."""
    return f"{reduction.name}.chunk"


def _initialise_block(state: SegmentState, reduction: Reduction) -> Initialise:
    """Return the initialisation of a K block's sum."""
    return evolve(state.initialise(reduction), name=_block_sum_name(reduction))


def _add_block(state: SegmentState, reduction: Reduction) -> Accumulate:
    """Return the addition of the last K block's sum to the total.

    A sequential sum of n terms has an error of the root of n times the rounding of the largest partial sum: for the
    mean of 2048 numbers, five roundings of their deviation.
    """
    at, dtype = tuple(map(as_index, state.frame.tiles)), state.group.tensors[reduction.name].dtype
    return Accumulate(reduction.name, at, "sum", RegisterRead(_block_sum_name(reduction), at, dtype), (), dtype)


def _combine(state: SegmentState, shared: Sequence[Reduction], prefix: str) -> None:
    """Emit the combination across reduction threads, of all values at once.

    A sum that a running maximum shifts is rescaled from that of its thread to that of the row.
    """
    sums = {r.name: _rescaled_sums(r, shared) for r in shared}
    shifted = {r.name: name for name, found in sums.items() for r, _ in found}
    if state.frame.schedule.reduction_threads > 1:
        lanes = tuple(state.lane_reduce(r, shifted.get(r.name, "")) for r in shared)
        state.items.append(Phase("compute", f"{prefix}lanes", lanes, state.frame.unrolled))
    roots = [root for r in shared if sums[r.name] for root in _settle_shifts(state, r, sums[r.name])]
    if roots:
        shares = {s.var: s for s in state.frame.shares}
        state.items.append(state.phase("compute", f"{prefix}scale", roots, (), shares))


def _rescaled_sums(greatest: Reduction, shared: Sequence[Reduction]) -> list[tuple[Reduction, Expr]]:
    """Return the sums of a loop that a running maximum shifts, each with its whole shift.

    Conversions may stand within a shift: select(f16(m) != -inf, f16(m), 0).
    """
    places = {r.name: n for n, r in enumerate(shared)}
    found = [r for r in shared if running_maximum(r, shared[: places[r.name]]) is greatest]
    shifts = [[n for n in walk(r.body) if is_row_maximum(drop_conversions(n), greatest.name)] for r in found]
    return [(r, nodes[-1]) for r, nodes in zip(found, shifts, strict=True)]


def _ratio(before: Value, shift: Value) -> Value:
    """Return the ratio of exponentials that `shift` shifts to those that another number shifted."""
    shift = shift if shift.dtype is before.dtype else Convert(shift, before.dtype)
    return Op("exp", (Op("sub", (before, shift), before.dtype),), before.dtype)


def _rescale(state: SegmentState, reduction: Reduction, ratio: Value) -> Accumulate:
    """Return the multiplication of a sum by a ratio."""
    total = state.register(reduction)
    ratio = ratio if ratio.dtype is total.dtype else Convert(ratio, total.dtype)
    return Accumulate(total.name, total.at, "prod", ratio, (), total.dtype)


def _accumulate_all(
    state: SegmentState,
    shared: Sequence[Reduction],
    binding: AxisBinding,
    locals_: Sequence[Var],
    staged: Mapping[Expr, Value],
    covered: Mapping[Expr, frozenset[Var]],
    blocked: Collection[Reduction] = (),
) -> list[Root]:
    """Return the accumulations of one K block.

    Sums that a running maximum shifts are rescaled to its new value first. The shift is 0 as long as all elements are
    -inf, so that the sums stay 0. `blocked` sums add up each K block separately.
    """
    roots: list[Root] = []
    shifts: dict[Expr, Value] = {}
    for each in shared:
        sums = _rescaled_sums(each, shared)
        if sums:
            roots += state.assign(each, "before", state.register(each))
        before, added = scaled_sums(state, each, binding, locals_, {**staged, **shifts}, covered)
        roots += [*before, evolve(added, name=_block_sum_name(each)) if each in blocked else added]
        if sums:
            # The scale's initialisation keeps conversions of the shift after its assignment.
            roots += _assign_shift(state, each, shared, binding, shifts, staged)
            ratio = _ratio(state.register(each, "before"), state.register(each, "shift"))
            roots += state.assign(each, "scale", ratio)
            roots += [_rescale(state, r, state.register(each, "scale")) for r, _ in sums]
    return roots


def cached_reduction(state: SegmentState, shared: Sequence[Reduction], dim: ReduceDim, prefix: str) -> None:
    """Emit a reduction over rows of the shared-memory row cache.

    It consists of the initialisation, the loops over a row that is cached in part, and the combination across threads.
    """
    local = Var(f"{prefix}k0", dim.block_k)
    share, unrolled = row_share(state.frame, local)
    state.items.append(state.phase("compute", "init", tuple(map(state.initialise, shared)), (), {}))
    for part in row_parts(state, [r.body for r in shared], dim, local, prefix):
        binding = state.bind((dim,), (local,), (part.start,))
        roots = _accumulate_all(state, shared, binding, (local,), part.staged, {})
        state.items += part.items(
            state.phase("compute", f"r{prefix[-1]}", roots, unrolled, state.shares | {local: share})
        )
    _combine(state, shared, prefix)


def _chunk_starts(schedule: ReductionSchedule, step: Index, trips: Sequence[int]) -> tuple[Index, ...]:
    places = delinearise(step, trips)
    return tuple(place * dim.block_k for place, dim in zip(places, schedule.dims, strict=True))

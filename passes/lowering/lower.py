"""Lowering: a fused group and a schedule become kernel IR, phases over the block's box (DeepCuts sections 5.1 and 5.2).

Each segment contributes, per reduction, a loop of *fetch* and *compute* phases, and an *exit* phase with the epilogue
and the stores. Segments are concatenated with a barrier between them (shared-memory-level fusion); within a segment
values stay in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from attrs import define, evolve, field

from ...ir import (
    COMBINERS,
    MATH_MODES,
    MATRIX_ATOMS,
    WIDEST_BYTES,
    Accumulate,
    Barrier,
    Commit,
    Convert,
    Expr,
    FusedGroup,
    Guard,
    Held,
    Index,
    Initialise,
    Item,
    Kernel,
    LaneReduce,
    Literal,
    Load,
    Loop,
    Op,
    Output,
    PassError,
    Phase,
    Read,
    ReduceDim,
    Reduction,
    ReductionSchedule,
    Root,
    Schedule,
    Share,
    SharedBuffer,
    Storage,
    Store,
    Target,
    Test,
    TileDim,
    Value,
    Var,
    Wait,
    as_index,
    delinearise,
    dtype_of,
    expr_variables,
    factors,
    linearise,
    longest_vector,
    narrow,
    operands,
    substitute,
    substitute_guards,
)
from .atoms import atom_loop, atom_operands, products
from .extract import substitute_phase
from .fetch import fetch_phase
from .frames import Frame, Layout, lay_out
from .index_values import Context, resolve, strides_of, value_of
from .staging import AxisBinding, Tile, bind_dims, stage
from .tabulate import Flat, tabulate


@define
class _Segment:
    """The state of lowering one segment: row roots collected for the phase that shares their loads."""

    layout: Layout
    frame: Frame
    storages: Mapping[str, Storage]
    target: Target
    aligned: Mapping[str, int]
    items: list[Item] = field(factory=list)
    roots: list[Root] = field(factory=list)
    row: list[Var] = field(factory=list)
    shares: dict[Var, Share] = field(factory=dict)

    @property
    def group(self) -> FusedGroup:
        return self.layout.group


def lower(group: FusedGroup, schedule: Schedule, storages: Mapping[str, Storage], target: Target) -> Kernel:
    """Return the kernel IR of a group under a schedule, block level.

    Raises `PassError` where a tensor shared between segments is not read by an affine box.
    """
    layout = lay_out(group, schedule, target)
    items: list[Item] = []
    aligned = {t: _alignment(t, group, storages) for t in (*group.inputs, *group.outputs)}
    for frame in layout.frames:
        if items:
            items.append(Barrier())
        state = _Segment(layout, frame, storages, target, aligned)
        _lower_segment(state)
        items.extend(state.items)
    return Kernel(
        blocks=schedule.blocks,
        threads=schedule.threads,
        defines=tuple(layout.defines),
        shared=tuple(layout.buffers.values()),
        items=tuple(items),
        reads=group.inputs,
        writes=group.outputs,
        dtypes={t: group.tensors[t].dtype for t in (*group.inputs, *group.outputs, *group.constants)},
        aligned=aligned,
        tables=dict(layout.tables.values),
        constants=group.constants,
        min_blocks=schedule.min_blocks,
    )


def _alignment(tensor: str, group: FusedGroup, storages: Mapping[str, Storage]) -> int:
    """Bytes that a tensor's first element is aligned to: buffers are to 16 bytes, a view's offset may not be."""
    offset = storages[tensor].offset * group.tensors[tensor].dtype.size if tensor in storages else 0
    return gcd(offset, WIDEST_BYTES)


def _lower_segment(state: _Segment) -> None:
    """Emit the reductions in order, then the outputs. A row that fits one trip joins one phase, so that its loads are
    shared.
    """
    state.shares = {s.var: s for s in state.frame.shares}
    for number, reduction in enumerate(state.frame.segment.reductions):
        schedule = state.frame.schedule.reductions[number]
        if _is_resident(state.frame, schedule):
            _resident(state, reduction, schedule)
        else:
            _flush(state, f"row{number}")
            _looped(state, reduction, schedule, f"{state.frame.prefix}r{number}")
    for number, output in enumerate(state.frame.segment.outputs):
        _output(state, output, f"out{number}")
    _flush(state, "exit")


def _is_resident(frame: Frame, schedule: ReductionSchedule) -> bool:
    """Whether lanes hold a row in one trip. Where some threads take no part they must still meet the others when lanes
    are combined.
    """
    return (
        not schedule.staging
        and all(d.trips == 1 for d in schedule.dims)
        and frame.schedule.lanes > 1
        and not frame.when
    )


def _flush(state: _Segment, name: str) -> None:
    """Close the phase that is being collected."""
    if state.roots:
        state.items.append(_phase(state, "exit", name, state.roots, state.row, state.shares))
    state.roots, state.row = [], []
    state.shares = {s.var: s for s in state.frame.shares}


def _phase(
    state: _Segment, kind: str, name: str, roots: Sequence[Root], row: Sequence[Var], shares: Mapping[Var, Share]
) -> Phase:
    unrolled = tuple(v for v in row if v.extent > 1) + state.frame.unrolled
    return Phase(kind, f"{state.frame.prefix}{name}", tuple(roots), unrolled, tuple(shares.values()), state.frame.when)


def _bind(state: _Segment, dims: Sequence[ReduceDim], locals_: Sequence[Var], starts: Sequence[Index]) -> AxisBinding:
    frame = state.frame
    every: tuple[TileDim | ReduceDim, ...] = (*frame.schedule.dims, *dims)
    places, valid = bind_dims(every, (*frame.tiles, *locals_), (*frame.starts, *starts))
    flats: dict[Var, Flat] = {}
    for dim, local, start in zip(dims, locals_, starts, strict=True):
        if state.layout.schedule.index == "table" and len(dim.axes) > 1:
            length = dim.trips * dim.chunk
            flat = Flat(Var(f"{local.name}flat", length), start + local, length)
            flats[local] = flat
            places.update(zip(dim.axes, delinearise(as_index(flat.var), [a.extent for a in dim.axes]), strict=True))
    return AxisBinding(places, every, (*frame.tiles, *locals_), valid, flats)


def _context(state: _Segment, binding: AxisBinding, staged: Mapping[Expr, Value]) -> Context:
    at = tuple(as_index(u) for u in state.frame.tiles)
    held = {r.name: Held(r.name, at, state.group.tensors[r.name].dtype) for r in state.frame.segment.reductions}
    names = {t: state.layout.buffers[t].name for t in state.layout.boxes}
    return Context(
        state.group, state.storages, binding, dict(staged), held, state.layout.boxes, state.layout.pitches, names
    )


def _initialise(state: _Segment, reduction: Reduction) -> Initialise:
    shape = tuple(d.thread for d in state.frame.schedule.dims)
    return Initialise(reduction.name, shape, reduction.combine, state.group.tensors[reduction.name].dtype)


def _lane_reduce(state: _Segment, reduction: Reduction) -> LaneReduce:
    dtype = state.group.tensors[reduction.name].dtype
    lanes = state.frame.schedule.lanes
    # The last lanes may be no whole row of them: the idle threads among them read each other's places all the same.
    scratch = SharedBuffer("lanes", dtype, -(-state.layout.schedule.threads // lanes) * lanes)
    known = state.layout.buffers.get("lanes", scratch)
    state.layout.buffers["lanes"] = max(known, scratch, key=lambda b: b.elements * b.dtype.size)
    shape = tuple(d.thread for d in state.frame.schedule.dims)
    return LaneReduce(reduction.name, shape, reduction.combine, dtype, lanes)


def _row_share(frame: Frame, local: Var) -> tuple[Share, tuple[Var, ...]]:
    """Spread a row's local elements over the lanes, `row_vector` neighbours at a time."""
    lanes, width = frame.schedule.lanes, frame.schedule.row_vector
    if lanes == 1 and width == 1:
        return Share(local, as_index(local), as_index(local)), (local,)
    group, element = Var(f"{local.name}o", local.extent // (lanes * width)), Var(f"{local.name}i", width)
    value = as_index(group) * (lanes * width) + as_index(frame.lane) * width + element
    return Share(local, value, as_index(group) * width + element), (group, element)


def _resident(state: _Segment, reduction: Reduction, schedule: ReductionSchedule) -> None:
    """Reduce a row held by the lanes in one trip; its loads are shared with other row statements of the phase."""
    (dim,) = schedule.dims
    local = Var(f"{state.frame.prefix}w", dim.chunk)
    share, unrolled = _row_share(state.frame, local)
    binding = _bind(state, (dim,), (local,), (Index(),))
    state.roots += [
        _initialise(state, reduction),
        _accumulate(state, reduction, binding, (local,), {}, {}),
        _lane_reduce(state, reduction),
    ]
    state.row += [v for v in unrolled if v not in state.row]
    state.shares[local] = share


def _accumulate(
    state: _Segment,
    reduction: Reduction,
    binding: AxisBinding,
    locals_: Sequence[Var],
    staged: Mapping[Expr, Value],
    covered: Mapping[Expr, frozenset[Var]],
) -> Accumulate:
    """Build the accumulation of one chunk; elements past a ragged end contribute the identity."""
    dtype = state.group.tensors[reduction.name].dtype
    flats = {f.var: f for f in binding.flats.values()}
    value = tabulate(value_of(reduction.body, _context(state, binding, staged)), flats, state.layout.tables)
    missing = [v for v in locals_ if v in binding.valid and not _vanishes(reduction, v, binding, covered)]
    if missing:
        identity = Literal(COMBINERS[reduction.combine].identity(value.dtype), value.dtype)
        test = Test(tuple(binding.valid[v] for v in missing))
        value = Op("select", (test, value, identity), value.dtype)
    return Accumulate(
        reduction.name, tuple(as_index(u) for u in state.frame.tiles), reduction.combine, value, tuple(locals_), dtype
    )


def _vanishes(reduction: Reduction, var: Var, binding: AxisBinding, covered: Mapping[Expr, frozenset[Var]]) -> bool:
    """Whether the body is certainly 0 for missing elements: every factor varies with `var` and reads as 0 there.

    A factor that does not vary with it may be infinite, and 0 times that is no number.
    """
    axes = {a for a, place in binding.places.items() if var in binding.depends(place)}
    if reduction.combine != "sum":
        return False
    return all(
        bool(axes & expr_variables(p)) and (var in covered[p] if p in covered else isinstance(p, Read) and p.fill == 0)
        for p in map(narrow, factors(reduction.body))
    )


def _looped(state: _Segment, reduction: Reduction, schedule: ReductionSchedule, prefix: str) -> None:
    """Emit initialisation, the loop over chunks and the reduction across lanes."""
    total = 1
    for dim in schedule.dims:
        total *= dim.trips
    step = Var(f"{prefix}it", total)
    row = state.frame.schedule.lanes > 1 or state.frame.schedule.row_vector > 1
    locals_ = tuple(Var(f"{prefix}k{d}", dim.chunk) for d, dim in enumerate(schedule.dims))
    shares, unrolled = dict(state.shares), list(locals_)
    if row:
        shares[locals_[0]], pair = _row_share(state.frame, locals_[0])
        unrolled = list(pair)
    binding = _bind(state, schedule.dims, locals_, _chunk_starts(schedule, as_index(step)))
    tiles = _tiles(state, reduction, schedule, binding, prefix)
    width = 1 if row else _reduced_vector(tiles, locals_[-1], state.target)
    if width > 1:
        shares[locals_[-1]], pair = _vector_share(locals_[-1], width)
        unrolled[-1:] = pair
    staged: dict[Expr, Value] = {
        operand: _tile_load(tile, buffer, as_index(step) % schedule.stages) for operand, (tile, buffer) in tiles.items()
    }
    covered = {e: t.covered for e, (t, _) in tiles.items()}
    if schedule.atom:
        compute = _multiply(state, reduction, schedule, binding, locals_[0], staged, covered, prefix)
    else:
        accumulate = _accumulate(state, reduction, binding, locals_, staged, covered)
        compute = _phase(state, "compute", f"r{prefix[-1]}", (accumulate,), unrolled, shares)
    state.items.append(_phase(state, "compute", "init", (_initialise(state, reduction),), (), {}))
    state.items.extend(_ring(state, schedule, tiles, step, compute, prefix))
    if state.frame.schedule.lanes > 1:
        state.items.append(Phase("compute", f"{prefix}lanes", (_lane_reduce(state, reduction),), state.frame.unrolled))


def _multiply(
    state: _Segment,
    reduction: Reduction,
    schedule: ReductionSchedule,
    binding: AxisBinding,
    depth: Var,
    staged: Mapping[Expr, Value],
    covered: Mapping[Expr, frozenset[Var]],
    prefix: str,
) -> Phase:
    """Return the phase in which atoms add up one chunk: straight into the reduction's registers, or, where the math
    mode promotes partial sums, into registers of the chunk's own that are added to those.
    """
    frame = state.frame
    dims, dtype = frame.schedule.dims, state.group.tensors[reduction.name].dtype
    parts = atom_operands(reduction, dims[schedule.rows].axes, dims[schedule.columns].axes)
    if parts is None or frame.warp is None or frame.when:
        raise PassError(f"reduction {reduction.name}: no two factors of a sum are what atom {schedule.atom} multiplies")
    context = _context(state, binding, staged)
    a, b = (_present(value_of(part, context), part, depth, binding, covered) for part in parts)
    flats = {f.var: f for f in binding.flats.values()}
    a, b = tabulate(a, flats, state.layout.tables), tabulate(b, flats, state.layout.tables)
    held = MATRIX_ATOMS[schedule.atom].held
    a, b = (v if v.dtype is held else Convert(v, held) for v in (a, b))
    shared = atom_loop(schedule, dims, frame.tiles, depth, frame.warp, prefix)
    at = tuple(as_index(u) for u in frame.tiles)
    mode = MATH_MODES.get(reduction.math)
    name = f"{reduction.name}.part" if mode is not None and mode.every else reduction.name
    roots: list[Root] = list(products(reduction, schedule, name, at, (a, b), depth, shared, frame.warp.lane))
    if name != reduction.name:
        zero = evolve(_initialise(state, reduction), name=name)
        roots = [zero, *roots, Accumulate(reduction.name, at, "sum", Held(name, at, dtype), (), dtype)]
    shares = (*state.shares.values(), *shared.shares)
    unrolled = tuple(v for v in shared.unrolled if v.extent > 1) + frame.unrolled
    return Phase("compute", f"{frame.prefix}r{prefix[-1]}", tuple(roots), unrolled, shares, frame.when)


def _present(
    value: Value, part: Expr, depth: Var, binding: AxisBinding, covered: Mapping[Expr, frozenset[Var]]
) -> Value:
    """Return an operand that is 0 behind the ragged end of the depth: 0 times what lies there may be no number."""
    if depth not in binding.valid or (part in covered and depth in covered[part]):
        return value
    zero = Literal(0.0 if value.dtype.is_float else 0, value.dtype)
    return Op("select", (Test((binding.valid[depth],)), value, zero), value.dtype)


def _reduced_vector(tiles: Mapping[Expr, tuple[Tile, SharedBuffer]], local: Var, target: Target) -> int:
    """Return how many neighbours along a reduced variable compute may load as one vector: those that some staged tile
    has next to each other.
    """
    walking = [
        buffer.dtype
        for tile, buffer in tiles.values()
        if any(use == as_index(local) and pitch == 1 for use, pitch in zip(tile.uses, tile.pitch, strict=True))
    ]
    if not walking:
        return 1
    widths = {longest_vector(walking, target.vector_bytes), target.vector_bytes // 4}
    return max((w for w in widths if local.extent % w == 0), default=1)


def _vector_share(local: Var, width: int) -> tuple[Share, tuple[Var, ...]]:
    """Divide a reduced variable into vectors, each of which one load may bring."""
    group, element = Var(f"{local.name}o", local.extent // width), Var(f"{local.name}i", width)
    value = as_index(group) * width + element
    return Share(local, value, value), (group, element)


def _chunk_starts(schedule: ReductionSchedule, step: Index) -> tuple[Index, ...]:
    places = delinearise(step, [d.trips for d in schedule.dims])
    return tuple(place * dim.chunk for place, dim in zip(places, schedule.dims, strict=True))


def _tiles(
    state: _Segment, reduction: Reduction, schedule: ReductionSchedule, binding: AxisBinding, prefix: str
) -> dict[Expr, tuple[Tile, SharedBuffer]]:
    """Lay out the tile of each staged operand and declare its ring of buffers."""
    parts = operands(reduction, [r.name for r in state.frame.segment.reductions])
    shapes = {t: kind.shape for t, kind in state.group.tensors.items()}
    tiles: dict[Expr, tuple[Tile, SharedBuffer]] = {}
    for choice in schedule.staging:
        operand = parts[choice.operand]
        tile = stage(operand, shapes, binding, choice, f"{prefix}c{choice.operand}_")
        buffer = SharedBuffer(
            f"{prefix}s{choice.operand}", dtype_of(operand, state.group.tensors), tile.size * schedule.stages
        )
        state.layout.buffers[buffer.name] = buffer
        tiles[operand] = (tile, buffer)
    return tiles


def _tile_load(tile: Tile, buffer: SharedBuffer, slot: Index) -> Value:
    return Load("shared", buffer.name, slot * tile.size + tile.address(tile.uses), buffer.dtype)


def _ring(
    state: _Segment,
    schedule: ReductionSchedule,
    tiles: Mapping[Expr, tuple[Tile, SharedBuffer]],
    step: Var,
    compute: Phase,
    prefix: str,
) -> list[Item]:
    """Return the loop over chunks: fetch, barrier, compute, barrier; or a ring of `stages` buffers with one barrier per
    chunk.

    Nothing else uses the buffers of a reduction, so threads need not meet behind the last chunk.
    """
    # Without lockstep there is no machine of such copies, and no dialect prints any.
    behind = state.target.async_copy or not state.target.lockstep

    def fetch(at: Index, guarded: bool) -> list[Item]:
        found: list[Item] = []
        context = _context(state, AxisBinding({}, (), (), {}), {})
        for number, (tile, buffer) in enumerate(tiles.values()):
            ring = schedule.stages > 1
            slot, name = as_index(step) % schedule.stages, f"{prefix}fetch{number}"
            phase = fetch_phase(
                tile,
                buffer,
                slot,
                context,
                state.layout.thread,
                name,
                ring and behind,
                state.target.vector_bytes,
                state.aligned,
                state.layout.tables,
            )
            found.append(_at_step(phase, step, at, guarded))
        return found

    if not tiles:
        return [Loop(step, (compute,))] if step.extent > 1 else [compute]
    if schedule.stages == 1:
        body = (*fetch(as_index(step), False), Barrier(), compute, Barrier())
        return [Loop(step, body)] if step.extent > 1 else [*body[: body.index(compute) + 1]]
    ahead = schedule.stages - 1
    items: list[Item] = []
    commit, wait = ((Commit(),), (Wait(ahead - 1),)) if behind else ((), ())
    for early in range(ahead):
        items += [*(fetch(Index(early), False) if early < step.extent else ()), *commit]
    following = fetch(as_index(step) + ahead, True)
    return [*items, Loop(step, (*wait, Barrier(), *following, *commit, compute))]


def _at_step(phase: Phase, step: Var, at: Index, guarded: bool) -> Phase:
    """Return a fetch phase for another chunk than the loop's own, skipped past the end."""
    moved = substitute_phase(phase, {step: at})
    guard = Guard(at, 0, step.extent)
    if not guarded or guard.always:
        return moved
    return Phase(
        moved.kind, moved.name, moved.roots, moved.unrolled, moved.shares, (*moved.when, guard), moved.asynchronous
    )


def _output(state: _Segment, output: Output, name: str) -> None:
    """Emit an output's store: with the phase being collected, or in a loop of its own over a long row."""
    frame = state.frame
    if not output.extra:
        lane = Guard(as_index(frame.lane), 0, 1)
        binding = _bind(state, (), (), ())
        state.roots.append(_store(state, output, binding, () if lane.always else (lane,)))
        return
    dim = ReduceDim(output.extra, _row_chunk(state, output.extra))
    local = Var(f"{frame.prefix}w", dim.chunk)
    share, unrolled = _row_share(frame, local)
    if dim.trips == 1:
        state.roots.append(_store(state, output, _bind(state, (dim,), (local,), (Index(),)), ()))
        state.row += [v for v in unrolled if v not in state.row]
        state.shares[local] = share
        return
    _flush(state, f"before_{name}")
    step = Var(f"{frame.prefix}{name}it", dim.trips)
    binding = _bind(state, (dim,), (local,), (as_index(step) * dim.chunk,))
    phase = _phase(state, "exit", name, (_store(state, output, binding, ()),), unrolled, state.shares | {local: share})
    state.items.append(Loop(step, (phase,)))


def _row_chunk(state: _Segment, extra: tuple[Var, ...]) -> int:
    """Elements of a row per trip of an output loop: as the reduction over the same row has it, else eight per lane at
    most.
    """
    for reduction, schedule in zip(state.frame.segment.reductions, state.frame.schedule.reductions, strict=True):
        if reduction.reduce == extra and len(schedule.dims) == 1:
            return schedule.dims[0].chunk
    length = 1
    for axis in extra:
        length *= axis.extent
    step = state.frame.schedule.lanes * state.frame.schedule.row_vector
    return min(8, -(-length // step)) * step


def _store(state: _Segment, output: Output, binding: AxisBinding, guards: tuple[Guard, ...]) -> Store:
    context = _context(state, binding, {})
    value = value_of(output.body, context)
    dtype = state.group.tensors[output.tensor].dtype
    if output.tensor in state.layout.boxes:
        address = linearise([as_index(u) for u in state.frame.tiles], state.layout.pitches[output.tensor])
        return Store("shared", state.layout.buffers[output.tensor].name, address, value, dtype, guards)
    places = [resolve(substitute(i, binding.places), context) for i in output.write]
    address = linearise(places, strides_of(output.tensor, context))
    written = substitute_guards(output.guards, binding.places)
    every = (*binding.valid.values(), *guards, *written)
    return Store("global", output.tensor, address, value, dtype, every, output.into)

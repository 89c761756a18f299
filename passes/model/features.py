"""Features of candidate schedules, counted from the accesses, as arrays.

They are the inputs of both performance models; `features.py` declares them. Counts follow the generated kernels: every
element of a tile is computed (tails are predicated, not skipped), a value is computed and loaded once per box of the
axes it depends on, staged operands are computed in the fetch phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
from attrs import evolve

from ...ir import (
    LANES,
    PERSISTENT,
    WARPGROUP,
    WITH_PRODUCER,
    Expr,
    FusedGroup,
    Output,
    Read,
    Schedule,
    Segment,
    Target,
    Var,
    expr_indirects,
    expr_variables,
    indirects,
    is_exchange,
    reads,
)
from ..geometry import (
    Count,
    Geometry,
    StagedTile,
    ceil_div,
    chained_numbers,
    geometry_of,
    is_register_chain,
    is_scatter_only,
    is_scattered,
    is_walked_by_rows,
    joins_loop,
    least,
    multiplies_one_row,
    producer_share,
    product,
    reads_shared_matrices,
    result_geometry,
    running_maximum,
    shared_bytes,
    shared_layouts,
    split_divisor,
    staged_tiles,
    streamed_segment,
    teams_of,
    tensors_in_place,
    traffic_dim,
)
from ..lowering import MAX_HOISTED_REGISTERS, is_resident_at_once
from .feature_schema import Features, PaperCounts
from .mask_savings import mask_savings
from .memory_access import EvaluationSite, access_vector, ended_site, evaluation_site, output_site
from .registers import Registers, chain_registers, register_limit, thread_registers
from .roofline import group_work, memory_reads, nodes, translations
from .row_registers import resident_row
from .work import Totals, add_chain_overhead, add_column_sums, add_kept_sums, add_reduction, add_walk

#: Instructions of a thread that rescale a sum to a new running maximum, once for each K block.
RESCALING_INSTRUCTIONS = 12.0
#: Registers of a thread that two segments take across parts for the places of their operands: 16 compiled kernels.
PART_REGISTERS = 16.0


def count_features(
    group: FusedGroup,
    geometry: Sequence[Geometry],
    target: Target,
    raster: Count = 1,
    min_blocks: Count = 0,
    work: tuple[float, float] | None = None,
) -> Features:
    """Return the counts of all candidates with the given sizes.

    `geometry` has one entry per segment; `work` is the result of `group_work`, if known.
    """
    totals = Totals(group, target)
    layouts = shared_layouts(group, geometry)
    if is_register_chain([part.structure for part in geometry]):
        totals.in_registers = frozenset(group.shared)
    totals.pitches.update({tensor: pitches for tensor, (pitches, _) in layouts.items()})
    totals.threads = _maximum(part.threads for part in geometry)
    grid = _grid(geometry[-1])
    first = traffic_dim(group.segments[-1], geometry[-1].structure)
    outer, batches = grid[first] if grid else 1, product(n * 1.0 for n in grid[:first])
    blocks = product(n * 1.0 for n in grid) * geometry[-1].spread.cluster
    totals.blocks = blocks
    totals.at_once = is_resident_at_once(blocks, totals.threads, target)
    tiles = [staged_tiles(group, *each) for each in zip(group.segments, geometry, strict=True)]
    parts, registers, working = _count_segments(totals, geometry, tiles)
    useful, unique = work or group_work(group)
    spared = mask_savings(group, geometry, blocks, target) if streamed_segment(geometry)[0] else None
    if spared is not None:
        totals.apply_mask(spared)
        unique = unique * spared.seen
    limit = _register_limit(geometry, registers.held, totals.threads, min_blocks, target)
    products = [part for part in geometry if reads_shared_matrices(part.structure.mma)]
    bulk = products[-1].loop.tma if products and not totals.in_registers else np.int64(0)
    chained = np.int64((2 + (len(geometry) == 2) if products else 1) if totals.in_registers else 0)
    fragments = np.int64(any(p.structure.mma and not reads_shared_matrices(p.structure.mma) for p in geometry))
    lanes = (_multiplies_by_lanes(*each) for each in zip(group.segments, geometry, strict=True))
    alone = not products or not totals.in_registers or products[-1].loop.tma
    again = np.equal(products[-1].loop.tma, PERSISTENT) if products and totals.in_registers else False
    persistent = np.where(again, 1, 0)
    in_step = np.where(alone, 0, totals.threads // (WARPGROUP * LANES))
    tiled = geometry[-1].tiles if geometry[-1].structure.part_rows else np.int64(0)
    box_products = np.int64(any(part.structure.boxed for part in geometry))
    return Features(grid=blocks, bulk=bulk, fragments=fragments, box_products=box_products, chained=chained,
                    persistent=persistent, tiled=tiled, in_step=in_step, by_lanes=sum(lanes, np.int64(0)), outer=outer,
                    batches=batches, threads=totals.threads,
                    shared=shared_bytes(group, geometry, tiles, layouts), registers=least(registers.expected, limit),
                    needed=registers.needed, held=registers.held, limit=limit, tile=_smallest(tiles),
                    stages=_maximum(_buffers_ahead(part, bool(totals.in_registers)) for part in geometry),
                    raster=raster, min_blocks=min_blocks,
                    working=working, instances=_maximum(product(part.thread) for part in geometry), useful_flops=useful,
                    unique_bytes=unique, segments=parts, **totals.sums)  # fmt: skip


def _multiplies_by_lanes(segment: Segment, geometry: Geometry) -> Count:
    """Return where reduction threads of a segment load the factors of a product."""
    scattered = any(is_scattered(r) for e in segment.expressions for r in reads(e))
    lanes = geometry.structure.reduction_threads and multiplies_one_row(segment) and not scattered
    return np.where(np.greater(geometry.reduction_threads, 1), 1, 0) if lanes else 0


def _count_segments(
    totals: Totals, geometry: Sequence[Geometry], tiles: Sequence[Sequence[StagedTile]]
) -> tuple[tuple[PaperCounts, ...], Registers, Count]:
    """Add up all segments; return their counts for the paper's model, the registers, and the working warps."""
    group, warp_size = totals.group, totals.target.warp_size
    rows = [t for t in group.shared if is_walked_by_rows(group, t)]
    streamed, turns = streamed_segment(geometry)
    in_place = is_exchange(group) and bool(tensors_in_place(group))
    registers, parts = Registers(0, 0, 0), list[PaperCounts]()
    alone: Count = 0.0
    for position, (segment, part) in enumerate(zip(group.segments, geometry, strict=True)):
        if position:
            totals.add("barriers", 2.0 if in_place and position < len(geometry) - 1 else 1.0)
        before = dict(totals.sums)
        if position == len(geometry) - 1 and multiplies_one_row(segment):
            totals.add("row_direct", before["direct"])
            totals.add("row_lines", before["lines"])
            totals.add("row_flops", before["thread_flops"])
        parts.append(_segment(totals, segment, part, tiles[position]))
        alone = alone + totals.since("issue", before) / part.warps(warp_size)
        if position < streamed:
            _repeat_parts(totals, segment, before, turns, geometry[-1].structure.parts)
        if not totals.in_registers:
            own = thread_registers(segment, part, tiles[position], group.tensors, rows)
            registers = registers.maximum(own.with_held(streamed_registers(group, geometry, position)))
    if totals.in_registers:
        add_chain_overhead(totals, geometry)
        registers = chain_registers(geometry)
    elif streamed:
        _add_part_overhead(totals, geometry[-1], streamed, turns)
    working = np.where(np.greater(alone, 0), totals.sums["issue"] / np.maximum(alone, 1e-9), 1.0)
    return tuple(parts), registers, working


def _register_limit(
    geometry: Sequence[Geometry], held: Count, threads: Count, min_blocks: Count, target: Target
) -> Count:
    """Return the register limit of a thread that holds some sums, beside a producer where there is one."""
    limit = register_limit(threads, min_blocks, target)
    if is_register_chain([p.structure for p in geometry]):
        held = chained_numbers(*(product(p.thread) * len(p.structure.reduces) for p in (geometry[0], geometry[-1])))
    for part in (p for p in geometry if reads_shared_matrices(p.structure.mma)):
        own, others = producer_share(part.threads * teams_of(part.loop.tma), held, target.registers_per_sm)
        beside = np.where(others, others, register_limit(threads + own, min_blocks, target))
        limit = np.where(np.greater_equal(part.loop.tma, WITH_PRODUCER), beside, limit)
    return limit


def _smallest(tiles: Sequence[Sequence[StagedTile]]) -> Count:
    """Return the elements of the smallest staged tile."""
    smallest: Count = np.inf
    for tile in (tile for own in tiles for tile in own):
        smallest = least(smallest, tile.count)
    return smallest


def _add_part_overhead(totals: Totals, last: Geometry, streamed: int, turns: Count) -> None:
    """Count the overhead of each streamed part: barriers, and the rescaling of row sums."""
    more = np.where(np.greater(turns, 1), turns * 1.0, 0.0)
    totals.add("barriers", (1.0 + streamed) * more)
    if last.structure.parts < 0:
        totals.add("issue", product(last.thread) * last.threads * more)


def _buffers_ahead(part: Geometry, chained: bool) -> Count:
    """Return the stages of a pipeline, without one that unfinished products still read.

    The two rings of a chain have none, unless a producer fills stages of both factors; a loop whose stages are never
    filled again has none.
    """
    if not reads_shared_matrices(part.structure.mma):
        return part.loop.stages
    read = np.greater(part.loop.tma, 0) if chained else np.greater(product(part.trips), part.loop.stages)
    return part.loop.stages - np.where(read, 1, 0)


def _maximum(values: Iterable[Count]) -> Count:
    """Return the greatest of some counts, at least 1."""
    found: Count = 1
    for value in values:
        found = np.maximum(found, value)
    return found


def _grid(last: Geometry) -> list[Count]:
    """Return the blocks along each dim of the last segment."""
    taken = [last.tiles if n == last.structure.tiled_dim else 1 for n in range(len(last.block))]
    sizes = zip(last.structure.dims, last.block, taken, strict=True)
    return [ceil_div(prod(a.extent for a in dim), block * turns) for dim, block, turns in sizes]


def streamed_registers(group: FusedGroup, geometry: Sequence[Geometry], position: int) -> Count:
    """Return the registers that a segment leaves to others.

    With streamed rows, their sums and those of the last segment live across parts.
    """
    rows, turns = streamed_segment(geometry)
    held: Count = 0.0
    for other in {rows, len(geometry) - 1} - {position} if rows else ():
        held = held + product(geometry[other].thread) * len(group.segments[other].reductions)
    places = PART_REGISTERS if len(geometry) == 2 else 0.0
    return np.where(np.greater(turns, 1), held + places, 0.0)


def _segment(totals: Totals, segment: Segment, geometry: Geometry, tiles: Sequence[StagedTile]) -> PaperCounts:
    """Add up one segment; return its counts for the paper's model."""
    before = dict(totals.sums)
    own = [r.name for r in segment.reductions]
    totals.begin_segment(segment, geometry)
    totals.add_quotients(segment, geometry)
    alone = [staged or geometry.structure.mma for staged in geometry.structure.staged]
    for position, reduction in enumerate(segment.reductions):
        place = evaluation_site(geometry, geometry.structure.reduces[position])
        place = ended_site(place, segment, reduction, geometry, totals.group.tensors)
        staged = {t.expr: t for t in tiles if t.reduction == position}
        joined = joins_loop(segment, position, geometry.structure.reduces, alone)
        totals.begin(geometry, position > 0, joined)
        add_reduction(totals, segment, reduction, place, staged, geometry, own)
        if joined and running_maximum(reduction, segment.reductions[:position]):
            rescalings = np.where(resident_row(geometry), 0.0, product(geometry.thread) * place.all_trips)
            totals.add("issue", RESCALING_INSTRUCTIONS * rescalings * geometry.threads)
    fetched = dict(totals.sums)
    _add_outputs(totals, segment, result_geometry(totals.group, segment, geometry, totals.target), own)
    if geometry.structure.clusters:
        totals.share_rows(segment, geometry, before)
    if geometry.structure.kept[0]:
        add_kept_sums(totals, segment, geometry)
    if geometry.structure.part_rows:
        add_column_sums(totals, segment, geometry, before)
        for output in segment.column_sums:
            _add_stores(totals, segment, output, output_site(geometry, output.extra), geometry)
    if geometry.structure.walked >= 0:
        add_walk(totals, segment, geometry, before)
    if is_scatter_only(segment):
        totals.combine(segment, geometry)
    loaded = fetched if segment.reductions else totals.sums
    return PaperCounts(
        totals.since("flops", before),
        totals.since("thread_flops", before),
        loaded["thread_loads"] - before["thread_loads"],
        loaded["transactions"] - before["transactions"],
    )


def _add_outputs(totals: Totals, segment: Segment, geometry: Geometry, own: Sequence[str]) -> None:
    """Add up the epilogue and the stores of a segment; `own` are the names of its reductions."""
    done: dict[tuple[Var, ...], dict[Expr, None]] = {
        o.extra: {} for o in segment.outputs
    }  # equal nodes of outputs are computed once
    traffic = dict(translations((r for o in segment.outputs for r in memory_reads(o.body, own)), rows=True))
    epilogue_loads: Count = 0.0
    for output in segment.outputs:
        if totals.in_registers and output.extra:
            output = evolve(output, body=split_divisor(output.body)[0])
        known = done[output.extra]
        place = output_site(geometry, output.extra)
        totals.begin(geometry, bool(segment.reductions and output.extra))
        totals.compute(output.body, place, tuple(known))
        loaded_here = [r for r in memory_reads(output.body, own) if r not in known]
        for read in (r for r in _lookups(output) if r not in totals.seen and r.tensor not in totals.group.constants):
            totals.load(read, place, geometry, scalar=True)
        for read in (r for r in loaded_here if r.tensor not in totals.group.shared):
            epilogue_loads = epilogue_loads + place.loads(read, totals.group.tensors[read.tensor]) * place.all_trips
        for read in loaded_here:
            totals.load(read, place, geometry, traffic.get(read, 0))
        known.update(dict.fromkeys(nodes(output.body)))
        if not output.across:
            _add_stores(totals, segment, output, place, geometry)
        first = not geometry.structure.exchanged or output is segment.outputs[0]  # the calibration counts each output
        if output.extra or (first and not segment.reductions):
            totals.add("rounds", place.all_trips * totals.repeat * totals.left)
    late = np.greater(epilogue_loads, np.where(totals.at_once, MAX_HOISTED_REGISTERS, 0))
    totals.add("asked", late * 1.0 if segment.reductions else 0.0)


def _lookups(output: Output) -> list[Read]:
    """Return the reads of integers that name elements of operands and of an output."""
    found = (*expr_indirects(output.body), *(p for index in output.write for p in indirects(index)))
    return list(dict.fromkeys(Read(p.tensor, p.indices) for p in found))


def _add_stores(totals: Totals, segment: Segment, output: Output, place: EvaluationSite, geometry: Geometry) -> None:
    """Count the stores of an output by every thread."""
    if output.tensor in totals.in_registers:
        return
    per_thread = place.thread.dependent(frozenset(segment.axes + output.extra)) * place.all_trips * 1.0
    kind, written = totals.group.tensors[output.tensor], Read(output.tensor, output.write)
    widest = totals.target.vector_bytes // kind.dtype.size
    vector = access_vector(written, kind.steps, geometry, widest, place.rows)
    totals.add("stores", per_thread / vector * geometry.threads)
    totals.add("certain", per_thread / widest * geometry.threads)
    totals.add_conversions(per_thread / 2.0 * geometry.threads, kind.dtype)  # a pair is one conversion
    if output.tensor not in totals.group.shared:
        totals.add("stored", _written_bytes(totals, output, geometry))
        totals.touch(written, per_thread, vector, place, geometry)
        if sum(o.tensor == output.tensor for o in segment.outputs) == 1:  # the parts of one fill its sectors together
            totals.add_partial_stores(written, per_thread, vector, place, geometry)


def _repeat_parts(totals: Totals, segment: Segment, before: Mapping[str, Count], turns: Count, axis: int) -> None:
    """Repeat a segment's counts for each part along one of its axes, the last one of rows; reads that do not depend on
    that axis may hit L1 again.
    """
    grown = {name: value - before[name] for name, value in totals.sums.items() if name not in ("body", "functions")}
    totals.sums.update({name: before[name] + more * turns for name, more in grown.items()})
    for read, moved in totals.traffic.items():
        if segment.axes[axis] not in expr_variables(read):
            totals.add("bytes", -moved * (turns - 1))
            totals.add("again", moved * (turns - 1))


def _written_bytes(totals: Totals, output: Output, geometry: Geometry) -> Count:
    """Return the bytes a block writes of an output."""
    sizes = [least(b, prod(a.extent for a in d)) for d, b in zip(geometry.structure.dims, geometry.block, strict=True)]
    row = float(prod(v.extent for v in output.extra))
    sizes = [1] if output.across else sizes
    return product(sizes) * row * totals.group.tensors[output.tensor].dtype.size


def features_of(group: FusedGroup, schedule: Schedule, target: Target) -> Features:
    """Return the counts of one schedule, chosen or handwritten."""
    launch = (np.int64(schedule.raster), np.int64(schedule.min_blocks))
    return count_features(group, geometry_of(group, schedule), target, *launch)

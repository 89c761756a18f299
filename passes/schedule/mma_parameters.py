"""Schedule parameters of segments with matrix instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd, prod

from ...ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    ALTERNATING,
    HALF_BYTES,
    MMA_INSTRUCTIONS,
    PERSISTENT,
    WARPGROUP,
    WITH_PRODUCER,
    Reduction,
    Segment,
    Target,
    Var,
    block_scales,
    variables,
)
from ..geometry import (
    EXCHANGED_VECTOR,
    MIN_PRODUCT_STAGES,
    ScheduleParameter,
    SegmentTemplate,
    fills_ring,
    interleaved_instructions,
    main_read,
    mma_operands,
    next_power,
    powers,
    promotion_depth,
    row_vector,
)
from .staging_parameters import MMA_STAGES, cache_parameter

#: Warpgroups along the rows of a block, columns of their instructions, and bytes of a row of a K block.
WARPGROUPS, PRODUCT_COLUMNS, K_BLOCK_BYTES = (1, 2, 3), (32, 64, 96, 128, 192, 256), 128
#: Columns of instructions where they divide all columns of a product, as others do not.
EXACT_COLUMNS = tuple(n for n in range(16, 256, 16) if n not in PRODUCT_COLUMNS)
#: Results of a block that keeps an SM's tensor cores busy: 128 rows and columns.
FULL_TILE_RESULTS = 128 * 128


def mma_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool, widest: int
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of a segment with matrix instructions.

    They are warps along rows and columns, instructions of a warp along either, whole K blocks, prefetched fragments,
    and the cache policy of copies. Where results lie along a side, a lane's neighbours may be elements of several
    instructions, and results leave as longer vectors: at no cost where that side's operand lies along the depth, so
    that any rows or columns load as well, else for halves, which are then loaded one by one. Where words of the rows'
    operand lie along the rows, a lane's elements of an instruction may be neighbours, and loads bring two.
    """
    atom, (reduction,) = MMA_INSTRUCTIONS[structure.mma], segment.reductions
    sides = {structure.rows: 0, structure.columns: 1}
    for d, axes in enumerate(structure.dims):
        names, extent = (f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), prod(a.extent for a in axes)
        if d not in sides:
            yield ScheduleParameter(names, ((1, 1, 1),))
            continue
        axis = sides[d]
        size = (atom.m, atom.n)[axis]
        along, run = ACCUMULATOR_THREADS[axis], size // ACCUMULATOR_THREADS[axis]
        warps = (1, 2, 4) if coarse else (1, 2, 3, 4, 8)
        counts = powers(1, 64 // size) if coarse else (*powers(1, 64 // size), 3, 6, 7)
        limit = max(next_power(extent), size)
        vectors = _atom_vectors(reduction, structure, axis, segment, widest)
        longer = coarse and atom.a.packed > 1 and lies_deep(reduction, structure, axis)
        yield ScheduleParameter(
            names,
            tuple(
                (w * along, n * run, vector)
                for w in warps
                for n in counts
                for vector in (_longest(vectors, n, run) if longer else vectors[: 1 if coarse else None])
                if w * n * size <= limit and n % interleaved_instructions(vector, run) == 0
            ),
        )
    extent, most = prod(a.extent for a in structure.loops[0]), min(64, promotion_depth(reduction, atom.name) or 64)
    yield ScheduleParameter.of(f"{prefix}c0", [c for c in powers(atom.k, most) if c <= max(next_power(extent), atom.k)])
    _, scaled = block_scales(reduction.body, reduction.reduce)  # terms of one scale are not divided among warps
    depth_warps = (1,) if scaled else _depth_warps(structure, extent, atom.k, target, coarse)
    yield ScheduleParameter.of(f"{prefix}reduction_threads", depth_warps)
    # A product of few rows waits for copies: 36 K blocks of a warp took 170 ns each with three of them in flight.
    stages = (1, 3) if coarse or not target.async_copy else MMA_STAGES
    rings = tuple((s, ahead) for ahead in (0, 1) for s in stages if s > ahead)
    yield ScheduleParameter((f"{prefix}stages", f"{prefix}prefetch"), rings)
    yield cache_parameter(prefix, target, coarse)
    yield ScheduleParameter.of(f"{prefix}order", (2,) if coarse or not target.banked else (0, 1, 2))


def block_depth(structure: SegmentTemplate, reduction: Reduction) -> int:
    """Return the depth of a K block of products in place.

    It is a whole line of shared memory, or all of a shallow one, or the terms of one scale.
    """
    atom = MMA_INSTRUCTIONS[structure.mma]
    depth = max(next_power(prod(a.extent for a in structure.loops[0])), atom.k)
    _, scaled = block_scales(reduction.body, reduction.reduce)
    return min(K_BLOCK_BYTES // atom.held.size, depth, scaled or depth)


def block_depths(structure: SegmentTemplate, reduction: Reduction) -> tuple[int, ...]:
    """Return the candidate depths of a K block.

    Of several reduced axes it may be a part of the last one: channels of one place of a window.
    """
    axes, depth = [a for a in structure.loops[0] if a.extent > 1], block_depth(structure, reduction)
    part = gcd(axes[-1].extent, depth) if len(axes) > 1 else depth
    few = prod(a.extent for a in axes) <= MIN_PRODUCT_STAGES * depth
    narrow = part * MMA_INSTRUCTIONS[structure.mma].held.size < K_BLOCK_BYTES // 2
    return (depth,) if part == depth or few or narrow else (depth, part)


def warpgroup_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool, widest: int
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of products that warpgroups read in shared memory.

    They are warpgroups and instructions of one along the rows, columns of an instruction, and stages. A K block is a
    row of 128 bytes, or the whole depth. Neighbours of a lane along the columns are elements of several parts of an
    instruction: by the order of its columns where their factor lies along the depth, else by an exchange among lanes.
    One thread may stage both operands by bulk copies, for the tiles of a block in turn where the grid is persistent:
    then stages may be more than K blocks.
    """
    atom, (reduction,) = MMA_INSTRUCTIONS[structure.mma], segment.reductions
    for d, axes in enumerate(structure.dims):
        limit = max(next_power(prod(a.extent for a in axes)), atom.m)
        values: Iterable[tuple[int, ...]] = ((1, 1, 1),)
        if d == structure.rows:
            sizes = ((w, n) for w in WARPGROUPS for n in (1, 2) if w * n * atom.m <= limit)
            deep, held = lies_deep(reduction, structure, 0), atom.held.size > HALF_BYTES
            extent, paired = prod(a.extent for a in axes), deep and structure.bulk and not held
            along = is_contiguous(axes, segment)
            values = (
                (
                    w * WARPGROUP * ACCUMULATOR_THREADS[0],
                    n * 2,
                    2 * n if held and not deep else row_vector(extent, paired, along),
                )
                for w, n in sizes
            )
        elif d == structure.columns:
            deep = atom.held.size != HALF_BYTES or lies_deep(reduction, structure, 1)
            vectors = [v for v in powers(2, widest) if deep or v in (2, EXCHANGED_VECTOR)]
            vectors = vectors if is_contiguous(axes, segment) else [2]
            lanes, extent = ACCUMULATOR_THREADS[1], prod(a.extent for a in axes)
            widths = (n for n in (*PRODUCT_COLUMNS, *(n for n in EXACT_COLUMNS if extent % n == 0)) if n <= limit)
            values = (
                (lanes, n // lanes, v)
                for n in widths
                for v in [v for v in vectors if n // lanes % v == 0][-1 if coarse else 0 :]
            )
        yield ScheduleParameter((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), tuple(values))
    yield ScheduleParameter.of(f"{prefix}c0", block_depths(structure, reduction))
    yield ScheduleParameter.of(f"{prefix}reduction_threads", (1,))
    trips = -(-prod(a.extent for a in structure.loops[0]) // block_depth(structure, reduction))
    stages = [s for s in MMA_STAGES if s >= min(MIN_PRODUCT_STAGES, trips)]
    filled = [s for s in stages if fills_ring(s, trips)][: 2 if coarse else None]
    further = [s for s in stages if structure.bulk and not fills_ring(s, trips)][: 1 if coarse else None]
    yield ScheduleParameter((f"{prefix}stages", f"{prefix}prefetch"), tuple((s, 0) for s in sorted(filled + further)))
    yield cache_parameter(prefix, target, coarse)
    yield ScheduleParameter.of(f"{prefix}order", (2,))
    if structure.bulk:
        yield ScheduleParameter.of(f"{prefix}tma", (0, 1, WITH_PRODUCER, PERSISTENT, ALTERNATING))


def _depth_warps(structure: SegmentTemplate, depth: int, step: int, target: Target, coarse: bool) -> tuple[int, ...]:
    """Return the candidate warps of a warp split-K: several where there are too few results to keep all SMs busy with
    tiles of them.
    """
    results = prod(a.extent for axes in structure.dims for a in axes)
    most = min(8, next_power(depth) // step)
    if results > target.NUM_SM * FULL_TILE_RESULTS or most < 2:
        return (1,)
    return (1, min(4, most)) if coarse else powers(1, most)


def _atom_vectors(
    reduction: Reduction, structure: SegmentTemplate, axis: int, segment: Segment, widest: int
) -> tuple[int, ...]:
    """Return the candidate neighbours of a lane along an instruction's rows (`axis` 0) or columns (1)."""
    axes, least = structure.dims[(structure.rows, structure.columns)[axis]], ACCUMULATOR_VECTOR[axis]
    packed = MMA_INSTRUCTIONS[structure.mma].a.packed > 1
    if lies_deep(reduction, structure, axis) or packed:
        return powers(least, max(least, widest)) if is_contiguous(axes, segment) else (least,)
    return (least,) if axis else (least, 2 * least)


def _longest(vectors: Sequence[int], atoms: int, run: int) -> tuple[int, ...]:
    """Return the longest of some vectors that fit all of a thread's instructions."""
    return (max(v for v in vectors if atoms % interleaved_instructions(v, run) == 0),)


def lies_deep(reduction: Reduction, structure: SegmentTemplate, axis: int) -> bool:
    """Return whether an operand runs along a reduced axis in memory.

    It is that of an instruction's rows (`axis` 0) or columns (1).
    """
    sides = structure.dims[structure.rows], structure.dims[structure.columns]
    found = mma_operands(reduction, *sides)
    if found is None:
        return False
    main = main_read(found[axis], frozenset(sides[axis] + reduction.reduce))
    return bool(main.indices) and any(v in reduction.reduce for v in variables(main.indices[-1]))


def is_contiguous(axes: Sequence[Var], segment: Segment) -> bool:
    """Return whether results lie along a dim in memory."""
    return any(o.write and axes[-1] in variables(o.write[-1]) for o in segment.outputs)

"""Schedule parameters of a template: tiles, vectors, K blocks, threads, stages, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from ...ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    MATH_MODES,
    MMA_INSTRUCTIONS,
    WARPGROUP,
    Reduction,
    Segment,
    Target,
    Var,
    expr_variables,
    operands,
    reads,
    variables,
)
from ..geometry import (
    REGISTER_STAGED_ORDER,
    ROW_CACHE_UNITS,
    ScheduleParameter,
    SegmentTemplate,
    axis_classes,
    interleaved_instructions,
    is_matrix_like,
    main_read,
    mma_operands,
    next_power,
    powers,
    reads_shared_matrices,
)

#: Stages of a K loop; matrix instructions need their K blocks early.
STAGES, MMA_STAGES = (1, 2, 3, 4), (1, 2, 3, 4, 6, 8)
#: Warpgroups along the rows of a block, columns of their instructions, and bytes of a row of a K block.
WARPGROUPS, PRODUCT_COLUMNS, K_BLOCK_BYTES = (1, 2, 3), (64, 96, 128, 192, 256), 128
#: Results of a block that keeps an SM's tensor cores busy: 128 rows and columns.
FULL_TILE_RESULTS = 128 * 128
#: Most neighbours along a window that one thread computes.
MAX_WINDOW_RUN = 14
#: Most tiles per block in a privatised scatter.
MAX_TILES_PER_BLOCK = 256
#: Loops of a multiple of so many elements end even with chunks that are powers of two; of the others, one of up to
#: `WHOLE` elements may be a single chunk.
CHUNK_UNIT, MAX_SINGLE_CHUNK = 8, 128
#: Longest odd axis of a product that one thread may compute whole.
MAX_WHOLE_AXIS = 7
#: Results of a product that fill a block of their own.
MIN_BLOCK_RESULTS = 4096
#: Thread tiles, threads and K blocks along each dim in the thinned space of a kernel with several products.
THINNED_TILES, THINNED_THREADS, THINNED_CHUNKS = (4, 8), (4, 8, 16, 32), (8, 16, 32)
#: Reduction threads of such kernels.
THINNED_LANES = (2, 4, 8, 16, 32)
#: Elements of a streamed part of a row, or of an axis that is summed over.
STREAMED_PART_LENGTHS = (32, 64, 128, 256)


def segment_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool, widest: int
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of one segment.

    Names begin with `prefix`; `widest` are the elements of its longest vector.
    """
    if reads_shared_matrices(structure.atom):
        yield from warpgroup_parameters(segment, structure, prefix, target, coarse, widest)
        return
    if structure.atom:
        yield from mma_parameters(segment, structure, prefix, target, coarse, widest)
        return
    if structure.passes_rows:
        yield _lanes(structure, prefix, target, widest)
        if structure.streams:
            extent = prod(a.extent for a in structure.loops[0])
            yield _single(
                f"{prefix}part",
                (0, *(n for n in (STREAMED_PART_LENGTHS[1:3] if coarse else STREAMED_PART_LENGTHS) if n < extent)),
            )
        return
    finer = widest // (target.vector_bytes // 4)
    matrix = bool(segment.reductions) and is_matrix_like(segment)
    batch = _batch_dims(segment, structure) if matrix and coarse and target.lockstep else frozenset()
    for d, axes in enumerate(structure.dims):
        if d in batch:
            yield ScheduleParameter((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), ((1, 1, 1),))
            continue
        extent = prod(a.extent for a in axes)
        counts = (1,) if structure.shared else _thread_counts(extent, len(structure.dims), structure, target, coarse)
        tiles = _thread_tiles(extent, structure, matrix, target, coarse, finer)
        vectors = _vectors(d, structure, segment, widest, coarse) if extent > 1 else (1,)
        triples = [
            (t, e, v) for t in counts for e in tiles for v in vectors if e % v == 0 and t * e <= next_power(extent)
        ]
        if (
            not matrix
            and not structure.stages_any
            and not structure.lanes
            and len(axes) == 1
            and _slides(axes[0], segment)
        ):
            triples += _runs(extent, counts, tiles, triples, target, coarse)
        yield ScheduleParameter((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), tuple(triples))
    if structure.scatter_dim >= 0:
        most = min(next_power(prod(a.extent for a in structure.dims[structure.scatter_dim])), MAX_TILES_PER_BLOCK)
        yield _single(f"{prefix}turns", powers(1, most)[:: 2 if coarse else 1])
    for k, loop in enumerate(structure.loops):
        extent = prod(a.extent for a in loop)
        yield _single(
            f"{prefix}c{k}",
            _multiples(extent) if structure.lanes else _chunks(extent, len(loop) > 1, structure, coarse),
        )
    if structure.parts >= 0:
        extent = max(prod(a.extent for a in structure.loops[k]) for k in structure.streamed_loops)
        yield _single(
            f"{prefix}part",
            (0, *(n for n in (STREAMED_PART_LENGTHS[:3] if coarse else STREAMED_PART_LENGTHS) if n < extent)),
        )
    if structure.lanes:
        yield _lanes(structure, prefix, target, widest)
    if structure.caches_rows:
        yield _single(
            f"{prefix}kept",
            (0, ROW_CACHE_UNITS) if coarse else (0, ROW_CACHE_UNITS // 2, *range(5, ROW_CACHE_UNITS + 1)),
        )
    if structure.patch and target.lockstep and (not structure.shared or len(structure.dims) > len(structure.patch)):
        yield _single(f"{prefix}warp", (0, 8) if coarse else (0, 4, 8, 16))
    if structure.stages_any:
        yield _single(f"{prefix}stages", (1, 2) if coarse or not target.async_copy else STAGES)
        pads = (0, finer, 4 * finer)  # a word, and as many as keep vectors aligned
        deep = target.banked and _stages_deep(segment, structure)
        yield _single(f"{prefix}pad", (pads[-1 if deep else 0],) if coarse or not target.banked else pads)
        yield _single(f"{prefix}order", layouts(deep, coarse, target))


def layouts(deep: bool, coarse: bool, target: Target) -> tuple[int, ...]:
    """Return the candidate layouts of staged tiles.

    `deep` tells whether any operand's memory runs along the depth.
    """
    if coarse or not target.banked:
        return (0, 2, REGISTER_STAGED_ORDER) if deep else (0,)
    return (0, 1, 2, REGISTER_STAGED_ORDER) if deep else (0, 1, 2)


def _lanes(structure: SegmentTemplate, prefix: str, target: Target, widest: int) -> ScheduleParameter:
    """Return the parameter of the reduction threads of a row, and the neighbours that each takes at once."""
    longest = max((prod(a.extent for a in loop) for loop in structure.loops), default=1)
    lanes, vectors = powers(1, min(next_power(longest), target.MAX_thread)), powers(1, widest)
    pairs = tuple((n, v) for n in lanes for v in vectors if n * v <= next_power(longest))
    return ScheduleParameter((f"{prefix}lanes", f"{prefix}row_vector"), pairs)


def fit_parameters(
    segment: Segment, structure: SegmentTemplate, knobs: Iterable[ScheduleParameter]
) -> Iterator[ScheduleParameter]:
    """Yield the parameters of one of several products.

    No block has two elements of a dim that indexes both factors.
    """
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    for knob in knobs:
        dim = structure.dims[int(knob.names[0].partition(".")[2][1:])] if len(knob.names) == 3 else ()
        batch = bool(dim) and all(len(kinds[a]) > 1 for a in dim)
        yield ScheduleParameter(knob.names, ((1, 1, 1),)) if batch else knob


def thin_parameters(
    segment: Segment, structure: SegmentTemplate, knobs: Iterable[ScheduleParameter]
) -> Iterator[ScheduleParameter]:
    """Yield parameters restricted to values that suit register tiles.

    Other values remain where no such value exists. The segments of a fusion group have so many common candidates that
    an unrestricted sample would hold few that suit each.
    """
    if structure.passes_rows:
        for knob in knobs:
            widest = max(v[-1] for v in knob.values)
            pairs = tuple(v for v in knob.values if len(v) == 2 and v[0] in THINNED_LANES and v[1] == widest)
            yield ScheduleParameter(knob.names, pairs or knob.values)
        return
    if not structure.stages_any:
        yield from knobs
        return
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    for knob in knobs:
        kept: tuple[tuple[int, ...], ...] = knob.values
        name = knob.names[0].partition(".")[2]
        if len(knob.names) == 3:
            dim = structure.dims[int(name[1:])]
            wide = all(len(kinds[a]) < 2 for a in dim) and prod(a.extent for a in dim) > MAX_WHOLE_AXIS
            tiles = [
                v
                for v in kept
                if (v[1] in THINNED_TILES and (v[0] == 1 or v[0] in THINNED_THREADS) if wide else v[:2] == (1, 1))
            ]
            longest = max((v[2] for v in tiles), default=1)
            kept = tuple(v for v in tiles if v[2] in (1, longest)) or kept
        elif name[0] == "c":
            kept = tuple(v for v in kept if v[0] in THINNED_CHUNKS) or kept
        elif name == "stages":
            kept = tuple(v for v in kept if v[0] > 1) or kept
        yield ScheduleParameter(knob.names, kept)


def _batch_dims(segment: Segment, structure: SegmentTemplate) -> frozenset[int]:
    """Return the dims that index both factors of a product, where each of its results fills a block: a block gains
    nothing from two of them.
    """
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    if prod(a.extent for a, kind in kinds.items() if len(kind) == 1) < MIN_BLOCK_RESULTS:
        return frozenset()
    return frozenset(d for d, dim in enumerate(structure.dims) if all(len(kinds[a]) > 1 for a in dim))


def _stages_deep(segment: Segment, structure: SegmentTemplate) -> bool:
    """Return whether the memory of a staged operand runs along a reduced axis and no other."""
    own = [r.name for r in segment.reductions]
    for reduction, staged in zip(segment.reductions, structure.staged, strict=True):
        parts = operands(reduction, own)
        for main in (main_read(parts[k], frozenset(segment.axes + reduction.reduce)) for k in staged):
            last = variables(main.indices[-1]) if main.indices else frozenset()
            if last and last <= frozenset(reduction.reduce) and not last >= expr_variables(main):
                return True
    return False


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
    atom, (reduction,) = MMA_INSTRUCTIONS[structure.atom], segment.reductions
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
        longer = coarse and atom.a.packed > 1 and _lies_deep(reduction, structure, axis)
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
    extent, most = prod(a.extent for a in structure.loops[0]), 64
    if reduction.math and MATH_MODES[reduction.math].every:
        most = MATH_MODES[reduction.math].every
    yield _single(f"{prefix}c0", [c for c in powers(atom.k, most) if c <= max(next_power(extent), atom.k)])
    yield _single(f"{prefix}lanes", _depth_warps(structure, extent, atom.k, target, coarse))
    # A product of few rows waits for copies: 36 K blocks of a warp took 170 ns each with three of them in flight.
    stages = (1, 3) if coarse or not target.async_copy else MMA_STAGES
    rings = tuple((s, ahead) for ahead in (0, 1) for s in stages if s > ahead)
    yield ScheduleParameter((f"{prefix}stages", f"{prefix}ahead"), rings)
    yield _single(f"{prefix}cached", (0, 1) if target.async_copy and not coarse else (0,))
    yield _single(f"{prefix}order", (2,) if coarse or not target.banked else (0, 1, 2))


def warpgroup_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool, widest: int
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of products that warpgroups read in shared memory.

    They are warpgroups and instructions of one along the rows, columns of an instruction, and stages. A K block is a
    row of 128 bytes. Neighbours of a lane along the columns are elements of several parts of an instruction where the
    factor of the columns lies along the depth.
    """
    atom, (reduction,) = MMA_INSTRUCTIONS[structure.atom], segment.reductions
    for d, axes in enumerate(structure.dims):
        limit = max(next_power(prod(a.extent for a in axes)), atom.m)
        values: Iterable[tuple[int, ...]] = ((1, 1, 1),)
        if d == structure.rows:
            sizes = ((w, n) for w in WARPGROUPS for n in (1, 2) if w * n * atom.m <= limit)
            values = ((w * WARPGROUP * ACCUMULATOR_THREADS[0], n * 2, 1) for w, n in sizes)
        elif d == structure.columns:
            deep = _lies_deep(reduction, structure, 1) and _is_contiguous(axes, segment)
            vectors = powers(2, widest) if deep else (2,)
            lanes = ACCUMULATOR_THREADS[1]
            values = (
                (lanes, n // lanes, v)
                for n in PRODUCT_COLUMNS
                for v in (vectors[-1:] if coarse else vectors)
                if n <= limit
            )
        yield ScheduleParameter((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), tuple(values))
    yield _single(f"{prefix}c0", (K_BLOCK_BYTES // atom.held.size,))
    yield _single(f"{prefix}lanes", (1,))
    rings = tuple((s, 0) for s in ((3, 4) if coarse else MMA_STAGES) if s >= 3)
    yield ScheduleParameter((f"{prefix}stages", f"{prefix}ahead"), rings)
    yield _single(f"{prefix}cached", (0,) if coarse else (0, 1))
    yield _single(f"{prefix}order", (2,))


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
    packed = MMA_INSTRUCTIONS[structure.atom].a.packed > 1
    if _lies_deep(reduction, structure, axis) or packed:
        return powers(least, max(least, widest)) if _is_contiguous(axes, segment) else (least,)
    return (least,) if axis else (least, 2 * least)


def _longest(vectors: Sequence[int], atoms: int, run: int) -> tuple[int, ...]:
    """Return the longest of some vectors that fit all of a thread's instructions."""
    return (max(v for v in vectors if atoms % interleaved_instructions(v, run) == 0),)


def _lies_deep(reduction: Reduction, structure: SegmentTemplate, axis: int) -> bool:
    """Return whether the operand of an instruction's rows (`axis` 0) or columns (1) runs along a reduced axis in
    memory.
    """
    sides = structure.dims[structure.rows], structure.dims[structure.columns]
    found = mma_operands(reduction, *sides)
    if found is None:
        return False
    main = main_read(found[axis], frozenset(sides[axis] + reduction.reduce))
    return bool(main.indices) and any(v in reduction.reduce for v in variables(main.indices[-1]))


def _is_contiguous(axes: Sequence[Var], segment: Segment) -> bool:
    """Return whether results lie along a dim in memory."""
    return any(o.write and axes[-1] in variables(o.write[-1]) for o in segment.outputs)


def launch_parameters(
    structures: Sequence[SegmentTemplate], target: Target, coarse: bool
) -> tuple[ScheduleParameter, ...]:
    """Return the launch parameters of a kernel with a staged product.

    They are the raster of the grid, and the resident blocks.
    """
    last = structures[-1]
    if not target.lockstep or not any((s.patch or s.atom) and s.stages_any for s in structures):
        return ()
    raster = (1,) if coarse or len(last.dims) < 2 else (1, 4, 8, 16)
    # A bound on registers makes the compiler spill in the epilogue of a warpgroup's sums.
    blocks = (0,) if coarse or any(reads_shared_matrices(s.atom) for s in structures) else (0, 1, 2, 3, 4)
    return _single("raster", raster), _single("min_blocks", blocks)


def _single(name: str, values: Iterable[int]) -> ScheduleParameter:
    return ScheduleParameter((name,), tuple((v,) for v in values))


def _thread_counts(extent: int, rank: int, structure: SegmentTemplate, target: Target, coarse: bool) -> tuple[int, ...]:
    """Return powers of two, and counts that cover a small extent exactly (7 threads for 7 pixels)."""
    top = min(next_power(extent), target.MAX_thread)
    found = set(powers(1, top))
    if rank >= 3 and not structure.lanes:
        found = set(powers(1, min(top, 64)))
    if not coarse and rank > 1:
        found |= {-(-extent // e) for e in (1, 2, 4) if 1 < -(-extent // e) <= 32}
    if coarse and len(found) > 4 and rank >= 3:
        found &= {1, 4, 8, 16, 32}
    return tuple(sorted(found))


def _thread_tiles(
    extent: int, structure: SegmentTemplate, matrix: bool, target: Target, coarse: bool, finer: int
) -> tuple[int, ...]:
    """Return powers of two; where a thread does little with an element, `finer` elements count as one. In a product,
    one thread may also have all of a short odd axis, such as the taps of a filter.
    """
    top = 8 if matrix else (4 if structure.loops else 8) * finer
    if matrix and (not target.lockstep or (not coarse and len(structure.dims) <= 3)):
        top = 16
    whole = (extent,) if matrix and target.lockstep and 1 < extent <= MAX_WHOLE_AXIS and extent % 2 else ()
    return tuple(sorted({*powers(1, min(next_power(extent), top)), *whole}))


def _slides(axis: Var, segment: Segment) -> bool:
    """Return whether a window moves along an axis, so that neighbours read some of the same elements."""
    found = [i for r in segment.reductions for read in reads(r.body) for i in read.indices if axis in variables(i)]
    return any(len(variables(i)) > 1 for i in found)


def _runs(
    extent: int,
    counts: Sequence[int],
    tiles: Sequence[int],
    known: Sequence[tuple[int, ...]],
    target: Target,
    coarse: bool,
) -> list[tuple[int, int, int]]:
    """Return runs of neighbours for one thread along a window: powers of two, and lengths that divide the extent."""
    lengths = {*tiles, *(e for e in range(3, MAX_WINDOW_RUN + 1) if target.lockstep and extent % e == 0)}
    found = []
    for e in sorted(lengths - {1}):
        exact = () if coarse and e in tiles else (-(-extent // e),)
        threads = sorted({*counts, *(t for t in exact if t <= target.MAX_thread)})
        found += [(t, e, e) for t in threads if t * e <= next_power(extent) and (t, e, e) not in known]
    return found


def _vectors(d: int, structure: SegmentTemplate, segment: Segment, widest: int, coarse: bool) -> tuple[int, ...]:
    """Return vector widths: neighbouring elements only help along a dim that is innermost in some tensor. Values of a
    direct scatter go one by one, and neighbours then belong to neighbouring threads.
    """
    if structure.scatter_dim < 0 and any(output.into for output in segment.outputs):
        return (1,)
    last = structure.dims[d][-1]
    bodies = segment.expressions
    inner = any(r.indices and last in variables(r.indices[-1]) for b in bodies for r in reads(b))
    inner = inner or any(o.write and last in variables(o.write[-1]) for o in segment.outputs) or structure.stages_any
    if not inner:
        return (1,)
    return (1, widest) if coarse else powers(1, widest)


def _chunks(extent: int, flat: bool, structure: SegmentTemplate, coarse: bool) -> tuple[int, ...]:
    if extent <= 7 and not flat:
        return tuple(sorted({1, extent}))
    found = set(powers(4 if flat else 1, min(next_power(extent), 64)))
    if extent <= 64:
        found.add(extent)
    elif extent % CHUNK_UNIT and not flat:
        # No power of two divides such a loop: its last trip would do the work of a whole one for little.
        found |= {max(n for n in range(1, 65) if extent % n == 0), *((extent,) if extent <= MAX_SINGLE_CHUNK else ())}
    if coarse and len(found) > 4:
        found &= {1, 8, 16, 32, *((extent,) if extent <= MAX_SINGLE_CHUNK else ())}
    return tuple(sorted(found))


def _multiples(extent: int) -> tuple[int, ...]:
    """Return the candidate strides of `lanes * row_vector` elements in one trip over a row."""
    return powers(1, min(next_power(extent), 64))

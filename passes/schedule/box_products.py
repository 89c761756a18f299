"""Schedule templates and parameters of products beside a box in shared memory.

Of several axes that index one factor, such as the pixels of a box with its halo, each is a tile dim of its own. The
innermost one has the rows of matrix instructions; a warp multiplies several rows of the others:

    u[h, w, e] = max(sum over c of x[h, w, c] * f[e, c], 0), shared;   y[p, q, e] = sum over (r, s) of u[p+r, q+s, e]
      ->  instructions: rows along w, columns along e; for each h of a warp
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from ...ir import (
    ACCUMULATOR_THREADS,
    MMA_INSTRUCTIONS,
    FusedGroup,
    Segment,
    Target,
    Var,
    is_contraction,
    reads,
    required_streamed_axis,
    variables,
)
from ..geometry import (
    ScheduleParameter,
    SegmentTemplate,
    axis_classes,
    interleaved_instructions,
    is_matrix_like,
    mma_operands,
    next_power,
    powers,
    reads_shared_matrices,
    runs,
)
from .mma_parameters import is_contiguous, lies_deep
from .mma_templates import worthwhile_instructions
from .rules import Finding, ScheduleSizes
from .staging_parameters import ring_parameter, stageable_operands

#: Instructions of a warp along the rows, along the columns, and its elements of other dims of a box.
BOX_ROWS, BOX_COLUMNS, BOX_OTHERS = (1, 2), (1, 2, 3, 4, 6, 8, 9, 12), (1, 2, 3, 4)
#: Warps along each dim.
BOX_WARPS = (1, 2, 4, 7, 8)
#: Least bytes that a thread moves.
WORD_BYTES = 4
#: Most threads of a block: others compute while its segments wait for each other. Of 141 schedules those with more
#: took up to twice their estimate.
MAX_BOX_THREADS = 256
#: Most results of a block along an axis that windows slide along.
MAX_WINDOW_TILE = 28
#: Neighbours of a lane along the columns; stages, prefetched fragments, cache policy and order of tiles. Copies past L1
#: made three of five kernels 1.1 to 2 times as slow.
BOX_VECTORS, BOX_RINGS = (2, 4, 8), ((1, 0, 0, 2), (2, 0, 1, 2))


def box_mma_templates(group: FusedGroup, position: int, target: Target) -> Iterator[SegmentTemplate]:
    """Yield the templates with matrix instructions beside a box.

    The segment has the only product of two segments. It fills a box in shared memory, or reads one, whole.
    """
    if len(group.segments) != 2 or required_streamed_axis(group) is not None:
        return
    if not any(_box_templates(group, group.segments[1 - position], target)):
        yield from _box_templates(group, group.segments[position], target)


def fills_box(group: FusedGroup, target: Target) -> bool:
    """Return whether matrix instructions may fill or read a box."""
    return any(any(box_mma_templates(group, position, target)) for position in range(len(group.segments)))


def sums_windows(group: FusedGroup, target: Target) -> bool:
    """Return whether a group is a depthwise contraction.

    Matrix instructions might compute its factors before it.
    """
    (segment, *others) = group.segments
    own = [r.name for r in segment.reductions]
    held = {MMA_INSTRUCTIONS[name].held for name, _ in target.atoms}
    return (
        not others
        and any(is_contraction(r, own) for r in segment.reductions)
        and not is_matrix_like(segment)
        and any(group.tensors[t].dtype in held for t in segment.tensors_read)
    )


def _box_templates(group: FusedGroup, segment: Segment, target: Target) -> Iterator[SegmentTemplate]:
    if len(segment.reductions) != 1 or segment.holds_rows or any(o.extra for o in segment.outputs):
        return
    (reduction,), kinds = segment.reductions, axis_classes(segment)
    wide = [d for d, axis in enumerate(segment.axes) if axis.extent > 1 and len(kinds[d]) == 1]
    columns = max(wide, default=0)
    rows = max((d for d in wide if kinds[d] != kinds[columns]), default=columns)
    several = any(a.extent > 1 and kinds[d] != kinds[rows] for d, a in enumerate(segment.axes) if d != columns)
    dims = tuple((axis,) for axis in segment.axes)
    if rows == columns or several or mma_operands(reduction, dims[rows], dims[columns]) is None:
        return
    for name in worthwhile_instructions(reduction, group, target):
        if not reads_shared_matrices(name):
            shared = tuple(o.tensor for o in segment.outputs if o.tensor in group.shared)
            staged = stageable_operands(segment, reduction, group.shared)
            yield SegmentTemplate(dims, (reduction.reduce,), ((0,),), (staged,), shared=shared, mma=name, rows=rows,
                                  columns=columns, boxed=True)  # fmt: skip


def box_mma_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of products beside a box.

    They are a thread's tile, whole K blocks, and stages. The reader of a box determines the warps of its writer.
    """
    atom, (reduction,) = MMA_INSTRUCTIONS[structure.mma], segment.reductions
    warps = (1,) if structure.shared else BOX_WARPS
    for d, axes in enumerate(structure.dims):
        names, extent = (f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), _extent(axes)
        if d == structure.columns:
            neighbours = lies_deep(reduction, structure, 1) and is_contiguous(axes, segment)
            run, vectors = runs(atom)[1], BOX_VECTORS if neighbours else BOX_VECTORS[:1]
            most = -(-extent // ACCUMULATOR_THREADS[1])
            fitting = ((n, [v for v in vectors if n % interleaved_instructions(v, run) == 0]) for n in BOX_COLUMNS)
            tiles = [(n * run, v) for n, fit in fitting if n * run <= most for v in (fit[-1:] if coarse else fit)]
            counts = [w * (1 if structure.shared else ACCUMULATOR_THREADS[1]) for w in warps]
            yield _tiles(names, counts, tiles or [(run, vectors[0])], extent)
        elif d == structure.rows:
            run, rows = runs(atom)[0], [n for n in BOX_ROWS if n == 1 or n * atom.m <= next_power(extent)]
            counts = [w * (1 if structure.shared else ACCUMULATOR_THREADS[0]) for w in warps]
            yield _tiles(names, counts, [(n * run, 1) for n in rows], extent)
        else:
            others = BOX_OTHERS if d == structure.rows - 1 else BOX_OTHERS[:1]
            yield _tiles(names, warps if len(others) > 1 else warps[:1], [(n, 1) for n in others], extent)
    extent = _extent(structure.loops[0])
    yield ScheduleParameter.of(f"{prefix}c0", [c for c in powers(atom.k, 64) if c <= max(next_power(extent), atom.k)])
    rings = BOX_RINGS[: 1 if coarse or not target.async_copy else None]
    yield ring_parameter(prefix, rings)


def _tiles(
    names: tuple[str, ...], counts: Sequence[int], tiles: Sequence[tuple[int, int]], extent: int
) -> ScheduleParameter:
    """Return the parameter of a tile dim: threads, and a thread's elements and vector."""
    every = [(t, e, v) for t in counts for e, v in tiles]
    fitting = [value for value in every if value[0] * value[1] <= next_power(extent)]
    return ScheduleParameter(names, tuple(fitting or every[:1]))


def window_parameters(
    group: FusedGroup, segment: Segment, structure: SegmentTemplate, found: Iterable[ScheduleParameter]
) -> Iterator[ScheduleParameter]:
    """Yield the parameters of windows beside a product.

    A thread sums whole windows of neighbours of one image, and moves words of the innermost elements. Tiles of results
    divide the axes that windows slide along.
    """
    sliding = {v for r in segment.reductions for read in reads(r.body) for i in read.indices
               if len(used := variables(i)) > 1 for v in used}  # fmt: skip
    least = max(1, WORD_BYTES // min(group.tensors[t].dtype.size for t in segment.tensors_read))
    for knob in found:
        values = knob.values
        if len(knob.names) == 3:
            dim = structure.dims[int(knob.names[0].partition(".")[2][1:])]
            extent, inner = _extent(dim), dim == structure.dims[-1]
            if inner or not sliding.isdisjoint(dim):
                most = extent if inner else MAX_WINDOW_TILE
                tiles = [v for v in values if v[1] == v[2] and v[0] * v[1] <= most]
                values = tuple(v for v in tiles if structure.shared or extent % (v[0] * v[1]) == 0)
                values = tuple(v for v in values if v[2] >= least or not inner)
            else:
                values = tuple(v for v in values if v == (1, 1, 1))
        elif knob.names[0].partition(".")[2][0] == "c":
            values = values[-1:]
        yield ScheduleParameter(knob.names, values or knob.values)


def check_boxes_filled(sizes: ScheduleSizes) -> Iterator[Finding]:
    """All threads of a block take part in products beside a box."""
    for part in (p for p in sizes.parts if p.structure.boxed):
        yield np.not_equal(part.threads, sizes.threads), "{} threads of {} multiply", part.threads, sizes.threads
        wide = np.greater(part.threads, MAX_BOX_THREADS)
        yield wide, "{} threads beside a box, where several blocks hide barriers", part.threads
        for other in sizes.parts:
            few = np.less(2 * other.threads, sizes.threads)
            yield few, "{} threads of {} sum windows", other.threads, sizes.threads


def _extent(axes: Sequence[Var]) -> int:
    return prod(a.extent for a in axes)

"""Schedule parameter of bulk copies, and its rule.

`tma` 1 stages the operands of a warpgroup's products by boxes of tensor maps, where both operands are boxes: the rule
asks for each tile that candidates have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import cast

import numpy as np

from ...ir import (
    ALTERNATING,
    HALF_BYTES,
    LANES,
    MATH_MODES,
    MMA_INSTRUCTIONS,
    PERSISTENT,
    WARPGROUP,
    FusedGroup,
    ReduceDim,
    Reduction,
    ReductionSchedule,
    Segment,
    Staging,
    TileDim,
    Var,
    expr_indirects,
    operands,
    variables,
)
from ..geometry import (
    Geometry,
    SegmentTemplate,
    fills_ring,
    held_swizzle,
    is_held,
    main_read,
    mma_operands,
    product,
    reads_shared_matrices,
    side_swizzle,
    widest_swizzle,
)
from ..lowering import bulk_copy_faults
from .rules import Finding, ScheduleSizes

#: Block, thread tile and vector of the smallest rows of a product in place, and those of columns, whose lines of shared
#: memory have 128, 64 or 32 bytes.
LEAST_ROWS, LEAST_COLUMNS = (64, 2, 1), ((64, 16, 2), (32, 8, 2), (16, 4, 2))
#: Sizes of a tile dim: its block, its thread tile, its vector.
_Sizes = tuple[int, int, int]


def suits_bulk_copies(group: FusedGroup, segment: Segment, structure: SegmentTemplate, depths: Sequence[int]) -> bool:
    """Return whether bulk copies stage a template's smallest tiles.

    They bring operands as they are, or rounded: none is divided into parts on the way.
    """
    (reduction,) = segment.reductions
    alone = len(group.segments) == 1 and reads_shared_matrices(structure.mma)
    whole = not reduction.math or len(MATH_MODES[reduction.math].parts) == 1
    return (
        alone
        and whole
        and any(
            not _faults(group, segment, structure, block_k, LEAST_ROWS, columns)
            for block_k in depths
            for columns in LEAST_COLUMNS
        )
    )


def _faults(
    group: FusedGroup, segment: Segment, structure: SegmentTemplate, block_k: int, rows: _Sizes, columns: _Sizes,
    position: int = 0,
) -> list[str]:  # fmt: skip
    """Return why bulk copies cannot stage tiles of these sizes, of the reduction at a position."""
    reduction, own = segment.reductions[position], [r.name for r in segment.reductions]
    sizes = {structure.rows: rows, structure.columns: columns}
    dims = [TileDim(axes, *sizes.get(d, (1, 1, 1))) for d, axes in enumerate(structure.dims)]
    sides = dims[structure.rows], dims[structure.columns]
    found = mma_operands(reduction, sides[0].axes, sides[1].axes)
    assert found is not None, "templates are made for products"
    size = MMA_INSTRUCTIONS[structure.mma].held.size
    staging = []
    parts = operands(reduction, own)
    for number in structure.staged[position]:
        operand = parts[number]
        if is_held(operand, reduction, structure):
            staging.append(Staging(number, swizzle=held_swizzle(rows[2])))
            continue
        deep = size != HALF_BYTES or _lies_deep(reduction, main_read(operand).indices)
        side = sides[found.index(operand)]
        swizzle = widest_swizzle(block_k * size) if deep else side_swizzle(side.axes, side.block, size)
        staging.append(Staging(number, (1, 0) if deep else (), swizzle=swizzle))
    loop = ReductionSchedule(
        (ReduceDim(reduction.reduce, block_k),), tuple(staging), 3, structure.mma, structure.rows, structure.columns
    )
    return bulk_copy_faults(reduction, loop, dims, own, group.tensors, len(group.segments) == 1)


def _lies_deep(reduction: Reduction, indices: Sequence[object]) -> bool:
    return bool(indices) and any(v in reduction.reduce for v in variables(cast("Var", indices[-1])))


def check_bulk_copies_fit(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Bulk copies bring boxes of tensor maps."""
    for part, segment in zip(sizes.parts, sizes.group.segments, strict=True):
        if not reads_shared_matrices(part.structure.mma):
            continue
        if part.structure.bulk:
            stages, trips = part.loop.stages, product(part.trips)
            yield (
                np.less(part.loop.tma, PERSISTENT) & np.logical_not(fills_ring(stages, trips)),
                "{} stages of {} K blocks",
                stages,
                trips,
            )
        if not np.any(part.loop.tma):
            continue
        alternating = np.equal(part.loop.tma, ALTERNATING)
        yield alternating & np.not_equal(part.threads, WARPGROUP * LANES), "teams of a block have one warpgroup each"
        bodies = (*(r.body for r in segment.reductions), *(o.body for o in segment.outputs))
        if any(map(expr_indirects, bodies)):
            yield alternating, "teams take turns at loops that data do not end"
        for position in range(len(segment.reductions)):
            faults = _are_no_boxes(sizes.group, segment, part, position)
            yield np.logical_and(part.loop.tma, faults), "operands are no boxes"


def _are_no_boxes(group: FusedGroup, segment: Segment, part: Geometry, position: int) -> np.ndarray:
    structure = part.structure

    @cache
    def is_fault(block_k: int, *both: int) -> bool:
        rows, columns = cast("_Sizes", both[:3]), cast("_Sizes", both[3:])
        return bool(_faults(group, segment, structure, block_k, rows, columns, position))

    dims = structure.rows, structure.columns
    numbers = [n for d in dims for n in (part.block[d], part.thread[d], part.vector[d])]
    asked = np.vectorize(lambda *each: is_fault(*map(int, each)), otypes=[bool])
    return np.asarray(asked(part.block_k[structure.reduces[position][0]], *numbers))

"""Hand-written schedules of matrix products."""

from __future__ import annotations

from attrs import frozen
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ir.segment import FusedGroup
from cuts.tests.products import FORMATS

#: Matrix instruction of each format.
INSTRUCTIONS = {"bf16": "m16n8k16_bf16", "f16": "m16n8k16_f16", "tf32": "m16n8k8_tf32", "fp32x3": "m16n8k8_tf32"}


@frozen
class HandPoint:
    """Hand-written schedule.

    It has warps and matrix instructions of a warp along rows and columns, bytes of a K block's row, stages, and whether
    fragments are loaded ahead.
    """

    warps: tuple[int, int]
    atoms: tuple[int, int]
    row_bytes: int
    stages: int
    ahead: int
    raster: int = 8

    def schedule(self, group: FusedGroup, format_name: str) -> Schedule:
        """Return the point as a schedule of a product.

        The rows of both matrices are padded against bank conflicts.
        """
        segment = group.segments[0]
        size = FORMATS[format_name].stored.size
        batch, i, j = segment.axes
        (depth,) = segment.reductions[0].reduce
        dims = (
            TileDim((batch,), 1, 1),
            TileDim((i,), self.atoms[0] * 16 * self.warps[0], self.atoms[0] * 2, 1),
            TileDim((j,), self.atoms[1] * 8 * self.warps[1], self.atoms[1] * 2, 2),
        )
        staging = Staging(0, (1, 0), 16 // size), Staging(1, (), 8)
        loop = ReductionSchedule(
            (ReduceDim((depth,), self.row_bytes // size),),
            staging,
            self.stages,
            INSTRUCTIONS[format_name],
            1,
            2,
            self.ahead,
        )
        return Schedule((SegmentSchedule(dims, (loop,)),), raster=self.raster)

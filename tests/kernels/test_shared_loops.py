"""Independent reductions over one row share one loop.

The row is loaded once.
"""

from __future__ import annotations

from cuts.backends.devices import find_target
from cuts.ir.affine import Var
from cuts.ir.expr import call
from cuts.ir.kernel import Loop
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, TileDim
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.passes.geometry.row_sharing import shareable_loops
from cuts.passes.lowering.lower import lower
from cuts.passes.model import features_of

from ..needs import needs_opencl
from ..search_space.groups import at, f32, write
from .test_points import SMALL_GPU, _device, check

H200 = find_target("cuda:h200")
ROWS, COLUMNS = 4, 96


def sums() -> FusedGroup:
    """Return two sums and one that needs the first.

    A norm's gradient is made of these.
    """
    i, r = Var("i", ROWS), Var("r", COLUMNS)
    x, dy = at("x", i, r), at("dy", i, r)
    first = Reduction("a", (r,), "sum", x)
    second = Reduction("b", (r,), "sum", call("mul", x, dy))
    third = Reduction("c", (r,), "sum", call("mul", dy, at("a", i)))
    row = Output("y", write(i, r), call("add", call("mul", dy, at("b", i)), at("c", i)), (r,))
    tensors = {name: f32(ROWS, COLUMNS) for name in ("x", "dy", "y")} | {name: f32(ROWS) for name in "abc"}
    return FusedGroup((Segment((i,), (first, second, third), (row,)),), tensors, ("x", "dy"), ("y",))


def points(group: FusedGroup) -> Schedule:
    """Eight lanes a row, which take it in three trips."""
    (segment,) = group.segments
    loop = ReductionSchedule((ReduceDim(segment.reductions[0].reduce, 32),))
    return Schedule((SegmentSchedule((TileDim(segment.axes, 2, 1),), (loop,) * 3, reduction_threads=8, row_vector=4),))


def test_independent_sums_share_a_loop() -> None:
    group = sums()
    assert shareable_loops(group.segments[0]) == (False, True, False)
    kernel = lower(group, points(group), {}, H200)
    assert sum(isinstance(item, Loop) for item in kernel.items) == 3  # two of sums, one of the output
    loaded = features_of(group, points(group), H200).segments[0].loads
    assert loaded == 3 * COLUMNS / 8  # x and dy once, dy again


@needs_opencl
def test_a_shared_loop_computes_the_same() -> None:
    group = sums()
    check(_device("opencl"), SMALL_GPU, group, points(group))

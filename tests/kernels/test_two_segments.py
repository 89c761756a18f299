"""Windows over a product's results in one kernel.

The halo is fetched by whole rows, elements beyond its ends are left out, planes lie in different banks, and the
epilogue's operands are loaded first.
"""

from __future__ import annotations

import re

import pytest
from cuts.backends.devices import find_target
from cuts.ir import FusedGroup, ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim, parse_ir
from cuts.passes.geometry import shared_pitches
from cuts.passes.geometry.shared_memory import has_constant_strides, line_fetch, whole_row_fetch
from cuts.passes.lowering import check_barriers, extract, lower
from cuts.passes.model import features_of
from cuts.passes.schedule import check_schedule
from cuts.tests.emission import emit

from ..needs import needs_opencl
from .test_points import SMALL_GPU, _device, check

H200 = find_target("cuda:h200")
GROUP = """var n < 1, c < 32, h < 14, w < 14, k < 24, r < 3, s < 3, d < 32, i < 14, j < 14

group {
  tensor "w": f32[24, 32]
  tensor "x": f32[1, 24, 14, 14]
  tensor "b": f32[32]
  tensor "u": f32[1, 32, 14, 14]
  tensor t: f32[1, 32, 14, 14]
  tensor "v": f32[3, 3, 32]
  tensor "e": f32[32]
  tensor "y": f32[1, 32, 14, 14]
  tensor z: f32[32, 14, 14]
  inputs "w", "x", "b", "v", "e"
  outputs "y"
  shared "u"
  segment (n, c, h, w) {
    reduce t = sum over (k) of "w"[k, c] * "x"[0, k, h, w]
    output "u"[0, c, h, w] = max(t[0, c, h, w] + "b"[c], 0.5)
  }
  segment (d, i, j) {
    reduce z = sum over (r, s) of "v"[r, s, d] * "u"[0, d, i + r - 1, j + s - 1 if 0 <= i + r - 1 < 14, 0 <= j + s - 1 <
    14 else 0] output "y"[0, d, i, j] = max(z[d, i, j] + "e"[d], 0.0)
  }
}
"""


def group() -> FusedGroup:
    found = parse_ir(GROUP)
    assert isinstance(found, FusedGroup)
    return found


def point(made: FusedGroup, rows: int = 4, columns: int = 8, stages: int = 2) -> Schedule:
    """Return a point of sixteen channels of a few rows and columns.

    It is a box with a halo of one, whose pixels are no power of two.
    """
    first, last = made.segments
    box = (rows + 2, columns + 2)
    n, c, h, w = first.axes
    tiles = (TileDim((n,), 1, 1), TileDim((c,), 16, 8, 4), TileDim((h,), box[0], 2), TileDim((w,), box[1], 2, 2))
    loop = ReductionSchedule((ReduceDim(first.reductions[0].reduce, 24),), (Staging(0), Staging(1)), stages)
    d, i, j = last.axes
    consumer_tiles = (TileDim((d,), 16, 1), TileDim((i,), rows, min(rows, 4)), TileDim((j,), columns, 2, 2))
    window = ReductionSchedule(tuple(ReduceDim((v,), 3) for v in last.reductions[0].reduce), (), 1)
    return Schedule((SegmentSchedule(tiles, (loop,)), SegmentSchedule(consumer_tiles, (window,))))


def source_of(schedule: Schedule) -> str:
    text = emit(extract(lower(group(), schedule, {}, H200)), "cuda").source
    return text[text.index("__global__") :]


def test_the_point_is_one() -> None:
    assert check_schedule(group(), point(group()), H200) == []
    assert check_barriers(lower(group(), point(group()), {}, H200)) == ()


def test_threads_step_from_plane_to_plane() -> None:
    """A plane of 6x10 pixels has 60 of 64 threads.

    The step from copy to copy is a constant.
    """
    copies = re.findall(r"cuts_copy4\(&\w+\[([^]]*)\], &p\d\[([^]]*)\]", source_of(point(group())))
    assert copies
    for place, address in copies:
        assert re.fullmatch(r"f \* 60 \+ tid( \+ \d+)?", place)
        assert "f * 196 +" in address and not re.search(r"\bf\b[^+]*[/%]", address)


def test_no_load_looks_where_it_is() -> None:
    body = source_of(point(group()))
    assert not re.findall(r"\? m1\[", body), "what lies beyond the ends was left there"
    assert re.search(r"= \(\(.* < 14.*\) \? .*: 0\.0f\)", body[: body.index("&m1[")]), "who leaves it compares instead"


def test_results_find_what_they_take_in_registers() -> None:
    body = source_of(point(group()))
    first = body.index("__syncthreads()")
    for bias in ("p3", "p5"):
        assert bias in body[body.index("cuts_begin") : first]
        assert f"{bias}[" not in body[first:]


@pytest.mark.parametrize(("rows", "columns", "plane"), [(4, 8, 60), (2, 14, 68), (2, 8, 44)])
def test_planes_lie_odd_multiples_of_16_bytes(rows: int, columns: int, plane: int) -> None:
    pitches, elements = shared_pitches(group(), "u", (1, 16, rows + 2, columns + 2))
    assert pitches == (16 * plane, plane, columns + 2, 1) and elements == 16 * plane and plane // 4 % 2


def test_rows_are_taken_where_threads_would_divide() -> None:
    assert whole_row_fetch((64, 6, 10), 64) == (1, 1)
    assert whole_row_fetch((64, 9, 9), 224) is None, "162 of 224 threads are too few"
    assert whole_row_fetch((64, 3, 16), 48) is None and has_constant_strides((64, 3, 16), 48)
    assert whole_row_fetch((2, 6, 10), 128) is None, "threads take one element each"
    assert line_fetch((64, 24), 256, 16) == 3
    assert line_fetch((64, 20), 256, 16) == 0, "rows end within lines"
    assert line_fetch((40, 24), 256, 16) == 0, "the last trip is not whole"


def test_the_model_counts_fetches_that_divide() -> None:
    even, uneven = (features_of(group(), point(group(), *size), H200) for size in ((4, 8), (4, 4)))
    assert float(even.uneven) == 0 < float(uneven.uneven)


@needs_opencl
@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (2, 14), (4, 4)])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_numbers_are_right(rows: int, columns: int, stages: int) -> None:
    check(_device("opencl"), H200, group(), point(group(), rows, columns, stages))


BEYOND = """var n < 1, c < 3, h < 1, w < 3, r < 3, o < 1, i < 2, j < 1, k < 3, s < 3

group {
  tensor "a": f32[3, 3]
  tensor "x": f32[3, 5]
  tensor "u": f32[1, 3, 1, 3]
  tensor t: f32[1, 3, 1, 3]
  tensor "v": f32[3, 3]
  tensor "y": f32[1, 2, 1]
  tensor z: f32[1, 2, 1]
  inputs "a", "x", "v"
  outputs "y"
  shared "u"
  segment (n, c, h, w) {
    reduce t = sum over (r) of "a"[c, r] * "x"[c, w + r]
    output "u"[0, c, 0, w] = t[0, c, 0, w]
  }
  segment (o, i, j) {
    reduce z = sum over (k, s) of "v"[k, s] * "u"[0, k, i, s if 0 <= i < 1 else 0]
    output "y"[0, i, 0] = z[0, i, 0]
  }
}
"""


@needs_opencl
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8"])
def test_tile_beyond_unit_axis_leaves_read_values(dtype: str) -> None:
    made = parse_ir(BEYOND.replace("f32[", f"{dtype}["))
    assert isinstance(made, FusedGroup)
    first, last = made.segments
    n, c, h, w = first.axes
    tiles = (TileDim((n,), 1, 1), TileDim((c,), 4, 4), TileDim((h,), 2, 1), TileDim((w,), 4, 4, 2))
    loop = ReductionSchedule((ReduceDim(first.reductions[0].reduce, 1),), (), 1)
    o, i, j = last.axes
    consumer_tiles = (TileDim((o,), 1, 1), TileDim((i,), 2, 1), TileDim((j,), 1, 1))
    sums = ReductionSchedule(tuple(ReduceDim((v,), v.extent) for v in last.reductions[0].reduce), (), 1)
    schedule = Schedule((SegmentSchedule(tiles, (loop,)), SegmentSchedule(consumer_tiles, (sums,))))
    assert check_schedule(made, schedule, SMALL_GPU) == []
    check(_device("opencl"), SMALL_GPU, made, schedule)

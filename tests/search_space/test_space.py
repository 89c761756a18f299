"""Spaces of each kind of group.

Content, and an enumeration without losses or repeats.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.passes.geometry.schedule_template import axis_classes, class_runs, is_matrix_like
from cuts.passes.schedule.selection.enumerate import batches, columns_at, sample_batches, to_schedule
from cuts.passes.schedule.space import make_space

from .groups import ALL, conv, depthwise, illegal_histogram, matmul, pointwise, softmax

H200 = find_target("cuda:h200")
CPU = find_target("opencl")


def names(dims):
    """Return the axes of each dim as text."""
    return ["".join(a.name for a in dim) for dim in dims]


def test_axis_classes_are_read_off_the_accesses():
    segment = conv(2, 3, 8, 9).segments[0]
    assert axis_classes(segment) == ({0}, {1}, {0}, {0})
    assert names(class_runs(segment)) == ["n", "k", "hw"]
    assert is_matrix_like(segment)
    depth = depthwise(2, 5, 9).segments[0]
    assert axis_classes(depth) == ({0}, {0, 1}, {0}, {0})
    assert not is_matrix_like(depth)


def test_axes_of_extent_one_join_no_run():
    assert names(class_runs(conv(1, 3, 8, 9).segments[0])) == ["n", "k", "hw"]
    assert names(class_runs(matmul(1, 5, 7).segments[0])) == ["i", "j"]


def test_convolution_has_direct_and_implicit_gemm_structures():
    found = {
        (tuple(names(s.segments[0].dims)), tuple(names(s.segments[0].loops)))
        for s in make_space(conv(2, 3, 8, 9), H200).templates
    }
    assert (("n", "k", "h", "w"), ("c", "r", "s")) in found
    assert (("n", "k", "hw"), ("crs",)) in found


def test_rows_are_shared_by_lanes():
    assert all(s.segments[0].reduction_threads for s in make_space(softmax(4, 64), H200).templates)


def test_pointwise_is_flat_or_keeps_last_axis():
    shapes = [names(s.segments[0].dims) for s in make_space(pointwise(2, 3, 4), H200).templates]
    assert shapes == [["i0i1i2"], ["i0i1", "i2"]]


def test_cpu_has_no_warp_maps_and_no_padding():
    knobs = [k for s in make_space(conv(2, 3, 8, 9), CPU).templates for k in s.parameters]
    assert not any("warp" in n for k in knobs for n in k.names)
    assert all(k.values == ((0,),) for k in knobs if k.names[0].endswith("pad"))


@pytest.mark.parametrize("name", ["pointwise", "scalar", "gemv", "softmax", "pool", "global-pool"])
def test_batches_hold_every_point_once_and_in_order(name, monkeypatch):
    monkeypatch.setattr("cuts.passes.schedule.selection.enumerate.BATCH", 1000)
    space = make_space(ALL[name], H200, coarse=True)
    following = 0
    for batch in batches(space):
        first = batch.start if batch.points is None else batch.start + int(batch.points[0])
        assert first == following
        following += batch.size
        for point in {0, batch.size // 2, batch.size - 1}:
            values = {n: int(batch.flat(c)[point]) for n, c in batch.columns.items()}
            inside = first + point - sum(s.size for s in space.templates[: space.templates.index(batch.structure)])
            assert values == {n: int(c[0]) for n, c in columns_at(batch.structure, np.asarray([inside])).items()}
    assert following == space.size


def test_to_schedule_names_distinct_points():
    space = make_space(matmul(4, 4, 4), CPU, coarse=True)
    points = range(0, space.size, 7)
    assert len({to_schedule(space, p) for p in points}) > 0.9 * len(points)
    with pytest.raises(IndexError):
        to_schedule(space, space.size)


def test_samples_are_always_the_same():
    first, second = (list(sample_batches(make_space(conv(2, 3, 8, 9), H200), 500)) for _ in range(2))
    assert all(np.array_equal(a.points, b.points) for a, b in zip(first, second, strict=True))


def test_histogram_says_why_points_are_illegal():
    counts = illegal_histogram(make_space(matmul(256, 256, 64), H200, coarse=True))
    assert counts["check_threads_fit"] > 0
    assert counts["check_bodies_compile"] > 0
    assert counts["legal"] > 1000


def test_space_sizes_are_as_the_design_says():
    assert 1e5 < make_space(matmul(1024, 1024, 1024), H200, coarse=True).size < 1e7
    assert make_space(pointwise(1, 64, 56, 56), H200).size < 1e4


def test_windows_offer_runs_that_divide_their_extent():
    group = depthwise(2, 32, 58)
    for target, offered in ((H200, True), (CPU, False)):
        values = {v for s in make_space(group, target).templates if not any(p.stages_any for p in s.segments)
                  for k in s.parameters if len(k.names) == 3 for v in k.values}  # fmt: skip
        assert ((4, 14, 14) in values) == ((8, 7, 7) in values) == offered

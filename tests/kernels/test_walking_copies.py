"""Bulk copies by maps that walk pixels: convolutions with channels innermost (im2col)."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import Guard, Schedule, bulk_fetches, substitute_expr
from cuts.ir.affine import Var, as_index, substitute
from cuts.ir.expr import Read, call
from cuts.ir.machine.tensor_maps import TensorMap
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.types import DType, TensorType
from cuts.passes.lowering import lower
from cuts.passes.schedule.selection import choose
from cuts.passes.schedule.space import make_space
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ..amounts import examples
from ..needs import needs_cuda, needs_opencl
from .cases import legal_points
from .test_bulk_copies import FORMS, with_tma
from .test_matrix_instructions import _device, check

H200 = find_target("cuda:h200")
#: Images, rows, columns, channels, results; window, stride, dilation.
Shape = tuple[int, int, int, int, int, int, int, int]
CASES: tuple[Shape, ...] = (
    (2, 9, 7, 64, 64, 3, 1, 1),
    (2, 12, 10, 128, 48, 3, 2, 1),
    (2, 11, 13, 64, 64, 3, 1, 2),
    (3, 8, 8, 64, 64, 1, 2, 1),
)


def convolution(shape: Shape, kind: DType = DType.F16, falling: bool = False) -> FusedGroup:
    """Return a convolution with channels innermost and a border of zeros.

    Windows fall as those of a data gradient do.
    """
    images, rows, columns, channels, results, window, stride, dilation = shape
    border = (window - 1) * dilation // 2
    out = [(size + 2 * border - (window - 1) * dilation - 1) // stride + 1 for size in (rows, columns)]
    n, h, w, k = (Var(name, extent) for name, extent in zip("nhwk", (images, *out, results), strict=True))
    r, s, c = Var("r", window), Var("s", window), Var("c", channels)
    sign = -1 if falling else 1
    places = [as_index(p) * stride + as_index(tap) * (sign * dilation) - sign * border for p, tap in ((h, r), (w, s))]
    guards = [Guard(place, 0, size) for place, size in zip(places, (rows, columns), strict=True)]
    image = Read("x", (as_index(n), *places, as_index(c)), tuple(g for g in guards if not g.always))
    weight = Read("f", tuple(map(as_index, (k, r, s, c))))
    total = Reduction("t", (r, s, c), "sum", call("mul", image, weight), "")
    axes = tuple(map(as_index, (n, h, w, k)))
    segment = Segment((n, h, w, k), (total,), (Output("y", axes, Read("t", axes)),))
    result = TensorType(DType.F32, (images, *out, results))
    types = {"x": TensorType(kind, (images, rows, columns, channels)), "t": result, "y": result}
    types["f"] = TensorType(kind, (results, window, window, channels))
    return FusedGroup((segment,), types, ("x", "f"), ("y",))


def grouped_convolution(shape: Shape, groups: int) -> FusedGroup:
    """Return a convolution of several equal groups of channels."""
    group = convolution(shape)
    (segment,) = group.segments
    (total,) = segment.reductions
    image, weight = total.body.args  # type: ignore[attr-defined]
    (*places, k), (*_, c) = segment.axes, total.reduce
    g, channels, results = Var("g", groups), shape[3], shape[4]
    image = evolve(image, indices=(*image.indices[:-1], as_index(g) * channels + c))
    weight = evolve(weight, indices=(as_index(g) * results + k, *weight.indices[1:]))
    axes = (*places, g, k)
    write = (*map(as_index, places), as_index(g) * results + k)
    output = Output("y", write, Read("t", tuple(map(as_index, axes))))
    total = evolve(total, body=call("mul", image, weight))
    types = {n: evolve(t, shape=(*t.shape[:-1], t.shape[-1] * groups)) for n, t in group.tensors.items() if n in "xy"}
    types["f"] = evolve(group.tensors["f"], shape=(results * groups, *group.tensors["f"].shape[1:]))
    types["t"] = TensorType(DType.F32, tuple(v.extent for v in axes))
    return FusedGroup((Segment(axes, (total,), (output,)),), types, ("x", "f"), ("y",))


def walking_points(group: FusedGroup, seed: int = 0) -> list[Schedule]:
    """Return random points with bulk copies."""
    space = make_space(group, H200)
    structures = [t for t in space.templates if t.segments[0].bulk]
    points = [p for each in structures for p in legal_points(space, each, seed, 64)]
    return [p for p in points if p.segments[0].reductions[0].tma]


@needs_opencl
@pytest.mark.parametrize(("shape", "form"), [*zip(CASES, (1, 2, 3, 1), strict=True)], ids=str)
def test_walks_bring_the_pixels_of_windows_opencl(shape: Shape, form: int) -> None:
    group = convolution(shape)
    check(_device("opencl"), H200, group, with_tma(walking_points(group)[0], form))


@needs_opencl
@pytest.mark.parametrize(("groups", "form"), [(2, 1), (3, 2)])
def test_walks_within_groups_opencl(groups: int, form: int) -> None:
    group = grouped_convolution((2, 9, 7, 64, 64, 3, 2, 1), groups)
    schedule = walking_points(group)[0]
    kernel = lower(group, schedule, {}, H200)
    assert [m.dims[0] for m in kernel.maps if m.pixels] == [64 * groups]
    check(_device("opencl"), H200, group, with_tma(schedule, form))


def piece_of_gradient(places: int, kind: DType = DType.BF16) -> FusedGroup:
    """Return pixels of a strided gradient with some places of its window."""
    n, h, w, c, k, r = (Var(name, extent) for name, extent in zip("nhwckr", (2, 7, 6, 64, 128, places), strict=True))
    place = as_index(w) - r + (places - 1)
    image = Read("x", (as_index(n), as_index(h), place, as_index(k)), () if places == 1 else (Guard(place, 0, 6),))
    weight = Read("f", (as_index(k), as_index(1), as_index(r) * 2 + (2 - places), as_index(c)))
    axes = tuple(map(as_index, (n, h, w, c)))
    total = Reduction("t", (r, k)[places == 1 :], "sum", call("mul", image, weight), "")
    segment = Segment((n, h, w, c), (total,), (Output("y", axes, Read("t", axes)),))
    types = {name: TensorType(DType.F32, (2, 7, 6, 64)) for name in "ty"}
    types |= {"x": TensorType(kind, (2, 7, 6, 128)), "f": TensorType(kind, (128, 3, 3, 64))}
    return FusedGroup((segment,), types, ("x", "f"), ("y",))


@needs_opencl
@pytest.mark.parametrize("places", [1, 2])
def test_tiles_begin_within_a_tensor_opencl(places: int) -> None:
    group = piece_of_gradient(places)
    schedule = walking_points(group)[0]
    check(_device("opencl"), H200, group, schedule)
    (weight,) = (m for m in lower(group, schedule, {}, H200).maps if m.tensor == "f")
    assert weight.dims[-1] == 2


@needs_cuda
@pytest.mark.parametrize("places", [1, 2])
def test_tiles_begin_within_a_tensor_cuda(places: int) -> None:
    group = piece_of_gradient(places)
    for schedule in walking_points(group)[:6]:
        check(_device("cuda"), H200, group, schedule)


@needs_cuda
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", CASES, ids=str)
@pytest.mark.parametrize("kind", [DType.F16, DType.BF16])
def test_walks_bring_the_pixels_of_windows_cuda(shape: Shape, form: int, kind: DType) -> None:
    for falling in (False, True):
        group = convolution(shape, kind, falling)
        check(_device("cuda"), H200, group, with_tma(walking_points(group)[0], form))
    group = filter_gradient(shape)
    check(_device("cuda"), H200, group, with_tma(walking_points(group)[0], form))


def filter_gradient(shape: Shape, parts: int = 1) -> FusedGroup:
    """Return a convolution's filter gradient, in parts of images."""
    group = convolution(shape)
    (segment,) = group.segments
    image, _ = segment.reductions[0].body.args  # type: ignore[attr-defined]
    n, *places, k = segment.axes
    r, s, c = segment.reductions[0].reduce
    p, m = Var("part", parts), Var("m", n.extent // parts)
    number = {n: as_index(p) * m.extent + m}
    result = Read("dy", tuple(substitute(as_index(v), number) for v in (n, *places, k)))
    total = Reduction("t", (m, *places), "sum", call("mul", substitute_expr(image, number), result), "")
    axes = (p, k, r, s, c)
    write = tuple(map(as_index, axes))
    types = {"x": group.tensors["x"], "dy": TensorType(group.tensors["x"].dtype, group.tensors["y"].shape)}
    types |= dict.fromkeys(("t", "y"), TensorType(DType.F32, tuple(v.extent for v in axes)))
    return FusedGroup((Segment(axes, (total,), (Output("y", write, Read("t", write)),)),), types, ("x", "dy"), ("y",))


@needs_opencl
@pytest.mark.parametrize(
    ("shape", "parts", "form"),
    [
        ((4, 9, 7, 64, 64, 3, 1, 1), 2, 1),
        ((3, 8, 12, 32, 128, 3, 2, 1), 3, 2),
        ((2, 9, 9, 96, 48, 3, 1, 1), 1, 3),
        ((2, 16, 8, 64, 64, 1, 2, 1), 1, 2),
        ((4, 9, 7, 64, 32, 3, 1, 1), 2, 2),
    ],
    ids=str,
)
def test_pixels_of_filter_gradients_are_walked_opencl(shape: Shape, parts: int, form: int) -> None:
    """K blocks go past a part, where the other operand is 0."""
    group = filter_gradient(shape, parts)
    check(_device("opencl"), H200, group, with_tma(walking_points(group)[0], form))


@needs_opencl
@example((2, 9, 7, 64, 64, 3, 1, 1), True, 2)
@settings(max_examples=examples(6, 60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.tuples(
        st.integers(2, 3), st.integers(7, 14), st.integers(7, 14), st.sampled_from((64, 128)),
        st.sampled_from((48, 64, 80)), st.sampled_from((1, 2, 3)), st.integers(1, 3), st.integers(1, 2),
    ),
    st.booleans(), st.sampled_from(FORMS),
)  # fmt: skip
def test_any_walk_opencl(shape: Shape, falling: bool, form: int) -> None:
    group = convolution(shape, falling=falling)
    for schedule in walking_points(group)[:1]:
        check(_device("opencl"), H200, group, with_tma(schedule, form))


def test_a_stage_of_pixels_is_one_copy() -> None:
    group = convolution((64, 28, 28, 128, 128, 3, 1, 1))
    schedule = choose(group, H200)[0].schedule
    kernel = lower(group, schedule, {}, H200)
    assert schedule.segments[0].reductions[0].tma
    (walk,) = (m for m in kernel.maps if m.pixels)
    assert (walk.dims, walk.pixels, walk.starts, walk.ends) == ((128, 28, 28, 64), (28, 28), (-1, -1), (-1, -1))
    fetches = [f for producer in kernel.producer for item in producer.body for f in bulk_fetches((item,))]
    assert all(sum(copy.map == walk.name for copy in fetch.copies) == 1 for fetch in fetches) and fetches


@pytest.mark.parametrize("shape", [(2, 9, 7, 40, 64, 3, 1, 1), (2, 40, 40, 64, 64, 1, 9, 1)])
def test_other_pixels_are_copied_by_threads(shape: Shape) -> None:
    """These are K blocks of two places, and steps beyond the limit."""
    assert not walking_points(convolution(shape))


def test_a_border_of_elements_is_no_walk() -> None:
    group = convolution(CASES[0])
    (segment,) = group.segments
    (total,) = segment.reductions
    image, weight = total.body.args  # type: ignore[attr-defined]
    inner = evolve(image, guards=(evolve(image.guards[0], low=1), *image.guards[1:]))
    total = evolve(total, body=call("mul", inner, weight))
    group = evolve(group, segments=(evolve(segment, reductions=(total,)),))
    assert walking_points(convolution(CASES[0])) and not walking_points(group)


def test_impossible_walks_have_faults() -> None:
    good = TensorMap("m", "x", DType.F16, (64, 7, 9, 2), (128, 896, 8064), (64, 32), 128, "", (7, 9), (-1, -1), (1, 1))
    assert good.faults() == []
    assert evolve(good, steps=(9, 1)).faults() == ["a walk by steps (9, 1)"]
    assert evolve(good, starts=(-129, -1)).faults() == ["a walk from (-129, -1) to (-129, -1)"]
    assert evolve(good, starts=(-1,)).faults() == ["a walk of 2 dims of 4"]
    assert evolve(good, box=(64, 8, 4)).faults() == ["4 dims, 3 strides and a box of 3 dims"]

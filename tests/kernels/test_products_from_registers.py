"""Products in TF32 with rows in registers or rounded copies.

Small integers are exact.
"""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernel
from cuts.ir import (
    FusedGroup,
    Kernel,
    ProductWait,
    Schedule,
    Storage,
    kernel_violations,
    parse_ir,
    print_ir,
)
from cuts.ir.types import DType
from cuts.passes.instructions import select_instructions
from cuts.passes.lowering import extract, lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule.space import Space, make_space
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from .cases import legal_point, legal_points
from .test_bulk_copies import replace_items, with_fields
from .test_matrix_instructions import GPU, _device, check, convolution, meaning, product, run

NAME = "m64n8k8_tf32"
TARGET = evolve(GPU, MAX_shared=100_000, atoms=tuple(a for a in GPU.atoms if a[0] == NAME))
#: Whether each factor of a product lies along its side: the orders whose rows a warpgroup takes from registers.
ORDERS = ((False, False), (True, True), (True, False))


def space_of(group: FusedGroup) -> Space:
    return make_space(group, TARGET)


def holds_rows(schedule: Schedule) -> bool:
    """Return whether a warpgroup takes its rows from registers.

    Vectors of rows exist there only.
    """
    (segment,) = schedule.segments
    return segment.dims[segment.reductions[0].rows].vector > 1


def points_of(group: FusedGroup, count: int = 1, tma: int | None = None) -> list[Schedule]:
    """Return legal points with rows in registers, of a form of staging."""
    space = space_of(group)
    found = [
        p for t in space.templates if t.segments[0].mma for seed in (0, 1) for p in legal_points(space, t, seed, 64)
    ]
    found = [p for p in found if holds_rows(p)]
    return [p for p in found if tma is None or p.segments[0].reductions[0].tma == tma][:count]


@needs_opencl
@pytest.mark.parametrize("tma", [0, 1, 2])
@pytest.mark.parametrize("turned", ORDERS[:2])
def test_rows_in_registers_are_exact_opencl(turned: tuple[bool, bool], tma: int) -> None:
    group = product(DType.F32, "tf32", (1, 128, 128, 72), turned)
    schedules = points_of(group, 2, tma)
    assert schedules
    for schedule in schedules:
        check(_device("opencl"), TARGET, group, schedule)


@needs_opencl
def test_the_widest_vectors_of_rows_are_exact_opencl() -> None:
    group = product(DType.F32, "tf32", (2, 136, 256, 40), (False, False))
    found = [p for p in points_of(group, 64) if any(dim.vector == 4 for dim in p.segments[0].dims)]
    assert found
    check(_device("opencl"), TARGET, group, found[0])


@needs_opencl
@pytest.mark.parametrize("turned", ORDERS)
def test_parts_of_rows_are_made_in_registers_opencl(turned: tuple[bool, bool]) -> None:
    group = product(DType.F32, "fp32x3", (1, 72, 64, 136), turned)
    for schedule in points_of(group, 2):
        check(_device("opencl"), TARGET, group, schedule)


@needs_opencl
@pytest.mark.parametrize("pitch", [128, 129, 136])
def test_rows_lie_at_a_distance_opencl(pitch: int) -> None:
    """Threads copy rows that are no box of a tensor map."""
    group = product(DType.F32, "tf32", (1, 72, 128, 64), (False, False))
    (schedule,) = points_of(group, 1, 2)
    block = lower(group, schedule, {"c": Storage("c", 0, (0, pitch, 1))}, TARGET)
    assert check_barriers(block) == ()
    assert bool(block.maps) == (pitch % 4 == 0)
    generator = np.random.default_rng(1)
    arrays = {t: generator.integers(-4, 5, group.tensors[t].shape).astype(np.float32) for t in group.inputs}
    wide = np.zeros((1, 64, pitch), np.float32)
    wide[..., :128] = arrays["c"]
    function = emit(extract(block), "opencl")
    np.testing.assert_array_equal(
        run(_device("opencl"), function, group, {**arrays, "c": wide}), meaning(group, arrays)
    )


@needs_opencl
@pytest.mark.parametrize("mode", ["tf32", "fp32x3"])
def test_a_nan_reaches_its_row_or_column_opencl(mode: str) -> None:
    group = product(DType.F32, mode, (1, 76, 68, 20), (False, False))
    (schedule,) = points_of(group, 1, 0)
    function = emit(extract(lower(group, schedule, {}, TARGET)), "opencl")
    arrays = {t: np.ones(group.tensors[t].shape, np.float32) for t in group.inputs}
    arrays["a"][0, 3, 19], arrays["c"][0, 5, 12] = np.nan, np.nan
    expected = np.full((76, 68), 21.0)
    expected[3], expected[:, 12] = np.nan, np.nan
    np.testing.assert_array_equal(run(_device("opencl"), function, group, arrays)[0], expected)


def kernel(tma: int, mode: str = "tf32") -> Kernel:
    group = product(DType.F32, mode, (1, 256, 256, 512), (False, False))
    return lower(group, points_of(group, 1, tma)[0], {}, TARGET)


@pytest.mark.parametrize("tma", [0, 1, 2])
def test_kernels_are_printed_and_have_no_races(tma: int) -> None:
    made = kernel(tma)
    assert check_barriers(made) == ()
    for each in (made, extract(made), select_instructions(extract(made), "cuda")):
        assert kernel_violations(each) == []
        assert print_ir(parse_ir(print_ir(each))) == print_ir(each)


@pytest.mark.parametrize("tma", [0, 1, 2])
def test_registers_are_not_loaded_while_products_read_them(tma: int) -> None:
    late = replace_items(kernel(tma), with_fields(ProductWait, pending=5))
    assert any("rows0" in fault for fault in check_barriers(late))


def test_copies_are_rounded() -> None:
    assert [m.rounded for m in kernel(2).maps] == ["tf32", "tf32"]
    group = product(DType.F32, "tf32", (1, 256, 256, 512), (False, True))
    space = make_space(group, evolve(GPU, atoms=(("m64n8k8_tf32", 16.0),)))
    template = next(t for t in space.templates if t.segments[0].mma)
    schedules = [p for p in legal_points(space, template, 0, 32) if p.segments[0].reductions[0].tma]
    assert {m.rounded for m in lower(group, schedules[0], {}, GPU).maps} == {"tf32"}


@needs_opencl
@pytest.mark.parametrize("tma", [1, 2])
def test_bulk_copies_feed_promoted_sums_opencl(tma: int) -> None:
    group = product(DType.F8E4M3, "", (1, 64, 64, 400), (False, True))
    space = make_space(group, evolve(GPU, atoms=(("m64n8k32_f8e4m3", 16.0),)))
    template = next(t for t in space.templates if t.segments[0].mma)
    found = [p for p in legal_points(space, template, 0, 64) if p.segments[0].reductions[0].tma == tma]
    assert check_barriers(lower(group, found[0], {}, GPU)) == ()
    check(_device("opencl"), GPU, group, found[0])


def test_rows_in_registers_lie_along_the_rows() -> None:
    assert not points_of(product(DType.F32, "tf32", (1, 128, 128, 64), (False, True)))
    assert not points_of(product(DType.F32, "", (1, 128, 128, 64), (False, False)))
    assert points_of(product(DType.F32, "tf32", (1, 128, 128, 64), (True, False)))


def test_both_factors_along_their_sides_are_no_boxes() -> None:
    assert not points_of(product(DType.F32, "tf32", (1, 128, 128, 64), (True, False)), 1, 2)


def test_matrix_loads_find_swizzled_rows() -> None:
    """Fragments of rows along the depth, for several parts."""
    group = product(DType.F32, "fp32x3", (1, 256, 256, 512), (False, True))
    space = space_of(group)
    (template, *_) = [t for t in space.templates if t.segments[0].mma]
    schedule = legal_points(space, template, 0, 64)[0]
    source = emit(select_instructions(extract(lower(group, schedule, {}, TARGET)), "cuda"), "cuda").source
    loads = [line for line in source.splitlines() if "&s0r0s" in line and "cuts_matrix" in line and "(x" in line]
    assert loads
    assert all("cuts_swizzled" in line for line in loads)


@needs_toolchain
@pytest.mark.parametrize(("mode", "tma"), [("tf32", 0), ("tf32", 1), ("tf32", 2), ("fp32x3", 0)])
def test_kernels_compile_without_serialisation(mode: str, tma: int) -> None:
    cubin = compile_kernel(emit(extract(kernel(tma, mode)), "cuda"), GPU.arch)
    assert (cubin.serialised, cubin.spill_bytes) == ("", 0)


@needs_toolchain
def test_single_blocks_compile_without_serialisation() -> None:
    group = product(DType.F32, "tf32", (1, 256, 256, 32), (False, False))
    for schedule in (p for tma in (0, 1, 2) for p in points_of(group, 2, tma)):
        cubin = compile_kernel(emit(extract(lower(group, schedule, {}, TARGET)), "cuda"), GPU.arch)
        assert (cubin.serialised, cubin.spill_bytes) == ("", 0)


@st.composite
def drawn_points(draw: st.DrawFn) -> tuple[FusedGroup, Schedule]:
    """Draw a product or a convolution, and a legal point."""
    mode = draw(st.sampled_from(("tf32", "tf32", "fp32x3")))
    if draw(st.integers(0, 3)):
        side = st.sampled_from((64, 72, 100, 128, 136, 192))
        shape = (draw(st.sampled_from((1, 2))), draw(side), draw(side), draw(st.sampled_from((8, 32, 64, 136, 200))))
        group = product(DType.F32, mode, shape, draw(st.sampled_from(ORDERS)))
    else:
        channels = draw(st.sampled_from((8, 16, 24)))
        group = convolution(DType.F32, mode, (draw(st.sampled_from((1, 2))), 64, 8, channels), 1)
    space = space_of(group)
    templates = [t for t in space.templates if t.segments[0].mma]
    assume(templates)
    schedule = legal_point(space, draw(st.sampled_from(templates)), draw(st.integers(0, 1 << 30)))
    assume(schedule is not None)
    assert schedule is not None
    return group, schedule


@needs_opencl
@settings(max_examples=examples(6, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_points())
def test_points_compute_the_reference_opencl(drawn: tuple[FusedGroup, Schedule]) -> None:
    check(_device("opencl"), TARGET, *drawn)


@needs_cuda
@settings(max_examples=examples(50, 500), deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_points())
def test_points_compute_the_reference_cuda(drawn: tuple[FusedGroup, Schedule]) -> None:
    check(_device("cuda"), TARGET, *drawn)

"""Products with scales for blocks of terms, which multiply partial sums."""

from __future__ import annotations

import re

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import CutsError, FusedGroup, Read, TensorType, Var, as_index, block_scales, call, operands
from cuts.ir.evaluation import as_dtype
from cuts.ir.expr import Cast
from cuts.ir.types import DType
from cuts.ops import Registry
from cuts.passes.geometry import promotion_depth
from cuts.passes.lowering import extract, lower
from cuts.passes.schedule import check_schedule, choose
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit
from hypothesis import given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl
from .cases import Builder, legal_point
from .test_bulk_copies import with_tma
from .test_matrix_instructions import GPU, SMALL_GPU, _device, check, meaning, product, run
from .test_warpgroup_products import point, product_of_type

#: Terms of a scale of the rows; that of a column is for twice as many rows of B.
BLOCK = 64


def with_scales(group: FusedGroup, block: int = BLOCK, widest: int = 1) -> FusedGroup:
    """Return a product with scales of blocks.

    Factors of up to `widest` bytes are converted. Scales are for blocks of A's columns, and for blocks of B's rows and
    columns.
    """
    (segment,), (total,) = group.segments, group.segments[0].reductions
    (b, m, n), (k,) = segment.axes, total.reduce
    rows = Read("p", (as_index(b), as_index(m), k // block))
    columns = Read("q", (as_index(b), k // (2 * block), n // 16))
    narrow = group.tensors["a"].dtype.size <= widest
    stored = [Cast(DType.F32, part) if narrow else part for part in operands(total)]
    body = call("mul", call("mul", call("mul", *stored), rows), columns)
    steps = -(-k.extent // block), -(-k.extent // (2 * block))
    scales = {"p": (b.extent, m.extent, steps[0]), "q": (b.extent, steps[1], -(-n.extent // 16))}
    types = {name: TensorType(DType.F32, shape) for name, shape in scales.items()}
    changed = evolve(segment, reductions=(evolve(total, body=body),))
    return evolve(group, segments=(changed,), tensors=group.tensors | types, inputs=(*group.inputs, "p", "q"))


@needs_opencl
@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2", "tf32", "fp32x3"])
@pytest.mark.parametrize("shape", [(1, 70, 52, 128), (2, 64, 96, 320)])
def test_warpgroups_scale_the_sums_of_blocks_opencl(name: str, shape: tuple[int, int, int, int]) -> None:
    group = with_scales(product_of_type(name, shape, (True, True)))
    swizzles, chunk = ((128, 128), 32) if group.tensors["a"].dtype is DType.F32 else ((64, 64), 64)
    check(_device("opencl"), GPU, group, point(group, (True, True), swizzles, vector=8, chunk=chunk))


@needs_opencl
@settings(max_examples=6, deadline=None)
@given(st.sampled_from((DType.F16, DType.BF16)), st.integers(0, 1 << 20))
def test_points_with_block_scales_compute_the_reference_opencl(kind: DType, seed: int) -> None:
    group = with_scales(product(kind, "", (1, 80, 72, 192), (False, True)))
    space = make_space(group, GPU)
    templates = [s for s in space.templates if s.segments[0].mma]
    assert templates
    schedule = legal_point(space, templates[seed % len(templates)], seed)
    if schedule is not None:
        check(_device("opencl"), GPU, group, schedule)


@needs_opencl
@settings(max_examples=12, deadline=None)
@given(st.sampled_from((DType.F32, DType.F16, DType.BF16)), st.sampled_from((192, 200, 331)), st.integers(0, 1 << 20))
def test_scales_multiply_sums_of_vectors_opencl(kind: DType, depth: int, seed: int) -> None:
    group = with_scales(product(kind, "", (1, 1, 40, depth), (False, True)), widest=2)
    space = make_space(group, GPU)
    templates = [s for s in space.templates if s.segments[0].reduction_threads]
    assert templates
    schedule = legal_point(space, templates[seed % len(templates)], seed)
    if schedule is not None:
        check(_device("opencl"), GPU, group, schedule)


@needs_opencl
@pytest.mark.parametrize("name", ["f8e4m3", "fp32x3"])
@pytest.mark.parametrize("block", [32, 64, 96])
def test_chosen_points_keep_to_blocks_opencl(name: str, block: int) -> None:
    group = with_scales(product_of_type(name, (2, 72, 96, 320), (True, True)), block)
    check(_device("opencl"), GPU, group, choose(group, GPU)[0].schedule)


@needs_opencl
@pytest.mark.parametrize("form", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 70, 52, 200), (2, 128, 96, 272)])
def test_scales_of_no_number_reach_their_blocks_opencl(shape: tuple[int, int, int, int], form: int) -> None:
    """A scale of 0 removes its block of terms.

    A NaN or an infinity reaches the results that it scales, and no others.
    """
    group = with_scales(product_of_type("f8e4m3", shape, (True, True)))
    schedule = with_tma(point(group, (True, True), (64, 64), vector=8, chunk=64), form if shape[3] % 16 == 0 else 0)
    assert check_schedule(group, schedule, GPU) == []
    generator = np.random.default_rng(form)
    arrays = {n: generator.integers(1, 3, group.tensors[n].shape).astype(np.float32) for n in group.inputs}
    arrays["p"][0, 3, 0], arrays["p"][0, 5, 1], arrays["p"][-1, -1, -1], arrays["q"][0, 1, 2] = np.nan, 0, np.inf, 0
    wide = {n: v.astype(np.float64) for n, v in arrays.items()}
    stored = {n: v if n in "pq" else as_dtype(v, group.tensors[n].dtype.numpy) for n, v in arrays.items()}
    function = emit(extract(lower(group, schedule, {}, SMALL_GPU)), "opencl")
    np.testing.assert_array_equal(run(_device("opencl"), function, group, stored), meaning(group, wide))


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (((48, 3), (257, 1)), "operand 'b_scale': expected at most [256, 32] scales, found [257, 1]"),
        (((49, 2), (2, 1)), "operand 'a_scale': expected at most [48, 256] scales, found [49, 2]"),
        (((31, 2), (2, 1)), "operand 'a_scale': expected blocks of equal extents, found [31, 2] scales for [48, 256]"),
        (((48, 2), (2, 9)), "operand 'b_scale': expected blocks of equal extents, found [2, 9] scales for [256, 32]"),
    ],
)
def test_scales_of_other_shapes_are_refused(scales: tuple[tuple[int, int], ...], message: str) -> None:
    wrong = Builder(Registry.builtin(), {}, [], [])
    operands_ = [wrong.input(48, 256, dtype=DType.F8E4M3), wrong.input(256, 32, dtype=DType.F8E4M3)]
    with pytest.raises(CutsError, match=re.escape(message)):
        wrong.node("scaled_matmul", *operands_, *(wrong.input(*shape) for shape in scales))


@needs_cuda
@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2", "tf32", "fp32x3"])
def test_warpgroups_scale_the_sums_of_blocks_cuda(name: str) -> None:
    group = with_scales(product_of_type(name, (2, 200, 288, 640), (True, True)))
    target = find_target("cuda:sm_90")
    check(_device("cuda"), target, group, choose(group, target)[0].schedule)


def test_k_blocks_have_one_scale() -> None:
    group = with_scales(product_of_type("f8e4m3", (1, 128, 64, 256), (True, True)))
    assert promotion_depth(group.segments[0].reductions[0], "m64n8k32_f8e4m3") == BLOCK
    right, deep = (point(group, (True, True), (n, n), vector=8, chunk=n) for n in (64, 128))
    assert check_schedule(group, right, GPU) == []
    assert any("partial sums" in fault for fault in check_schedule(group, deep, GPU))


def test_large_products_with_block_scales_use_matrix_instructions() -> None:
    group = with_scales(product_of_type("f8e4m3", (1, 4096, 4096, 4096), (True, True)), 128)
    loop = choose(group, GPU)[0].schedule.segments[0].reductions[0]
    assert loop.mma == "m64n8k32_f8e4m3"
    assert loop.tma


def test_scales_keep_their_value_over_blocks() -> None:
    k, o, m = Var("k", 256), Var("o", 4), Var("m", 8)
    a, b = Read("a", (as_index(m), as_index(k))), Read("b", (as_index(k),))
    divided, outer = Read("s", (k // 64,)), Read("s", (as_index(o),))
    moving = Read("s", (as_index(k) % 64,))
    product_of = lambda scale: call("mul", call("mul", a, b), scale)  # noqa: E731
    assert block_scales(product_of(divided), (k,)) == ((divided,), 64)
    assert block_scales(product_of(outer), (o, k)) == ((outer,), 256)
    assert block_scales(product_of(moving), (k,)) == ((), 0)
    ragged = Var("k", 200)
    over = call(
        "mul",
        call("mul", Read("a", (as_index(m), as_index(ragged))), Read("b", (as_index(ragged),))),
        Read("s", (ragged // 64,)),
    )
    assert block_scales(over, (ragged,))[1] == 64
    assert block_scales(over, (o, ragged)) == ((), 0)
    assert block_scales(call("mul", a, divided), (k,)) == ((), 0)

"""Mask-block skipping: loops over blocks of rows end at the mask bounds.

Kernels compute the reference for any sizes, rows that see no NaN also where masked values are NaN, and the cost model
counts the processed blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.devices import find_target
from cuts.ir import Const, Expr, IndexValue, Read, call, rebuild
from cuts.ir.affine import Var, index_value
from cuts.ir.kernel import Kernel, loops
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.interpret import interpret
from cuts.passes.geometry import geometry_of, mask_bounds
from cuts.passes.lowering import check_barriers
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.model import features_of
from cuts.passes.model.mask_savings import mask_savings
from cuts.passes.schedule.selection.choose import choose
from cuts.tests.emission import emit
from hypothesis import given, settings
from hypothesis import strategies as st

from ..fuzz.planting import Bug, mutate_function
from ..needs import needs_opencl, needs_toolchain
from .cases import arrays
from .judging import judge
from .test_attention_chains import SMALL_TARGET, attention, group_of, points_in_parts
from .test_points import _device, _run

GPU = find_target("cuda:h200")
#: Queries, keys and offset: squares, longer and wider ones, rows that see nothing, and tails everywhere.
SIZES = {
    "square": (160, 160, 0),
    "odd": (77, 131, 0),
    "behind others": (40, 200, 160),
    "more queries": (210, 130, 0),
    "invisible keys": (20, 300, 0),
    "rows of nothing": (150, 150, -70),
    "all of it": (16, 150, 149),
}


def causal(name: str) -> FusedGroup:
    queries, keys, offset = SIZES[name]
    return group_of(attention((1, 2, 1, queries, keys, 6, 9), causal=True, offset=offset))


def parts_taken(kernel: Kernel) -> list[int]:
    """Return how many parts each block takes."""
    (end,) = (loop.until for loop in loops(kernel.items) if loop.until is not None)
    found: list[int] = []
    values: dict[Any, int] = {}
    for block in range(kernel.blocks):
        values |= {Var("blk", kernel.blocks): block, Var("tid", kernel.threads): 0}
        for define in kernel.defines:
            values[define.var] = int(index_value(define.value, values.__getitem__))
        found.append(values[end])
    return found


@needs_opencl
@pytest.mark.parametrize("name", SIZES)
def test_blocks_process_visible_parts_and_compute_the_reference(name: str) -> None:
    group, (queries, keys, offset) = causal(name), SIZES[name]
    points = points_in_parts(group, 2)
    assert points
    for schedule in points:
        kernel = lower(group, schedule, {}, SMALL_TARGET)
        assert check_barriers(kernel) == ()
        compare(group, schedule, arrays(group, 1))
        length = schedule.segments[1].reductions[0].dims[0].block_k
        block = schedule.segments[2].dims[1].block
        ends = [min(first + block, queries + block) + offset for first in range(0, queries, block)]
        wanted = [min(-(-keys // length), -(-max(0, end) // length)) for end in ends]
        if wanted != [-(-keys // length)] * len(wanted):
            each = kernel.blocks // len(wanted)
            assert parts_taken(kernel) == [n for n in reversed(wanted) for _ in range(each)]


@needs_opencl
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_what_is_masked_may_be_no_number(data: st.DataObject) -> None:
    """A masked key takes no part.

    Whether its value reaches rows that do not see it depends on the schedule: its weight is 0, and 0 times NaN is NaN.
    """
    name = data.draw(st.sampled_from(list(SIZES)))
    group, (queries, keys, offset) = causal(name), SIZES[name]
    inputs = arrays(group, 2)
    for tensor in group.inputs:
        for _ in range(data.draw(st.integers(0, 2))):
            values = inputs[tensor]
            at = data.draw(st.integers(0, values.size - 1))
            values.flat[at] = data.draw(st.sampled_from((np.nan, np.inf, -np.inf)))
    schedule = data.draw(st.sampled_from(points_in_parts(group, 2)))
    device, finite = _device("opencl"), np.isfinite(inputs["t2"])
    function = emit(extract(lower(group, schedule, {}, SMALL_TARGET)), device.target.dialect)
    with np.errstate(all="ignore"):
        (found,), (expected,) = _run(device, function, group, inputs).values(), interpret(group, inputs).values()
        (unreached,) = interpret(group, inputs | {"t2": np.where(finite, inputs["t2"], 0)}).values()
    visible = np.arange(keys)[None] - np.arange(queries)[:, None] <= offset
    reached = np.einsum("ij,bhjf->bhif", visible, ~finite)
    expected = np.where(~reached & ~np.isnan(found), unreached, expected)
    result = judge(group.outputs[0], group, inputs, found, expected)
    assert result.error <= result.tolerance, f"{result}\n{schedule}\n{function.source}"


def test_invisible_key_may_be_anything() -> None:
    group = causal("invisible keys")
    inputs = arrays(group, 2)
    (result,) = interpret(group, inputs).values()
    inputs["t1"][:, :, 20:] = np.nan
    (same,) = interpret(group, inputs).values()
    np.testing.assert_array_equal(same, result)


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.F32])
def test_rows_that_data_masks_whole_are_zeros(dtype: DType) -> None:
    group = group_of(attention((1, 2, 1, 40, 150, 8, 8), mask=TensorType(dtype, (40, 150))))
    inputs, seen = arrays(group, 3), np.random.default_rng(3).random((40, 150)) < 0.5
    seen[[0, 7, 39]], seen[5, :140], seen[6, 10:] = False, False, False
    (mask,) = (t for t in group.inputs if group.tensors[t].shape == (40, 150))
    inputs[mask] = seen if dtype is DType.BOOL else np.where(seen, 0, -np.inf).astype(np.float32)
    points = points_in_parts(group, 2)
    assert points
    assert not next(iter(interpret(group, inputs).values()))[0, :, [0, 7, 39]].any()
    for schedule in points:
        compare(group, schedule, inputs)


def attention_where(condition: Callable[[Expr, Expr], Expr], queries: int = 40) -> FusedGroup:
    """Attention to 150 keys where a condition on row and key holds.

    It may read a position `p` in memory.
    """
    group = group_of(attention((1, 2, 1, queries, 150, 8, 8), mask=TensorType(DType.BOOL, (queries, 150))))
    (mask,) = (t for t in group.inputs if group.tensors[t].shape == (queries, 150))

    def place(node: Expr) -> Expr:
        found = isinstance(node, Read) and node.tensor == mask
        return condition(*map(IndexValue, node.indices)) if isinstance(node, Read) and found else node

    first, *others = group.segments
    outputs = tuple(evolve(o, body=rebuild(o.body, place)) for o in first.outputs)
    inputs = tuple("p" if t == mask else t for t in group.inputs)
    tensors = {t: kind for t, kind in group.tensors.items() if t != mask} | {"p": TensorType(DType.I64, ())}
    return evolve(group, segments=(evolve(first, outputs=outputs), *others), inputs=inputs, tensors=tensors)


@needs_opencl
def test_windows_by_comparisons_begin_and_end() -> None:
    """Differences of row and key are compared with both ends."""

    def window(row: Expr, key: Expr) -> Expr:
        before = call("sub", row, key)
        return call("and", call("ge", before, Const(0, DType.I64)), call("lt", before, Const(30, DType.I64)))

    group = attention_where(window, 140)
    assert [bound.begins for bound in mask_bounds(group)] == [False, True]
    taken = []
    for schedule in points_in_parts(group, 2):
        kernel = lower(group, schedule, {}, SMALL_TARGET)
        taken.append(parts_taken(kernel))
        compare(group, schedule, arrays(group, 1))
    assert any(max(parts) < 150 // 30 for parts in taken), "no block takes all parts"


@needs_opencl
@pytest.mark.parametrize("rows", [True, False])
def test_keys_beyond_a_position_in_memory_are_skipped(rows: bool) -> None:
    """Also where the position lies outside of the cache."""
    group = attention_where(lambda r, key: call("le", key, call("add", r, Read("p", ())) if rows else Read("p", ())))
    (bound,) = mask_bounds(group)
    assert bound is not None and bound.data.terms and (bound.slope == 1) == rows
    schedule = points_in_parts(group, 1)[0]
    kernel = lower(group, schedule, {}, SMALL_TARGET)
    assert any(loop.until for loop in loops(kernel.items)) and check_barriers(kernel) == ()
    for position in (-300, -1, 0, 5, 63, 149, 1000, 1 << 40):
        compare(group, schedule, arrays(group, 1) | {"p": np.array(position)})


def test_a_guarded_shift_costs_parts_nothing() -> None:
    """A block's shift is finite anyway.

    Only the divisor of the result checks for empty rows.
    """
    masked = group_of(attention((1, 1, 1, 40, 150, 8, 8), mask=TensorType(DType.F32, (40, 150))))
    plain = group_of(attention((1, 1, 1, 40, 150, 8, 8)))
    counts = []
    for group in (plain, masked):
        source = emit(extract(lower(group, points_in_parts(group, 1)[0], {}, SMALL_TARGET)), "opencl").source
        counts.append(source.lower().count("inf"))
    assert counts[0] == counts[1] > 0


def compare(group: FusedGroup, schedule: Schedule, inputs: dict[str, np.ndarray[Any, Any]]) -> None:
    """Assert that a point computes the group for some inputs."""
    device = _device("opencl")
    function = emit(extract(lower(group, schedule, {}, SMALL_TARGET)), device.target.dialect)
    with np.errstate(all="ignore"):
        found, expected = _run(device, function, group, inputs), interpret(group, inputs)
        for name in group.outputs:
            result = judge(name, group, inputs, found[name], expected[name])
            assert result.error <= result.tolerance, f"{result}\n{schedule}\n{function.source}"


def test_only_a_condition_that_chooses_ends_rows() -> None:
    """Values added to scores and masks of data skip no block.

    -inf is one of these values.
    """
    assert any(not b.begins for b in mask_bounds(causal("square")))
    assert mask_bounds(group_of(attention((1, 1, 1, 40, 150, 8, 8)))) == ()
    for dtype in (DType.BOOL, DType.F32):
        assert mask_bounds(group_of(attention((1, 1, 1, 40, 150, 8, 8), mask=TensorType(dtype, (40, 150))))) == ()
    both = attention((1, 1, 1, 40, 150, 8, 8), mask=TensorType(DType.BOOL, (150,)), causal=True)
    assert mask_bounds(group_of(both))


#: Bugs of loops that end early.
BUGS = (
    Bug("lowering", "a part is copied without a reader",
        "passes.lowering.streaming.online_softmax:lower_online_softmax",
        "after, until)", "after, None)"),
    Bug("lowering", "the first part is copied where none is taken",
        "passes.lowering.streaming.online_softmax:lower_online_softmax",
        "Index(), until)", "Index(), None)"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name)
def test_planted_early_end_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    group = causal("rows of nothing")
    points = [p for p in points_in_parts(group, 4) if p.segments[0].reductions[0].stages > 1]
    assert points
    original, wrong = mutate_function(bug)
    monkeypatch.setattr(original, "__code__", wrong.__code__)
    assert any("without a wait" in word or "may still be" in word
               for point in points for word in check_barriers(lower(group, point, {}, SMALL_TARGET)))  # fmt: skip


@pytest.mark.parametrize("name", ["square", "odd", "invisible keys", "rows of nothing"])
def test_the_model_counts_the_parts_that_blocks_take(name: str) -> None:
    group = causal(name)
    for schedule in points_in_parts(group, 2):
        taken = parts_taken(lower(group, schedule, {}, GPU))
        found = mask_savings(group, geometry_of(group, schedule), len(taken), GPU)
        assert found is not None
        trips = schedule.segments[1].reductions[0].dims[0].trips
        assert float(found.average) == pytest.approx(sum(taken) / len(taken) / trips)
        fullest = -(-len(taken) // GPU.NUM_SM) * float(found.fullest) * trips
        assert fullest <= max(sum(taken) / GPU.NUM_SM, max(taken)) * (1 + 1e-9), (
            "the bound counts no more than there is"
        )
        features = features_of(group, schedule, GPU)
        queries, keys, _ = SIZES[name]
        plain = features_of(group_of(attention((1, 2, 1, queries, keys, 6, 9))), schedule, GPU)
        assert float(features.bytes) == pytest.approx(float(found.average) * float(plain.bytes))


@needs_toolchain
def test_the_form_for_cuda_compiles_and_spills_nothing() -> None:
    group = group_of(attention((4, 12, 12, 1024, 1024, 64, 64), causal=True))
    best = choose(group, GPU)[0].schedule
    kernel = lower(group, best, {}, GPU)
    assert max(parts_taken(kernel)) > min(parts_taken(kernel))
    (found,) = compile_kernels([emit(extract(kernel), "cuda")], GPU.arch)
    assert found.spill_bytes == 0

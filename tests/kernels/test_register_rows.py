"""Values along rows that lanes hold, prefix scans and sorts.

Random points compute the reference, for any numbers in a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.ir.graph import Graph, Node
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir, print_ir
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.segment import verify_group
from cuts.numerics.tolerance import tolerance
from cuts.ops import Registry
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.normalise import Illegal, normalise
from cuts.passes.fusion.programs import build_programs
from cuts.passes.geometry import schedule_of
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..amounts import examples
from ..needs import needs_cuda, needs_opencl
from .cases import accumulation
from .extremes import extremes
from .test_points import GPU, SMALL_GPU, _device, _run

RUNNING = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
TYPES = (DType.F32, DType.F16, DType.BF16, DType.F64, DType.I32, DType.I64, DType.U8)


def rows(op: str, dtype: DType, shape: tuple[int, ...], **attributes: Any) -> FusedGroup:
    """Return the group of an operation's last result along the last axis.

    For sorts these are the positions.
    """
    registry = Registry.builtin()
    instance = registry[op].instantiate([TensorType(dtype, shape)], {"axis": len(shape) - 1, **attributes})
    results = ("y", "p")[: len(instance.output_types)]
    types = {"x": TensorType(dtype, shape), **dict(zip(results, instance.output_types, strict=True))}
    node = Node("n", op, ("x",), results, {"axis": len(shape) - 1, **attributes})
    programs = build_programs(Graph("rows", ("x",), results, types, (node,)), registry)
    live = results if op in RUNNING else results[-1:]
    group = normalise([s for u in programs.units for s in u.statements], programs.types, live, programs.tables)
    assert not isinstance(group, Illegal), group.reason
    verify_group(group)
    return group


def point_of(group: FusedGroup, target: Any, seed: int) -> Schedule | None:
    """Return a random legal point."""
    space = make_space(group, target)
    structure = space.templates[seed % len(space.templates)]
    numbers = np.random.default_rng(seed).integers(0, structure.size, 4096)
    columns = columns_at(structure, numbers)
    legal = np.flatnonzero(evaluate(space, structure, columns, 0, numbers).legal)
    if not len(legal):
        return None
    return schedule_of(group, structure, {k: int(v[legal[0]]) for k, v in columns.items()}, target.warp_size)


def numbers(dtype: DType, shape: tuple[int, ...], seed: int, special: bool) -> np.ndarray[Any, Any]:
    """Return a tensor with many equal elements.

    A `special` one has the limits of its type.
    """
    generator = np.random.default_rng(seed)
    found = generator.integers(0, 4, shape).astype(np.float64) if not dtype.is_float else generator.normal(size=shape)
    found = np.round(found * 8) / 8
    array = found.astype(dtype.numpy)
    if special:
        places = generator.random(shape) < 0.3
        ends = [*extremes(dtype), *((np.nan, np.inf, -np.inf, 0.0, -0.0) if dtype.is_float else ())]
        array[places] = generator.choice(np.array(ends).astype(dtype.numpy), int(places.sum()))
    return array


@st.composite
def held_rows(draw: st.DrawFn) -> tuple[FusedGroup, str, np.ndarray[Any, Any], bool]:
    """Draw a group, its reference, and its inputs.

    Rows have whole trips or not, few or many of them.
    """
    shape = (draw(st.integers(1, 5)), draw(st.sampled_from((17, 31, 32, 33, 40, 64, 67))))
    name, dtype, largest = draw(st.sampled_from((*RUNNING, "top_k", "top_k"))), draw(st.sampled_from(TYPES)), True
    if name == "logcumsumexp":
        dtype = draw(st.sampled_from([t for t in TYPES if t.is_float]))
    if name == "top_k":
        largest = draw(st.booleans())
        dtype = draw(st.sampled_from([t for t in TYPES if t.size <= 4]))
        k = draw(st.sampled_from((shape[1], shape[1], shape[1] // 2, 2)))
        group = rows(name, dtype, shape, k=k, largest=largest)
    elif name in ("cumsum", "cumprod"):
        group = rows(name, dtype, shape, exclusive=draw(st.booleans()), reverse=draw(st.booleans()))
    else:
        group = rows(name, dtype, shape)
    special = draw(st.booleans()) and name not in ("cumsum", "cumprod")
    return group, name, numbers(dtype, shape, draw(st.integers(0, 2**32 - 1)), special), largest


def places(array: np.ndarray[Any, Any], largest: bool) -> np.ndarray[Any, Any]:
    """Return the stable order of rows by the plainest means.

    NaN is greatest, of equals the first comes first.
    """

    def key(item: tuple[int, float]) -> tuple[bool, float, int]:
        number, value = item
        missing = bool(value != value)
        value = 0 if missing else value
        return (missing != largest, -value if largest else value, number)

    return np.array([[n for n, _ in sorted(enumerate(row.tolist()), key=key)] for row in array])


def check(name: str, target: Any, case: tuple[FusedGroup, str, np.ndarray[Any, Any], bool], seed: int) -> None:
    group, op, array, largest = case
    (source,) = group.inputs
    schedule = point_of(group, target, seed)
    assert schedule is not None and not check_schedule(group, schedule, target)
    kernel = lower(group, schedule, {}, target)
    assert not check_barriers(kernel)
    assert parse_ir(print_ir(kernel)) == kernel
    device = _device(name)
    function = emit(extract(kernel), device.target.dialect)
    found, expected = _run(device, function, group, {source: array}), interpret(group, {source: array})
    if op == "top_k":
        ours = found[group.outputs[0]]
        np.testing.assert_array_equal(ours, places(array.astype(np.float64), largest)[:, : ours.shape[1]])
    for output in group.outputs:
        dtype = group.tensors[output].dtype
        allowed = 4 * tolerance(dtype, *accumulation(group)) if dtype.is_float else 0
        ours, theirs = found[output].astype(np.float64), expected[output].astype(np.float64)
        assert np.isclose(ours, theirs, allowed, allowed, equal_nan=True).all(), f"{schedule}\n{function.source}"


_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@needs_opencl
@settings(max_examples=examples(6, 400), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(held_rows(), st.integers(0, 2**32 - 1))
def test_rows_are_what_they_mean_opencl(case: Any, seed: int) -> None:
    check("opencl", SMALL_GPU, case, seed)


@needs_cuda
@pytest.mark.parametrize("share", range(2))
@settings(max_examples=100, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(held_rows(), st.integers(0, 2**32 - 1))
def test_rows_are_what_they_mean_cuda(share: int, case: Any, seed: int) -> None:
    check("cuda", GPU, case, seed)


@pytest.mark.parametrize("op", ["cumsum", "cumprod", "logcumsumexp"])
def test_numbers_overflow_without_a_warning(op: str) -> None:
    limit = np.finfo(np.float64).max
    found = interpret(rows(op, DType.F64, (2, 4)), {"x": np.full((2, 4), limit)})["y"]
    assert (found[:, 1:] >= limit).all()


def test_a_row_is_held_whole() -> None:
    """Every legal point holds the row in one trip of several lanes.

    The verifier of schedules requires that too.
    """
    group = rows("cumsum", DType.F32, (3, 1000))
    assert [r.along for r in group.segments[0].reductions] == ["upto"]
    (best,) = choose(group, GPU)
    (segment,) = best.schedule.segments
    assert segment.reduction_threads > 1 and all(d.trips == 1 for r in segment.reductions for d in r.dims)
    order = rows("top_k", DType.F32, (3, 1000), k=1000)
    (best,) = choose(order, GPU)
    parts = evolve(best.schedule.segments[0], reduction_threads=1, row_vector=1)
    assert any("whole row" in fault for fault in check_schedule(order, evolve(best.schedule, segments=(parts,)), GPU))


@pytest.mark.parametrize(("k", "largest"), [(1000, True), (8, False)])
def test_an_order_takes_no_comparison_of_all_pairs(k: int, largest: bool) -> None:
    group = rows("top_k", DType.F32, (3, 1000), k=k, largest=largest)
    (segment,) = group.segments
    assert [r.along for r in segment.reductions] == ["falling" if largest else "rising"]
    assert all(o.extra == segment.reductions[0].reduce for o in segment.outputs)
    assert any(o.guards for o in segment.outputs) == (k < 1000)


def test_sorted_rows_have_powers_of_two_of_elements() -> None:
    group = rows("top_k", DType.F32, (3, 33), k=33)
    points = [point for seed in range(16) if (point := point_of(group, GPU, seed)) is not None]
    lengths = {loop.dims[0].block_k for point in points for loop in point.segments[0].reductions}
    assert lengths and all(n & (n - 1) == 0 for n in lengths)

"""Selections and radix sorts of rows.

Results are those of the stable order for every element type, with ties, NaN and infinities, on PoCL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.dfg import LaneReduce
from cuts.ir.kernel import phases
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup, read_ranks, selection_room
from cuts.ir.text import parse_ir, print_ir
from cuts.ir.types import DType, TensorType
from cuts.passes.geometry import schedule_of
from cuts.passes.graph import prune
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.partitioning.algorithm_graphs import replace_node
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..fusion.build import graph, op
from ..needs import needs_opencl
from .test_points import GPU, _device, _run
from .test_register_rows import numbers, places, rows

TYPES = [DType.F32, DType.F16, DType.BF16, DType.I32, DType.U32, DType.I8, DType.U8, DType.I16]


def block_of(group: FusedGroup, threads: int, lanes: int) -> Schedule:
    """Return a legal point with numbers of threads per block and row."""
    space = make_space(group, GPU)
    (structure,) = space.templates
    draws = np.random.default_rng(0).integers(0, structure.size, 1 << 15)
    columns = columns_at(structure, draws)
    for n in np.flatnonzero(evaluate(space, structure, columns, 0, draws).legal):
        found = schedule_of(group, structure, {k: int(v[n]) for k, v in columns.items()}, GPU.warp_size)
        if found.threads == threads and found.segments[0].reduction_threads == lanes:
            return found
    raise AssertionError(f"no legal point has {lanes} of {threads} threads on a row")


def check(group: FusedGroup, schedule: Schedule, array: np.ndarray[Any, Any], ranks: slice, largest: bool) -> str:
    """Run a kernel, compare its places, and return its source."""
    kernel = lower(group, schedule, {}, GPU)
    assert not check_barriers(kernel)
    assert parse_ir(print_ir(kernel)) == kernel
    device = _device("opencl")
    function = emit(extract(kernel), device.target.dialect)
    (source,), (target,) = group.inputs, group.outputs
    found = _run(device, function, group, {source: array})[target]
    np.testing.assert_array_equal(found, places(array.astype(np.float64), largest)[:, ranks])
    return function.source


def values(dtype: DType, shape: tuple[int, int], kind: str) -> np.ndarray[Any, Any]:
    """Return rows with few or many equal elements, or with extremes."""
    if kind == "equal":
        return np.full(shape, np.nan if dtype.is_float else 3).astype(dtype.numpy)
    if kind == "spread":
        spread = np.random.default_rng(1).normal(size=shape) * 50
        return (spread if dtype.is_float else np.abs(spread)).astype(dtype.numpy)
    return numbers(dtype, shape, 7, kind == "extreme")


@needs_opencl
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["spread", "ties", "extreme", "equal"])
@pytest.mark.parametrize(("k", "start", "largest"), [(7, 0, True), (1, 0, False), (67, 66, False)])
def test_few_elements_are_selected(dtype: DType, kind: str, k: int, start: int, largest: bool) -> None:
    group = rows("top_k", dtype, (3, 131), k=k, start=start, largest=largest)
    source = check(group, block_of(group, 16, 16), values(dtype, (3, 131), kind), slice(start, k), largest)
    assert "middle" in source, "the row is not sorted whole"


@needs_opencl
@pytest.mark.parametrize("kind", ["spread", "ties", "equal"])
@pytest.mark.parametrize(("n", "k", "lanes"), [(1021, 200, 32), (1024, 1, 64), (512, 130, 256)])
def test_many_elements_are_selected(kind: str, n: int, k: int, lanes: int) -> None:
    """Sort more elements than counting does, fewer than lanes or more."""
    group = rows("top_k", DType.F32, (2, n), k=k)
    assert "middle" in check(group, block_of(group, lanes, lanes), values(DType.F32, (2, n), kind), slice(0, k), True)


@needs_opencl
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("threads", "lanes", "n"), [(32, 32, 1024), (64, 32, 1021)])
def test_long_rows_are_sorted_by_radix(dtype: DType, threads: int, lanes: int, n: int) -> None:
    """Sort several rows of a block, and fewer in the last block."""
    for largest in (True, False):
        group = rows("top_k", dtype, (3, n), k=n, largest=largest)
        array = values(dtype, (3, n), "extreme")
        assert "const int shift = step" in check(group, block_of(group, threads, lanes), array, slice(0, n), largest)


@pytest.mark.parametrize(
    ("attributes", "ranks", "selects"),
    [
        ({"k": 5}, (0, 5), True),
        ({"k": 500, "start": 499}, (499, 500), True),
        ({"k": 500, "start": 490}, (490, 500), False),
        ({"k": 1000}, (0, 1000), False),
        ({"k": 1}, (0, 1), True),
    ],
)
def test_ranks_that_are_read_are_known(attributes: dict[str, int], ranks: tuple[int, int], selects: bool) -> None:
    group = rows("top_k", DType.F32, (3, 1000), **attributes)
    (segment,) = group.segments
    assert read_ranks(segment, segment.reductions[0]) == ranks
    assert bool(selection_room(ranks, 1000)) == selects
    kernel = lower(group, block_of(group, 64, 64), {}, GPU)
    (sort,) = [root for phase in phases(kernel.items) for root in phase.roots if isinstance(root, LaneReduce)]
    assert sort.ranks == (ranks if selects else ())


@needs_opencl
@pytest.mark.parametrize(("n", "start", "k"), [(40, 10, 20), (300, 150, 151), (5000, 20, 25), (1, 0, 1)])
def test_elements_before_the_start_are_left_out(n: int, start: int, k: int) -> None:
    model = graph({"x": (3, n)}, op("y p", "top_k", "x", k=k, start=start, axis=1), out="y p")
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    x = np.random.default_rng(0).normal(size=(3, n)).astype(np.float32)
    found = plan.run({"x": x})
    np.testing.assert_array_equal(found["p"], places(x, True)[:, start:k].reshape(3, k - start))
    np.testing.assert_array_equal(found["y"], np.take_along_axis(x, found["p"], 1))


@needs_opencl
@pytest.mark.parametrize(("n", "size"), [(1, 1), (5, 9), (1021, 300), (20011, 20011)])
def test_true_elements_are_found_in_order(n: int, size: int) -> None:
    """Find some, all, or more than there are."""
    model = graph({"m": TensorType(DType.BOOL, (n,))}, op("p", "nonzero", "m", size=size, fill=-2), out="p")
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    for share in (0.0, 0.3, 1.0):
        mask = np.random.default_rng(0).random(n) < share
        wanted = np.append(np.flatnonzero(mask), np.full(size, -2))[:size]
        np.testing.assert_array_equal(plan.run({"m": mask})["p"], wanted)


@needs_opencl
@pytest.mark.parametrize(("n", "k"), [(10007, 3), (9001, 40)])
@pytest.mark.parametrize("kind", ["spread", "extreme", "equal"])
@pytest.mark.parametrize("largest", [True, False])
def test_rows_of_any_length_are_cut_into_parts(n: int, k: int, kind: str, largest: bool) -> None:
    """Rows of prime and odd lengths end with elements that come last."""
    model = graph({"x": (2, n)}, op("y p", "top_k", "x", k=k, axis=1, largest=largest), out="y p")
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    x = values(DType.F32, (2, n), kind)
    found = plan.run({"x": x})
    np.testing.assert_array_equal(found["p"], places(x, largest)[:, :k])
    np.testing.assert_array_equal(found["y"], np.take_along_axis(x, found["p"], 1))


def test_orders_are_stored_in_any_layout() -> None:
    """On a GPU, places in many rows are not the innermost dim."""
    model = graph({"x": (64, 50000)}, op("y p", "top_k", "x", k=5, axis=1), out="y p")
    plan = build_graph(model, load_spec([]), GPU, CompileOptions())
    assert len(plan.kernels) == 4


@needs_opencl
@pytest.mark.parametrize(("dtype", "largest"), [(DType.F32, True), (DType.F16, False), (DType.I16, True)])
def test_rows_longer_than_blocks_are_sorted_by_digits(dtype: DType, largest: bool) -> None:
    n, start = 8300, 5
    array = values(dtype, (2, n), "extreme")
    line = op("y order", "top_k", "x", k=n - 1, start=start, axis=1, largest=largest)
    call = graph({"x": TensorType(dtype, array.shape)}, line, out="y order")
    spec = load_spec([])
    passes = prune(replace_node(call, call.nodes[0], "radix", spec.registry.instances))
    found = build_graph(passes, spec, find_target("opencl"), CompileOptions()).run({"x": array})
    wanted = places(array.astype(np.float64), largest)[:, start : n - 1]
    np.testing.assert_array_equal(found["order"], wanted)
    np.testing.assert_array_equal(found["y"], np.take_along_axis(array, wanted, 1))

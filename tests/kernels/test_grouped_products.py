"""Products of groups of rows.

They are exact for integers, one product for all groups, with nothing but tables in memory.
A row belongs to the first group that ends after it. Groups may be empty, hold all rows, or end beyond the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernel
from cuts.backends.devices import find_target
from cuts.ir import BulkFetch, Graph, Kernel, Node, Schedule, bulk_fetches
from cuts.ir.kernel import loops
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.lowering import extract, lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule import check_schedule
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..needs import needs_opencl, needs_toolchain
from .cases import legal_points
from .test_bulk_copies import with_tma
from .test_matrix_instructions import _device, run

GPU = find_target("cuda:sm_90")
#: The same without matrix instructions that stage too much for a CPU.
SMALL_GPU = evolve(GPU, MAX_shared=60_000)
#: Ends of three groups of 300 rows: uneven, empty, all in one, beyond the last row, falling, and negative.
ENDS = ((7, 130, 260), (100, 100, 300), (0, 0, 0), (300, 300, 300), (50, 400, 500), (100, 50, 200), (-5, 10, 290))


def graph_of(op: str, groups: int, rows: int, deep: int, columns: int, kind: DType = DType.BF16) -> Graph:
    """Return a graph of one grouped product."""
    types = {"a": TensorType(kind, (rows, deep)), "ends": TensorType(DType.I32, (groups,))}
    if op == "grouped_matmul":
        types |= {"b": TensorType(kind, (groups, deep, columns)), "y": TensorType(kind, (rows, columns))}
    else:
        types |= {"b": TensorType(kind, (rows, columns)), "y": TensorType(kind, (groups, deep, columns))}
    return Graph("g", ("a", "b", "ends"), ("y",), types, (Node("n", op, ("a", "b", "ends"), ("y",), {}),))


def draw(graph: Graph, ends: Sequence[int], seed: int = 1) -> dict[str, np.ndarray]:
    """Return small integers for the operands of a grouped product."""
    rng, types = np.random.default_rng(seed), graph.types
    found = {name: rng.integers(-2, 3, types[name].shape).astype(types[name].dtype.numpy) for name in ("a", "b")}
    return found | {"ends": np.array(ends, np.int32)}


def product_by_groups(op: str, a: np.ndarray, b: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a grouped product, group by group."""
    left, right, begin = a.astype(np.float64), b.astype(np.float64), 0
    found = np.zeros((len(a), b.shape[-1]) if op == "grouped_matmul" else (len(ends), a.shape[1], b.shape[1]))
    for group, end in enumerate(ends):
        last = min(max(int(end), begin), len(a))
        rows = slice(begin, last)
        if op == "grouped_matmul":
            found[rows] = left[rows] @ right[group]
        else:
            found[group] = left[rows].T @ right[rows]
        begin = last
    return found


def check_plan(op: str, graph: Graph, every: Sequence[Sequence[int]], target: str) -> None:
    """Assert that a plan computes the products of some ends exactly."""
    plan = cuts.build(graph, target=target)
    for ends in every:
        arrays = draw(graph, ends)
        found = plan.run(arrays)["y"].astype(np.float64)
        np.testing.assert_array_equal(found, product_by_groups(op, **arrays), f"{op} of {ends}")


@needs_opencl
@pytest.mark.parametrize("kind", [DType.F32, DType.BF16, DType.F16])
@pytest.mark.parametrize("op", ["grouped_matmul", "grouped_outer"])
def test_any_ends_are_exact_opencl(op: str, kind: DType) -> None:
    check_plan(op, graph_of(op, 3, 300, 24, 40, kind), ENDS, "opencl")


@needs_opencl
@pytest.mark.parametrize("op", ["grouped_matmul", "grouped_outer"])
@pytest.mark.parametrize(("groups", "rows"), [(1, 130), (128, 200), (128, 50), (5, 1)])
def test_few_and_many_groups_are_exact_opencl(op: str, groups: int, rows: int) -> None:
    rng = np.random.default_rng(groups)
    every = [np.sort(rng.integers(0, rows + 1, groups)), np.full(groups, rows), np.zeros(groups)]
    check_plan(op, graph_of(op, groups, rows, 16, 16), [[int(e) for e in ends] for ends in every], "opencl")


@pytest.mark.parametrize("op", ["grouped_matmul", "grouped_outer"])
def test_the_reference_agrees_with_a_loop_over_groups(op: str) -> None:
    graph = graph_of(op, 3, 300, 5, 7, DType.F32)
    for ends in ENDS:
        arrays = draw(graph, ends)
        found = evaluate_graph(graph, Registry.builtin(), arrays)["y"]
        np.testing.assert_array_equal(found, product_by_groups(op, **arrays))


def test_numbers_of_other_groups_do_not_matter() -> None:
    for op in ("grouped_matmul", "grouped_outer"):
        graph = graph_of(op, 3, 300, 5, 7, DType.F32)
        arrays = draw(graph, (7, 130, 260))
        arrays["a"][260:] = np.nan
        if op == "grouped_outer":
            arrays["b"][260:] = np.inf
        found = evaluate_graph(graph, Registry.builtin(), arrays)["y"]
        np.testing.assert_array_equal(found, product_by_groups(op, *(np.nan_to_num(v) if v.dtype.kind == "f" else v
                                                            for v in arrays.values())))  # fmt: skip


# ---- the kernel of the product, point by point


@cache
def product_of(op: str, rows: int = 128, kind: DType = DType.BF16) -> tuple[FusedGroup, dict[str, str]]:
    """Return the normal form of a product, and its graph tensors."""
    programs = build_programs(graph_of(op, 2, rows, 192, 64, kind), Registry.builtin())
    builder = GroupBuilder(find_views(programs), Policy())
    last = builder.single([name for name in builder.units if builder.is_used(name)][-1])
    return last.form, dict(last.tensors)


def points(form: FusedGroup, instruction: str, count: int = 2) -> Iterator[Schedule]:
    """Yield points with an instruction, with all forms of copies."""
    space = make_space(form, SMALL_GPU)
    for structure in space.templates:
        if structure.segments[0].mma == instruction:
            for schedule in legal_points(space, structure, 1, count):
                for tma in (0, 1, 2, 3):
                    if not check_schedule(form, moved := with_tma(schedule, tma), SMALL_GPU):
                        yield moved


def operands(op: str, form: FusedGroup, names: dict[str, str], ends: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the operands of a product's unit, tables included."""
    kind = next(form.tensors[t].dtype for t, name in names.items() if name == "a")
    graph = graph_of(op, 2, 128, 192, 64, kind)
    arrays = draw(graph, ends)
    tables = tables_of(op, graph, arrays)
    return {t: {**arrays, **tables}[names[t].removeprefix("n.")] for t in form.inputs}


def tables_of(op: str, graph: Graph, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tables of a grouped product by its declaration."""
    from cuts.ops.reference import evaluate

    instance = Registry.builtin()[op].instantiate([graph.types[t] for t in graph.inputs], {})
    names = tuple(t for t, type_ in instance.program.tensors.items() if type_.dtype is DType.I32 and t != "ends")
    return evaluate(evolve(instance.program, outputs=names), arrays)


@needs_opencl
@pytest.mark.parametrize(
    ("op", "instruction"),
    [
        ("grouped_matmul", "m64n8k16_bf16"), ("grouped_matmul", "m16n8k16_bf16"), ("grouped_outer", "m64n8k16_bf16"),
        ("grouped_outer", "m16n8k16_bf16"), ("grouped_matmul", ""), ("grouped_outer", ""),
    ],
)  # fmt: skip
def test_points_of_products_are_exact_opencl(op: str, instruction: str) -> None:
    form, names = product_of(op)
    forms = set()
    for schedule in points(form, instruction):
        block = lower(form, schedule, {}, SMALL_GPU)
        assert check_barriers(block) == ()
        function = emit(extract(block), _device("opencl").target.dialect)
        forms.add(schedule.segments[0].reductions[0].tma)
        for ends in ((70, 128), (0, 64), (128, 128)):
            arrays = operands(op, form, names, ends)
            found = run(_device("opencl"), function, form, arrays).astype(np.float64)
            both = draw(graph_of(op, 2, 128, 192, 64), ends)
            np.testing.assert_array_equal(found, product_by_groups(op, **both), f"{schedule} of {ends}")
    assert forms == ({0, 1, 2, 3} if (op, instruction[:3]) == ("grouped_matmul", "m64") else {0})


def product_kernel(op: str, tma: int = 0) -> Kernel:
    """Return a kernel of a grouped product in place."""
    form, _ = product_of(op)
    schedule = next(s for s in points(form, "m64n8k16_bf16") if s.segments[0].reductions[0].tma == tma)
    return lower(form, schedule, {}, SMALL_GPU)


@pytest.mark.parametrize(
    ("op", "tma"), [("grouped_matmul", 0), ("grouped_matmul", 2), ("grouped_matmul", 3), ("grouped_outer", 0)]
)
def test_data_end_the_loop_over_terms(op: str, tma: int) -> None:
    kernel = product_kernel(op, tma)
    (until,) = {loop.until for loop in loops(kernel.items)} - {None}
    (define,) = [d for d in kernel.defines if d.var == until]
    assert ("group" if op == "grouped_matmul" else "size") in {
        name.removeprefix("n.") for t, name in product_of(op)[1].items() if t in define.value.text
    }


def test_bulk_copies_begin_where_data_says() -> None:
    kernel = product_kernel("grouped_matmul", 1)
    names = product_of("grouped_matmul")[1]
    fetch: BulkFetch = next(iter(bulk_fetches(kernel.items)))
    looked_up = {name for copy in fetch.copies for c in copy.coordinates for t, name in names.items() if t in c.text}
    assert {"n.row", "n.group"} <= looked_up


@needs_opencl
def test_matrices_of_groups_extend_runs_opencl() -> None:
    """Lanes hold eight neighbours of a row.

    The columns of transposed matrices take all dims of a map but one.
    """
    graph = graph_of("grouped_matmul", 2, 128, 192, 64)
    types = {**graph.types, "t": TensorType(DType.BF16, (2, 64, 192))}
    turn, product = Node("v", "transpose", ("t",), ("b",), {"perm": (0, 2, 1)}), graph.nodes[0]
    turned = Graph("g", ("a", "t", "ends"), ("y",), types, (turn, product))
    builder = GroupBuilder(find_views(build_programs(turned, Registry.builtin())), Policy())
    last = builder.single([name for name in builder.units if builder.is_used(name)][-1])
    form, names = last.form, dict(last.tensors)
    wide = [s for s in points(form, "m64n8k16_bf16", 16) if s.segments[0].reductions[0].tma > 1]
    schedule = next(s for s in wide if s.segments[0].dims[-1].vector == 8)
    function = emit(extract(lower(form, schedule, {}, SMALL_GPU)), "opencl")
    arrays = draw(graph, (70, 128))
    values = {**arrays, **tables_of("grouped_matmul", graph, arrays), "t": arrays["b"].transpose(0, 2, 1)}
    found = run(_device("opencl"), function, form, {t: values[names[t].removeprefix("n.")] for t in form.inputs})
    np.testing.assert_array_equal(found.astype(np.float64), product_by_groups("grouped_matmul", **arrays))


@needs_toolchain
@pytest.mark.parametrize("op", ["grouped_matmul", "grouped_outer"])
def test_no_product_is_serialised_and_nothing_is_spilled(op: str) -> None:
    plan = cuts.build(graph_of(op, 8, 4096, 4096, 14336), target="cuda:sm_90")
    cubin = compile_kernel(plan.kernels[-1], GPU.arch)
    assert "wgmma" in plan.kernels[-1].source
    assert not cubin.serialised
    assert not cubin.spill_bytes


@needs_toolchain
@pytest.mark.parametrize("shape", [(8, 4096, 4096, 14336), (128, 4096, 2048, 768)])
def test_one_product_and_tables(shape: tuple[int, int, int, int]) -> None:
    groups, total, deep, columns = shape
    plan = cuts.build(graph_of("grouped_matmul", *shape), target="cuda:sm_90")
    *tables, product = plan.kernels
    assert len(tables) <= 3
    assert "wgmma.mma_async" in product.source
    assert not any("atomic" in kernel.source for kernel in plan.kernels)
    own = 2 * (total * deep + groups * deep * columns + total * columns)
    assert plan.plan.arena < own + (1 << 16)

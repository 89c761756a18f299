"""Row operations and products of their rows in one kernel."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.ir.segment import FusedGroup
from cuts.ir.statement import Program
from cuts.ir.text import parse_ir
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.sums.row_recompute import copy_rows, row_families
from cuts.passes.inspection.verify import verify_programs
from cuts.passes.lowering import check_barriers, lower
from cuts.passes.schedule import check_schedule, make_space, sample_batches, to_schedule

from ..kernels.test_points import SMALL_GPU, _device, check
from ..needs import needs_opencl
from .build import REGISTRY, Line, graph, op

H200 = find_target("cuda:h200")
#: RMS norm of a row.
NORM: list[Line] = [
    op("s", "reduce_sum_square", "x", axes=(1,), keepdims=True),
    op("r", "rsqrt", "s"),
    op("n", "mul", "x", "r"),
    op("h", "mul", "n", "g"),
]


def products(*columns: int, depth: int = 64, dtype: DType = DType.F32) -> Graph:
    """Return products of a normalised row with matrices of some columns."""
    shapes = {"x": (1, depth), "g": (depth,)} | {f"w{n}": (size, depth) for n, size in enumerate(columns)}
    lines = [
        line
        for n in range(len(columns))
        for line in (op(f"t{n}", "transpose", f"w{n}", perm=(1, 0)), op(f"y{n}", "matmul", "h", f"t{n}"))
    ]
    types = {name: TensorType(dtype, shape) for name, shape in shapes.items()}
    return graph(types, *NORM, *lines, out=" ".join(f"y{n}" for n in range(len(columns))))


def kernels(made: Graph) -> list[FusedGroup]:
    plan = build_graph(made, load_spec(()), H200, CompileOptions(horizontal_fusion=False))
    forms = [parse_ir(str(group["form"])) for group in plan.plan.groups]
    return [form for form in forms if isinstance(form, FusedGroup)]


def test_a_norm_of_products_is_one_kernel() -> None:
    """A row that is read twice has candidates of its own."""
    types = {"x": TensorType(DType.F32, (16384, 4096)), "g": TensorType(DType.F32, (4096,))}
    made = graph(types, op("q", "mul", "x", "x"), op("m", "reduce_mean", "q", axes=(1,), keepdims=True),
                 op("r", "rsqrt", "m"), op("n", "mul", "x", "r"), op("h", "mul", "n", "g"), out="h")  # fmt: skip
    assert len(kernels(made)) == 1


@pytest.mark.parametrize("columns", [(8192,), (2048, 512)], ids=str)
def test_each_product_has_its_own_norm(columns: tuple[int, ...]) -> None:
    found = kernels(products(*columns, depth=2048, dtype=DType.BF16))
    assert [len(form.segments) for form in found] == [2] * len(columns)


def test_copied_rows_compute_the_same() -> None:
    whole = products(48, 16)
    before = build_programs(whole, REGISTRY)
    (family,) = row_families(before)
    after = copy_rows(before)
    verify_programs(after)
    assert len(after.units) == len(before.units) + len(family.units)
    values = {name: np.random.default_rng(0).standard_normal(whole.types[name].shape) for name in whole.inputs}
    statements = tuple(s for u in after.units for s in u.statements)
    program = Program(after.types, whole.inputs, whole.outputs, statements, after.tables)
    found, expected = evaluate(program, values), evaluate_graph(whole, REGISTRY, values)
    for name in whole.outputs:
        np.testing.assert_array_equal(found[name], expected[name])


KEPT_ROWS = {
    "it is a result": ([op("y", "matmul", "h", "w"), op("z", "matmul", "h", "v")], "y z h"),
    "something else reads it": ([op("y", "matmul", "h", "w"), op("z", "relu", "h")], "y z"),
    "products meet": ([op("p", "matmul", "h", "w"), op("q", "matmul", "h", "u"), op("y", "mul", "p", "q")], "y"),
}


@pytest.mark.parametrize("case", KEPT_ROWS)
def test_other_rows_are_computed_once(case: str) -> None:
    lines, out = KEPT_ROWS[case]
    shapes = {"x": (1, 64), "g": (64,), "w": (64, 48), "u": (64, 48), "v": (64, 16)}
    assert not [*row_families(build_programs(graph(shapes, *NORM, *lines, out=out), REGISTRY))]


def test_products_of_several_rows_read_it_from_memory() -> None:
    shapes = {"x": (8, 64), "g": (64,), "w": (64, 48), "v": (64, 16)}
    lines = [op("y", "matmul", "h", "w"), op("z", "matmul", "h", "v")]
    assert not [*row_families(build_programs(graph(shapes, *NORM, *lines, out="y z"), REGISTRY))]


ROWS = """var i0 < 1, r0 < 72, n < 40, k < 72

group {{
  tensor x: {0}[1, 72]
  tensor g: {0}[72]
  tensor h: {1}
  tensor w: {0}[40, 72]
  tensor b: {0}[40]
  tensor y: {0}[1, 40]
  tensor s: f32[1]
  tensor p: f32[40]
  inputs x, g, w, b
  outputs y
  shared h
  segment (i0) {{
    reduce s = sum over (r0) of f32(x[0, r0]) * f32(x[0, r0])
    output {2}
  }}
  segment (n) {{
    reduce p = sum over (k) of {3} * w[n, k]
    output y[0, n] = b[n] + {0}(p[n])
  }}
}}
"""
#: Type of the shared tensor, its statement, and the factor that the product makes of it.
PASSED_VALUES = {
    "row": ("{0}[1, 72]", "h[0, r0] for (r0) = g[r0] * {0}(f32(x[0, r0]) * rsqrt(s[0] / 72.0 + 0.5))", "h[0, k]"),
    "sum": ("f32[1]", "h[i0] = s[i0] / 72.0 + 0.5", "g[k] * {0}(f32(x[0, k]) * rsqrt(h[0]))"),
}


@needs_opencl
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("passed", PASSED_VALUES)
def test_points_equal_the_reference(passed: str, kind: str) -> None:
    form = parse_ir(ROWS.format(kind, *(text.format(kind) for text in PASSED_VALUES[passed])))
    assert isinstance(form, FusedGroup)
    space = make_space(form, SMALL_GPU)
    spread = [
        to_schedule(space, int(batch.points[place]) + batch.start)
        for batch in sample_batches(space, 64)
        if batch.points is not None
        for place in np.flatnonzero(batch.legal)
    ]
    lanes = [s for s in spread if s.segments[1].reduction_threads > 1]
    whole = [s for s in lanes if s.segments[1].reductions[0].dims[0].block_k == 72]
    assert whole
    for schedule in (*lanes[:2], whole[0]):
        assert check_schedule(form, schedule, SMALL_GPU) == []
        assert check_barriers(lower(form, schedule, {}, SMALL_GPU)) == ()
        check(_device("opencl"), SMALL_GPU, form, schedule)

"""Orders of rows.

Reads of elements by rank become a sort exactly where the comparison is a total order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate
from cuts.passes.statements.sorts import mark_sorts, match_sort

from ..needs import needs_opencl
from .build import graph, op

OP = """
op {name} "places of elements by their rank" {{
  type T: number
  in x: T[N, M]
  temp near: i32[N, M]
  out p: i64[N, M]
  near[n, i] = sum[j < M] (i32(1) if {before} else 0)
  p[n, c] = sum[j < M] (i64({place}) if near[n, j] == c else 0)
}}
"""
#: Whether the element at j stands before the one at i, and which order that is, if any.
BEFORE = {
    "by_nan": ("x[n, j] < x[n, i] or x[n, j] == x[n, i] and j < i or isnan(x[n, i]) "
               "and (not isnan(x[n, j]) or j < i)", "rising"),
    "falls": ("isnan(x[n, j]) and (not isnan(x[n, i]) or j < i) or x[n, j] > x[n, i] "
              "or x[n, j] == x[n, i] and i - j >= 1", "falling"),
    "without_nan": ("x[n, j] < x[n, i] or x[n, j] == x[n, i] and j < i", ""),
    "without_ties": ("x[n, j] < x[n, i]", ""),
    "last_first": ("x[n, j] < x[n, i] or x[n, j] == x[n, i] and j > i or isnan(x[n, i]) "
                   "and (not isnan(x[n, j]) or j > i)", ""),
    "by_size": ("abs(x[n, j]) < abs(x[n, i]) or abs(x[n, j]) == abs(x[n, i]) and j < i", ""),
    "near_ones": ("j - i < 3 and (x[n, j] < x[n, i] or x[n, j] == x[n, i] and j < i)", ""),
    "by_another": ("x[n, j] < x[n, 0] or x[n, j] == x[n, i] and j < i", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    path = tmp_path_factory.mktemp("spec") / "own.cuts"
    declared = [OP.format(name=name, before=before, place="j") for name, (before, _) in BEFORE.items()]
    declared.append(OP.format(name="moved", before=BEFORE["falls"][0], place="2 * j + n"))
    path.write_text("".join(declared))
    return Registry.builtin().load(path)


def program_of(registry: Registry, name: str, shape: tuple[int, int] = (3, 40), dtype: DType = DType.F32) -> Program:
    return registry[name].instantiate([TensorType(dtype, shape)], {}).program


def values(shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(0)
    found = generator.integers(-3, 4, shape).astype(np.float64)
    found[generator.random(shape) < 0.2] = np.nan
    found[0, :2] = 0.0, -0.0
    return found


def test_integers_have_no_nan(registry: Registry) -> None:
    for dtype, wanted in ((DType.U8, 1), (DType.I32, 1), (DType.F16, 0)):
        marked = mark_sorts(program_of(registry, "without_nan", dtype=dtype)).statements
        assert sum(s.along is not None for s in marked) == wanted, dtype


@pytest.mark.parametrize("name", BEFORE)
def test_a_comparison_is_an_order_by_its_results(name: str, registry: Registry) -> None:
    program, wanted = program_of(registry, name), BEFORE[name][1]
    found = mark_sorts(program)
    marked = [s for s in found.statements if s.along is not None]
    assert bool(marked) == bool(wanted) and (found is program) == (not wanted)
    if wanted:
        order = match_sort(marked[0], found.statements, found.tensors)
        assert order is not None and order.along == wanted


@pytest.mark.parametrize("name", ["by_nan", "falls", "moved"])
def test_what_is_marked_means_the_same(name: str, registry: Registry) -> None:
    program = program_of(registry, name)
    found, x = mark_sorts(program), {"x": values((3, 40))}
    assert found is not program
    np.testing.assert_array_equal(evaluate(found, x)["p"], evaluate(program, x)["p"])


@pytest.mark.parametrize(("shape", "dtype"), [((3, 16), DType.F32), ((1, 8193), DType.F32), ((3, 40), DType.I64)])
def test_what_lanes_cannot_sort_is_compared(shape: tuple[int, int], dtype: DType, registry: Registry) -> None:
    program = program_of(registry, "by_nan", shape, dtype)
    assert mark_sorts(program) is program


@needs_opencl
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 101), {"k": 101, "axis": 1}),
        ((2, 101), {"k": 1, "axis": 1, "largest": False}),
        ((2, 20, 3), {"k": 7, "axis": 1}),
        ((2, 6000), {"k": 3, "axis": 1}),
        ((0, 20), {"k": 20, "axis": 1}),
        ((3, 0), {"k": 0, "axis": 1}),
    ],
)
def test_rows_are_sorted(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    """Sort along any axis.

    Rows have odd, many and no elements, and any number of results is wanted.
    """
    model = graph({"x": shape}, op("y p", "top_k", "x", **attributes), out="y p")
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    assert all(result.ok and not result.error for result in plan.verify())


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I8, DType.U32])
@pytest.mark.parametrize("k", [33, 101])
def test_values_at_sorted_places_join_the_sort(dtype: DType, k: int) -> None:
    """Gather two tensors at every or some places of a sorted row."""
    x = np.array([0.0, -0.0, 1.0, 3.0, 3.0] * 41)[: 2 * 101].reshape(2, 101).astype(dtype.numpy)
    if dtype.is_float:
        x[:, 7:9] = np.nan, np.inf
    z = np.arange(2 * 101, dtype=np.float32).reshape(2, 101)
    types = {"x": TensorType(dtype, x.shape), "z": TensorType(DType.F32, z.shape)}
    lines = op("y p", "top_k", "x", k=k, axis=1, largest=False), op("g", "gather_elements", "z", "p", axis=1)
    model = graph(types, *lines, out="y p g")
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    found = plan.run({"x": x, "z": z})
    places = np.argsort(x.astype(np.float64), axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found["p"], places)
    wanted = np.take_along_axis(x, places, 1)
    np.testing.assert_array_equal(found["y"], wanted)
    np.testing.assert_array_equal(np.signbit(found["y"])[wanted == 0], np.signbit(wanted)[wanted == 0])
    np.testing.assert_array_equal(found["g"], np.take_along_axis(z, places, 1))


def test_sorted_rows_and_values_are_one_kernel() -> None:
    model = graph({"x": (8, 4096)}, op("y p", "top_k", "x", k=4096, axis=1, largest=False), out="y p")
    plan = build_graph(model, load_spec([]), find_target("cuda:h200"), CompileOptions())
    assert len(plan.launches) == 1

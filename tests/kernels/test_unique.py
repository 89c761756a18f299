"""Distinct elements of lists: values, first places, runs, counts, number."""

from __future__ import annotations

from typing import Any

import cuts
import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.types import DType, TensorType
from cuts.passes.graph import prune
from cuts.passes.partitioning.algorithm_graphs import replace_node

from ..fusion.build import graph, op
from ..needs import needs_opencl

#: A bound of 0 is asked for.
pytestmark = pytest.mark.filterwarnings("ignore:.*has no elements")
TYPES = [dtype for dtype in DType if dtype is not DType.BOOL]


def run(target: str, x: np.ndarray[Any, Any], dtype: DType, size: int, **attributes: Any) -> list[Any]:
    line = op("y first inverse counts number", "unique", "x", size=size, **attributes)
    model = graph({"x": TensorType(dtype, x.shape)}, line, out="y first inverse counts number")
    plan = build_graph(model, load_spec([]), find_target(target), CompileOptions())
    return [*plan.run({"x": x}).values()]


def check(found: list[Any], x: np.ndarray[Any, Any], size: int, equal_nan: bool = False) -> None:
    """Compare with NumPy."""
    real = x.dtype.kind not in "iu"
    wide = x.astype(np.float64) if real else x
    _, first, inverse, counts = np.unique(wide, True, True, True, equal_nan=equal_nan)
    y, padding = wide[first], np.zeros(size, np.int64)
    padded = [np.append(v, padding.astype(v.dtype))[:size] for v in (y, first, counts)]
    values = found[0].astype(np.float64) if real else found[0]
    wanted = [*padded[:2], inverse, padded[2], len(y)]
    for result, expected in zip([values, *found[1:]], wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


def numbers(dtype: DType, n: int, kinds: int) -> np.ndarray[Any, Any]:
    """Return elements of so many kinds, extremes among them."""
    rng = np.random.default_rng(n)
    if dtype.is_float:
        extremes = [0.0, -0.0, np.nan, -1.5, *([np.inf, -np.inf] if dtype.element.infinite else [448.0, -448.0])]
        return rng.choice(np.append(rng.normal(size=max(1, kinds)), extremes), n).astype(dtype.numpy)
    low, high = int(dtype.element.lowest), int(dtype.element.highest)
    some = rng.integers(low, high, max(1, kinds), dtype=dtype.numpy, endpoint=True)
    return rng.choice(np.append(some, np.array([low, high, 0], dtype.numpy)), n)


@needs_opencl
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_distinct_elements_of_all_types(dtype: DType) -> None:
    x = numbers(dtype, 211, 30)
    check(run("opencl", x, dtype, 60), x, 60)


@pytest.mark.parametrize("n", [0, 1, 2, 101])
@pytest.mark.parametrize("size", [0, 1, 7, 150])
@pytest.mark.parametrize("equal_nan", [False, True])
def test_sizes_bound_results(n: int, size: int, equal_nan: bool) -> None:
    x = numbers(DType.F32, n, 20)
    check(run("reference", x, DType.F32, size, equal_nan=equal_nan), x, size, equal_nan)


@needs_opencl
@pytest.mark.parametrize(("n", "size"), [(0, 3), (1, 1), (13, 0), (1021, 300), (257, 257)])
@pytest.mark.parametrize("x", ["equal", "distinct"])
def test_equal_or_distinct_elements(n: int, size: int, x: str) -> None:
    values = np.full(n, 3.0, np.float32) if x == "equal" else np.random.default_rng(0).permutation(n).astype(np.float32)
    check(run("opencl", values, DType.F32, size), values, size)


@needs_opencl
def test_runs_of_lists_in_order() -> None:
    """Places of elements before their sort lead back to them."""
    x = numbers(DType.F32, 700, 40)
    lines = (
        op("v p", "top_k", "x", k=700, axis=0, largest=False),
        op("y first inverse counts number", "unique", "v", "p", size=90, consecutive=True),
    )
    model = graph({"x": (700,)}, *lines, out="y first inverse counts number")
    found = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions()).run({"x": x})
    check([*found.values()], x, 90)
    y, first, inverse, counts, number = run("reference", np.int32([2, 2, 5, 2, 2, 2]), DType.I32, 4, consecutive=True)
    assert (y.tolist(), first.tolist(), inverse.tolist()) == ([2, 5, 2, 0], [0, 2, 3, 0], [0, 0, 1, 2, 2, 2])
    assert (counts.tolist(), int(number)) == ([2, 1, 3, 0], 3)


@needs_opencl
def test_long_lists_are_sorted_by_digits() -> None:
    x, names, spec = numbers(DType.I64, 2100, 900), "y first inverse counts number", load_spec([])
    call = graph({"x": TensorType(DType.I64, x.shape)}, op(names, "unique", "x", size=1000), out=names)
    passes = prune(replace_node(call, call.nodes[0], "words", spec.registry.instances))
    assert {node.op for node in passes.nodes} >= {"radix_pass", "unique"}
    found = build_graph(passes, spec, find_target("opencl"), CompileOptions()).run({"x": x})
    check([*found.values()], x, 1000)


@needs_opencl
@pytest.mark.parametrize(("dtype", "largest"), [(DType.I64, False), (DType.F64, True), (DType.U64, True)])
def test_words_of_eight_bytes_are_sorted(dtype: DType, largest: bool) -> None:
    n, x = 2100, numbers(dtype, 2100, 900)
    call = graph({"x": TensorType(dtype, (n,))}, op("y p", "top_k", "x", k=n, axis=0, largest=largest), out="y p")
    spec = load_spec([])
    passes = prune(replace_node(call, call.nodes[0], "words", spec.registry.instances))
    found = build_graph(passes, spec, find_target("opencl"), CompileOptions()).run({"x": x})
    keys = (-x if dtype.is_float else ~x) if largest else x
    missing = np.isnan(x) != largest if dtype.is_float else np.zeros(n)
    keys = (np.arange(n), np.where(np.isnan(keys), 0, keys) if dtype.is_float else keys, missing)
    np.testing.assert_array_equal(found["p"], np.lexsort(keys))
    np.testing.assert_array_equal(found["y"], x[np.lexsort(keys)])


@needs_opencl
def test_operators_of_pytorch_bound_results() -> None:
    torch = pytest.importorskip("torch")
    unique = cuts.torch_op([], "unique")
    x = torch.tensor([3.0, 1.0, 3.0, float("nan"), 0.5, float("nan")])
    wanted, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
    y, first, inverse, found, number = unique(x, size=6)
    assert int(number) == len(wanted) == 5
    torch.testing.assert_close(y[:5], wanted, equal_nan=True)
    assert inverse.equal(places) and found[:5].equal(counts) and first.tolist() == [4, 1, 0, 3, 5, 0]

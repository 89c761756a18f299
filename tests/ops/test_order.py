"""Greatest and least elements of rows, whole or cut into parts.

Order, ties and NaN are included.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate
from cuts.passes.statements.sorts import mark_sorts
from cuts.tests.amounts import examples
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st

REGISTRY = Registry.builtin()


def program_of(n: int, dtype: DType = DType.F32, **attributes: Any) -> Program:
    return REGISTRY["top_k"].instantiate([TensorType(dtype, (2, n))], attributes).program


def comparisons(program: Program) -> int:
    """Return the number of comparisons of a program.

    It is zero for sorted ranks, and the steps of a network for these rows.
    """
    found = mark_sorts(program)
    sorts = [s for s in found.statements if s.along is not None]
    others = [s for s in found.statements if s.along is None and not (sorts and s.target in ("before", "near"))]
    steps = sum(
        prod(v.extent for v in s.axes) * sum(range(1, s.along.extent.bit_length() + 1)) for s in sorts if s.along
    )
    return steps + sum(prod(v.extent for v in (*s.axes, *s.reduce)) for s in others)


@st.composite
def requests(draw: Any) -> tuple[int, dict[str, Any], DType]:
    n = draw(st.one_of(st.integers(1, 60), st.sampled_from([64, 97, 120, 256, 360, 500])))
    k = draw(st.one_of(st.integers(0, min(n, 4)), st.integers(0, n)))
    dtype = draw(st.sampled_from([DType.F16, DType.F32, DType.F64, DType.I32, DType.U8]))
    return n, {"k": k, "axis": 1, "largest": draw(st.booleans())}, dtype


@settings(max_examples=examples(60, 1500), deadline=None)
@given(requests(), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_elements_come_in_stable_order(case: tuple[int, dict[str, Any], DType], seed: int, kinds: int) -> None:
    n, attributes, dtype = case
    rng = np.random.default_rng(seed)
    x = rng.integers(0, kinds, (2, n)).astype(np.float64)
    if dtype.is_float:
        x[rng.random((2, n)) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    found = evaluate(program_of(n, dtype, **attributes), {"x": x})
    sign = -1 if attributes["largest"] else 1
    keys = (np.broadcast_to(np.arange(n), x.shape), sign * np.nan_to_num(x, nan=0), sign * np.isnan(x))
    order = np.lexsort(keys, axis=1)[:, : attributes["k"]]
    if attributes["k"]:
        np.testing.assert_array_equal(found["positions"], order)
        np.testing.assert_array_equal(found["y"], np.take_along_axis(x, order, 1))


@pytest.mark.parametrize(("n", "k", "most"), [(32000, 8, 300), (1000, 5, 80), (50257, 1, 2000), (1024, 1024, 4200)])
def test_few_of_many_take_few_comparisons(n: int, k: int, most: int) -> None:
    """The count is the mean for an element.

    Integers of eight bytes, which are not sorted, are compared in short parts too.
    """
    assert comparisons(program_of(n, k=k)) < 2 * n * 2 * most
    assert comparisons(program_of(n, DType.I64, k=k)) < 2 * n * 2 * most


@needs_opencl
@pytest.mark.parametrize(("n", "k", "largest"), [(1000, 5, True), (600, 1, False), (96, 96, True)])
def test_kernels_find_them(n: int, k: int, largest: bool) -> None:
    types = {
        "x": TensorType(DType.F32, (3, n)), "y": TensorType(DType.F32, (3, k)), "p": TensorType(DType.I64, (3, k))
    }  # fmt: skip
    node = Node("n", "top_k", ("x",), ("y", "p"), {"k": k, "axis": 1, "largest": largest})
    plan = build_graph(
        Graph("g", ("x",), ("y", "p"), types, (node,)), load_spec([]), find_target("opencl"), CompileOptions()
    )
    x = np.random.default_rng(0).integers(0, 200, (3, n)).astype(np.float32)
    x[0, n // 2] = np.nan
    assert all(result.ok for result in plan.verify({"x": x}))

"""Sorted scatters: sums of rows in the order of their places.

They equal NumPy's for every element type, with few and many rows of a place, NaN and infinities, and have the same bits
each time.
"""

from __future__ import annotations

import math
from typing import Any

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir import DType, FusedGroup, TensorType
from cuts.ir.compiled import CompileOptions
from cuts.ops import Registry, evaluate
from cuts.passes.fusion.normalise import normalise
from cuts.passes.fusion.programs import build_programs
from cuts.passes.geometry import data_end
from cuts.passes.statements.scatters import (
    deterministic_scatter,
    make_scatters_deterministic,
    place_lists,
    place_order,
    sorted_scatter,
)
from cuts.tests.fusion.build import graph as lines
from cuts.tests.fusion.build import op
from cuts.tests.needs import needs_opencl
from cuts.tests.ops.test_empty_tensors import graph
from hypothesis import given, settings
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True, params=[0, 1 << 30], ids=["digits", "lists"])
def sorted_rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let small scatters take the path of large ones."""
    monkeypatch.setattr(sorted_scatter, "MIN_DIGIT_ROWS", request.param)
    monkeypatch.setattr(place_lists, "LIST_ROWS", 16)
    monkeypatch.setattr(place_lists, "MAX_LISTS_PER_ROW", 1 << 20)
    monkeypatch.setattr(deterministic_scatter, "MAX_COMPARED_PAIRS", 0)
    monkeypatch.setattr(deterministic_scatter, "MAX_COMPARED_TERMS", 0)
    monkeypatch.setattr(sorted_scatter, "MIN_SORTED_ELEMENTS", 1)
    monkeypatch.setattr(sorted_scatter, "MIN_SORTED_ROW", 1)
    monkeypatch.setattr(sorted_scatter, "MIN_ORDERED_ELEMENTS", 1)
    monkeypatch.setattr(sorted_scatter, "CHUNK_BITS", 3)
    monkeypatch.setattr(place_order, "DIGIT_BITS", 3)
    monkeypatch.setattr(place_order, "MIN_TILE", 32)


def rows_of(seed: int, count: int, places: int, width: int, hot: bool, special: str = "") -> tuple[Array, Array]:
    """Return places of rows, few of them outside, and the rows."""
    rng = np.random.default_rng(seed)
    at = rng.integers(-places - 1, places + 1, count)
    at = np.where(rng.random(count) < 0.9, places // 2, at) if hot else at
    rows = rng.standard_normal((count, width))
    for value in {"": [], "nan": [math.nan], "inf": [math.inf], "both": [math.inf, -math.inf]}[special]:
        rows[rng.integers(count), rng.integers(width)] = value
    return at[:, None], rows


def sum_rows(at: Array, rows: Array, start: Array) -> Array:
    """Return NumPy's sums in double precision, without rows that lie outside."""
    result, inside = start.astype(np.float64), (at[:, 0] >= -len(start)) & (at[:, 0] < len(start))
    with np.errstate(all="ignore"):
        np.add.at(result, at[inside, 0], rows[inside].astype(np.float64))
    return result


@given(st.integers(0, 99), st.integers(1, 90), st.integers(1, 9), st.booleans(), st.sampled_from(["", "nan", "both"]))
@settings(max_examples=8)
def test_the_statements_sum_rows_as_numpy(seed: int, count: int, places: int, hot: bool, special: str) -> None:
    at, rows = rows_of(seed, count, places, 2, hot, special)
    at = at.clip(-places, places - 1)
    types = [TensorType(DType.F64, (places, 2)), TensorType(DType.I64, at.shape), TensorType(DType.F64, rows.shape)]
    program = Registry.builtin()["scatter_nd"].instantiate(types, {"reduction": "add"}).program
    found = make_scatters_deterministic(program)
    assert any(s.target.endswith(".order") for s in found.statements)
    result = evaluate(found, {"x": np.ones((places, 2)), "indices": at, "updates": rows})["y"]
    np.testing.assert_allclose(result, sum_rows(at, rows, np.ones((places, 2))), rtol=1e-12, atol=1e-12)


@needs_opencl
@pytest.mark.parametrize(
    ("dtype", "special"), [(DType.F32, ""), (DType.F16, "inf"), (DType.BF16, "nan"), (DType.F64, "both")]
)
@pytest.mark.parametrize("hot", [False, True], ids=["spread", "hot"])
def test_kernels_sum_rows_as_numpy(dtype: DType, special: str, hot: bool) -> None:
    at, rows = rows_of(3, 75, 20, 4, hot, special)
    x, rows = np.ones((20, 4)).astype(dtype.numpy), rows.astype(dtype.numpy)
    plan = cuts.build(graph("scatter_nd", x, at, rows, reduction="add"), target="opencl")
    first, again = (plan.run({"x0": x, "x1": at, "x2": rows})["y0"] for _ in range(2))
    assert first.tobytes() == again.tobytes()
    size = np.abs(np.nan_to_num(rows.astype(np.float64), posinf=0, neginf=0)).sum()
    bound = 2 * dtype.element.epsilon * size + 2.0**-24 * size
    np.testing.assert_allclose(first.astype(np.float64), sum_rows(at, rows, x), rtol=0, atol=bound)


@given(st.integers(0, 99), st.integers(2, 90), st.integers(2, 9), st.booleans(), st.sampled_from(["", "nan", "both"]))
@settings(max_examples=8)
def test_ordered_rows_are_summed_without_a_sort(seed: int, count: int, places: int, hot: bool, special: str) -> None:
    at, rows = rows_of(seed, count, places, 2, hot, special)
    at = np.sort(at.clip(0, places - 1), axis=0)
    types = [TensorType(DType.F64, (places, 2)), TensorType(DType.I64, at.shape), TensorType(DType.F64, rows.shape)]
    program = Registry.builtin()["scatter_nd"].instantiate(types, {"reduction": "add"}).program
    found = make_scatters_deterministic(program, ["indices"])
    assert not any(s.target.endswith(".order") for s in found.statements)
    result = evaluate(found, {"x": np.ones((places, 2)), "indices": at, "updates": rows})["y"]
    np.testing.assert_allclose(result, sum_rows(at, rows, np.ones((places, 2))), rtol=1e-12, atol=1e-12)


@needs_opencl
@pytest.mark.parametrize(
    ("dtype", "lengths"),
    [(DType.F32, [2, 0, 5, 1, 0, 31]), (DType.BF16, [0, 0, 44]), (DType.F64, [60, 60]), (DType.F16, [0, 3, 1])],
)
def test_repeated_places_are_ordered(dtype: DType, lengths: list[int]) -> None:
    """Sum rows of a matrix in CSR form, some beyond the end."""
    count, width = sum(lengths) + 3, 3
    types = {"l": TensorType(DType.I64, (len(lengths),)), "u": TensorType(dtype, (count, width))}
    types["x"] = TensorType(dtype, (len(lengths), width))
    types["e"], types["o"] = TensorType(DType.I64, (count + 1,)), TensorType(DType.I64, (len(lengths),))
    model = lines(
        types, op("ends", "cumsum", "l", axis=0), op("ended", "scatter_elements", "e", "ends", "o", reduction="add"),
        op("row", "cumsum", "ended", axis=0), op("own", "slice", "row", starts=(0,), ends=(count,), axes=(0,)),
        op("at", "reshape", "own", shape=(count, 1)), op("y", "scatter_nd", "x", "at", "u", reduction="add"), out="y",
    )  # fmt: skip
    zeros, ones = np.zeros(count + 1, np.int64), np.ones(len(lengths), np.int64)
    model = evolve(model, inputs=("l", "u", "x"), constants={"e": zeros, "o": ones})
    assert not any(t.endswith(".order") for t in build_programs(model, Registry.builtin()).types), "no sort"
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    rng = np.random.default_rng(0)
    u, x = (rng.standard_normal(types[n].shape).astype(dtype.numpy) for n in "ux")
    first, again = (plan.run({"l": np.array(lengths), "u": u, "x": x})["y"] for _ in range(2))
    assert first.tobytes() == again.tobytes()
    at = np.repeat(np.arange(len(lengths)), lengths)[:, None]
    bound = (2 * dtype.element.epsilon + 2.0**-24) * (np.abs(u.astype(np.float64)).sum() + 1)
    np.testing.assert_allclose(first.astype(np.float64), sum_rows(at, u[: len(at)], x), rtol=0, atol=bound)


@pytest.mark.parametrize("sizes", [(0, 5, 3), (6, 0, 3), (6, 5, 0), (1, 1, 1)], ids=str)
def test_empty_scatters_stay_empty(sizes: tuple[int, int, int]) -> None:
    count, places, width = sizes
    shapes = [(places, width), (count, 1), (count, width)]
    types = [TensorType(kind, shape) for kind, shape in zip((DType.F32, DType.I64, DType.F32), shapes, strict=True)]
    program = Registry.builtin()["scatter_nd"].instantiate(types, {"reduction": "add"}).program
    arrays = {"x": np.ones(shapes[0]), "indices": np.zeros(shapes[1], np.int64), "updates": np.ones(shapes[2])}
    found = evaluate(make_scatters_deterministic(program), arrays)["y"]
    np.testing.assert_array_equal(found, evaluate(program, arrays)["y"])


def test_the_work_of_sorted_rows_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_scatter, "CHUNK_BITS", 7)
    monkeypatch.setattr(place_order, "DIGIT_BITS", 8)
    operands = [
        TensorType(DType.F32, (50257, 768)),
        TensorType(DType.I64, (8192, 1)),
        TensorType(DType.F32, (8192, 768)),
    ]
    program = Registry.builtin()["scatter_nd"].instantiate(operands, {"reduction": "add"}).program
    own = [s.target for s in make_scatters_deterministic(program).statements]
    passes, lists = (sum(f".{kind}" in name for name in own) for kind in ("digit", "lists"))
    assert (passes, lists) in ((2, 0), (0, 3)), "a pass for eight bits of places, or one over lists"
    assert not any("size" in name for name in own), "no row is counted in integers"


def test_chunks_and_their_rows_share_no_loop() -> None:
    operands = [TensorType(DType.F32, (5, 2)), TensorType(DType.I64, (128, 1)), TensorType(DType.F32, (128, 2))]
    program = Registry.builtin()["scatter_nd"].instantiate(operands, {"reduction": "add"}).program
    sums = {s.target.split(".")[-1]: s.reduce for s in make_scatters_deterministic(program).statements if s.reduce}
    assert sums["total"][0].extent == 16, "rows of two chunks, as many as there are chunks"
    assert sums["before"][0].extent != sums["total"][0].extent


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_sums_end_with_their_rows(dtype: DType) -> None:
    operands = [TensorType(dtype, (64, 4)), TensorType(DType.I64, (128, 1)), TensorType(dtype, (128, 4))]
    program = Registry.builtin()["scatter_nd"].instantiate(operands, {"reduction": "add"}).program
    made = make_scatters_deterministic(program)
    for name, terms in (("total", 2.0), ("part", 1.0)):
        (own,) = (s for s in made.statements if s.target.endswith(f".{name}"))
        group = normalise([own], made.tensors, (own.target,))
        assert isinstance(group, FusedGroup)
        (segment,) = group.segments
        end = data_end(segment.reductions[0], segment.axes, group.tensors)
        assert end is not None and end.terms == terms

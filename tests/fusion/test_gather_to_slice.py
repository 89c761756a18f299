"""Lookups in known tables with even steps, and in moved tensors.

They find the same elements as the original.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.affine import Var, as_index, straight_index, table_index
from cuts.ir.affine import evaluate as evaluate_index
from cuts.ir.compiled import CompileOptions
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate
from cuts.passes.fusion.fold_units import drop_unused, fold_units
from cuts.passes.fusion.programs import build_programs
from cuts.passes.statements.gather_to_slice import fold_gathers, tensors_looked_up
from cuts.tests.amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ..needs import needs_opencl
from .build import REGISTRY, graph, op

EXTENT = 23


def gather_program(table: np.ndarray[Any, Any]) -> Program:
    """Return the lookup of a table's integers along an axis."""
    types = [TensorType(DType.F32, (3, EXTENT)), TensorType(DType.I64, table.shape)]
    return REGISTRY["gather"].instantiate(types, {"axis": 1}).program


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], bool]:
    """Draw integers, and whether they step evenly within range along each dim."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    table = np.full(shape, draw(st.integers(-EXTENT, EXTENT - 1)))
    for dim, extent in enumerate(shape):
        step = draw(st.integers(-3, 3))
        table = table + step * np.arange(extent).reshape(-1, *[1] * (len(shape) - 1 - dim))
    if draw(st.booleans()) and table.size > 1:
        table.flat[draw(st.integers(0, table.size - 1))] += draw(st.sampled_from((-1, 1)))
    wrapped = np.where(table < 0, table + EXTENT, table)
    corner = wrapped[(0,) * table.ndim]
    steps = [wrapped.take(1, d).flat[0] - corner if n > 1 else 0 for d, n in enumerate(shape)]
    even = corner + sum(s * g for s, g in zip(steps, np.indices(shape), strict=True))
    inside = bool((wrapped >= 0).all() and (wrapped < EXTENT).all())
    return table, inside and bool((even == wrapped).all())


@settings(max_examples=examples(60, 3000), deadline=None)
@given(tables())
def test_a_table_that_steps_evenly_is_an_index(case: tuple[np.ndarray[Any, Any], bool]) -> None:
    table, even = case
    program = gather_program(table)
    (name,) = {t for s in program.statements for t in tensors_looked_up(s)}
    found = fold_gathers(program, {name: table})
    left = any(tensors_looked_up(s) for s in found.statements)
    assert not (even and left)
    inside = bool(((table >= -EXTENT) & (table < EXTENT)).all())
    assert inside or left
    if inside:
        wrapped = np.where(table < 0, table + EXTENT, table)
        places = [as_index(Var(f"p{dim}", extent)) for dim, extent in enumerate(table.shape)]
        assert even == (straight_index(wrapped, places) is not None)
        (source,) = (t for t in program.inputs if t != name)
        inputs = {source: np.arange(3.0 * EXTENT).reshape(3, EXTENT), name: table}
        ours, expected = evaluate(found, inputs), evaluate(program, inputs)
        assert all(np.array_equal(ours[t], expected[t]) for t in program.outputs)


@st.composite
def borders(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw the integers of a row with a border of some kind."""
    extent = draw(st.integers(2, EXTENT))
    before, after = (draw(st.integers(0, extent - 1)) for _ in range(2))
    mode = draw(st.sampled_from(("edge", "reflect", "wrap")))
    return np.pad(np.arange(extent), (before, after), mode=mode)[draw(st.integers(0, before)) :]


@settings(max_examples=examples(60, 3000), deadline=None)
@given(borders())
def test_borders_are_indices(table: np.ndarray[Any, Any]) -> None:
    place = Var("i", len(table))
    found = table_index(table, (as_index(place),))
    assert found is not None
    assert [evaluate_index(found, {place: n}) for n in range(len(table))] == table.tolist()
    low, high = found.bounds()
    assert low >= 0
    assert high < EXTENT


def test_clamped_windows_are_an_index() -> None:
    table = np.clip(2 * np.arange(9)[:, None] + np.arange(4) - 1, 0, 17)
    places = Var("i", 9), Var("j", 4)
    assert str(table_index(table, list(map(as_index, places)))) == "clamp(2*i + j - 1, 0, 17)"
    assert table_index(table[:, ::-1] ** 2, list(map(as_index, places))) is None


@needs_opencl
@pytest.mark.parametrize("shape", [(4, 5), (6, 7)])
def test_lookups_of_points_return_to_their_places(shape: tuple[int, int]) -> None:
    """Two tensors of places, side by side: no kernel puts them there."""
    places = TensorType(DType.I64, (11, 1))
    lines = [op("p", "concat", "i", "j", axis=1), op("y", "gather_nd", "x", "p")]
    model = graph({"x": shape, "i": places, "j": places}, *lines, out="y")
    units = build_programs(model, REGISTRY).units
    assert {t for u in units for s in u.statements for t in tensors_looked_up(s)} == {"i", "j"}
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    assert len(plan.kernels) == 1
    assert all(result.ok for result in plan.verify())


@needs_opencl
def test_a_known_table_leaves_no_lookup() -> None:
    model = graph({"x": (3, EXTENT), "t": TensorType(DType.I64, (4, 5))}, op("y", "gather", "x", "t", axis=1), out="y")
    windows = np.arange(4)[:, None] * 3 + np.arange(5)
    known = evolve(model, inputs=("x",), constants={"t": windows.astype(np.int64)})
    (unit,) = build_programs(known, REGISTRY).units
    assert not any(tensors_looked_up(s) for s in unit.statements)
    plan = build_graph(known, load_spec([]), find_target("opencl"), CompileOptions())
    assert all(result.ok for result in plan.verify())


@needs_opencl
def test_moved_tables_leave_no_lookup() -> None:
    """Places of points stand side by side: each coordinate steps evenly."""
    places = TensorType(DType.I64, (4, 5, 1))
    lines = [op("p", "concat", "i", "j", axis=2), op("y", "gather_nd", "x", "p")]
    model = graph({"x": (9, 11), "i": places, "j": places}, *lines, out="y")
    sides = (2 * np.arange(4)[:, None, None], np.arange(4)[:, None, None] + np.arange(5)[:, None] - 9)
    known = {name: np.broadcast_to(side, (4, 5, 1)).astype(np.int64) for name, side in zip("ij", sides, strict=True)}
    known_model = evolve(model, inputs=("x",), constants=known)
    units = drop_unused(fold_units(build_programs(known_model, REGISTRY))).units
    assert not any(tensors_looked_up(s) for u in units for s in u.statements)
    plan = build_graph(known_model, load_spec([]), find_target("opencl"), CompileOptions())
    assert all(result.ok for result in plan.verify())


@needs_opencl
def test_a_dim_of_one_element_needs_no_places() -> None:
    """A kernel replaces one element of each row and reads the rows."""
    places, one = TensorType(DType.I64, (5, 1)), TensorType(DType.F32, (5, 1))
    lines = [op("s", "scatter_elements", "x", "i", "u", axis=1), op("y", "mul", "s", "x")]
    model = graph({"x": (5, 33), "i": places, "u": one}, *lines, out="y")
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    assert plan.plan.launch_count == 1
    assert all(result.ok for result in plan.verify())

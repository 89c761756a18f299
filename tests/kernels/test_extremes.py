"""Numbers at the limits of types have NumPy's results everywhere.

Integers wrap, NaN propagates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.compile.plan import CompiledPlan
from cuts.ir.compiled import CompileOptions
from cuts.ir.functions import COMBINERS
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.tests.needs import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

from .extremes import CASES, NUMBERS, Array, Case, extremes, is_real, wrong

REGISTRY = Registry.builtin()
TARGETS = [pytest.param("reference"), *DEVICES]


def compile_nodes(nodes: Sequence[Node], types: dict[str, TensorType], target: str) -> CompiledPlan:
    """Compile nodes whose operands are the types' names."""
    inputs, types = tuple(types), dict(types)
    for node in nodes:
        made = REGISTRY[node.op].instantiate([types[v] for v in node.inputs if v], node.attributes)
        types |= dict(zip(node.outputs, made.output_types, strict=True))
    graph = Graph("extremes", inputs, tuple(v for n in nodes for v in n.outputs), types, tuple(nodes))
    return build_graph(graph, load_spec([]), find_target(target), CompileOptions(mode="no-fusion"))


# ---- elementwise


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_elementwise_operations_agree_with_numpy_at_the_extremes(dtype: DType, target: str) -> None:
    cases = [case for case in CASES if dtype in case.types]
    types, values, nodes = {}, {}, []
    for number, case in enumerate(cases):
        names = [f"x{number}.{k}" for k in range(case.arity)]
        operands = case.operands(dtype)
        values |= dict(zip(names, operands, strict=True))
        types |= {name: TensorType(dtype, o.shape) for name, o in zip(names, operands, strict=True)}
        nodes.append(Node(f"n{number}", case.op, tuple(names), (f"y{number}",), dict(case.attributes)))
    found = compile_nodes(nodes, types, target).run(values)
    faults = [f for number, case in enumerate(cases) for f in differences(case, dtype, found[f"y{number}"])]
    assert faults == []


def differences(case: Case, dtype: DType, found: Array) -> list[str]:
    """Return the first differences between a result and NumPy's, as texts."""
    operands = case.operands(dtype)
    expected = case.reference(operands)
    places = np.flatnonzero(wrong(dtype, found, expected))[:3]
    return [
        f"{case.op} {dict(case.attributes)}: {[o[p] for o in operands]} -> {found[p]}, not {expected[p]}"
        for p in places
    ]


# ---- combiners

#: Operations that reduce rows, one for each combiner.
ROWS = {
    "sum": "reduce_sum",
    "prod": "reduce_prod",
    "max": "reduce_max",
    "min": "reduce_min",
    "argmax": "argmax",
    "argmin": "argmin",
}


def reduce_rows(combine: str, rows: Array) -> Array:
    """Return a combiner's result for the rows of a matrix; integers wrap."""
    dtype = rows.dtype
    if COMBINERS[combine].position:
        return np.asarray(getattr(np, combine)(rows, axis=1))
    with np.errstate(all="ignore"):
        wide = np.float64 if is_real(rows) else dtype
        return np.asarray(COMBINERS[combine].function.numpy.reduce(rows.astype(wide), axis=1, dtype=wide))  # type: ignore[attr-defined]


def row_values(combine: str, dtype: DType) -> Array:
    """Return values whose reduction does not depend on the order.

    Sums and products of floats must not overflow on the way.
    """
    values = extremes(dtype)
    if not dtype.is_float or combine not in ("sum", "prod"):
        return values
    return np.array([0.0, 1.0, -1.0, 1.0, 2.0, -2.0, 0.5, np.nan, np.inf] + [1.0] * 8, dtype.numpy)


def rows_of(combine: str, dtype: DType) -> dict[str, Array]:
    """Return matrices for a combiner to reduce the rows of, by name."""
    rng = np.random.default_rng(1)
    values = row_values(combine, dtype)
    uniform = [np.full((2, 33), v, dtype.numpy) for v in values]  # where an identity that is not the type's would win
    matrices = (*(rng.choice(values, shape) for shape in ((7, 5), (2, 257))), np.concatenate(uniform))
    return {f"{combine} {array.shape}": array for array in matrices}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_combiner_reduces_rows_of_every_type(dtype: DType, target: str) -> None:
    arrays, expected, nodes = {}, {}, []
    for combine, op in ROWS.items():
        attributes: dict[str, Any] = {"axis": 1} if COMBINERS[combine].position else {"axes": (1,)}
        for name, array in rows_of(combine, dtype).items():
            arrays[name], expected[name] = array, reduce_rows(combine, array)
            nodes.append(Node(f"n {name}", op, (name,), (f"y {name}",), {**attributes, "keepdims": False}))
    found = compile_nodes(nodes, {name: TensorType(dtype, a.shape) for name, a in arrays.items()}, target).run(arrays)
    for name, right in expected.items():
        bad = wrong(dtype, found[f"y {name}"], right)
        assert not bad.any(), f"{name}: {found[f'y {name}'][bad][:3]}, not {right[bad][:3]}"


@pytest.mark.parametrize(
    ("combine", "dtype"), [(c, t) for c, each in COMBINERS.items() for t in DType if t.is_float or not each.floats]
)
@settings(max_examples=40)
@given(data=st.data())
def test_an_identity_changes_nothing(combine: str, dtype: DType, data: st.DataObject) -> None:
    values = extremes(dtype)
    value = values[data.draw(st.integers(0, len(values) - 1))]
    combiner = COMBINERS[combine]
    identity = np.asarray(combiner.identity(dtype), dtype.numpy)
    for both in ((identity, value), (value, identity)):
        with np.errstate(invalid="ignore"):  # of bfloat16 NumPy's extremes of a NaN warn
            combined = np.asarray(combiner.function.numpy(*both), dtype.numpy)
        assert combined == value or (np.isnan(combined) and np.isnan(value))


# ---- places


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", [DType.I32, DType.I64], ids=str)
def test_segments_at_the_extremes_are_empty(dtype: DType, target: str) -> None:
    """Sums of bounds and variables do not overflow."""
    x, limits = np.arange(1, 8, dtype=np.float32), np.iinfo(dtype.numpy)
    places = [limits.min, limits.min + 1, -9, -8, -1, 0, 3, 7, 8, 9, *range(limits.max - 7, limits.max + 1)]
    bounds = np.array([place for pair in itertools.product(places, repeat=2) for place in pair], dtype.numpy)
    types = {"x": TensorType(DType.F32, x.shape), "bounds": TensorType(dtype, bounds.shape)}
    node = Node("sums", "segment_sum", ("x", "bounds"), ("y",), {})
    found = compile_nodes([node], types, target).run({"x": x, "bounds": bounds})["y"]
    wrapped = [int(b) + 8 if b < 0 else int(b) for b in bounds]
    assert found.tolist() == [x[max(0, low) : max(0, high)].sum() if low >= 0 else 0
                              for low, high in itertools.pairwise(wrapped)]  # fmt: skip

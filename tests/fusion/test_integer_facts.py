"""Facts of integer tensors: bounds and order that follow from statements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.ir import DType, TensorType
from cuts.ops import Registry
from cuts.passes.fusion.programs import _Builder
from cuts.passes.statements import IntegerFact, fact_of_array

from .build import Line, graph, op


def fact(result: str, *nodes: Line, **constants: list[int]) -> IntegerFact | None:
    """Return the fact of a result; integers `x` are unknown."""
    arrays = {name: np.array(values) for name, values in constants.items()}
    types = {name: TensorType(DType.I64, array.shape) for name, array in arrays.items()}
    model = graph({"x": TensorType(DType.I64, (6,))} | types, *nodes, out=result)
    model = evolve(model, inputs=("x",), constants=arrays)
    builder = _Builder(model, Registry.builtin(), dict(model.types))
    for node in model.nodes:
        list(builder.units(node))
    return builder.facts.get(result)


@pytest.mark.parametrize(
    ("array", "found"),
    [
        ([0, 0, 3, 7], IntegerFact(7, True)),
        ([2, 1], IntegerFact(2)),
        ([-1, 4], None),
        ([], None),
        ([1.0, 2.0], None),
        ([[1, 2], [3, 4]], None),
        ([[1], [3]], IntegerFact(3, True)),
    ],
    ids=str,
)
def test_constants_have_bounds_and_order(array: Any, found: IntegerFact | None) -> None:
    assert fact_of_array(np.array(array)) == found


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (op("y", "cumsum", "c", axis=0), IntegerFact(12, True)),
        (op("y", "cumsum", "c", axis=0, reverse=True), IntegerFact(12)),
        (op("y", "cumsum", "x", axis=0), None),
        (op("y", "gather", "o", "c", axis=0), IntegerFact(5)),
        (op("y", "gather", "o", "o", axis=0), IntegerFact(5, True)),
        (op("y", "gather", "x", "o", axis=0), None),
        (op("y", "reshape", "o", shape=(4, 1)), IntegerFact(5, True)),
        (op("y", "reshape", "o", shape=(2, 2)), None),
        (op("y", "mul", "o", "c"), IntegerFact(15)),
        (op("y", "add", "o", "o"), IntegerFact(10, True)),
        (op("y", "sub", "o", "c"), None),
        (op("y", "cast", "o", to="i8"), IntegerFact(5, True)),
        (op("y", "cast", "h", to="i8"), None),
        (op("y", "scatter_elements", "c", "o", "c", axis=0, reduction="add"), IntegerFact(15)),
    ],
    ids=str,
)
def test_operations_bound_and_order_integers(node: Line, found: IntegerFact | None) -> None:
    """Derive facts of one operation on an ordered and an unordered constant."""
    assert fact("y", node, o=[0, 2, 2, 5], c=[3, 0, 1, 2], h=[0, 200]) == found


def test_counted_ends_are_ordered_for_any_lengths() -> None:
    found = fact(
        "y",
        op("ends", "cumsum", "x", axis=0),
        op("ended", "scatter_elements", "none", "ends", "ones", axis=0, reduction="add"),
        op("y", "cumsum", "ended", axis=0),
        none=[0] * 9,
        ones=[1] * 6,
    )
    assert found == IntegerFact(54, True), "the number of ends up to a place"

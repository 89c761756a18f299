"""Sums with constant coefficients, equal in value for every combination."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuts.ir.affine import Index, Var, as_index
from cuts.ir.evaluation import Evaluation
from cuts.ir.expr import Call, Const, Expr, Read
from cuts.ir.types import DType, TensorType
from cuts.ops import Folder, LinearCombiner
from hypothesis import given, settings
from hypothesis import strategies as st

WIDTH = 5
TENSORS = {"x": TensorType(DType.F64, (WIDTH,))}


class Vector(Evaluation):
    """Evaluation of expressions that read elements of one vector."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x

    def axis(self, var: Var) -> Any:
        raise AssertionError(f"{var} is not there")

    def element(self, tensor: str, indices: tuple[Index, ...], inside: Any = None) -> Any:
        return np.asarray(self.x[int(self.index(indices[0]))])


def total(row: list[float]) -> Expr:
    """A sum of the vector's elements with coefficients."""
    terms = [
        Call("mul", (Const(c, DType.F64), Read("x", (as_index(n),)))) for n, c in enumerate(row)
    ]  # fmt: skip
    result: Expr = terms[0]
    for term in terms[1:]:
        result = Call("add", (result, term))
    return result


def combine_rows(rows: list[list[float]]) -> np.ndarray[Any, Any]:
    """Return combined sums' values as the matrix of their coefficients."""
    made = LinearCombiner(TENSORS, Folder(TENSORS)).combine([total(row) for row in rows])
    return np.array([[float(Vector(unit).value(body)) for unit in np.eye(WIDTH)] for body in made])


COEFFICIENTS = st.sampled_from([0.0, 1.0, -1.0, 0.5, -0.5, 0.25, 2.0, 0.5**0.5, -(0.5**0.5), 3e-16, -3e-16, 1e9, 1 / 3])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(COEFFICIENTS, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=6))
def test_combined_sums_keep_their_coefficients(rows: list[list[float]]) -> None:
    np.testing.assert_allclose(combine_rows(rows), np.array(rows), rtol=1e-9, atol=1e-6 * np.abs(rows).max() * 1e-6)


def test_tiny_coefficients_are_not_taken_for_each_other() -> None:
    """Their ratios to large ones are near zero.

    They differ nevertheless.
    """
    rows = [[2e-16, -0.5, -0.7, 1.0, 0.7], [2e-16, 0.5, 0.7, 1.0, 0.7]]
    np.testing.assert_allclose(combine_rows(rows), rows, rtol=1e-9)


def test_what_cancels_but_for_rounding_is_gone() -> None:
    third = total([1 / 3, 0.0, 1.0, 0.0, 0.0])
    rest = Call("sub", (Call("sub", (Call("add", (third, third)), third)), third))
    (made,) = LinearCombiner(TENSORS, Folder(TENSORS)).combine([rest])
    assert made == Const(0.0, DType.F64)
    root = 0.5**0.5
    parts = [Call("mul", (Const(c, DType.F64), Read("x", (as_index(0),)))) for c in (root * root, -0.5)]
    (made,) = LinearCombiner(TENSORS, Folder(TENSORS)).combine([Call("add", (parts[0], parts[1]))])
    assert root * root != 0.5
    assert made == Const(0.0, DType.F64)

"""Sums over a row in which a condition leaves one term."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from cuts.ir import (
    Call,
    Const,
    DType,
    FusedGroup,
    Guard,
    Index,
    Indirect,
    InRange,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
)
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.normalise import normalise

AXIS, ROW = Var("i", 5), Var("r", 40)


def statements(low: int, width: int) -> Iterator[Statement]:
    """Yield a maximum, a sum of terms at a place, and products."""
    at, row = as_index(AXIS), as_index(ROW)
    place = Index(0, ((Indirect("k", (at,), 30), 1),))
    chosen = InRange((Guard(row - place, low, low + width),))
    term = Call("select", (chosen, Read("g", (at,)), Const(0.0, DType.BF16)))
    yield Statement("m", (AXIS,), (at,), Read("x", (at, row)), (ROW,), "max")
    yield Statement("s", (AXIS,), (at,), term, (ROW,), "sum")
    yield Statement("y", (AXIS, ROW), (at, row), Call("mul", (Read("m", (at,)), Read("s", (at,)))))


@pytest.mark.parametrize(("low", "width", "sums"), [(0, 1, 1), (10, 1, 1), (11, 1, 1), (-3, 1, 1), (0, 2, 2)])
def test_a_sum_of_one_term_is_the_term(low: int, width: int, sums: int) -> None:
    types = {"x": (5, 40), "g": (5,), "m": (5,), "s": (5,), "y": (5, 40)}
    tensors = {name: TensorType(DType.BF16, shape) for name, shape in types.items()}
    tensors["k"] = TensorType(DType.I64, (5,))
    group = normalise(tuple(statements(low, width)), tensors, ("y",))
    assert isinstance(group, FusedGroup)
    assert len(group.segments[0].reductions) == sums
    rng = np.random.default_rng(0)
    x, g = rng.integers(-9, 9, (5, 40)).astype(np.float32), np.array([1, np.nan, np.inf, -2, 3], np.float32)
    k = np.array([0, 29, 1, 2, 28], np.int64)
    found = interpret(group, {"x": x, "g": g, "k": k})["y"]
    count = [sum(0 <= n + low + w < 40 for w in range(width)) for n in k]
    total = np.array([sum([term] * times) for term, times in zip(g, count, strict=True)])
    np.testing.assert_array_equal(np.asarray(found, np.float32), (x.max(1) * total)[:, None].repeat(40, 1))

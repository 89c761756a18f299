"""Constants that are folded are numbers of their type."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.expr import Const
from cuts.ir.functions import FUNCTIONS
from cuts.ir.types import DType
from cuts.ops import Folder
from hypothesis import given
from hypothesis import strategies as st

INTEGERS = [d for d in DType if d.is_int and d is not DType.BOOL]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(st.data())
def test_folded_integers_wrap(dtype: DType, data: st.DataObject) -> None:
    low, high = int(dtype.element.lowest), int(dtype.element.highest)
    numbers = st.one_of(st.integers(low, high), st.sampled_from([low, high, high // 2 + 1]))
    fn, a, b = data.draw(st.sampled_from(["add", "sub", "mul"])), data.draw(numbers), data.draw(numbers)
    found = Folder({}).call(fn, Const(a, dtype), Const(b, dtype))
    with np.errstate(over="ignore"):
        exact = FUNCTIONS[fn].numpy(np.array([a], dtype.numpy), np.array([b], dtype.numpy))
    assert found == Const(int(exact[0]), dtype)

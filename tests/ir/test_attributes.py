"""Attribute values: one form for each legal value, refusal of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.ir.errors import GraphError
from cuts.ir.graph import Node, attribute_of
from hypothesis import given
from hypothesis import strategies as st

SCALARS = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5))
ANYTHING = st.recursive(
    st.one_of(SCALARS, st.none(), st.binary(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=8,
)


@given(ANYTHING)
def test_a_value_has_one_form_or_none(value: Any) -> None:
    try:
        held = attribute_of(value)
    except ValueError:
        with pytest.raises(GraphError, match=r"(?s)attribute 'a': expected .* found "):
            Node("n", "op", (), (), {"a": value})
        return
    hash(held)
    items = held if isinstance(held, tuple) else (held,)
    assert len({type(item) for item in items}) <= 1 and repr(attribute_of(held)) == repr(held)
    assert repr(Node("n", "op", (), (), {"a": value}).attributes["a"]) == repr(held)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_numbers_of_numpy_are_those_of_python(values: list[int]) -> None:
    assert attribute_of(np.array(values, np.int64)) == tuple(values)
    assert attribute_of([np.int64(value) for value in values]) == tuple(values)

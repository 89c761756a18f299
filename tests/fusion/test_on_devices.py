"""Whole graphs in every mode on every device, against the reference."""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from cuts.ir.compiled import Mode
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from hypothesis import given, settings
from hypothesis import strategies as st

from ..needs import DEVICES
from .build import graph, op, random_inputs
from .test_semantics import MODES, convolutions, graphs


def check(made: Graph, mode: Mode, device: str) -> None:
    """Build, run and compare within fp32's tolerance."""
    plan = cuts.build(made, target=device, mode=mode)
    arrays = {name: value.astype(made.types[name].dtype.numpy) for name, value in random_inputs(made).items()}
    found, expected = plan.run(arrays), plan.reference(arrays)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=12, deadline=None)
@given(graphs(), st.sampled_from(MODES))
def test_branches_and_movement(device: str, made: Graph, mode: Mode) -> None:
    check(made, mode, device)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=12, deadline=None)
@given(convolutions(), st.sampled_from(MODES))
def test_convolutions_with_prologues_and_epilogues(device: str, made: Graph, mode: Mode) -> None:
    check(made, mode, device)


@pytest.mark.parametrize("device", DEVICES)
def test_integers_narrower_than_an_int_wrap_between_operations(device: str) -> None:
    kinds = {"u": TensorType(DType.U8, (4,)), "i": TensorType(DType.I16, (4,))}
    nodes = []
    for k in kinds:
        nodes += [op(f"{k}d", "sub", f"{k}a", f"{k}b"), op(f"{k}s", "add", f"{k}a", f"{k}a")]
        nodes += [op(f"{k}y", "min", f"{k}d", f"{k}s"), op(f"{k}z", "div", f"{k}s", f"{k}b")]
    inputs = {f"{k}{operand}": kind for k, kind in kinds.items() for operand in "ab"}
    plan = cuts.build(graph(inputs, *nodes, out=" ".join(f"{k}y {k}z" for k in kinds)), target=device)
    arrays = {}
    for k, kind in kinds.items():
        limits = np.iinfo(kind.dtype.numpy)
        arrays[f"{k}a"] = np.array([limits.min, 1, limits.max, 7], limits.dtype)
        arrays[f"{k}b"] = np.array([1, 3, 2, limits.max], limits.dtype)
    found, expected = plan.run(arrays), plan.reference(arrays)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)

"""Whole graphs, partitioned in every mode and run on every device, against the reference."""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from cuts.ir.compiled import Mode
from cuts.ir.graph import Graph
from hypothesis import given, settings
from hypothesis import strategies as st

from ..needs import DEVICES
from .build import random_inputs
from .test_semantics import MODES, convolutions, graphs


def check(made: Graph, mode: Mode, device: str) -> None:
    """Build, run and compare within what fp32 allows."""
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

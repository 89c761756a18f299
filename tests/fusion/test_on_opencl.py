"""Whole graphs, partitioned in every mode and run through OpenCL, against the reference."""

from __future__ import annotations

import cuts
import numpy as np
from cuts.ir.compiled import Mode
from cuts.ir.graph import Graph
from hypothesis import given, settings
from hypothesis import strategies as st

from ..needs import needs_opencl
from .build import random_inputs
from .test_semantics import MODES, convolutions, graphs


def check(made: Graph, mode: Mode) -> None:
    """Build, run and compare within what fp32 allows."""
    plan = cuts.build(made, target="opencl", mode=mode)
    arrays = {name: value.astype(made.types[name].dtype.numpy) for name, value in random_inputs(made).items()}
    found, expected = plan.run(arrays), plan.reference(arrays)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@needs_opencl
@settings(max_examples=12, deadline=None)
@given(graphs(), st.sampled_from(MODES))
def test_branches_and_movement(made: Graph, mode: Mode) -> None:
    check(made, mode)


@needs_opencl
@settings(max_examples=12, deadline=None)
@given(convolutions(), st.sampled_from(MODES))
def test_convolutions_with_prologues_and_epilogues(made: Graph, mode: Mode) -> None:
    check(made, mode)

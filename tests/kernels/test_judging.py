"""Differences that the judge of kernels accepts as rounding, and others."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.passes.fusion.interpret import interpret

from .cases import builder, unite
from .judging import judge


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1 + 1e-3, False), (np.nan, False)])
def test_only_errors_of_steep_functions_are_rounding(factor: float, right: bool) -> None:
    """Single precision is off by 1e-5 and more near exp(88).

    The cause is the rounding of one earlier step.
    """
    make = builder()
    result = make.node("exp", make.node("exp", make.input(1000)))
    group = unite(make.programs(), result)
    inputs = {"in 0": np.linspace(4.3, 4.48, 1000).astype(np.float32)}
    found = np.exp(np.exp(inputs["in 0"]) * np.float32(1 + 2e-7)) * np.float32(factor)
    (name,) = group.outputs
    judgement = judge(name, group, inputs, found, interpret(group, inputs)[name])
    assert (judgement.error <= judgement.tolerance) == right

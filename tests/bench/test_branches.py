"""Plans in a chain and in branches side by side: what is measured of them, and that plans travel without weights."""

from __future__ import annotations

import pickle

import numpy as np
from attrs import evolve
from cuts.bench.branches import Packed, forms_of, measured, table

from ..needs import needs_opencl
from ..runtime.handmade import example_plan


@needs_opencl
def test_all_forms_of_a_plan_are_timed_and_compared() -> None:
    row = measured("example", example_plan())
    assert row["same"] and row["launches"] == 3 and 0.5 < row["width"] < 1.0
    assert all(row[form] > 0 for form in ("chain", "branches", "shared", "plain"))
    assert [line.split()[0] for line in table([row]).splitlines()] == ["workload", "example"]


def test_a_plan_that_is_a_chain_is_not_timed() -> None:
    plan = example_plan()
    chain = evolve(plan, steps=plan.steps[:2])
    assert set(forms_of(chain)) == {"chain"}
    assert "a chain" in table([measured("chain", chain)])


def test_plans_travel_without_weights() -> None:
    plan = example_plan()
    there = pickle.loads(pickle.dumps(Packed.of("example", plan))).unpacked()
    assert there.constants["w"].shape == plan.constants["w"].shape and np.any(there.constants["w"] != 0)
    assert there.kernels == plan.kernels and not there.groups

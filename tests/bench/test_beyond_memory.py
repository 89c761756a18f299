"""Cases of models beyond the memory of one GPU."""

from __future__ import annotations

import pytest
from cuts.bench.networks.beyond_memory import cases, plan_of, repeated_weights
from cuts.cluster.kernels import check_runnable
from cuts.cluster.plans.ways import columns
from cuts.cluster.prediction.feasibility import fit


@pytest.mark.parametrize(("place", "parameters"), [(0, 30e9), (1, 6e9)])
def test_cases_have_plans_within_their_limit(place: int, parameters: float) -> None:
    case = cases(small=False)[place]
    assert case.model.parameters == pytest.approx(parameters, rel=0.05)
    plan = plan_of(case, 2 / 3, "cuda:h200")
    check_runnable(plan)
    needs = float(fit(columns([plan.way]), case.model, plan.machine, training=case.training).memory[0])
    assert needs <= plan.machine.memory == pytest.approx(case.step_bytes * 2 / 3)
    assert plan.predicted["total"] > 0


def test_small_cases_are_the_same_in_small() -> None:
    small, large = cases(small=True), cases(small=False)
    assert [case.name for case in small] == [case.name for case in large]
    assert all(case.step_bytes < 100e6 for case in small)
    assert all(plan_of(case, 2 / 3, "opencl").way.resident == "nothing" for case in small)


def test_layers_of_a_kind_share_their_weights() -> None:
    model = cases(small=True)[0].model
    weights = repeated_weights(model)
    assert weights(1) is weights(2)
    assert {name: array.shape for name, array in weights(0).items()} == {"table": (97, 64), "places": (32, 64)}

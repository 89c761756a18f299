"""Rematerialised values.

The graph means the same, and needs less memory at once.
"""

from __future__ import annotations

from typing import Any

import cuts
import numpy as np
import pytest
from cuts.compile.driver import check_memory
from cuts.ir import PassError, PlanError
from cuts.ops import evaluate_graph
from cuts.passes.graph import Rematerialise
from cuts.tests.gradients.networks import Network
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st


def chain(layers: int = 4) -> cuts.Training:
    """Return gradients of layers whose activations exceed their weights."""
    net = Network("chain")
    net.input("x", 256, 8)
    last = "x"
    for n in range(layers):
        net.op("matmul", last, net.weight(f"w{n}", 8, 8), out=f"m{n}")
        net.op("tanh", f"m{n}", out=f"t{n}")
        last = net.op("relu", f"t{n}", out=f"r{n}")
    net.op("reduce_sum", last, out="loss", keepdims=False)
    return cuts.grad(net.graph("loss"))


CHAIN = chain()


def fit_memory(training: cuts.Training, memory: int) -> tuple[Any, Rematerialise]:
    step = Rematerialise(training.spec.registry.instances, memory)
    return step.run(training.graph), step


def peak(training: cuts.Training) -> int:
    return fit_memory(training, 1 << 40)[1].peaks[0]


def test_with_room_for_all_nothing_changes() -> None:
    training = chain()
    graph, step = fit_memory(training, 1 << 40)
    assert graph is training.graph
    assert (step.again, step.moved) == ([], 0)


@settings(max_examples=8)
@given(st.floats(0.75, 1.0))
def test_what_fits_means_the_same(share: float) -> None:
    training = CHAIN
    before = peak(training)
    graph, step = fit_memory(training, int(before * share) + 1)
    assert step.peaks[1] <= before * share + 1
    assert len(graph.nodes) >= len(training.graph.nodes)
    x = {"x": np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)}
    expected, found = training.reference(x), evaluate_graph(graph, training.spec.registry, x)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_cheapest_values_are_rematerialised_first_products_never() -> None:
    training = chain()
    _, step = fit_memory(training, peak(training) * 3 // 4)
    assert step.again and all(not value.startswith("m") for value in step.again)


def test_what_cannot_fit_is_said_with_what_could() -> None:
    training = chain()
    with pytest.raises(PassError, match="expected values within 1000 bytes, found none below about"):
        fit_memory(training, 1000)


@needs_opencl
def test_a_plan_in_little_memory_computes_the_same() -> None:
    training = chain()
    whole = training.build("opencl")
    small = training.build("opencl", memory=whole.plan.arena * 9 // 10)
    assert small.plan.arena <= whole.plan.arena * 9 // 10
    inputs = small.random_inputs()
    expected, found = training.reference(inputs), small.run(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max(), err_msg=name)


@needs_opencl
def test_a_plan_that_turns_out_larger_is_refused() -> None:
    plan = chain(2).build("opencl")
    assert check_memory(plan, plan.plan.arena) is plan
    with pytest.raises(PlanError, match="expected an arena of at most 9 bytes, found"):
        check_memory(plan, 9)

"""Derived gradients in the whole pipeline: every device agrees with the reference."""

from __future__ import annotations

from functools import cache
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import DEVICES

from .networks import STATISTICS, Network
from .test_training import NETWORKS, OPTIMISERS, batches, torch_training, train

pytestmark = pytest.mark.long


def gradients_of(net: Network, device: str, last: str, *wrt: str, mode: Any = "mixed") -> None:
    """Compare the gradients of a value's weighted sum with the reference."""
    net.weight("weights", *net.types[last].shape)
    net.op("mul", last, "weights", out="weighted")
    net.op("reduce_sum", "weighted", out="loss", keepdims=False)
    training = cuts.grad(net.graph("loss"), wrt=wrt)
    rng = np.random.default_rng(0)
    data = {name: rng.standard_normal(net.types[name].shape).astype(np.float32) for name in net.inputs}
    expected = training.reference(data)
    found = training.build(device, mode=mode).run(data)
    for name in training.gradients.values():
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4, err_msg=name)


#: Networks with their optimisers; half of them are left to the nights.
STEP_CASES = [("resnet", "momentum"), ("transformer", "adam")]
STEP_CASES += [("bert", "nesterov"), ("lstm", "adamw")] if NIGHTLY else []


@cache
def make_steps(name: str, kind: str, device: str) -> tuple[Network, cuts.Training, cuts.CompiledPlan]:
    """Return a network, its training graph, and the plan of a step."""
    net = NETWORKS[name][0]()
    training = cuts.grad(net.graph("loss"), optimiser=OPTIMISERS[kind], updates=STATISTICS if name == "resnet" else {})
    plan = training.build(device)
    assert isinstance(plan, cuts.CompiledPlan)
    return net, training, plan


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["mixed", *(["no-fusion"] if NIGHTLY else [])])
@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        (3, {"pads": (1, 1, 1, 1)}),
        (3, {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        (1, {"strides": (2, 2)}),
        (3, {"dilations": (2, 1), "groups": 2}),
    ],
)
def test_convolution_backward(kernel: int, attributes: dict[str, Any], mode: str, device: str) -> None:
    net = Network("convolution")
    net.input("x", 2, 4, 7, 6)
    net.weight("w", 6, 4 // attributes.get("groups", 1), kernel, kernel)
    net.weight("b", 6)
    net.op("conv", "x", "w", "b", out="y", **attributes)
    gradients_of(net, device, "y", "x", "w", "b", mode=mode)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["softmax", "max_pool", "layer_norm"])
def test_backward_of_rows_and_windows(op: str, device: str) -> None:
    net = Network(op)
    net.input("x", 2, 3, 6)
    attributes = {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1)} if op == "max_pool" else {}
    net.op(op, "x", *([net.weight("scale", 6)] if op == "layer_norm" else []), out="y", **attributes)
    gradients_of(net, device, "y", "x")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "kind"), STEP_CASES)
def test_three_steps_of_a_small_network_equal_pytorch(name: str, kind: str, device: str) -> None:
    net, training, plan = make_steps(name, kind, device)
    data = batches(net)
    losses, state = train(training, plan.run, data)
    expected_losses, expected = torch_training(net, NETWORKS[name][1], kind, data)
    assert losses == pytest.approx(expected_losses, rel=1e-4)
    compared = [value for value in training.carried if value in expected]
    assert {
        value: np.abs(state[value] - expected[value]).max() / np.abs(expected[value]).max() for value in compared
    } == {value: pytest.approx(0, abs=1e-4) for value in compared}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "kind"), STEP_CASES)
def test_ten_steps_twice_leave_the_same_bits(name: str, kind: str, device: str) -> None:
    """Train a convolutional network with batch norms, and one with lookups.

    Rows of the lookups get sums of gradients.
    """
    net, training, plan = make_steps(name, kind, device)
    data = [batch for _ in range(4) for batch in batches(net)][:10]
    first, second = (training.run(data, plan, progress=False) for _ in range(2))
    assert first.losses == second.losses
    assert np.isfinite(first.losses).all()
    assert {n: array.tobytes() for n, array in first.state.items()} == {
        n: array.tobytes() for n, array in second.state.items()
    }

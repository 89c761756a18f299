"""Training steps of whole networks as one graph: the losses are those of PyTorch's steps."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.bench import exact
from cuts.bench.networks.own_steps import batch_of, training_graph
from cuts.bench.networks.training import MOMENTUM, RATE, loss_of, without_dropout
from cuts.bench.steps import NETWORKS

#: Exporters warn of their own insides.
pytestmark = pytest.mark.filterwarnings("ignore")


def losses_of_pytorch(made: Any, steps: int) -> list[float]:
    network = without_dropout(torch, deepcopy(made[0])).train()
    loss = loss_of(torch, network(*made[1]).detach())
    network = without_dropout(torch, deepcopy(made[0])).train()  # whose statistics have not moved
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    found = []
    for _ in range(steps):
        value = loss(network(*made[1]))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        found.append(value.item())
    return found


@pytest.mark.parametrize("name", ["dlrm", "bilstm"])
def test_steps_as_one_graph_have_the_losses_of_pytorch(name: str) -> None:
    made = NETWORKS[name].make(4, True)
    training = training_graph(made)
    found = training.run([batch_of(training, made)] * 2, training.build("reference"), progress=False)
    assert found.losses == pytest.approx(losses_of_pytorch(made, 2), rel=1e-4)


@pytest.mark.parametrize("name", ["dlrm", "bilstm"])
def test_losses_and_gradients_are_compared_with_float64(name: str) -> None:
    made = NETWORKS[name].make(4, True)
    training = training_graph(made)
    batch = batch_of(training, made)
    ours = exact.gradients_of(training, training.build("reference"), batch)
    row = exact.compared(ours, made, 2)
    assert row["exact_missing"] == []
    assert row["exact_torch_losses"] == pytest.approx(row["exact_losses"], rel=1e-5)
    for known in row["exact_gradients"].values():
        assert known["parameters"] == len(ours) > 3
        assert 0 < known["all"] <= known["most"] < 1e-5
    row["losses"] = training.run([batch] * 2, training.build("reference"), progress=False).losses
    assert exact.text_of(row).count("losses off") == 2
    assert exact.text_of({"network": name}) == ""


def test_a_gradient_that_is_only_rounding_is_told_by_the_norm_of_all() -> None:
    wanted = {"w": np.array([3.0, 4.0]), "shift": np.array([1e-18])}
    found = exact.off({"w": np.array([3.0, 4.5]), "shift": np.array([5e-9])}, wanted)
    assert found["all"] == pytest.approx(0.1)
    assert found["farthest"] == {"w": pytest.approx(0.1), "shift": pytest.approx(1e-9)}

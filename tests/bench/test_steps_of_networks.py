"""Training steps of whole networks as one graph: the losses are those of PyTorch's steps."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.bench.networks.training import MOMENTUM, RATE, loss_of, without_dropout
from cuts.bench.steps import NETWORKS, batch_of, training_graph

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

"""Whole training steps of the evaluation's networks on a GPU.

Sizes are smaller. Forward pass, loss, every gradient and the optimiser's state are compared with float64.
"""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from cuts.tests.needs import needs_cuda

torch = pytest.importorskip("torch")

from cuts.bench.networks.models import BY_NAME, Made
from cuts.bench.networks.training import batch_of, training_graph

#: Networks and batches. None has batch norms: of two small images these divide by deviations of eight numbers, in layer
#: after layer, and a network's float64 result is then no measure of rounding.
NETWORKS = ("bert-base:2", "bilstm:2", "dlrm:4")
STEPS = 10


class BiLSTM(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Bidirectional LSTM layer over frames [T, N, C]; returns all states."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(cells, cells, bidirectional=True)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        return self.layer(frames)[0]


def make_network(text: str) -> Made:
    """Return a small network and inputs of a batch, given `name:batch`."""
    name, _, batch = text.partition(":")
    if name != "bilstm":
        return BY_NAME[name].make(int(batch), True)
    torch.manual_seed(0)
    return BiLSTM(8).eval(), (torch.randn(5, int(batch), 8),)


@needs_cuda
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_on_the_gpu_equals_float64(network: str) -> None:
    made = make_network(network)
    training = training_graph(made)
    plan = training.build("cuda")
    wrong = [r for r in plan.verify({**training.initial, **batch_of(training, made)}) if not r.ok]
    assert not wrong, [result.text for result in wrong[:4]]


@needs_cuda
@pytest.mark.parametrize("network", ["mobilenetv2:2", "bert-base:2"])
def test_ten_steps_on_the_gpu_are_reproducible(network: str) -> None:
    made = make_network(network)
    training: cuts.Training = training_graph(made)
    plan, data = training.build("cuda"), [batch_of(training, made)] * STEPS
    first, second = (training.run(data, plan, progress=False) for _ in range(2))
    assert first.losses == second.losses
    assert np.isfinite(first.losses[-1])
    assert [n for n, array in first.state.items() if array.tobytes() != second.state[n].tobytes()] == []

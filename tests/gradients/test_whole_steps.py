"""A whole training step of the networks of the evaluation, over less, on a GPU: forward, loss, every gradient and the
optimiser's state are what float64 makes of them.
"""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from cuts.tests.needs import needs_cuda

pytest.importorskip("torch")

from cuts.bench.networks.own_steps import batch_of, training_graph
from cuts.bench.steps import made_of

#: Networks and batches. None has batch norms: of two small images these divide by deviations of eight numbers, layer
#: behind layer, and what float64 makes of a network is then no measure for what rounds.
NETWORKS = ("bert-base:2", "bilstm:2", "dlrm:4")
STEPS = 10


@needs_cuda
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_on_the_gpu_is_that_of_float64(network: str) -> None:
    made = made_of(network, small=True)
    training = training_graph(made)
    plan = training.build("cuda")
    wrong = [r for r in plan.verify({**training.initial, **batch_of(training, made)}) if not r.ok]
    assert not wrong, [result.text for result in wrong[:4]]


@needs_cuda
@pytest.mark.parametrize("network", ["mobilenetv2:2", "bert-base:2"])
def test_ten_steps_twice_on_the_gpu_leave_the_same_bits(network: str) -> None:
    made = made_of(network, small=True)
    training: cuts.Training = training_graph(made)
    plan, data = training.build("cuda"), [batch_of(training, made)] * STEPS
    first, second = (training.run(data, plan, progress=False) for _ in range(2))
    assert first.losses == second.losses
    assert np.isfinite(first.losses[-1])
    assert [n for n, array in first.state.items() if array.tobytes() != second.state[n].tobytes()] == []

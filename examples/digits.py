"""Trains two small networks on scikit-learn's digits, beside PyTorch.

One is convolutional, one a transformer.

    python examples/digits.py                  # 200 steps of each, through OpenCL
    python examples/digits.py --target cuda --steps 200

Both begin with the same weights and see the same batches. The training graphs come from PyTorch modules; PyTorch trains
the modules themselves.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import cuts
import numpy as np
import torch
from sklearn.datasets import load_digits

RATE, MOMENTUM, BATCH, TEST_IMAGES = 0.1, 0.9, 64, 360
#: Steps of each network.
STEPS = 200


class SmallTransformer(torch.nn.Module):
    """Transformer over the rows of an image.

    It has two layers of attention, and a classifier on their mean.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.places = torch.nn.Linear(8, width), torch.nn.Parameter(0.1 * torch.randn(8, width))
        layer = torch.nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of the ten digits."""
        rows = self.layers(self.embed(images[:, 0]) + self.places)
        scores: torch.Tensor = self.head(rows.mean(1))
        return scores


def convolutional() -> torch.nn.Module:
    """Return two convolutions with batch norms, and a classifier."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


NETWORKS = {"convolutional network": convolutional, "transformer": SmallTransformer}


def images() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return images and digits to train with, and others to test with."""
    digits = load_digits()
    x, y = (digits.images[:, None] / 16).astype(np.float32), digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    tested, trained = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return (x[trained], y[trained]), (x[tested], y[tested])


def batches(x: Any, y: Any, steps: int) -> list[dict[str, Any]]:
    """Return the inputs of each step."""
    rng = np.random.default_rng(1)
    picks = [rng.choice(len(x), BATCH, replace=False) for _ in range(steps)]
    return [{"input": x[pick], "target": y[pick]} for pick in picks]


def ours(network: torch.nn.Module, data: list[dict[str, Any]], target: str) -> tuple[Mapping[str, Any], list[float]]:
    """Train a network by a compiled training graph.

    Returns its parameters and statistics by their names there, and the losses.
    """
    with warnings.catch_warnings():  # exporters warn of their own insides
        warnings.simplefilter("ignore")
        program = torch.export.export(deepcopy(network).eval(), (torch.tensor(data[0]["input"]),))
    form = cuts.in_training(cuts.compile.load_model(program, cuts.compile.load_spec([])), unbiased=True, momentum=0.9)
    graph = cuts.with_loss(form.graph, "cross_entropy")
    parameters = [name for name in graph.constants if name.startswith("p_")]
    training = cuts.grad(graph, loss="loss", wrt=parameters, optimiser=cuts.SGD(RATE, MOMENTUM), updates=form.updates)
    (given,) = (name for name in graph.inputs if name != "target")
    found = training.run([{given: b["input"], "target": b["target"]} for b in data], training.build(target))
    return found.state, list(found.losses)


def with_state(network: torch.nn.Module, state: Mapping[str, Any]) -> torch.nn.Module:
    """Return a network with the parameters and statistics of a training graph."""
    network = deepcopy(network)
    own = {**dict(network.named_parameters(prefix="p")), **dict(network.named_buffers(prefix="b"))}
    for name, tensor in own.items():
        if (found := state.get(name.replace(".", "_"))) is not None:
            tensor.data.copy_(torch.tensor(found))
    return network


def theirs(network: torch.nn.Module, data: list[dict[str, Any]]) -> tuple[torch.nn.Module, list[float]]:
    """Train a network by PyTorch."""
    network = deepcopy(network).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for batch in data:
        loss: Any = torch.nn.functional.cross_entropy(
            network(torch.tensor(batch["input"])), torch.tensor(batch["target"])
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return network, losses


def accuracy(network: torch.nn.Module, x: Any, y: Any) -> float:
    """Return the percentage of images whose digit a network finds."""
    with torch.no_grad():
        return float((network.eval()(torch.tensor(x)).argmax(1).numpy() == y).mean() * 100)


def compare(kind: str, target: str, steps: int) -> dict[str, Any]:
    """Train a network both ways.

    Returns the accuracies in percent, and the losses.
    """
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # which no export can follow
    network = NETWORKS[kind]()
    (x, y), tested = images()
    data = batches(x, y, steps)
    state, losses = ours(network, data, target)
    trained, expected = theirs(network, data)
    return {
        "ours": accuracy(with_state(network, state), *tested), "theirs": accuracy(trained, *tested),
        "losses": losses, "their_losses": expected,
    }  # fmt: skip


def main() -> None:
    """Compare, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="opencl", metavar="TARGET")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N")
    options = parser.parse_args()
    for kind in NETWORKS:
        found = compare(kind, options.target, options.steps)
        print(
            f"{kind}: {found['ours']:.1f} % of the digits right, PyTorch {found['theirs']:.1f} %; last loss "
            f"{found['losses'][-1]:.4f}, PyTorch {found['their_losses'][-1]:.4f}"
        )


if __name__ == "__main__":
    main()

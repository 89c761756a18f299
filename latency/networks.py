"""Measurements of whole networks, by layer and as a recorded graph.

Predictions for models are compared with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from attrs import frozen

from .dataset import read_table
from .operations import ModelLayer, torch_layer

#: Networks that the gap between kernels is fitted on; nothing is fitted on the others.
GAP_NETWORKS = ("resnet50", "inception_v3")


@frozen(eq=False)
class Network:
    """Measured network.

    It has its layers, microseconds and kernels of each, and microseconds of the whole (median of recorded graphs).
    """

    name: str
    batch: int
    precision: str
    layers: tuple[ModelLayer, ...]
    us: tuple[float, ...]
    kernels: tuple[int, ...]
    whole: float


def load_networks(profile: str) -> tuple[Network, ...]:
    """Return the networks of a machine."""
    return tuple(_networks(profile))


def _networks(profile: str) -> Iterator[Network]:
    layers: list[ModelLayer] = []
    us: list[float] = []
    kernels: list[int] = []
    for row in read_table(f"{profile}-networks"):
        if int(row["layer"]) >= 0:
            inputs, outputs = ([tuple(shape) for shape in json.loads(row[name])] for name in ("inputs", "outputs"))
            layers.append(torch_layer(row["layer"], row["target"], json.loads(row["attributes"]), inputs, outputs))
            us.append(float(row["us"]))
            kernels.append(len([each for each in row["kernels"].split("+") if each]))
            continue
        whole = float(np.median([float(each) for each in row["us"].split("+")])) * 1e3
        yield Network(
            row["network"], int(row["batch"]), row["precision"], tuple(layers), tuple(us), tuple(kernels), whole
        )
        layers, us, kernels = [], [], []

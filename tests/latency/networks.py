"""Measurements of whole networks, by layer and as a recorded graph.

Predictions for models are compared with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from attrs import frozen
from cuts.latency.dataset import GAP_NETWORKS, read_table
from cuts.latency.models import _GAP
from cuts.latency.operations import (
    LayerOperation,
    ModelLayer,
    Shape,
    binary,
    concatenation,
    convolution_pieces,
    image,
    pool,
)

#: Names in PyTorch of operations that are an image in and an image out.
_UNARY: Mapping[str, str] = {
    "relu": "relu",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "hardtanh": "relu6",
    "Sigmoid": "sigmoid",
    "sigmoid": "sigmoid",
    "SiLU": "silu",
    "silu": "silu",
    "Hardswish": "hardswish",
    "Hardsigmoid": "hardsigmoid",
    "GELU": "gelu",
    "gelu": "gelu",
    "BatchNorm2d": "batch_norm",
}
_FREE = (
    "Dropout",
    "dropout",
    "flatten",
    "stochastic_depth",
    "StochasticDepth",
    "view",
    "reshape",
    "getattr",
    "getitem",
    "Identity",
    "size",
)
_BINARY: Mapping[str, str] = {"add": "add", "mul": "multiply"}


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


def fit_gap(networks: Sequence[Network]) -> float:
    """Return the microseconds between kernels.

    It is the median over the known networks of the time of a whole beyond its kernels.
    """
    gaps = [(each.whole - sum(each.us)) / sum(each.kernels) for each in networks if each.name in GAP_NETWORKS]
    return max(0.0, float(np.median(gaps))) if gaps else _GAP


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


def _one(value: Any, default: int = 0) -> int:
    """Return the first of a tuple, or the number itself."""
    if value is None:
        return default
    return int(value[0]) if isinstance(value, (list, tuple)) else int(value)


def _pair(value: Any) -> tuple[int, int]:
    return (int(value[0]), int(value[1])) if isinstance(value, (list, tuple)) else (int(value), int(value))


def torch_layer(
    name: str, target: str, attributes: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> ModelLayer:
    """Return a node of a PyTorch graph, as `latency/profiling/networks.py` describes it."""
    return ModelLayer(name, target, _torch_pieces(target, attributes, inputs, outputs))


def _torch_pieces(
    target: str, given: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> tuple[LayerOperation, ...]:
    if target in _FREE or not outputs:
        return ()
    x, y = inputs[0] if inputs else outputs[0], outputs[0]
    if target == "Conv2d":
        geometry = (*_pair(given["stride"]), *_pair(given["padding"]), _one(given["dilation"]), given["groups"])
        return convolution_pieces(x, y, _pair(given["kernel_size"]), geometry, bool(given.get("bias")))
    if target == "Linear":
        return (LayerOperation("linear", (prod(x[:-1]), x[-1], y[-1])),)
    if target in _UNARY:
        return (LayerOperation(_UNARY[target], image(y)),)
    if target in _BINARY:
        return binary(_BINARY[target], inputs, y)
    if target == "cat":
        return concatenation(y)
    return _torch_pools(target, given, x, y)


def _torch_pools(target: str, given: Mapping[str, Any], x: Shape, y: Shape) -> tuple[LayerOperation, ...]:
    lower = target.lower().replace("_", "")
    if lower == "adaptiveavgpool2d":
        return (
            (LayerOperation("global_average", image(x)),)
            if y[-1] == y[-2] == 1
            else pool("average_pool", x, max(1, x[-1] // y[-1]), max(1, x[-1] // y[-1]), 0)
        )
    if lower in ("maxpool2d", "avgpool2d"):
        arguments = [each for each in given.get("arguments", ()) if isinstance(each, (int, list, tuple))]
        window = _one(given.get("kernel_size", arguments[0] if arguments else 2))
        stride = _one(given.get("stride", arguments[1] if len(arguments) > 1 else None), window)
        pad = _one(given.get("padding", arguments[2] if len(arguments) > 2 else None))
        return pool("max_pool" if lower == "maxpool2d" else "average_pool", x, window, stride, pad)
    return (LayerOperation("move", (prod(x), prod(y))),)

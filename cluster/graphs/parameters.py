"""Parameters of a transformer block, and their partition over a layer's GPUs.

Attention is partitioned by heads and the MLP by neurons: the first matrices of both by columns, the last by rows, so
that a layer's GPUs only sum their results of the last one. Terms added to that sum, and norms, are replicated on every
GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...backends import Array
from ...ir import UsageError
from ..plans import Transformer

#: The axis by which a parameter is partitioned.
_AXIS: Mapping[str, int] = {
    **dict.fromkeys(("query", "key", "value", "up", "gate"), 1),
    **dict.fromkeys(("output", "down"), 0),
    **dict.fromkeys(("query.bias", "key.bias", "value.bias", "up.bias", "gate.bias"), 0),
}


def parameter_shapes(model: Transformer, parts: int = 1) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a block's parameters on one GPU, by name.

    `parts` GPUs share a layer. The order is that of a layer's file. Raises `UsageError` for heads that can not be
    turned in pairs.
    """
    hidden, keys, width = model.hidden, model.keys, model.width
    if model.gated and hidden // model.heads % 2:
        raise UsageError(
            f"{model.name}: heads: expected heads of an even width to run, found {hidden} / {model.heads}",
            hint="gated blocks turn pairs of a head's elements",
        )
    shapes: dict[str, tuple[int, ...]] = {
        "query": (hidden, hidden), "key": (hidden, keys), "value": (hidden, keys), "output": (hidden, hidden),
        "up": (hidden, width), "down": (width, hidden), "norm1": (hidden,), "norm2": (hidden,),
    }  # fmt: skip
    if model.gated:
        shapes["gate"] = (hidden, width)
    else:
        shapes |= {"norm1.bias": (hidden,), "norm2.bias": (hidden,)}
    if model.biases:
        shapes |= {f"{name}.bias": shapes[name][1:] for name in ("query", "key", "value", "output", "up", "down")}
        shapes |= {"gate.bias": (width,)} if model.gated else {}
    assert sum(map(math.prod, shapes.values())) == model.block_parameters
    return {name: _partitioned_shape(name, shape, parts) for name, shape in shapes.items()}


def _partitioned_shape(name: str, shape: tuple[int, ...], parts: int) -> tuple[int, ...]:
    axis = _AXIS.get(name)
    return tuple(size // parts if place == axis else size for place, size in enumerate(shape))


def replicated_parameters(model: Transformer) -> tuple[str, ...]:
    """Return the parameters that are replicated on every GPU of a layer."""
    return tuple(name for name in parameter_shapes(model) if name not in _AXIS)


def partition_parameter(name: str, array: Array, part: int, parts: int) -> Array:
    """Return one GPU's part of a parameter."""
    if parts == 1 or name not in _AXIS:
        return array
    return np.ascontiguousarray(np.split(array, parts, axis=_AXIS[name])[part])


def initial_weights(model: Transformer, layer: int, seed: int) -> dict[str, Array]:
    """Return random parameters of a block.

    Matrices have the usual deviation, smaller where results join the residual stream.
    """
    generator = np.random.default_rng([seed, layer])
    found: dict[str, Array] = {}
    for name, shape in parameter_shapes(model).items():
        if len(shape) == 2:
            deviation = 1 / math.sqrt(shape[0]) / (math.sqrt(2 * model.layers) if name in ("output", "down") else 1)
            found[name] = (generator.standard_normal(shape, np.float32) * np.float32(deviation)).astype(np.float32)
        else:
            found[name] = np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
    return found

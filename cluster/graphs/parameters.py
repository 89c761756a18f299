"""Parameters of a transformer's layers, and their partition over a layer's GPUs.

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


def layer_kind(model: Transformer, layer: int) -> str:
    """Return the kind of a layer; the embedding has number 0."""
    if not model.vocabulary or 0 < layer <= model.layers:
        return "block"
    return "head" if layer else "embedding"


def parameter_shapes(model: Transformer, parts: int = 1, kind: str = "block") -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's parameters on one GPU, by name.

    `parts` GPUs share a layer. The order is that of a layer's file. Raises `UsageError` for heads that can not be
    turned in pairs.
    """
    if kind != "block":
        return _end_shapes(model, kind)
    hidden, keys, queries, width = model.hidden, model.keys, model.queries, model.width
    if model.position_kind == "rotary" and model.head_elements % 2:
        raise UsageError(
            f"{model.name}: heads: expected heads of an even width to run, found {model.head_elements} elements",
            hint="rotary positions turn pairs of a head's elements",
        )
    shapes: dict[str, tuple[int, ...]] = {
        "query": (hidden, queries), "key": (hidden, keys), "value": (hidden, keys), "output": (queries, hidden),
        "up": (hidden, width), "down": (width, hidden), "norm1": (hidden,), "norm2": (hidden,),
    }  # fmt: skip
    if model.gated:
        shapes["gate"] = (hidden, width)
    if not model.has_rms_norms:
        shapes |= {"norm1.bias": (hidden,), "norm2.bias": (hidden,)}
    biased = [*(("query", "key", "value") if model.has_attention_biases else ())]
    biased += ["output", "up", "down", *(("gate",) if model.gated else ())] if model.biases else []
    shapes |= {f"{name}.bias": shapes[name][1:] for name in biased}
    assert sum(map(math.prod, shapes.values())) == model.block_parameters
    return {name: _partitioned_shape(name, shape, parts) for name, shape in shapes.items()}


def _end_shapes(model: Transformer, kind: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the embedding or the head; tied tables are first, so they have the same place in files."""
    shapes: dict[str, tuple[int, ...]] = {"table": (model.vocabulary, model.hidden)}
    if kind == "embedding" and model.position_kind == "learned":
        shapes["places"] = (model.sequence, model.hidden)
    if model.post_norm == (kind == "embedding"):
        shapes["norm"] = (model.hidden,)
        shapes |= {} if model.has_rms_norms else {"norm.bias": (model.hidden,)}
    wanted = model.embedding_parameters if kind == "embedding" else model.head_parameters
    assert sum(map(math.prod, shapes.values())) == wanted
    return shapes


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
    """Return random parameters of a layer.

    Matrices have the usual deviation, smaller where results join the residual stream; a tied head has the embedding's
    table.
    """
    kind = layer_kind(model, layer)
    if kind == "head" and model.has_tied_head:
        own = parameter_shapes(model, kind=kind)
        return {name: _constant_values(name, shape) for name, shape in own.items() if len(shape) == 1} | {
            "table": initial_weights(model, 0, seed)["table"]
        }
    generator = np.random.default_rng([seed, layer])
    found: dict[str, Array] = {}
    for name, shape in parameter_shapes(model, kind=kind).items():
        if len(shape) == 1:
            found[name] = _constant_values(name, shape)
            continue
        fan_in = shape[1] if name in ("table", "places") else shape[0]
        deviation = 1 / math.sqrt(fan_in) / (math.sqrt(2 * model.layers) if name in ("output", "down") else 1)
        found[name] = (generator.standard_normal(shape, np.float32) * np.float32(deviation)).astype(np.float32)
    return found


def _constant_values(name: str, shape: tuple[int, ...]) -> Array:
    return np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)

"""Operations of a model for the latency models: kinds, shapes, names.

Kinds are `conv2d` (a row of `convolution.FIELDS`), `linear` (rows, inputs, outputs), those of `simple_model` (an image,
and a window for pools), `move` (elements read, elements written: anything else that a memory-bound kernel does) and
`free` (a view: no kernel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from attrs import frozen

Shape = tuple[int, ...]


@frozen
class LayerOperation:
    """Piece of a layer.

    A convolution with a bias is two, since the library adds it with a kernel of its own.
    """

    kind: str
    shape: Shape


@frozen
class ModelLayer:
    """Node of a model: name, operation name, and operations in order."""

    name: str
    op: str
    operations: tuple[LayerOperation, ...]


def image(shape: Sequence[int]) -> Shape:
    """Return a tensor as an image `(n, c, h, w)`.

    Missing dims are 1, dims beyond four are merged.
    """
    sizes = tuple(shape)
    if len(sizes) <= 4:
        return sizes + (1,) * (4 - len(sizes))
    return (sizes[0], sizes[1], sizes[2], prod(sizes[3:]))


def convolution_pieces(
    x: Sequence[int], y: Sequence[int], window: Sequence[int], geometry: Sequence[int], bias: bool
) -> tuple[LayerOperation, ...]:
    """Return the operations of a convolution of images x to y.

    `geometry` is (stride_h, stride_w, pad_h, pad_w, dilation, groups).
    """
    row = (*x, y[1], *window, *geometry)
    added = (LayerOperation("bias", tuple(y)),) if bias else ()
    return (LayerOperation("conv2d", tuple(row)), *added)


def concatenation(y: Sequence[int]) -> tuple[LayerOperation, ...]:
    """Return a concatenation by its result.

    Two equal halves were measured.
    """
    n, c, h, w = image(y)
    return (LayerOperation("concat", (n, max(1, c // 2), h, w)),)


def binary(kind: str, shapes: Sequence[Sequence[int]], y: Sequence[int]) -> tuple[LayerOperation, ...]:
    """Return a sum or a product of images, or with channel numbers."""
    full = sum(1 for shape in shapes if prod(shape) == prod(y)) >= 2
    one = "scale" if kind == "multiply" else "bias"
    return (LayerOperation(kind if full else one, image(y)),)


def pool(kind: str, x: Sequence[int], window: int, stride: int, pad: int) -> tuple[LayerOperation, ...]:
    """Return a pool with a square window."""
    return (LayerOperation(kind, (*image(x), window, stride, pad)),)


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


def _first_number(value: Any, default: int = 0) -> int:
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
        geometry = (
            *_pair(given["stride"]),
            *_pair(given["padding"]),
            _first_number(given["dilation"]),
            given["groups"],
        )
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
        window = _first_number(given.get("kernel_size", arguments[0] if arguments else 2))
        stride = _first_number(given.get("stride", arguments[1] if len(arguments) > 1 else None), window)
        pad = _first_number(given.get("padding", arguments[2] if len(arguments) > 2 else None))
        return pool("max_pool" if lower == "maxpool2d" else "average_pool", x, window, stride, pad)
    return (LayerOperation("move", (prod(x), prod(y))),)

"""Operations of a model for the latency models: kinds, shapes, names.

Kinds are `conv2d` (a row of `convolution.FIELDS`), `linear` (rows, inputs, outputs), those of `simple_model` (an image,
and a window for pools), `move` (elements read, elements written: anything else that a memory-bound kernel does) and
`free` (a view: no kernel).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

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

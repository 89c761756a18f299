"""PyTorch's backward operations that its decompositions leave whole.

Each is the derived adjoint of what the forward operation means here: the forward operation is emitted, differentiated,
and dropped again where the adjoint does not read its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ir import DType
from ..reader import Convert, Reader, Value
from .indexing import bag_of, bag_sizes, embedding
from .movement import unsqueeze
from .windows import (
    adaptive_max_pool,
    adaptive_pool,
    average_pool,
    convolution,
    equal_windows,
    grid_sample,
    max_pool,
)


def _gelu(reader: Reader, dy: Value, x: Value, *, approximate: str = "none") -> Any:
    return reader.adjoint(reader.emit("gelu", x, approximate=approximate), dy, [x])[0]


def _of_one(op: str) -> Convert:
    """Return the conversion of the gradient of a function of one tensor."""
    return lambda reader, dy, x: reader.adjoint(reader.emit(op, x), dy, [x])[0]


def _tanh(reader: Reader, dy: Value, y: Value) -> Any:
    """The derivative by the result is a product of two factors, each of which is exact near its zero."""
    one = reader.constant(1, dtype=reader.type(y).dtype)
    return reader.emit("mul", dy, reader.emit("mul", reader.emit("sub", one, y), reader.emit("add", one, y)))


def _gated(reader: Reader, dy: Value, x: Value, axis: int) -> Any:
    """Of `a * sigmoid(b)`: the derivative of the gate is `sigmoid(b) * sigmoid(-b)`."""
    axis %= len(reader.shape(x))
    half = reader.shape(x)[axis] // 2
    a, b = reader.emit("split", x, outputs=2, split=(half, half), axis=axis)
    gate = reader.emit("sigmoid", b)
    slope = reader.emit("mul", gate, reader.emit("sigmoid", reader.emit("neg", b)))
    parts = reader.emit("mul", dy, gate), reader.emit("mul", dy, reader.emit("mul", a, slope))
    return reader.emit("concat", *parts, axis=axis)


def _absent(reader: Reader, like: Value, shape: Sequence[int]) -> Value:
    """Return a tensor of which only the type matters:
    a linear operation's adjoint does not read what it was applied to.
    """
    return reader.constant(np.broadcast_to(np.zeros((), reader.type(like).dtype.numpy), tuple(shape)))


def _convolution(
    reader: Reader, dy: Value, x: Value, w: Value, bias: Sequence[int] | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool,
    extra: Any, groups: int, wanted: Sequence[bool],
) -> Any:  # fmt: skip
    y = convolution(reader, x, w, None, stride, padding, dilation, transposed, extra, groups)
    chosen = [value for value, flag in zip((x, w), wanted, strict=False) if flag]
    found = iter(reader.adjoint(y, dy, chosen))
    dx, dw = (next(found) if flag else None for flag in wanted[:2])
    axes = (0, *range(2, len(reader.shape(dy))))
    return dx, dw, reader.emit("reduce_sum", dy, axes=axes, keepdims=False) if wanted[2] else None


def _max_pool(
    reader: Reader,
    dy: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    places: Any,
) -> Any:
    return reader.adjoint(max_pool(reader, x, kernel, stride, padding, dilation, ceil_mode)[0], dy, [x])[0]


def _average_pool(reader: Reader, dy: Value, x: Value, *arguments: Any) -> Any:
    return reader.adjoint(average_pool(reader, x, *arguments), dy, [x])[0]


def _adaptive_pool(reader: Reader, dy: Value, x: Value) -> Any:
    """A step for each axis where windows are of several sizes, so the way back is one step for each too."""
    wanted, steps = reader.shape(dy)[2:], [x]
    while reader.shape(steps[-1])[2:] != wanted:
        steps.append(adaptive_pool(reader, steps[-1], wanted, once=True))
    for before, after in zip(steps[-2::-1], steps[:0:-1], strict=True):
        (dy,) = reader.adjoint(after, dy, [before])
    return dy


def _grid_sample(
    reader: Reader, dy: Value, x: Value, grid: Value, mode: int, padding: int, corners: bool, wanted: Sequence[bool]
) -> Any:
    y = grid_sample(reader, x, grid, mode, padding, corners)
    found = iter(reader.adjoint(y, dy, [value for value, flag in zip((x, grid), wanted, strict=True) if flag]))
    return tuple(next(found) if flag else None for flag in wanted)


def _adaptive_max_pool(reader: Reader, dy: Value, x: Value, places: Any) -> Any:
    """Windows of several sizes overlap, so what each found is added up where it stands."""
    shape, sizes = reader.shape(x), reader.shape(dy)[2:]
    if equal_windows(shape[2:], sizes):
        return reader.adjoint(adaptive_max_pool(reader, x, sizes)[0], dy, [x])[0]
    none = _absent(reader, dy, (*shape[:2], math.prod(shape[2:])))
    rows = [reader.reshape(v, (*shape[:2], -1)) for v in (places, dy)]
    return reader.reshape(reader.emit("scatter_elements", none, *rows, axis=2, reduction="add"), shape)


def _pad_edges(reader: Reader, dy: Value, x: Value, pads: Sequence[int]) -> Any:
    rank = len(reader.shape(x))
    before, after = [0] * rank, [0] * rank
    for n in range(len(pads) // 2):
        before[rank - 1 - n], after[rank - 1 - n] = pads[2 * n], pads[2 * n + 1]
    same = _absent(reader, dy, reader.shape(x))
    return reader.adjoint(reader.emit("pad", same, pads=(*before, *after), mode="edge"), dy, [same])[0]


def _embedding(reader: Reader, dy: Value, indices: Value, rows: int, padding: int, by_frequency: bool) -> Any:
    if by_frequency:
        reader.fail("gradients scaled by frequency are not supported")
    table = _absent(reader, dy, (rows, reader.shape(dy)[-1]))
    found = reader.adjoint(embedding(reader, table, indices), dy, [table])[0]
    if padding < 0:
        return found
    kept = np.ones((rows, 1), bool)
    kept[padding] = False
    return reader.emit("where", reader.constant(kept), found, reader.constant(0, dtype=reader.type(dy).dtype))


def _embedding_bag(
    reader: Reader, dy: Value, indices: Value, offsets: Value, bag: Any, sizes: Any, places: Any, rows: int,
    by_frequency: bool,
    mode: int, sparse: bool, weights: Value | None, padding: int = -1,
) -> Any:  # fmt: skip
    """Each index gets the gradient of its bag, and the table what its indices get, of a maximum the rows at its
    `places`; PyTorch keeps `bag` and `sizes` for some modes only.
    """
    if mode == 2:
        none = reader.constant(np.zeros((rows, reader.shape(dy)[-1])), dtype=reader.type(dy).dtype)
        zero = reader.constant(0, dtype=DType.I64)  # a bag without indices is of no row
        own = reader.emit(
            "where", reader.emit("less", places, zero), reader.constant(0, dtype=reader.type(dy).dtype), dy
        )
        return reader.emit("scatter_elements", none, reader.emit("max", places, zero), own, axis=0, reduction="add")
    (count,), kind = reader.shape(indices), reader.type(dy).dtype
    if mode == 1:
        size = reader.cast(bag_sizes(reader, offsets, count, reader.shape(offsets) > reader.shape(dy)[:1]), kind)
        dy = reader.emit("div", dy, unsqueeze(reader, reader.emit("max", size, reader.constant(1, dtype=kind)), 1))
    own = reader.emit("gather", dy, bag_of(reader, offsets, count), axis=0)
    own = own if weights is None else reader.emit("mul", own, unsqueeze(reader, weights, 1))
    return _embedding(reader, own, indices, rows, padding, by_frequency)


TABLE: dict[str, Convert] = {
    "aten.gelu_backward": _gelu, "aten.silu_backward": _of_one("swish"), "aten.mish_backward": _of_one("mish"),
    "aten.tanh_backward": _tanh, "aten.glu_backward": _gated,
    "aten.convolution_backward": _convolution,
    "aten.max_pool2d_with_indices_backward": _max_pool, "aten.max_pool3d_with_indices_backward": _max_pool,
    "aten.avg_pool2d_backward": _average_pool, "aten.avg_pool3d_backward": _average_pool,
    "aten._adaptive_avg_pool2d_backward": _adaptive_pool, "aten._adaptive_avg_pool3d_backward": _adaptive_pool,
    "aten.grid_sampler_2d_backward": _grid_sample, "aten.grid_sampler_3d_backward": _grid_sample,
    "aten.adaptive_max_pool2d_backward": _adaptive_max_pool, "aten.adaptive_max_pool3d_backward": _adaptive_max_pool,
    "aten.replication_pad1d_backward": _pad_edges, "aten.replication_pad2d_backward": _pad_edges,
    "aten.replication_pad3d_backward": _pad_edges,
    "aten.embedding_dense_backward": _embedding, "aten._embedding_bag_backward": _embedding_bag,
}  # fmt: skip

"""PyTorch's running sums, products and extremes along an axis."""

from __future__ import annotations

import math

import numpy as np
import torch

from ....ir import DType
from ..reader import Convert, Reader, Value, dtype_of
from .movement import flip, lifted, unsqueeze


def _cumulative(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axis: int, dtype: torch.dtype | None = None) -> Value:
        own = reader.type(x).dtype
        kind = dtype_of(dtype) if dtype else own if own.is_float else DType.I64
        return reader.emit(op, reader.cast(x, kind), axis=axis)  # type: ignore[no-any-return]

    return convert


def _running_greatest(reader: Reader, x: Value, axis: int) -> tuple[Value, Value]:
    """The greatest element so far and where it stands, the last of equals: max pooling by windows that reach back to
    the beginning.

    Pooling finds the first of equals, so the axis is reversed, and a window reaches to its end.
    """
    shape = reader.shape(x)
    axis %= max(len(shape), 1)
    size, inner = (shape or (1,))[axis], math.prod(shape[axis + 1 :])
    planes = (math.prod(shape[:axis]), 1, size, inner)
    backwards = flip(reader, reader.emit("reshape", x, shape=planes, allowzero=True), (2,))
    y, places = reader.emit(
        "max_pool_positions", backwards, outputs=2, kernel_shape=(size, 1), pads=(0, 0, size - 1, 0)
    )
    row = reader.emit("mod", reader.emit("div", places, reader.constant(inner)), reader.constant(size))
    found = (y, reader.emit("sub", reader.constant(size - 1), row))
    return tuple(reader.emit("reshape", flip(reader, v, (2,)), shape=shape, allowzero=True) for v in found)


def _extreme(least: bool) -> Convert:
    def convert(reader: Reader, x: Value, axis: int) -> tuple[Value, Value]:
        own = reader.type(x).dtype
        if not reader.type(x).size:
            return x, reader.constant(np.zeros(reader.shape(x), np.int64))
        number = reader.cast(x, DType.U8) if own is DType.BOOL else x
        opposite = "neg" if own.is_float else "bitwise_not"  # that of integers reverses their order without overflow
        if not least:
            y, places = _running_greatest(reader, number, axis)
        else:
            y, places = _running_greatest(reader, reader.emit(opposite, number), axis)
            y = reader.emit(opposite, y)
        return reader.cast(y, own), places

    return convert


def _log_sum_exp(reader: Reader, x: Value, axis: int) -> Value:
    """Exponentials relative to the greatest element so far, or to the nearest finite number where that is infinite."""
    shape = reader.shape(x)
    if not reader.type(x).size:
        return x
    axis %= len(shape)
    kind, size = reader.type(x).dtype, shape[axis]
    greatest = _running_greatest(reader, x, axis)[0]
    limit = float(kind.element.largest)
    base = reader.emit("clip", greatest, min=-limit, max=limit)
    so_far = np.tri(size, dtype=np.bool_).reshape(size, size, *(1,) * (len(shape) - 1 - axis))
    terms = reader.emit(
        "where", reader.constant(so_far), unsqueeze(reader, x, axis), reader.constant(-np.inf, dtype=kind)
    )
    powers = reader.emit("exp", reader.emit("sub", terms, unsqueeze(reader, base, axis + 1)))
    total = reader.emit("reduce_sum", powers, axes=(axis + 1,), keepdims=False)
    return reader.emit("add", base, reader.emit("log", total))  # type: ignore[no-any-return]


TABLE: dict[str, Convert] = {
    "aten.cumsum": lifted(_cumulative("cumsum")), "aten.cumprod": lifted(_cumulative("cumprod")),
    "aten.cummax": lifted(_extreme(least=False)), "aten.cummin": lifted(_extreme(least=True)),
    "aten.logcumsumexp": lifted(_log_sum_exp),
}  # fmt: skip

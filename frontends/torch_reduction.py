"""PyTorch's reductions, sorting, distributions and cumulative sums along axes."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..ir.types import DType
from .torch_movement import unsqueeze
from .torch_reader import Convert, Reader, Value, dtype_of


def _reduce(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axes: Any = None, keep: bool = False, dtype: torch.dtype | None = None, **_: Any) -> Any:
        if dtype is not None:
            x = reader.cast(x, dtype_of(dtype))
        elif op == "reduce_sum" and not reader.type(x).dtype.is_float:
            x = reader.cast(x, DType.I64)
        chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(reader.shape(x))))
        return reader.emit(op, x, axes=chosen, keepdims=bool(keep))

    return convert


def _variance(reader: Reader, x: Value, axes: Any = None, correction: float | None = None, keepdim: bool = False, **_: Any) -> Any:
    chosen = tuple(axes if axes is not None else range(len(reader.shape(x))))
    mean = reader.emit("reduce_mean", x, axes=chosen, keepdims=True)
    total = reader.emit("reduce_sum_square", reader.emit("sub", x, mean), axes=chosen, keepdims=bool(keepdim))
    count = 1
    for axis in chosen:
        count *= reader.shape(x)[axis]
    return reader.emit("div", total, reader.constant(max(count - (1 if correction is None else correction), 0), dtype=reader.type(x).dtype))


def _extreme(values: str, places: str) -> Convert:
    def convert(reader: Reader, x: Value, axis: int | None = None, keep: bool = False) -> Any:
        own = reader.type(x).dtype
        number = reader.cast(x, DType.U8) if own is DType.BOOL else x
        if axis is None:
            return reader.cast(reader.emit(values, number, keepdims=False), own)
        position = reader.emit(places, number, axis=axis, keepdims=bool(keep))
        return reader.cast(reader.emit(values, number, axes=(axis,), keepdims=bool(keep)), own), position

    return convert


def _norm(reader: Reader, x: Value, order: float = 2, axes: Any = None, keep: bool = False, dtype: torch.dtype | None = None) -> Any:
    x = x if dtype is None else reader.cast(x, dtype_of(dtype))
    chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(reader.shape(x))))
    given: dict[str, Any] = {"axes": chosen, "keepdims": bool(keep)}
    if order in (1, 2):
        return reader.emit(f"reduce_l{int(order)}", x, **given)
    size = reader.emit("abs", x)
    if abs(order) == math.inf:
        return reader.emit("reduce_max" if order > 0 else "reduce_min", size, **given)
    kind = reader.type(x).dtype
    if order == 0:
        return reader.emit("reduce_sum", reader.cast(reader.cast(x, DType.BOOL), kind), **given)
    total = reader.emit("reduce_sum", reader.emit("pow", size, reader.constant(order, dtype=kind)), **given)
    return reader.emit("pow", total, reader.constant(1 / order, dtype=kind))


def _distances(reader: Reader, a: Value, b: Value, order: float, *_: Any) -> Any:
    """The norm of every difference between rows of two matrices."""
    rank = len(reader.shape(a))
    return _norm(reader, reader.emit("sub", unsqueeze(reader, a, rank - 1), unsqueeze(reader, b, len(reader.shape(b)) - 2)), order, (-1,))


def _kth(reader: Reader, x: Value, k: int, axis: int = -1, keep: bool = False) -> Any:
    """The k-th least element and its place."""
    axis %= len(reader.shape(x))
    found = _top_k(reader, x, k, axis, largest=False)
    last = [reader.emit("slice", v, starts=(k - 1,), ends=(k,), axes=(axis,)) for v in found]
    shape = tuple(n for a, n in enumerate(reader.shape(x)) if a != axis)
    return tuple(last if keep else (reader.emit("reshape", v, shape=shape) for v in last))


def _median(reader: Reader, x: Value, axis: int | None = None, keep: bool = False) -> Any:
    """The lower one of the two elements in the middle."""
    if axis is None:
        flat = reader.emit("reshape", x, shape=(-1,))
        return _kth(reader, flat, (reader.type(x).size + 1) // 2, 0)[0]
    return _kth(reader, x, (reader.shape(x)[axis] + 1) // 2, axis, keep)


def _sort(reader: Reader, x: Value, axis: int = -1, descending: bool = False, **more: Any) -> Any:
    if not reader.shape(x):
        return x, reader.constant(0, dtype=DType.I64)
    return _top_k(reader, x, reader.shape(x)[axis], axis, descending)


def _sort_stable(reader: Reader, x: Value, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    return _sort(reader, x, dim, descending)


def _position(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axis: int | None = None, keep: bool = False) -> Any:
        x = reader.cast(x, DType.U8) if reader.type(x).dtype is DType.BOOL else x
        if axis is None:
            x, axis, keep = reader.emit("reshape", x, shape=(-1,)), 0, False
        return reader.emit(op, x, axis=axis, keepdims=bool(keep))

    return convert


def _variance_and_mean(reader: Reader, x: Value, axes: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    mean = _reduce("reduce_mean")(reader, x, axes, keepdim)
    return _variance(reader, x, axes, correction, keepdim), mean


def _truth(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axes: Any = None, keep: bool = False) -> Any:
        number = reader.cast(reader.cast(x, DType.BOOL), DType.U8)
        chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(reader.shape(x))))
        return reader.cast(reader.emit(op, number, axes=chosen, keepdims=bool(keep)), DType.BOOL)

    return convert


def _softmax(op: str) -> Convert:
    return lambda reader, x, axis, half=False, **_: reader.emit(op, x, axis=axis)


def _cumulative(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axis: int, dtype: torch.dtype | None = None) -> Any:
        kind = reader.type(x).dtype
        return reader.emit(op, reader.cast(x, dtype_of(dtype) if dtype else kind if kind.is_float else DType.I64), axis=axis)

    return convert


def _top_k(reader: Reader, x: Value, k: int, axis: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    return reader.emit("top_k", x, results=2, k=k, axis=axis, largest=bool(largest))


TABLE: dict[str, Convert] = {
    "aten.sum": _reduce("reduce_sum"), "aten.mean": _reduce("reduce_mean"), "aten.amax": _reduce("reduce_max"),
    "aten.amin": _reduce("reduce_min"), "aten.prod": _reduce("reduce_prod"), "aten.var": _variance, "aten.var_mean": _variance_and_mean,
    "aten.max": _extreme("reduce_max", "argmax"), "aten.min": _extreme("reduce_min", "argmin"), "aten.argmax": _position("argmax"),
    "aten.argmin": _position("argmin"), "aten.any": _truth("reduce_max"), "aten.all": _truth("reduce_min"),
    "aten._softmax": _softmax("softmax"), "aten._log_softmax": _softmax("log_softmax"), "aten.topk": _top_k,
    "aten.cumsum": _cumulative("cumsum"), "aten.cumprod": _cumulative("cumprod"), "aten.linalg_vector_norm": _norm,
    "aten._cdist_forward": _distances, "aten.kthvalue": _kth, "aten.median": _median,
    "aten.sort.default": _sort, "aten.sort.stable": _sort_stable,
}  # fmt: skip

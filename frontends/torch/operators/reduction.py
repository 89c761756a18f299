"""PyTorch's reductions, sorting and distributions along axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..reader import Convert, Reader, Value, dtype_of
from .movement import lifted, unsqueeze


def _reduce(op: str) -> Convert:
    def convert(
        reader: Reader, x: Value, axes: Any = None, keep: bool = False, dtype: torch.dtype | None = None, **_: Any
    ) -> Any:
        if dtype is not None:
            x = reader.cast(x, dtype_of(dtype))
        elif op in ("reduce_sum", "reduce_prod") and not reader.type(x).dtype.is_float:
            x = reader.cast(x, DType.I64)
        chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(reader.shape(x))))
        own = reader.type(x).dtype
        return reader.cast(reader.emit(op, _number(reader, x), axes=chosen, keepdims=bool(keep)), own)

    return convert


def _number(reader: Reader, x: Value) -> Value:
    """Return truth values as numbers, which are ordered; other tensors as they are."""
    return reader.cast(x, DType.U8) if reader.type(x).dtype is DType.BOOL else x


def _variance(
    reader: Reader, x: Value, axes: Any = None, correction: float | None = None, keepdim: bool = False, **_: Any
) -> Any:
    chosen = tuple(axes if axes is not None else range(len(reader.shape(x))))
    mean = reader.emit("reduce_mean", x, axes=chosen, keepdims=True)
    total = reader.emit("reduce_sum_square", reader.emit("sub", x, mean), axes=chosen, keepdims=bool(keepdim))
    count = 1
    for axis in chosen:
        count *= reader.shape(x)[axis]
    return reader.emit(
        "div",
        total,
        reader.constant(max(count - (1 if correction is None else correction), 0), dtype=reader.type(x).dtype),
    )


def _extreme(values: str, places: str) -> Convert:
    def convert(reader: Reader, x: Value, axis: int | None = None, keep: bool = False) -> Any:
        own = reader.type(x).dtype
        number = _number(reader, x)
        if axis is None and not reader.type(x).size:
            reader.fail("no element is the extreme of an empty tensor; give it elements, or name an axis that has some")
        if axis is None:
            return reader.cast(reader.emit(values, number, keepdims=False), own)
        value, position = reader.emit(places, number, outputs=2, axis=axis, keepdims=bool(keep))
        return reader.cast(value, own), position

    return convert


def _norm(
    reader: Reader, x: Value, order: float = 2, axes: Any = None, keep: bool = False, dtype: torch.dtype | None = None
) -> Any:
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
    return _norm(
        reader,
        reader.emit("sub", unsqueeze(reader, a, rank - 1), unsqueeze(reader, b, len(reader.shape(b)) - 2)),
        order,
        (-1,),
    )


def _kth(reader: Reader, x: Value, k: int, axis: int = -1, keep: bool = False) -> Any:
    """The k-th least element and its place."""
    axis %= len(reader.shape(x))
    found = _top_k(reader, x, k, axis, largest=False)
    last = [reader.emit("slice", v, starts=(k - 1,), ends=(k,), axes=(axis,)) for v in found]
    shape = tuple(n for a, n in enumerate(reader.shape(x)) if a != axis)
    return tuple(last if keep else (reader.reshape(v, shape) for v in last))


def _median(reader: Reader, x: Value, axis: int | None = None, keep: bool = False) -> Any:
    """The lower one of the two elements in the middle, or the first NaN."""
    if axis is None and not reader.type(x).size:
        if not reader.type(x).dtype.is_float:
            reader.fail("there is no median of no integers")
        return reader.constant(np.nan, dtype=reader.type(x).dtype)
    if axis is None:
        return _median(reader, reader.reshape(x, (-1,)), 0)[0]
    found = _kth(reader, x, (reader.shape(x)[axis] + 1) // 2, axis, keep)
    if not reader.type(x).dtype.is_float:
        return found
    none = reader.cast(reader.emit("is_nan", x), DType.U8)
    any_none = reader.cast(reader.emit("reduce_max", none, axes=(axis,), keepdims=keep), DType.BOOL)
    first = reader.constant(np.nan, dtype=reader.type(x).dtype), reader.emit("argmax", none, axis=axis, keepdims=keep)
    return tuple(reader.emit("where", any_none, *pair) for pair in zip(first, found, strict=True))


def _sort(reader: Reader, x: Value, axis: int = -1, descending: bool = False, **more: Any) -> Any:
    return _top_k(reader, x, reader.shape(x)[axis], axis, descending)


def _sort_stable(reader: Reader, x: Value, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    return _sort(reader, x, dim, descending)


def _position(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axis: int | None = None, keep: bool = False) -> Any:
        x = _number(reader, x)
        if axis is None:
            x, axis, keep = reader.reshape(x, (-1,)), 0, False
        return reader.emit(op, x, axis=axis, keepdims=bool(keep))

    return convert


def _variance_and_mean(
    reader: Reader, x: Value, axes: Any = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    """The mean is the one that the variance is of, in another shape."""
    chosen = tuple(axes if axes is not None else range(len(reader.shape(x))))
    mean = reader.emit("reduce_mean", x, axes=chosen, keepdims=True)
    if not keepdim:
        dropped = {axis % max(1, len(reader.shape(x))) for axis in chosen}
        kept = tuple(n for axis, n in enumerate(reader.shape(x)) if axis not in dropped)
        mean = reader.reshape(mean, kept)
    return _variance(reader, x, axes, correction, keepdim), mean


def _truth(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axes: Any = None, keep: bool = False) -> Any:
        number = reader.cast(reader.cast(x, DType.BOOL), DType.U8)
        chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(reader.shape(x))))
        found = reader.emit(op, number, axes=chosen, keepdims=bool(keep))
        return found if reader.type(x).dtype is DType.U8 else reader.cast(found, DType.BOOL)  # bytes were truth once

    return convert


def _softmax(op: str) -> Convert:
    return lambda reader, x, axis, half=False, **_: reader.emit(op, x, axis=axis)


def _histogram(reader: Reader, x: Value, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """Each bin asks every element whether it is in it; the last has its end,
    and equal bounds mean those of the elements.
    """
    kind = reader.type(x).dtype
    flat = reader.reshape(x, (1, -1))
    first, last = reader.constant(low, dtype=kind), reader.constant(high, dtype=kind)
    if low == high:
        first, last = (reader.emit(f"reduce_{end}", flat, keepdims=False) for end in ("min", "max"))
        same = reader.cast(reader.emit("equal", first, last), kind)
        first, last = reader.emit("sub", first, same), reader.emit("add", last, same)
    share = reader.emit("div", reader.emit("sub", flat, first), reader.emit("sub", last, first))
    place = reader.emit("floor", reader.emit("mul", share, reader.constant(bins, dtype=kind)))
    place = reader.emit("min", place, reader.constant(bins - 1, dtype=kind))
    inside = reader.emit(
        "logical_and", *(reader.emit("less_or_equal", *pair) for pair in ((first, flat), (flat, last)))
    )
    chosen = reader.emit("equal", place, reader.constant(np.arange(bins)[:, None], dtype=kind))
    counted = reader.cast(reader.emit("logical_and", chosen, inside), kind)
    return reader.emit("reduce_sum", counted, axes=(1,), keepdims=False)


def _counts(reader: Reader, *_: Any) -> Any:
    reader.fail(
        "the length of the result depends on values; torch.nn.functional.one_hot(x, n).sum(0) counts to a given length"
    )


def _multilabel_margin(reader: Reader, x: Value, target: Value, reduction: int) -> tuple[Value, Value]:
    """The margins between each label, up to the first negative one, and each class that is none.

    PyTorch's decomposition counts the labels after it too.
    """
    shape, kind = reader.shape(x), reader.type(x).dtype
    rank, zero = len(shape), reader.constant(0, dtype=DType.I64)
    target = reader.cast(target, DType.I64)
    ended = reader.emit("cumsum", reader.cast(reader.emit("less", target, zero), DType.I64), axis=-1)
    counts = unsqueeze(reader, reader.emit("equal", ended, zero), rank)
    named = reader.emit("equal", unsqueeze(reader, target, rank), reader.constant(np.arange(shape[-1])))
    named = reader.cast(reader.emit("logical_and", named, counts), DType.U8)
    labels = reader.cast(reader.emit("reduce_max", named, axes=(-2,), keepdims=False), DType.BOOL)
    found = reader.emit("gather_elements", x, reader.emit("max", target, zero), axis=-1)
    apart = reader.emit("sub", unsqueeze(reader, x, rank - 1), unsqueeze(reader, found, rank))
    margin = reader.emit("relu", reader.emit("add", apart, reader.constant(1, dtype=kind)))
    used = reader.emit("logical_and", counts, unsqueeze(reader, reader.emit("logical_not", labels), rank - 1))
    terms = reader.emit("where", used, margin, reader.constant(0, dtype=kind))
    loss = reader.emit(
        "div", reader.emit("reduce_sum", terms, axes=(-2, -1), keepdims=False), reader.constant(shape[-1], dtype=kind)
    )
    if reduction:
        loss = reader.emit(
            "reduce_mean" if reduction == 1 else "reduce_sum", loss, axes=tuple(range(rank - 1)), keepdims=False
        )
    return loss, reader.cast(labels, kind)


def _top_k(reader: Reader, x: Value, k: int, axis: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    y, places = reader.emit("top_k", _number(reader, x), outputs=2, k=k, axis=axis, largest=bool(largest))
    return reader.cast(y, reader.type(x).dtype), places


TABLE: dict[str, Convert] = {
    "aten.sum": lifted(_reduce("reduce_sum")), "aten.mean": lifted(_reduce("reduce_mean")),
    "aten.amax": lifted(_reduce("reduce_max")),
    "aten.amin": lifted(_reduce("reduce_min")), "aten.prod": lifted(_reduce("reduce_prod")),
    "aten.var": lifted(_variance),
    "aten.var_mean": lifted(_variance_and_mean), "aten.max": lifted(_extreme("reduce_max", "max_position")),
    "aten.min": lifted(_extreme("reduce_min", "min_position")), "aten.argmax": lifted(_position("argmax")),
    "aten.argmin": lifted(_position("argmin")), "aten.any": lifted(_truth("reduce_max")),
    "aten.all": lifted(_truth("reduce_min")),
    "aten._softmax": lifted(_softmax("softmax")), "aten._log_softmax": lifted(_softmax("log_softmax")),
    "aten.topk": lifted(_top_k),
    "aten.linalg_vector_norm": lifted(_norm), "aten.histc": _histogram, "aten.bincount": _counts,
    "aten.multilabel_margin_loss_forward": _multilabel_margin,
    "aten._cdist_forward": _distances, "aten.kthvalue": lifted(_kth), "aten.median": lifted(_median),
    "aten.sort.default": lifted(_sort), "aten.sort.stable": lifted(_sort_stable),
}  # fmt: skip

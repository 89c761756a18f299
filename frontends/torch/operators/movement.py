"""PyTorch's data movement and makers of constants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..import_context import DTYPES, TORCH_TYPES, Convert, ImportContext, Value, array_of, dtype_of
from ..scalars import convert_checked, convert_for_where

_END = (1 << 63) - 1


def _view(ctx: ImportContext, x: Value, shape: Sequence[int]) -> Any:
    return ctx.reshape(x, shape)


def _permute(ctx: ImportContext, x: Value, order: Sequence[int]) -> Any:
    return ctx.emit("transpose", x, perm=tuple(order))


def _transpose(ctx: ImportContext, x: Value, a: int = 0, b: int = 1) -> Any:
    order = list(range(len(ctx.shape(x))))
    if order:
        order[a], order[b] = order[b], order[a]
    return ctx.emit("transpose", x, perm=tuple(order))


def unsqueeze(ctx: ImportContext, x: Value, axis: int) -> Any:
    """Convert a new axis of one element."""
    shape = list(ctx.shape(x))
    shape.insert(axis % (len(shape) + 1), 1)
    return _view(ctx, x, shape)


def _squeeze(ctx: ImportContext, x: Value, axes: Sequence[int] | int | None = None) -> Any:
    shape = ctx.shape(x)
    wanted = range(len(shape)) if axes is None or not shape else [axes] if isinstance(axes, int) else axes
    dropped = {a % len(shape) for a in wanted if shape[a] == 1}
    return _view(ctx, x, [n for a, n in enumerate(shape) if a not in dropped])


def expand(ctx: ImportContext, x: Value, shape: Sequence[int], **_: Any) -> Any:
    """Convert a broadcast."""
    own = (1,) * (len(shape) - len(ctx.shape(x))) + ctx.shape(x)
    full = tuple(own[n] if extent == -1 else extent for n, extent in enumerate(shape))
    return x if full == ctx.shape(x) else ctx.emit("expand", x, shape=full)


def slices(
    ctx: ImportContext, x: Value, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Convert a slice along an axis."""
    size = ctx.shape(x)[axis]
    low, high = start or 0, size if end is None else min(end, size)
    if (low, high, step) == (0, size, 1):
        return x
    return ctx.emit("slice", x, starts=(low,), ends=(high,), axes=(axis,), steps=(step,))


def _select(ctx: ImportContext, x: Value, axis: int, index: int) -> Any:
    shape = ctx.shape(x)
    axis, index = axis % len(shape), index % shape[axis]
    part = ctx.emit("slice", x, starts=(index,), ends=(index + 1,), axes=(axis,))
    return _view(ctx, part, [n for a, n in enumerate(shape) if a != axis])


def _cat(ctx: ImportContext, values: Sequence[Value], axis: int = 0) -> Any:
    filled = [v for v in values if ctx.shape(v) != (0,)] or values[:1]
    kind = _promoted_type(ctx, values)
    filled = [ctx.cast(v, kind) for v in filled]
    return filled[0] if len(filled) == 1 else ctx.emit("concat", *filled, axis=axis % len(ctx.shape(filled[0])))


def _promoted_type(ctx: ImportContext, values: Sequence[Value]) -> DType:
    """Return the promoted element type of joined tensors."""
    kinds = {kind: torch_kind for torch_kind, kind in DTYPES.items()}
    return dtype_of(functools.reduce(torch.promote_types, (kinds[ctx.type(v).dtype] for v in values)))


def _stack(ctx: ImportContext, values: Sequence[Value], axis: int = 0) -> Any:
    place = axis % (len(ctx.shape(values[0])) + 1)
    return _cat(ctx, [unsqueeze(ctx, v, place) for v in values], place)


def _split(ctx: ImportContext, x: Value, sizes: Sequence[int], axis: int = 0) -> Any:
    if len(sizes) == 1:
        return (x,)
    return ctx.emit("split", x, outputs=len(sizes), split=tuple(sizes), axis=axis)


def _split_size(ctx: ImportContext, x: Value, size: int, axis: int = 0) -> Any:
    extent = ctx.shape(x)[axis]
    return _split(ctx, x, [min(size, extent - n) for n in range(0, extent, size)], axis)


def _pad(ctx: ImportContext, x: Value, pads: Sequence[int], value: float = 0) -> Any:
    """Convert a pad: PyTorch lists pads from the last axis on; negative ones cut."""
    rank = len(ctx.shape(x))
    before, after = [0] * rank, [0] * rank
    for n in range(len(pads) // 2):
        before[rank - 1 - n], after[rank - 1 - n] = pads[2 * n], pads[2 * n + 1]
    number = convert_checked(value or 0, TORCH_TYPES[ctx.type(x).dtype]).item()
    held = float(value or 0) if ctx.type(x).dtype.is_float else float(number)
    return ctx.emit("pad", x, pads=(*before, *after), value=held)


def flip(ctx: ImportContext, x: Value, axes: Sequence[int]) -> Any:
    """Convert a reversal of axes."""
    count = len(axes)
    return ctx.emit("slice", x, starts=(-1,) * count, ends=(-_END,) * count, axes=tuple(axes), steps=(-1,) * count)


def with_axis(ctx: ImportContext, x: Value) -> Value:
    """Return a tensor with at least one axis."""
    return x if ctx.shape(x) else ctx.reshape(x, (1,))


def lift_scalars(convert: Convert) -> Convert:
    """Return a conversion along an axis that also takes a scalar.

    A scalar is a tensor of one element there.
    """

    def apply(ctx: ImportContext, x: Value, *arguments: Any, **keywords: Any) -> Any:
        if ctx.shape(x):
            return convert(ctx, x, *arguments, **keywords)
        found = convert(ctx, with_axis(ctx, x), *arguments, **keywords)
        if isinstance(found, tuple):
            return tuple(ctx.reshape(v, ()) for v in found)
        return ctx.reshape(found, ())

    return apply


def _full(ctx: ImportContext, shape: Sequence[int], value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
    kind = dtype_of(
        dtype
        or (
            torch.get_default_dtype()
            if isinstance(value, float)
            else torch.bool
            if isinstance(value, bool)
            else torch.int64
        )
    )
    return ctx.number(value, kind, shape)


def _full_like(ctx: ImportContext, x: Value, value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
    kind = ctx.type(x).dtype if dtype is None else dtype_of(dtype)
    return ctx.number(value, kind, ctx.shape(x))


def _copy_onto(ctx: ImportContext, x: Value, source: Value, *_: Any) -> Any:
    return expand(ctx, ctx.cast(source, ctx.type(x).dtype), ctx.shape(x))


def _new(ctx: ImportContext, x: Value, shape: Sequence[int], dtype: torch.dtype | None = None) -> Any:
    kind = ctx.type(x).dtype if dtype is None else dtype_of(dtype)
    return ctx.number(0, kind, shape)


def _arange(
    ctx: ImportContext, start: float, end: float, step: float = 1, dtype: torch.dtype | None = None, **_: Any
) -> Any:
    return ctx.constant(array_of(torch.arange(start, end, step, dtype=dtype)))


def _triangle_places(numpy_places: Callable[..., Any]) -> Convert:
    def convert(
        ctx: ImportContext, rows: int, columns: int, offset: int = 0, dtype: torch.dtype | None = None, **_: Any
    ) -> Any:
        return ctx.constant(np.stack(numpy_places(rows, offset, columns)), dtype=dtype_of(dtype or torch.int64))

    return convert


def _scalar(ctx: ImportContext, value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return ctx.number(value, dtype_of(dtype or torch.get_default_dtype()), convert=convert_for_where)


def _triangle(upper: bool) -> Convert:
    return lambda ctx, x, diagonal=0: ctx.emit("trilu", x, upper=upper, k=int(diagonal))


TABLE: dict[str, Convert] = {
    "aten.view": _view, "aten.reshape": _view, "aten._unsafe_view": _view, "aten.permute": _permute,
    "aten.transpose": _transpose, "aten.t": _transpose, "aten.unsqueeze": unsqueeze, "aten.squeeze": _squeeze,
    "aten.expand": expand, "aten.slice": slices, "aten.select": _select, "aten.cat": _cat, "aten.stack": _stack,
    "aten.split_with_sizes": _split, "aten.split": _split_size,
    "aten.unbind": lambda ctx, x, axis=0: tuple(_select(ctx, x, axis, n) for n in range(ctx.shape(x)[axis])),
    "aten.constant_pad_nd": _pad, "aten.flip": lift_scalars(flip), "aten.repeat": lambda ctx, x, n: _repeat(ctx, x, n),
    "aten.full": _full, "aten.full_like": _full_like, "aten.arange": _arange, "aten.scalar_tensor": _scalar,
    "prims.scalar_tensor": _scalar,
    "aten.zeros_like": lambda ctx, x, **_: _full_like(ctx, x, 0), "aten.ones_like": lambda ctx, x,
    **_: _full_like(ctx, x, 1),
    "aten.copy": _copy_onto,
    # uninitialised tensors
    "aten.empty": lambda ctx, shape, **more: _full(ctx, shape, 0.0, more.get("dtype")),
    "aten.new_empty_strided": lambda ctx, x, shape, strides, dtype=None, **_: _new(ctx, x, shape, dtype),
    "aten.tril_indices": _triangle_places(np.tril_indices), "aten.triu_indices": _triangle_places(np.triu_indices),
    "aten.triu": _triangle(True), "aten.tril": _triangle(False),
    "aten.pixel_shuffle": lambda ctx, x, factor: ctx.emit("depth_to_space", x, blocksize=factor, mode="CRD"),
}  # fmt: skip


def _repeat(ctx: ImportContext, x: Value, counts: Sequence[int]) -> Any:
    wide = _view(ctx, x, (1,) * (len(counts) - len(ctx.shape(x))) + ctx.shape(x))
    return ctx.emit("tile", wide, repeats=tuple(counts))

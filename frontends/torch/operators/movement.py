"""PyTorch's data movement, indexing and makers of constants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..reader import DTYPES, TORCH_TYPES, Convert, Reader, Value, array_of, dtype_of
from ..scalars import chosen, filled

_END = (1 << 63) - 1


def _view(reader: Reader, x: Value, shape: Sequence[int]) -> Any:
    return reader.reshape(x, shape)


def _permute(reader: Reader, x: Value, order: Sequence[int]) -> Any:
    return reader.emit("transpose", x, perm=tuple(order))


def _transpose(reader: Reader, x: Value, a: int = 0, b: int = 1) -> Any:
    order = list(range(len(reader.shape(x))))
    if order:
        order[a], order[b] = order[b], order[a]
    return reader.emit("transpose", x, perm=tuple(order))


def unsqueeze(reader: Reader, x: Value, axis: int) -> Any:
    """Convert a new axis of one element."""
    shape = list(reader.shape(x))
    shape.insert(axis % (len(shape) + 1), 1)
    return _view(reader, x, shape)


def _squeeze(reader: Reader, x: Value, axes: Sequence[int] | int | None = None) -> Any:
    shape = reader.shape(x)
    wanted = range(len(shape)) if axes is None or not shape else [axes] if isinstance(axes, int) else axes
    dropped = {a % len(shape) for a in wanted if shape[a] == 1}
    return _view(reader, x, [n for a, n in enumerate(shape) if a not in dropped])


def expand(reader: Reader, x: Value, shape: Sequence[int], **_: Any) -> Any:
    """Convert a broadcast."""
    own = (1,) * (len(shape) - len(reader.shape(x))) + reader.shape(x)
    full = tuple(own[n] if extent == -1 else extent for n, extent in enumerate(shape))
    return x if full == reader.shape(x) else reader.emit("expand", x, shape=full)


def slices(
    reader: Reader, x: Value, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Convert a slice along an axis."""
    size = reader.shape(x)[axis]
    low, high = start or 0, size if end is None else min(end, size)
    if (low, high, step) == (0, size, 1):
        return x
    return reader.emit("slice", x, starts=(low,), ends=(high,), axes=(axis,), steps=(step,))


def _select(reader: Reader, x: Value, axis: int, index: int) -> Any:
    shape = reader.shape(x)
    axis, index = axis % len(shape), index % shape[axis]
    part = reader.emit("slice", x, starts=(index,), ends=(index + 1,), axes=(axis,))
    return _view(reader, part, [n for a, n in enumerate(shape) if a != axis])


def _cat(reader: Reader, values: Sequence[Value], axis: int = 0) -> Any:
    filled = [v for v in values if reader.shape(v) != (0,)] or values[:1]
    kind = _promoted(reader, values)
    filled = [reader.cast(v, kind) for v in filled]
    return filled[0] if len(filled) == 1 else reader.emit("concat", *filled, axis=axis % len(reader.shape(filled[0])))


def _promoted(reader: Reader, values: Sequence[Value]) -> DType:
    """Return the element type that PyTorch gives tensors of several ones when it joins them."""
    kinds = {kind: torch_kind for torch_kind, kind in DTYPES.items()}
    return dtype_of(functools.reduce(torch.promote_types, (kinds[reader.type(v).dtype] for v in values)))


def _stack(reader: Reader, values: Sequence[Value], axis: int = 0) -> Any:
    place = axis % (len(reader.shape(values[0])) + 1)
    return _cat(reader, [unsqueeze(reader, v, place) for v in values], place)


def _split(reader: Reader, x: Value, sizes: Sequence[int], axis: int = 0) -> Any:
    if len(sizes) == 1:
        return (x,)
    return reader.emit("split", x, outputs=len(sizes), split=tuple(sizes), axis=axis)


def _split_size(reader: Reader, x: Value, size: int, axis: int = 0) -> Any:
    extent = reader.shape(x)[axis]
    return _split(reader, x, [min(size, extent - n) for n in range(0, extent, size)], axis)


def _pad(reader: Reader, x: Value, pads: Sequence[int], value: float = 0) -> Any:
    """PyTorch lists pads from the last axis on, before and after each; negative ones cut."""
    rank = len(reader.shape(x))
    before, after = [0] * rank, [0] * rank
    for n in range(len(pads) // 2):
        before[rank - 1 - n], after[rank - 1 - n] = pads[2 * n], pads[2 * n + 1]
    number = filled(value or 0, TORCH_TYPES[reader.type(x).dtype]).item()
    held = float(value or 0) if reader.type(x).dtype.is_float else float(number)
    return reader.emit("pad", x, pads=(*before, *after), value=held)


def flip(reader: Reader, x: Value, axes: Sequence[int]) -> Any:
    """Convert a reversal of axes."""
    count = len(axes)
    return reader.emit("slice", x, starts=(-1,) * count, ends=(-_END,) * count, axes=tuple(axes), steps=(-1,) * count)


def with_axis(reader: Reader, x: Value) -> Value:
    """Return a tensor with axes as it is, one without axes as one of one element."""
    return x if reader.shape(x) else reader.reshape(x, (1,))


def lifted(convert: Convert) -> Convert:
    """Return a conversion along an axis that takes a tensor without axes too: as one of one element."""

    def apply(reader: Reader, x: Value, *arguments: Any, **keywords: Any) -> Any:
        if reader.shape(x):
            return convert(reader, x, *arguments, **keywords)
        found = convert(reader, with_axis(reader, x), *arguments, **keywords)
        if isinstance(found, tuple):
            return tuple(reader.reshape(v, ()) for v in found)
        return reader.reshape(found, ())

    return apply


def _full(reader: Reader, shape: Sequence[int], value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
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
    return reader.number(value, kind, shape)


def _full_like(reader: Reader, x: Value, value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
    kind = reader.type(x).dtype if dtype is None else dtype_of(dtype)
    return reader.number(value, kind, reader.shape(x))


def _copy_onto(reader: Reader, x: Value, source: Value, *_: Any) -> Any:
    return expand(reader, reader.cast(source, reader.type(x).dtype), reader.shape(x))


def _new(reader: Reader, x: Value, shape: Sequence[int], dtype: torch.dtype | None = None) -> Any:
    kind = reader.type(x).dtype if dtype is None else dtype_of(dtype)
    return reader.constant(np.broadcast_to(np.zeros((), kind.numpy), tuple(shape)))


def _arange(
    reader: Reader, start: float, end: float, step: float = 1, dtype: torch.dtype | None = None, **_: Any
) -> Any:
    return reader.constant(array_of(torch.arange(start, end, step, dtype=dtype)))


def _triangle_places(numpy_places: Callable[..., Any]) -> Convert:
    def convert(reader: Reader, rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
        return reader.constant(np.stack(numpy_places(rows, offset, columns)).astype(np.int64))

    return convert


def _scalar(reader: Reader, value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return reader.number(value, dtype_of(dtype or torch.get_default_dtype()), convert=chosen)


def _triangle(upper: bool) -> Convert:
    return lambda reader, x, diagonal=0: reader.emit("trilu", x, upper=upper, k=int(diagonal))


TABLE: dict[str, Convert] = {
    "aten.view": _view, "aten.reshape": _view, "aten._unsafe_view": _view, "aten.permute": _permute,
    "aten.transpose": _transpose, "aten.t": _transpose, "aten.unsqueeze": unsqueeze, "aten.squeeze": _squeeze,
    "aten.expand": expand, "aten.slice": slices, "aten.select": _select, "aten.cat": _cat, "aten.stack": _stack,
    "aten.split_with_sizes": _split, "aten.split": _split_size,
    "aten.unbind": lambda reader, x, axis=0: tuple(_select(reader, x, axis, n) for n in range(reader.shape(x)[axis])),
    "aten.constant_pad_nd": _pad, "aten.flip": lifted(flip), "aten.repeat": lambda reader, x, n: _repeat(reader, x, n),
    "aten.full": _full, "aten.full_like": _full_like, "aten.arange": _arange, "aten.scalar_tensor": _scalar,
    "prims.scalar_tensor": _scalar,
    "aten.zeros_like": lambda reader, x, **_: _full_like(reader, x, 0), "aten.ones_like": lambda reader, x,
    **_: _full_like(reader, x, 1),
    "aten.copy": _copy_onto,
    # what is written over, whatever it is
    "aten.empty": lambda reader, shape, **more: _full(reader, shape, 0.0, more.get("dtype")),
    "aten.new_empty_strided": lambda reader, x, shape, strides, dtype=None, **_: _new(reader, x, shape, dtype),
    "aten.tril_indices": _triangle_places(np.tril_indices), "aten.triu_indices": _triangle_places(np.triu_indices),
    "aten.triu": _triangle(True), "aten.tril": _triangle(False),
    "aten.pixel_shuffle": lambda reader, x, factor: reader.emit("depth_to_space", x, blocksize=factor, mode="CRD"),
}  # fmt: skip


def _repeat(reader: Reader, x: Value, counts: Sequence[int]) -> Any:
    wide = _view(reader, x, (1,) * (len(counts) - len(reader.shape(x))) + reader.shape(x))
    return reader.emit("tile", wide, repeats=tuple(counts))

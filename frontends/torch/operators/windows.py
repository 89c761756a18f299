"""PyTorch's convolutions, pooling and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ir import DType
from ..import_context import Convert, ImportContext, Value
from .movement import unsqueeze


def _pair(value: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """Return one integer per axis; one stands for all of them."""
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * rank if len(items) == 1 else items


def convolution(
    ctx: ImportContext,
    x: Value,
    w: Value,
    b: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: int,
) -> Any:
    """Convert a convolution, transposed or not."""
    rank = len(ctx.shape(w)) - 2
    strides, pads, dilations = _pair(stride, rank), _pair(padding, rank), _pair(dilation, rank)
    if not all(ctx.shape(w)[2:]):
        ctx.fail(f"expected a kernel of at least one element along each axis, found {ctx.shape(w)[2:]}")
    given: dict[str, Any] = {"strides": strides, "pads": pads * 2, "dilations": dilations, "groups": groups}
    if transposed:
        return ctx.emit("conv_transpose", x, w, b, output_padding=_pair(extra, rank), **given)
    return ctx.emit("conv", x, w, b, **given)


def max_pool(
    ctx: ImportContext,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Convert max pooling.

    PyTorch's positions count within a plane, ours in the whole tensor.
    """
    rank = len(ctx.shape(x)) - 2
    size = _pair(kernel, rank)
    given: dict[str, Any] = {
        "strides": _pair(stride or size, rank),
        "pads": _pair(padding, rank) * 2,
        "dilations": _pair(dilation, rank),
    }
    values = ctx.emit("max_pool", x, kernel_shape=size, ceil_mode=bool(ceil_mode), **given)
    _, positions = ctx.emit("max_pool_positions", x, outputs=2, kernel_shape=size, ceil_mode=bool(ceil_mode), **given)
    plane = ctx.constant(math.prod(ctx.shape(x)[2:]), dtype=DType.I64)
    return (values, ctx.emit("mod", positions, plane))


def average_pool(
    ctx: ImportContext,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    padded: bool = True,
    divisor: Any = None,
) -> Any:
    """Convert average pooling, with a given `divisor` or the window's size."""
    rank = len(ctx.shape(x)) - 2
    size = _pair(kernel, rank)
    given: dict[str, Any] = {
        "strides": _pair(stride or size, rank),
        "pads": _pair(padding, rank) * 2,
        "ceil_mode": bool(ceil_mode),
    }
    return ctx.emit("average_pool", x, kernel_shape=size, count_include_pad=bool(padded), divisor=divisor, **given)


def equal_windows(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether equal windows divide each axis into the wanted number."""
    return all(n == m or (m and not n % m) for n, m in zip(sizes, wanted, strict=True))


def adaptive_pool(ctx: ImportContext, x: Value, sizes: Any, once: bool = False) -> Any:
    """Convert average pooling to given sizes.

    With `once` it converts at most one of several steps.
    """
    rank = len(ctx.shape(x)) - 2
    spatial, wanted = ctx.shape(x)[2:], _pair(sizes, rank)
    if equal_windows(spatial, wanted):
        window = tuple(n // m if m else 1 for n, m in zip(spatial, wanted, strict=True))
        return ctx.emit("average_pool", x, kernel_shape=window, strides=window)
    axis = next(axis for axis, (n, m) in enumerate(zip(spatial, wanted, strict=True)) if not equal_windows([n], [m]))
    places, weights = _windows_of_several_sizes(spatial[axis], wanted[axis])
    dtype = ctx.type(x).dtype
    y = ctx.emit("sample_axis", x, ctx.constant(places), ctx.constant(weights, dtype=dtype), axis=axis + 2)
    return y if once or ctx.shape(y)[2:] == wanted else adaptive_pool(ctx, y, wanted)


def allow_unbatched(convert: Convert, rank: int) -> Convert:
    """Return a conversion for `rank` spatial axes that also takes unbatched tensors."""

    def apply(ctx: ImportContext, *arguments: Any, **keywords: Any) -> Any:
        def add_batch(value: Any) -> Any:
            return unsqueeze(ctx, value, 0) if isinstance(value, Value) else value

        if len(ctx.shape(arguments[0])) == rank + 2:
            return convert(ctx, *arguments, **keywords)
        given = {name: add_batch(value) for name, value in keywords.items()}
        found = convert(ctx, *map(add_batch, arguments), **given)
        results = found if isinstance(found, tuple) else (found,)
        alone = tuple(ctx.reshape(y, ctx.shape(y)[1:]) for y in results)
        return alone if isinstance(found, tuple) else alone[0]

    return apply


def _windows_of_several_sizes(size: int, wanted: int) -> tuple[Any, Any]:
    """Return the positions of each window and their weights; shorter ones repeat their last with weight 0."""
    starts = [n * size // wanted for n in range(wanted)]
    ends = [-(-(n + 1) * size // wanted) for n in range(wanted)]
    longest = max((end - start for start, end in zip(starts, ends, strict=True)), default=1)
    places = [[min(start + r, end - 1) for r in range(longest)] for start, end in zip(starts, ends, strict=True)]
    weights = [
        [(start + r < end) / (end - start) for r in range(longest)] for start, end in zip(starts, ends, strict=True)
    ]
    return np.array(places, np.int64).reshape(wanted, longest), np.array(weights, float).reshape(wanted, longest)


def adaptive_max_pool(ctx: ImportContext, x: Value, sizes: Any) -> Any:
    """Convert max pooling to given sizes."""
    rank = len(ctx.shape(x)) - 2
    spatial, wanted = ctx.shape(x)[2:], _pair(sizes, rank)
    if not equal_windows(spatial, wanted):
        return _max_of_windows(ctx, x, wanted)
    return max_pool(ctx, x, tuple(n // m for n, m in zip(spatial, wanted, strict=True)))


def _max_of_windows(ctx: ImportContext, x: Value, wanted: tuple[int, ...]) -> tuple[Value, Value]:
    """Gather windows of several sizes along a new axis and take their maximum.

    Shorter windows repeat their last element.
    """
    spatial, rank = ctx.shape(x)[2:], len(wanted)
    tables = [_windows_of_several_sizes(n, m)[0] for n, m in zip(spatial, wanted, strict=True)]
    grid = [
        np.expand_dims(t, [n for n in range(2 * rank) if n not in (axis, rank + axis)]) for axis, t in enumerate(tables)
    ]
    taps = math.prod(table.shape[1] for table in tables)
    places = np.ravel_multi_index(np.broadcast_arrays(*grid), spatial).reshape(*wanted, taps)
    elements = ctx.emit("gather", ctx.reshape(x, (*ctx.shape(x)[:2], -1)), ctx.constant(places), axis=2)
    first = ctx.emit("argmax", elements, axis=-1, keepdims=False)
    starts = ctx.constant(np.arange(math.prod(wanted)).reshape(wanted) * taps)
    positions = ctx.emit("gather", ctx.constant(places.reshape(-1)), ctx.emit("add", first, starts), axis=0)
    return ctx.emit("reduce_max", elements, axes=(-1,), keepdims=False), positions


def columns_as_image(
    ctx: ImportContext, x: Value, sizes: Any, block: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """Convert the sum of all columns that cover a pixel."""
    pads = tuple(padding)
    more: dict[str, Any] = {"strides": tuple(stride), "pads": pads * 2, "dilations": tuple(dilation)}
    return ctx.emit("col2im", x, sizes=tuple(sizes), block=tuple(block), **more)


def grid_sample(
    ctx: ImportContext, x: Value, grid: Value, mode: int = 0, padding: int = 0, corners: bool = False
) -> Any:
    """Convert sampling at the places of a grid."""
    given: dict[str, Any] = {
        "mode": ("linear", "nearest", "cubic")[mode],
        "padding_mode": ("zeros", "border", "reflection")[padding],
    }
    return ctx.emit("grid_sample", x, grid, align_corners=bool(corners), **given)


def _cudnn_grid_sample(ctx: ImportContext, x: Value, grid: Value) -> Any:
    """Convert the sampling of cuDNN, which counts corners at the centres of their elements."""
    return grid_sample(ctx, x, grid, corners=True)


def _batched_columns(ctx: ImportContext, x: Value, *given: Any) -> Any:
    """Convert columns of a batch, or of one image."""
    if len(ctx.shape(x)) == 3:
        return columns_as_image(ctx, x, *given)
    y = columns_as_image(ctx, unsqueeze(ctx, x, 0), *given)
    return ctx.reshape(y, ctx.shape(y)[1:])


def _fractional_max_pool(ctx: ImportContext, x: Value, kernel: Any, sizes: Any, offsets: Value) -> Any:
    """Convert max pooling at fractional steps; of two axes PyTorch has the offset of the last one first."""
    rank = ctx.shape(offsets)[-1]
    batched = len(ctx.shape(x)) == rank + 2
    x = x if batched else unsqueeze(ctx, x, 0)
    given: dict[str, Any] = {"kernel_shape": _pair(kernel, rank), "sizes": _pair(sizes, rank)}
    if rank == 2:
        offsets = ctx.emit("slice", offsets, starts=(-1,), ends=(-rank - 1,), axes=(2,), steps=(-1,))
    found = ctx.emit("fractional_max_pool", x, offsets, outputs=2, **given)
    return found if batched else tuple(ctx.reshape(v, ctx.shape(v)[1:]) for v in found)


_POOLS: dict[str, tuple[Convert, int]] = {
    "adaptive_max_pool2d": (adaptive_max_pool, 2), "adaptive_max_pool3d": (adaptive_max_pool, 3),
    "max_pool2d_with_indices": (max_pool, 2), "max_pool3d_with_indices": (max_pool, 3), "avg_pool1d": (average_pool, 1),
    "avg_pool2d": (average_pool, 2), "avg_pool3d": (average_pool, 3), "_adaptive_avg_pool2d": (adaptive_pool, 2),
    "_adaptive_avg_pool3d": (adaptive_pool, 3),
    "adaptive_avg_pool1d": (adaptive_pool, 1),
}  # fmt: skip

TABLE: dict[str, Convert] = {
    "aten.convolution": convolution, "aten.cudnn_grid_sampler": _cudnn_grid_sample,
    "aten.grid_sampler_2d": grid_sample, "aten.grid_sampler_3d": grid_sample,
    "aten.col2im": _batched_columns, "aten.fractional_max_pool2d": _fractional_max_pool,
    "aten.fractional_max_pool3d": _fractional_max_pool,
    **{f"aten.{name}": allow_unbatched(convert, rank) for name, (convert, rank) in _POOLS.items()},
}  # fmt: skip

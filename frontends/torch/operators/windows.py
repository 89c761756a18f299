"""PyTorch's convolutions, pooling, resizing and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ....ir import DType
from ...resampling import Rule, axis_table
from ..reader import Convert, Reader, Value
from .movement import unsqueeze


def _pair(value: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """Return one integer per axis; PyTorch writes one for all of them."""
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * rank if len(items) == 1 else items


def convolution(
    reader: Reader,
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
    rank = len(reader.shape(w)) - 2
    strides, pads, dilations = _pair(stride, rank), _pair(padding, rank), _pair(dilation, rank)
    if not all(reader.shape(w)[2:]):
        reader.fail(f"expected a kernel of at least one element along each axis, found {reader.shape(w)[2:]}")
    given: dict[str, Any] = {"strides": strides, "pads": pads * 2, "dilations": dilations, "groups": groups}
    if transposed:
        return reader.emit("conv_transpose", x, w, b, output_padding=_pair(extra, rank), **given)
    return reader.emit("conv", x, w, b, **given)


def max_pool(
    reader: Reader,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Convert max pooling; PyTorch's positions count within a plane, ours in the whole tensor."""
    rank = len(reader.shape(x)) - 2
    size = _pair(kernel, rank)
    given: dict[str, Any] = {
        "strides": _pair(stride or size, rank),
        "pads": _pair(padding, rank) * 2,
        "dilations": _pair(dilation, rank),
    }
    values = reader.emit("max_pool", x, kernel_shape=size, ceil_mode=bool(ceil_mode), **given)
    _, positions = reader.emit(
        "max_pool_positions", x, outputs=2, kernel_shape=size, ceil_mode=bool(ceil_mode), **given
    )
    plane = reader.constant(math.prod(reader.shape(x)[2:]), dtype=DType.I64)
    return (values, reader.emit("mod", positions, plane))


def average_pool(
    reader: Reader,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    padded: bool = True,
    divisor: Any = None,
) -> Any:
    """Convert average pooling."""
    if divisor is not None:
        reader.fail("a divisor of one's own is not supported")
    rank = len(reader.shape(x)) - 2
    size = _pair(kernel, rank)
    given: dict[str, Any] = {
        "strides": _pair(stride or size, rank),
        "pads": _pair(padding, rank) * 2,
        "ceil_mode": bool(ceil_mode),
    }
    return reader.emit("average_pool", x, kernel_shape=size, count_include_pad=bool(padded), **given)


def equal_windows(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether windows of one size divide each axis into the wanted number."""
    return all(n == m or (m and not n % m) for n, m in zip(sizes, wanted, strict=True))


def adaptive_pool(reader: Reader, x: Value, sizes: Any, once: bool = False) -> Any:
    """Convert average pooling to given sizes; with `once` at most one of several steps that it takes."""
    rank = len(reader.shape(x)) - 2
    spatial, wanted = reader.shape(x)[2:], _pair(sizes, rank)
    if equal_windows(spatial, wanted):
        window = tuple(n // m if m else 1 for n, m in zip(spatial, wanted, strict=True))
        return reader.emit("average_pool", x, kernel_shape=window, strides=window)
    axis = next(axis for axis, (n, m) in enumerate(zip(spatial, wanted, strict=True)) if not equal_windows([n], [m]))
    places, weights = _windows_of_several_sizes(spatial[axis], wanted[axis])
    dtype = reader.type(x).dtype
    y = reader.emit("sample_axis", x, reader.constant(places), reader.constant(weights, dtype=dtype), axis=axis + 2)
    return y if once or reader.shape(y)[2:] == wanted else adaptive_pool(reader, y, wanted)


def _batched(convert: Convert, rank: int) -> Convert:
    """Return a conversion for `rank` axes of space that takes one element of a batch alone, too."""

    def apply(reader: Reader, x: Value, *arguments: Any, **keywords: Any) -> Any:
        if len(reader.shape(x)) == rank + 2:
            return convert(reader, x, *arguments, **keywords)
        found = convert(reader, unsqueeze(reader, x, 0), *arguments, **keywords)
        results = found if isinstance(found, tuple) else (found,)
        alone = tuple(reader.reshape(y, reader.shape(y)[1:]) for y in results)
        return alone if isinstance(found, tuple) else alone[0]

    return apply


def _windows_of_several_sizes(size: int, wanted: int) -> tuple[Any, Any]:
    """Return the places of each window and their weights;
    one shorter than the longest repeats its last place with the weight 0.
    """
    starts = [n * size // wanted for n in range(wanted)]
    ends = [-(-(n + 1) * size // wanted) for n in range(wanted)]
    longest = max((end - start for start, end in zip(starts, ends, strict=True)), default=1)
    places = [[min(start + r, end - 1) for r in range(longest)] for start, end in zip(starts, ends, strict=True)]
    weights = [
        [(start + r < end) / (end - start) for r in range(longest)] for start, end in zip(starts, ends, strict=True)
    ]
    return np.array(places, np.int64).reshape(wanted, longest), np.array(weights, float).reshape(wanted, longest)


def adaptive_max_pool(reader: Reader, x: Value, sizes: Any) -> Any:
    """Convert max pooling to given sizes."""
    rank = len(reader.shape(x)) - 2
    spatial, wanted = reader.shape(x)[2:], _pair(sizes, rank)
    if not equal_windows(spatial, wanted):
        return _max_of_windows(reader, x, wanted)
    return max_pool(reader, x, tuple(n // m for n, m in zip(spatial, wanted, strict=True)))


def _max_of_windows(reader: Reader, x: Value, wanted: tuple[int, ...]) -> tuple[Value, Value]:
    """Windows of several sizes have their elements along a new axis;
    an element that fills a shorter one up stands behind itself.
    """
    spatial, rank = reader.shape(x)[2:], len(wanted)
    tables = [_windows_of_several_sizes(n, m)[0] for n, m in zip(spatial, wanted, strict=True)]
    grid = [
        np.expand_dims(t, [n for n in range(2 * rank) if n not in (axis, rank + axis)]) for axis, t in enumerate(tables)
    ]
    taps = math.prod(table.shape[1] for table in tables)
    places = np.ravel_multi_index(np.broadcast_arrays(*grid), spatial).reshape(*wanted, taps)
    elements = reader.emit("gather", reader.reshape(x, (*reader.shape(x)[:2], -1)), reader.constant(places), axis=2)
    first = reader.emit("argmax", elements, axis=-1, keepdims=False)
    starts = reader.constant(np.arange(math.prod(wanted)).reshape(wanted) * taps)
    positions = reader.emit("gather", reader.constant(places.reshape(-1)), reader.emit("add", first, starts), axis=0)
    return reader.emit("reduce_max", elements, axes=(-1,), keepdims=False), positions


def upsample(mode: str) -> Convert:
    """Return the conversion of a way to resize: `nearest`, `linear` or `cubic`."""

    def convert(reader: Reader, x: Value, sizes: Any, *arguments: Any) -> Any:
        smooth = mode != "nearest"
        corners = smooth and bool(arguments and arguments[0])
        shape, rest = reader.shape(x), arguments[1:] if smooth else arguments
        listed = (
            rest[0] if rest and isinstance(rest[0], (list, tuple)) else rest
        )  # one list of factors, or one argument for each
        factors = [float(f) for f in listed if f is not None]
        target = (
            tuple(sizes) if sizes is not None else tuple(int(n * f) for n, f in zip(shape[2:], factors, strict=True))
        )
        place = "align_corners" if corners else "half_pixel" if smooth else "asymmetric"
        rule: dict[str, Any] = {} if smooth else {"nearest_mode": "floor"}
        if len(factors) == len(target) and not corners:  # they count, not what they make of whole sizes
            rule["scales"] = (1.0, 1.0, *factors)
        return reader.emit(f"resize_{mode}", x, sizes=shape[:2] + target, coordinate_transformation_mode=place, **rule)

    return convert


def nearest(exact: bool) -> Convert:
    """Return the conversion of taking the nearest element: `exact` from the middle of a place, else from its beginning.

    PyTorch finds it in single precision, which may round to the next element. Where it does so nowhere, the place is
    written in integers, else it is looked up.
    """
    rule: dict[str, Any] = {
        "coordinate_transformation_mode": "half_pixel" if exact else "asymmetric",
        "nearest_mode": "round_prefer_ceil" if exact else "floor",
    }

    def convert(reader: Reader, x: Value, sizes: Any, *given: Any) -> Any:
        shape = reader.shape(x)
        listed = given[0] if given and isinstance(given[0], (list, tuple)) else given
        factors = [float(f) for f in listed if f is not None]
        whole = tuple(int(n * f) for n, f in zip(shape[2:], factors, strict=False))
        target = tuple(sizes) if sizes is not None else whole
        counted = len(factors) == len(target)
        scales = factors if counted else [None] * len(target)
        tables = [_nearest_places(*each, exact) for each in zip(shape[2:], target, scales, strict=True)]
        if all(straight for _, straight in tables):
            more: dict[str, Any] = {"scales": (1.0, 1.0, *factors)} if counted else {}
            return reader.emit("resize_nearest", x, sizes=shape[:2] + target, **more, **rule)
        for n, (table, _) in enumerate(tables):
            x = reader.emit("gather", x, reader.constant(table), axis=n + 2)
        return x

    return convert


def _nearest_places(size: int, result: int, factor: float | None, exact: bool) -> tuple[Any, bool]:
    """Return which of `size` elements PyTorch takes for each place, and whether these are the nearest ones."""
    step = np.float32(size) / np.float32(result) if factor is None else np.float32(1 / factor)
    start = np.float32(0.5 if exact else 0.0)
    table = np.floor((np.arange(result, dtype=np.float32) + start) * step).astype(np.int64)
    ratio = Fraction(result, size) if factor is None else Fraction(factor).limit_denominator()
    right = [(2 * i + exact) * ratio.denominator // (2 * ratio.numerator) for i in range(result)]
    table = np.minimum(table, size - 1)
    return table, bool((table == np.minimum(right, size - 1)).all())


def _upsample_antialiased(kernel: str) -> Convert:
    """Return the conversion of resizing by a kernel that is as wide as what a place of the result stands for."""

    def convert(reader: Reader, x: Value, sizes: Sequence[int], corners: bool, *factors: float | None) -> Any:
        if corners:
            reader.fail("align_corners with antialias is not supported; expected align_corners=False")
        rule = Rule(kernel, cubic_a=-0.5, antialias=True, exclude_outside=True)
        kind, shape = reader.type(x).dtype, reader.shape(x)
        for n, size in enumerate(sizes):
            factor = factors[n] if n < len(factors) else None
            scale = size / shape[n + 2] if factor is None else factor
            places, weights, _ = axis_table(rule, shape[n + 2], size, scale)
            x = reader.emit("sample_axis", x, reader.constant(places), reader.constant(weights, dtype=kind), axis=n + 2)
        return x

    return convert


def columns_as_image(reader: Reader, x: Value, sizes: Any, block: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Convert the sum of all columns that cover a pixel."""
    pads = tuple(padding)
    more: dict[str, Any] = {"strides": tuple(stride), "pads": pads * 2, "dilations": tuple(dilation)}
    return reader.emit("col2im", x, sizes=tuple(sizes), block=tuple(block), **more)


def grid_sample(reader: Reader, x: Value, grid: Value, mode: int = 0, padding: int = 0, corners: bool = False) -> Any:
    """Convert sampling at the places of a grid."""
    given: dict[str, Any] = {
        "mode": ("linear", "nearest", "cubic")[mode],
        "padding_mode": ("zeros", "border", "reflection")[padding],
    }
    return reader.emit("grid_sample", x, grid, align_corners=bool(corners), **given)


def _batched_columns(reader: Reader, x: Value, *given: Any) -> Any:
    """Convert it for a batch, or for one image alone."""
    if len(reader.shape(x)) == 3:
        return columns_as_image(reader, x, *given)
    y = columns_as_image(reader, unsqueeze(reader, x, 0), *given)
    return reader.reshape(y, reader.shape(y)[1:])


_POOLS: dict[str, tuple[Convert, int]] = {
    "adaptive_max_pool2d": (adaptive_max_pool, 2), "adaptive_max_pool3d": (adaptive_max_pool, 3),
    "max_pool2d_with_indices": (max_pool, 2), "max_pool3d_with_indices": (max_pool, 3), "avg_pool1d": (average_pool, 1),
    "avg_pool2d": (average_pool, 2), "avg_pool3d": (average_pool, 3), "_adaptive_avg_pool2d": (adaptive_pool, 2),
    "_adaptive_avg_pool3d": (adaptive_pool, 3),
    "adaptive_avg_pool1d": (adaptive_pool, 1),
}  # fmt: skip

TABLE: dict[str, Convert] = {
    "aten.convolution": convolution, "aten.grid_sampler_2d": grid_sample, "aten.grid_sampler_3d": grid_sample,
    "aten.upsample_nearest2d": upsample("nearest"), "aten.upsample_bilinear2d": upsample("linear"),
    "aten.upsample_linear1d": upsample("linear"), "aten.upsample_trilinear3d": upsample("linear"),
    "aten.upsample_bicubic2d": upsample("cubic"), "aten.col2im": _batched_columns,
    "aten.upsample_nearest1d": nearest(False), "aten.upsample_nearest3d": nearest(False),
    **{f"aten._upsample_nearest_exact{rank}d": nearest(True) for rank in (1, 2, 3)},
    "aten._upsample_bilinear2d_aa": _upsample_antialiased("linear"),
    "aten._upsample_bicubic2d_aa": _upsample_antialiased("cubic"),
    **{f"aten.{name}": _batched(convert, rank) for name, (convert, rank) in _POOLS.items()},
}  # fmt: skip

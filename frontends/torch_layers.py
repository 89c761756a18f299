"""PyTorch's contractions, reductions, normalisations, pooling and resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..ir.types import DType
from .torch_reader import Convert, Reader, Value, dtype_of


def _pair(value: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """Return one integer per axis; PyTorch writes one for all of them."""
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * rank if len(items) == 1 else items


def convolution(
    reader: Reader, x: Value, w: Value, b: Value | None, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Any:
    """Convert a convolution, transposed or not."""
    rank = len(reader.shape(w)) - 2
    strides, pads, dilations = _pair(stride, rank), _pair(padding, rank), _pair(dilation, rank)
    given: dict[str, Any] = {"strides": strides, "pads": pads * 2, "dilations": dilations, "groups": groups}
    if transposed:
        return reader.emit("conv_transpose", x, w, b, output_padding=_pair(extra, rank), **given)
    return reader.emit("conv", x, w, b, **given)


def _mm(reader: Reader, a: Value, b: Value) -> Any:
    return reader.emit("matmul", a, b)


def _addmm(reader: Reader, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    return reader.emit("gemm", a, b, c, alpha=float(alpha), beta=float(beta))


def _baddbmm(reader: Reader, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    product = reader.emit("matmul", a, b)
    dtype = reader.type(product).dtype
    product = product if alpha == 1 else reader.emit("mul", product, reader.constant(alpha, dtype=dtype))
    return reader.emit("add", c if beta == 1 else reader.emit("mul", c, reader.constant(beta, dtype=dtype)), product)


# ---- reductions


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


# ---- normalisations


def _layer_norm(reader: Reader, x: Value, shape: Sequence[int], scale: Value | None, bias: Value | None, epsilon: float) -> Any:
    axis = -len(shape)
    weight = scale if scale is not None else reader.constant([1.0], dtype=reader.type(x).dtype)
    y = reader.emit("layer_norm", x, weight, bias, axis=axis, epsilon=float(epsilon))
    axes = tuple(range(len(reader.shape(x)) + axis, len(reader.shape(x))))
    return (y, *_statistics(reader, x, axes, epsilon))


def _statistics(reader: Reader, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """Return the mean and the reciprocal of the deviation, which a backward graph may ask for."""
    mean = reader.emit("reduce_mean", x, axes=tuple(axes), keepdims=True)
    variance = reader.emit("reduce_mean", reader.emit("mul", *(2 * [reader.emit("sub", x, mean)])), axes=tuple(axes), keepdims=True)
    shifted = reader.emit("add", variance, reader.constant(epsilon, dtype=reader.type(x).dtype))
    return mean, reader.emit("rsqrt", shifted)


def _batch_norm(
    reader: Reader, x: Value, scale: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, epsilon: float
) -> Any:
    scale, bias = _per_channel(reader, x, scale, 1), _per_channel(reader, x, bias, 0)
    return (reader.emit("batch_norm", x, scale, bias, mean, var, epsilon=float(epsilon)), None, None)


def _group_norm(
    reader: Reader, x: Value, scale: Value | None, bias: Value | None, n: int, c: int, inner: int, groups: int, epsilon: float
) -> Any:
    scale, bias = _per_channel(reader, x, scale, 1), _per_channel(reader, x, bias, 0)
    y = reader.emit("group_norm", x, scale, bias, num_groups=groups, epsilon=float(epsilon))
    rows = reader.emit("reshape", x, shape=(n, groups, c // groups * inner))
    return (y, *(reader.emit("reshape", v, shape=(n, groups)) for v in _statistics(reader, rows, (2,), epsilon)))


def _per_channel(reader: Reader, x: Value, value: Value | None, usual: float) -> Value:
    return value if value is not None else reader.constant([usual] * reader.shape(x)[1], dtype=reader.type(x).dtype)


def _dropout(reader: Reader, x: Value, ratio: float, training: bool | None = True) -> Any:
    if training is False or ratio == 0:
        return x, reader.constant(np.broadcast_to(np.True_, reader.shape(x)))
    return reader.emit("dropout_training", x, reader.seed(), results=2, ratio=float(ratio))


# ---- windows and resizing


def max_pool(reader: Reader, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    """Convert max pooling; PyTorch's positions count within a plane, ours in the whole tensor."""
    rank = len(reader.shape(x)) - 2
    size = _pair(kernel, rank)
    given: dict[str, Any] = {"strides": _pair(stride or size, rank), "pads": _pair(padding, rank) * 2, "dilations": _pair(dilation, rank)}
    values = reader.emit("max_pool", x, kernel_shape=size, ceil_mode=bool(ceil_mode), **given)
    _, positions = reader.emit("max_pool_positions", x, results=2, kernel_shape=size, ceil_mode=bool(ceil_mode), **given)
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
    given: dict[str, Any] = {"strides": _pair(stride or size, rank), "pads": _pair(padding, rank) * 2, "ceil_mode": bool(ceil_mode)}
    return reader.emit("average_pool", x, kernel_shape=size, count_include_pad=bool(padded), **given)


def adaptive_pool(reader: Reader, x: Value, sizes: Any, once: bool = False) -> Any:
    """Convert average pooling to given sizes; with `once` at most one of several steps that it takes."""
    rank = len(reader.shape(x)) - 2
    spatial, wanted = reader.shape(x)[2:], _pair(sizes, rank)
    if not any(n % m for n, m in zip(spatial, wanted, strict=True)):
        window = tuple(n // m for n, m in zip(spatial, wanted, strict=True))
        return reader.emit("average_pool", x, kernel_shape=window, strides=window)
    axis = next(axis for axis, (n, m) in enumerate(zip(spatial, wanted, strict=True)) if n % m)
    places, weights = _windows_of_several_sizes(spatial[axis], wanted[axis])
    dtype = reader.type(x).dtype
    y = reader.emit("sample_axis", x, reader.constant(places), reader.constant(weights, dtype=dtype), axis=axis + 2)
    return y if once or reader.shape(y)[2:] == wanted else adaptive_pool(reader, y, wanted)


def _windows_of_several_sizes(size: int, wanted: int) -> tuple[Any, Any]:
    """Return the places of each window and their weights, 0 where a window is shorter than the longest."""
    starts = [n * size // wanted for n in range(wanted)]
    ends = [-(-(n + 1) * size // wanted) for n in range(wanted)]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    places = np.array([[min(start + r, size - 1) for r in range(longest)] for start in starts])
    weights = np.array([[(start + r < end) / (end - start) for r in range(longest)] for start, end in zip(starts, ends, strict=True)])
    return places, weights


def adaptive_max_pool(reader: Reader, x: Value, sizes: Any) -> Any:
    """Convert max pooling to given sizes."""
    rank = len(reader.shape(x)) - 2
    spatial, wanted = reader.shape(x)[2:], _pair(sizes, rank)
    if any(n % m for n, m in zip(spatial, wanted, strict=True)):
        reader.fail(f"adaptive max pooling of {list(spatial)} to {list(wanted)} has windows of several sizes")
    return max_pool(reader, x, tuple(n // m for n, m in zip(spatial, wanted, strict=True)))


def upsample(mode: str) -> Convert:
    """Return the conversion of a way to resize."""

    def convert(reader: Reader, x: Value, sizes: Any, *arguments: Any) -> Any:
        corners = mode == "linear" and bool(arguments and arguments[0])
        shape = reader.shape(x)
        factors = arguments[-1] if arguments and isinstance(arguments[-1], (list, tuple)) else None
        target = tuple(sizes) if sizes is not None else tuple(int(n * f) for n, f in zip(shape[2:], factors or (), strict=True))
        if factors and any(n * f != m for n, f, m in zip(shape[2:], factors, target, strict=True)):
            reader.fail(f"sizes {list(target)} that are no whole multiples by {list(factors)} are not supported")
        place = "align_corners" if corners else "half_pixel" if mode == "linear" else "asymmetric"
        rule: dict[str, Any] = {} if mode == "linear" else {"nearest_mode": "floor"}
        return reader.emit(f"resize_{mode}", x, sizes=shape[:2] + target, coordinate_transformation_mode=place, **rule)

    return convert


def grid_sample(reader: Reader, x: Value, grid: Value, mode: int = 0, padding: int = 0, corners: bool = False) -> Any:
    """Convert sampling at the places of a grid."""
    given: dict[str, Any] = {"mode": ("linear", "nearest", "cubic")[mode], "padding_mode": ("zeros", "border", "reflection")[padding]}
    return reader.emit("grid_sample", x, grid, align_corners=bool(corners), **given)


def _attention(
    reader: Reader, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0, causal: bool = False, **more: Any
) -> Any:
    if dropout:
        reader.fail("attention with dropout is not supported; export the model for inference")
    scale, shape = more.get("scale"), reader.shape(q)
    q, k, v = (_four_axes(reader, value) for value in (q, k, v))
    if mask is not None and reader.type(mask).dtype is not DType.BOOL:
        mask = reader.cast(mask, reader.type(q).dtype)
    y = reader.emit("attention", q, k, v, mask, causal=bool(causal), scale=None if scale is None else float(scale))
    return y if len(shape) == 4 else reader.emit("reshape", y, shape=(*shape[:-1], reader.shape(y)[-1]))


def _flash_attention(reader: Reader, q: Value, k: Value, v: Value, dropout: float = 0, causal: bool = False, *_: Any, **more: Any) -> Any:
    """What PyTorch keeps for the gradient is not read where none is wanted."""
    y = _attention(reader, q, k, v, more.get("attn_mask"), dropout, causal, scale=more.get("scale"))
    return (y, *(None,) * 8)


def _four_axes(reader: Reader, value: Value) -> Value:
    """Return queries, keys or values with one axis for the batch and one for the heads."""
    shape = reader.shape(value)
    if len(shape) == 4:
        return value
    if len(shape) > 4:
        reader.fail(f"attention takes at most two leading axes, found shape {list(shape)}")
    return reader.emit("reshape", value, shape=(1,) * (4 - len(shape)) + shape)  # type: ignore[no-any-return]


TABLE: dict[str, Convert] = {
    "aten.convolution": convolution, "aten.mm": _mm, "aten.bmm": _mm, "aten.mv": _mm, "aten.dot": _mm, "aten.matmul": _mm,
    "aten.addmm": _addmm, "aten.baddbmm": _baddbmm, "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash_attention, "aten._scaled_dot_product_flash_attention": _flash_attention,
    "aten.sum": _reduce("reduce_sum"), "aten.mean": _reduce("reduce_mean"), "aten.amax": _reduce("reduce_max"),
    "aten.amin": _reduce("reduce_min"), "aten.prod": _reduce("reduce_prod"), "aten.var": _variance, "aten.var_mean": _variance_and_mean,
    "aten.max": _extreme("reduce_max", "argmax"), "aten.min": _extreme("reduce_min", "argmin"),
    "aten.argmax": _position("argmax"), "aten.argmin": _position("argmin"),
    "aten.any": _truth("reduce_max"), "aten.all": _truth("reduce_min"),
    "aten._softmax": _softmax("softmax"), "aten._log_softmax": _softmax("log_softmax"), "aten.topk": _top_k,
    "aten.cumsum": _cumulative("cumsum"), "aten.cumprod": _cumulative("cumprod"), "aten.linalg_vector_norm": _norm,
    "aten.sort.default": _sort, "aten.sort.stable": _sort_stable,
    "aten.adaptive_max_pool2d": adaptive_max_pool, "aten.adaptive_max_pool3d": adaptive_max_pool,
    "aten.native_layer_norm": _layer_norm, "aten._native_batch_norm_legit_no_training": _batch_norm, "aten.native_group_norm": _group_norm,
    "aten.native_dropout": _dropout,
    "aten.max_pool2d_with_indices": max_pool, "aten.max_pool3d_with_indices": max_pool,
    "aten.avg_pool1d": average_pool, "aten.avg_pool2d": average_pool, "aten.avg_pool3d": average_pool,
    "aten._adaptive_avg_pool2d": adaptive_pool, "aten._adaptive_avg_pool3d": adaptive_pool, "aten.adaptive_avg_pool1d": adaptive_pool,
    "aten.grid_sampler_2d": grid_sample, "aten.grid_sampler_3d": grid_sample,
    "aten.upsample_nearest2d": upsample("nearest"), "aten.upsample_bilinear2d": upsample("linear"),
}  # fmt: skip

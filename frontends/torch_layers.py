"""PyTorch's contractions, reductions, normalisations, pooling and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.types import DType
from .torch_reader import Convert, Reader, Value, dtype_of


def _pair(value: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """Return one integer per axis; PyTorch writes one for all of them."""
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * rank if len(items) == 1 else items


def _convolution(
    reader: Reader, x: Value, w: Value, b: Value | None, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Any:
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
        if axis is None:
            return reader.emit(values, x, keepdims=False)
        position = reader.emit(places, x, axis=axis, keepdims=bool(keep))
        return reader.emit(values, x, axes=(axis,), keepdims=bool(keep)), position

    return convert


def _position(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axis: int | None = None, keep: bool = False) -> Any:
        if axis is None:
            x, axis, keep = reader.emit("reshape", x, shape=(-1,)), 0, False
        return reader.emit(op, x, axis=axis, keepdims=bool(keep))

    return convert


def _truth(op: str) -> Convert:
    def convert(reader: Reader, x: Value, axes: Any = None, keep: bool = False) -> Any:
        number = reader.cast(reader.cast(x, DType.BOOL), DType.U8)
        chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(reader.shape(x))))
        return reader.cast(reader.emit(op, number, axes=chosen, keepdims=bool(keep)), DType.BOOL)

    return convert


def _softmax(op: str) -> Convert:
    return lambda reader, x, axis, half=False, **_: reader.emit(op, x, axis=axis)


def _cumsum(reader: Reader, x: Value, axis: int, dtype: torch.dtype | None = None) -> Any:
    kind = reader.type(x).dtype
    return reader.emit("cumsum", reader.cast(x, dtype_of(dtype) if dtype else kind if kind.is_float else DType.I64), axis=axis)


def _top_k(reader: Reader, x: Value, k: int, axis: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    return reader.emit("top_k", x, results=2, k=k, axis=axis, largest=bool(largest))


# ---- normalisations


def _layer_norm(reader: Reader, x: Value, shape: Sequence[int], scale: Value | None, bias: Value | None, epsilon: float) -> Any:
    axis = -len(shape)
    weight = scale if scale is not None else reader.constant([1.0], dtype=reader.type(x).dtype)
    return (reader.emit("layer_norm", x, weight, bias, axis=axis, epsilon=float(epsilon)), None, None)


def _batch_norm(
    reader: Reader, x: Value, scale: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, epsilon: float
) -> Any:
    scale, bias = _per_channel(reader, x, scale, 1), _per_channel(reader, x, bias, 0)
    return (reader.emit("batch_norm", x, scale, bias, mean, var, epsilon=float(epsilon)), None, None)


def _group_norm(
    reader: Reader, x: Value, scale: Value | None, bias: Value | None, n: int, c: int, inner: int, groups: int, epsilon: float
) -> Any:
    scale, bias = _per_channel(reader, x, scale, 1), _per_channel(reader, x, bias, 0)
    return (reader.emit("group_norm", x, scale, bias, num_groups=groups, epsilon=float(epsilon)), None, None)


def _per_channel(reader: Reader, x: Value, value: Value | None, usual: float) -> Value:
    return value if value is not None else reader.constant([usual] * reader.shape(x)[1], dtype=reader.type(x).dtype)


# ---- windows and resizing


def _max_pool(reader: Reader, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    """PyTorch's positions count within a plane, ours in the whole tensor."""
    rank = len(reader.shape(x)) - 2
    size = _pair(kernel, rank)
    given: dict[str, Any] = {"strides": _pair(stride or size, rank), "pads": _pair(padding, rank) * 2, "dilations": _pair(dilation, rank)}
    values = reader.emit("max_pool", x, kernel_shape=size, ceil_mode=bool(ceil_mode), **given)
    return (values, None)


def _average_pool(
    reader: Reader,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    padded: bool = True,
    divisor: Any = None,
) -> Any:
    if divisor is not None:
        reader.fail("a divisor of one's own is not supported")
    rank = len(reader.shape(x)) - 2
    size = _pair(kernel, rank)
    given: dict[str, Any] = {"strides": _pair(stride or size, rank), "pads": _pair(padding, rank) * 2, "ceil_mode": bool(ceil_mode)}
    return reader.emit("average_pool", x, kernel_shape=size, count_include_pad=bool(padded), **given)


def _adaptive_pool(reader: Reader, x: Value, sizes: Any) -> Any:
    rank = len(reader.shape(x)) - 2
    spatial, wanted = reader.shape(x)[2:], _pair(sizes, rank)
    if any(n % m for n, m in zip(spatial, wanted, strict=True)):
        reader.fail(f"adaptive pooling of {list(spatial)} to {list(wanted)} has windows of several sizes")
    window = tuple(n // m for n, m in zip(spatial, wanted, strict=True))
    return reader.emit("average_pool", x, kernel_shape=window, strides=window)


def _upsample(mode: str) -> Convert:
    def convert(reader: Reader, x: Value, sizes: Any, *arguments: Any) -> Any:
        corners = mode == "linear" and bool(arguments and arguments[0])
        shape = reader.shape(x)
        factors = arguments[-1] if arguments and isinstance(arguments[-1], (list, tuple)) else None
        target = tuple(sizes) if sizes is not None else tuple(int(n * f) for n, f in zip(shape[2:], factors or (), strict=True))
        place = "align_corners" if corners else "half_pixel" if mode == "linear" else "asymmetric"
        rule: dict[str, Any] = {} if mode == "linear" else {"nearest_mode": "floor"}
        return reader.emit(f"resize_{mode}", x, sizes=shape[:2] + target, coordinate_transformation_mode=place, **rule)

    return convert


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


def _four_axes(reader: Reader, value: Value) -> Value:
    """Return queries, keys or values with one axis for the batch and one for the heads."""
    shape = reader.shape(value)
    if len(shape) == 4:
        return value
    if len(shape) > 4:
        reader.fail(f"attention takes at most two leading axes, found shape {list(shape)}")
    return reader.emit("reshape", value, shape=(1,) * (4 - len(shape)) + shape)  # type: ignore[no-any-return]


TABLE: dict[str, Convert] = {
    "aten.convolution": _convolution, "aten.mm": _mm, "aten.bmm": _mm, "aten.mv": _mm, "aten.dot": _mm, "aten.matmul": _mm,
    "aten.addmm": _addmm, "aten.baddbmm": _baddbmm, "aten.scaled_dot_product_attention": _attention,
    "aten.sum": _reduce("reduce_sum"), "aten.mean": _reduce("reduce_mean"), "aten.amax": _reduce("reduce_max"),
    "aten.amin": _reduce("reduce_min"), "aten.prod": _reduce("reduce_prod"), "aten.var": _variance,
    "aten.max": _extreme("reduce_max", "argmax"), "aten.min": _extreme("reduce_min", "argmin"),
    "aten.argmax": _position("argmax"), "aten.argmin": _position("argmin"),
    "aten.any": _truth("reduce_max"), "aten.all": _truth("reduce_min"),
    "aten._softmax": _softmax("softmax"), "aten._log_softmax": _softmax("log_softmax"), "aten.cumsum": _cumsum, "aten.topk": _top_k,
    "aten.native_layer_norm": _layer_norm, "aten._native_batch_norm_legit_no_training": _batch_norm, "aten.native_group_norm": _group_norm,
    "aten.max_pool2d_with_indices": _max_pool, "aten.max_pool3d_with_indices": _max_pool,
    "aten.avg_pool1d": _average_pool, "aten.avg_pool2d": _average_pool, "aten.avg_pool3d": _average_pool,
    "aten._adaptive_avg_pool2d": _adaptive_pool, "aten._adaptive_avg_pool3d": _adaptive_pool, "aten.adaptive_avg_pool1d": _adaptive_pool,
    "aten.upsample_nearest2d": _upsample("nearest"), "aten.upsample_bilinear2d": _upsample("linear"),
}  # fmt: skip

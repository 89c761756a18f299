"""PyTorch's products of matrices, normalisations, dropout and attention."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ir import DType
from ...einsum import einsum_steps
from ..reader import Convert, Reader, Value


def _mm(reader: Reader, a: Value, b: Value) -> Any:
    """A product of matrices; of conditions, whether both hold anywhere along the inner axis."""
    if reader.type(a).dtype is not DType.BOOL:
        return reader.emit("matmul", a, b)
    counts = reader.emit("matmul", *(reader.cast(value, DType.I64) for value in (a, b)))
    return reader.cast(counts, DType.BOOL)


def _addmm(reader: Reader, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    return reader.emit("gemm", a, b, c, alpha=float(alpha), beta=float(beta))


def _baddbmm(reader: Reader, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    return _added(reader, c, reader.emit("matmul", a, b), beta, alpha)


def _addbmm(reader: Reader, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    """The sum of all products of a batch is one product, of matrices side by side."""
    (step,) = einsum_steps("bij,bjk->ik", [reader.shape(v) for v in (a, b)])
    product = reader.emit(
        "einsum", a, b, left=step.left, right=step.right or (), sizes=step.sizes, results=step.results
    )
    return _added(reader, c, product, beta, alpha)


def _added(reader: Reader, c: Value, product: Value, beta: float, alpha: float) -> Value:
    """Return beta * c + alpha * product; where beta is 0, nothing is read of c, as PyTorch documents."""
    dtype = reader.type(product).dtype
    product = product if alpha == 1 else reader.emit("mul", product, reader.constant(alpha, dtype=dtype))
    if beta == 0:
        return product
    scaled = c if beta == 1 else reader.emit("mul", c, reader.constant(beta, dtype=dtype))
    return reader.emit("add", scaled, product)  # type: ignore[no-any-return]


def _trilinear(
    reader: Reader, a: Value, b: Value, c: Value, new_a: Sequence[int], new_b: Sequence[int], new_c: Sequence[int],
    summed: Sequence[int],
    *_: Any,
) -> Any:  # fmt: skip
    """A product of three tensors, each with new axes where the others have one, summed over some;
    the first two make one sum first.
    """
    rank = len(reader.shape(a)) + len(new_a)
    letters = string.ascii_letters[:rank]
    terms = ["".join(c for n, c in enumerate(letters) if n not in new) for new in (new_a, new_b, new_c)]
    result = "".join(c for n, c in enumerate(letters) if n not in summed)
    first, second = einsum_steps(f"{','.join(terms)}->{result}", [reader.shape(v) for v in (a, b, c)])
    for step, other in ((first, b), (second, c)):
        a = reader.emit(
            "einsum", a, other, left=step.left, right=step.right or (), sizes=step.sizes, results=step.results
        )
    return a


# ---- normalisations


def _layer_norm(
    reader: Reader, x: Value, shape: Sequence[int], scale: Value | None, bias: Value | None, epsilon: float
) -> Any:
    axis, stored = -len(shape), reader.type(x).dtype
    x, scale, bias = _alike(reader, x, scale, bias)
    weight = scale if scale is not None else reader.constant([1.0], dtype=reader.type(x).dtype)
    y = reader.emit("layer_norm", x, weight, bias, axis=axis, epsilon=float(epsilon))
    axes = tuple(range(len(reader.shape(x)) + axis, len(reader.shape(x))))
    return (reader.cast(y, stored), *_statistics(reader, x, axes, epsilon))


def _alike(reader: Reader, x: Value, *others: Value | None) -> Any:
    """Return operands of a normalisation in one type. Under autocast a tensor of halves meets parameters of f32:
    PyTorch then computes in the wider type, and only the result has the tensor's.
    """
    dtype = reader.promoted(x, *(value for value in others if value is not None))
    return tuple(value if value is None else reader.cast(value, dtype) for value in (x, *others))


def _statistics(reader: Reader, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """Return the mean and the reciprocal of the deviation, which a backward graph may ask for."""
    mean = reader.emit("reduce_mean", x, axes=tuple(axes), keepdims=True)
    variance = reader.emit(
        "reduce_mean", reader.emit("mul", *(2 * [reader.emit("sub", x, mean)])), axes=tuple(axes), keepdims=True
    )
    shifted = reader.emit("add", variance, reader.constant(epsilon, dtype=reader.type(x).dtype))
    return mean, reader.emit("rsqrt", shifted)


def _batch_norm(
    reader: Reader,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    epsilon: float,
) -> Any:
    stored = reader.type(x).dtype
    x, scale, bias, mean, var = _alike(reader, x, scale, bias, mean, var)
    scale, bias = _per_channel(reader, x, scale, 1), _per_channel(reader, x, bias, 0)
    y = reader.emit("batch_norm", x, scale, bias, mean, var, epsilon=float(epsilon))
    return (reader.cast(y, stored), None, None)


def _group_norm(
    reader: Reader,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    n: int,
    c: int,
    inner: int,
    groups: int,
    epsilon: float,
) -> Any:
    stored = reader.type(x).dtype
    x, scale, bias = _alike(reader, x, scale, bias)
    scale, bias = _per_channel(reader, x, scale, 1), _per_channel(reader, x, bias, 0)
    y = reader.emit("group_norm", x, scale, bias, num_groups=groups, epsilon=float(epsilon))
    rows = reader.reshape(x, (n, groups, c // groups * inner))
    y = reader.cast(y, stored)
    return (y, *(reader.reshape(v, (n, groups)) for v in _statistics(reader, rows, (2,), epsilon)))


def _per_channel(reader: Reader, x: Value, value: Value | None, usual: float) -> Value:
    return value if value is not None else reader.constant([usual] * reader.shape(x)[1], dtype=reader.type(x).dtype)


def _dropout(reader: Reader, x: Value, ratio: float, training: bool | None = True) -> Any:
    if training is False or ratio == 0:
        return x, reader.constant(np.broadcast_to(np.True_, reader.shape(x)))
    return reader.emit("dropout_training", x, reader.seed(), outputs=2, ratio=float(ratio))


# ---- attention


def _attention(
    reader: Reader,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0,
    causal: bool = False,
    **more: Any,
) -> Any:
    if dropout:
        reader.fail("attention with dropout is not supported; export the model for inference")
    scale, shape = more.get("scale"), reader.shape(q)
    q, k, v = (_four_axes(reader, value) for value in (q, k, v))
    if mask is not None and reader.type(mask).dtype is not DType.BOOL:
        mask = reader.cast(mask, reader.type(q).dtype)
    y = reader.emit("attention", q, k, v, mask, causal=bool(causal), scale=None if scale is None else float(scale))
    return y if len(shape) == 4 else reader.reshape(y, (*shape[:-1], reader.shape(y)[-1]))


def _flash_attention(
    reader: Reader, q: Value, k: Value, v: Value, dropout: float = 0, causal: bool = False, *_: Any, **more: Any
) -> Any:
    """What PyTorch keeps for the gradient is not read where none is wanted."""
    y = _attention(reader, q, k, v, more.get("attn_mask"), dropout, causal, scale=more.get("scale"))
    return (y, *(None,) * 8)


def _efficient_attention(
    reader: Reader,
    q: Value,
    k: Value,
    v: Value,
    bias: Value | None,
    kept: bool,
    dropout: float = 0,
    causal: bool = False,
    **more: Any,
) -> Any:
    """What PyTorch calls for f32 on a GPU: with `kept` it returns what the gradient reads."""
    return (_attention(reader, q, k, v, bias, dropout, causal, scale=more.get("scale")), *(None,) * 3)


def _four_axes(reader: Reader, value: Value) -> Value:
    """Return queries, keys or values with one axis for the batch and one for the heads."""
    shape = reader.shape(value)
    if len(shape) == 4:
        return value
    if len(shape) > 4:
        reader.fail(f"attention takes at most two leading axes, found shape {list(shape)}")
    return reader.reshape(value, (1,) * (4 - len(shape)) + shape)  # type: ignore[no-any-return]


TABLE: dict[str, Convert] = {
    "aten.mm": _mm, "aten.bmm": _mm, "aten.mv": _mm, "aten.dot": _mm, "aten.matmul": _mm, "aten.addmm": _addmm,
    "aten.baddbmm": _baddbmm, "aten.addmv": _baddbmm, "aten.addbmm": _addbmm,
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "aten._scaled_dot_product_flash_attention": _flash_attention,
    "aten._scaled_dot_product_efficient_attention": _efficient_attention,
    "aten.native_layer_norm": _layer_norm, "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.native_group_norm": _group_norm, "aten.native_dropout": _dropout,
    "aten._trilinear": _trilinear,
}  # fmt: skip

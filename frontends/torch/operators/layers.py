"""PyTorch's products of matrices, normalisations, dropout and attention."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ....ir import DType, GraphError
from ...einsum import einsum_steps
from ..import_context import Convert, ImportContext, Value, dtype_of
from .movement import expand


def _mm(ctx: ImportContext, a: Value, b: Value) -> Any:
    """Convert a matrix product; of truth values, whether both hold anywhere along the inner axis."""
    if ctx.type(a).dtype is not DType.BOOL:
        return ctx.emit("matmul", a, b)
    counts = ctx.emit("matmul", *(ctx.cast(value, DType.I64) for value in (a, b)))
    return ctx.cast(counts, DType.BOOL)


_SCALED_BLOCK = 128  # elements of a block with a scale of its own


def scaled_mm(
    ctx: ImportContext, a: Value, b: Value, a_scale: Value, b_scale: Value, bias: Value | None = None,
    result_scale: Value | None = None, dtype: torch.dtype | None = None, *_: Any,
) -> Any:  # fmt: skip
    """Convert a product of 8-bit floats with scales.

    Both operands have one, one for each row and column, or for blocks of 128, the last one shorter.
    Raises `GraphError` for a scale of the result.
    """
    if result_scale is not None:
        raise GraphError("a scale of the result is not supported", hint="scale the result of aten._scaled_mm")
    kind = dtype_of(dtype) if dtype is not None else ctx.type(a).dtype
    scales = (v if len(ctx.shape(v)) == 2 else ctx.reshape(v, (1, 1)) for v in (a_scale, b_scale))
    to = kind if bias is None else DType.F32
    product = ctx.emit("scaled_matmul", a, b, *scales, to=to.value, block=_SCALED_BLOCK)
    return product if bias is None else ctx.cast(ctx.emit("add", product, ctx.cast(bias, DType.F32)), kind)


def _addmm(ctx: ImportContext, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    return ctx.emit("gemm", a, b, c, alpha=float(alpha), beta=float(beta))


def _baddbmm(ctx: ImportContext, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    return _scale_and_add(ctx, c, ctx.emit("matmul", a, b), beta, alpha)


def _addbmm(ctx: ImportContext, c: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Any:
    """Convert the sum of all products of a batch to one product of concatenated matrices."""
    (step,) = einsum_steps("bij,bjk->ik", [ctx.shape(v) for v in (a, b)])
    product = ctx.emit("einsum", a, b, left=step.left, right=step.right or (), sizes=step.sizes, results=step.results)
    return _scale_and_add(ctx, c, product, beta, alpha)


def _scale_and_add(ctx: ImportContext, c: Value, product: Value, beta: float, alpha: float) -> Value:
    """Return beta * c + alpha * product; where beta is 0, `c` is not read, as PyTorch documents."""
    dtype = ctx.type(product).dtype
    product = product if alpha == 1 else ctx.emit("mul", product, ctx.constant(alpha, dtype=dtype))
    if beta == 0:
        return product
    scaled = c if beta == 1 else ctx.emit("mul", c, ctx.constant(beta, dtype=dtype))
    return ctx.emit("add", scaled, product)  # type: ignore[no-any-return]


def _trilinear(
    ctx: ImportContext, a: Value, b: Value, c: Value, new_a: Sequence[int], new_b: Sequence[int], new_c: Sequence[int],
    summed: Sequence[int],
    *_: Any,
) -> Any:  # fmt: skip
    """Convert a product of three tensors, with new axes of extent one, summed over some axes.

    The first two are contracted first.
    """
    rank = len(ctx.shape(a)) + len(new_a)
    letters = string.ascii_letters[:rank]
    terms = ["".join(c for n, c in enumerate(letters) if n not in new) for new in (new_a, new_b, new_c)]
    result = "".join(c for n, c in enumerate(letters) if n not in summed)
    first, second = einsum_steps(f"{','.join(terms)}->{result}", [ctx.shape(v) for v in (a, b, c)])
    for step, other in ((first, b), (second, c)):
        a = ctx.emit("einsum", a, other, left=step.left, right=step.right or (), sizes=step.sizes, results=step.results)
    return a


# ---- normalisations


def _layer_norm(
    ctx: ImportContext, x: Value, shape: Sequence[int], scale: Value | None, bias: Value | None, epsilon: float
) -> Any:
    axis, stored = -len(shape), ctx.type(x).dtype
    x, scale, bias = _promote(ctx, x, scale, bias)
    weight = scale if scale is not None else ctx.constant([1.0], dtype=ctx.type(x).dtype)
    y = ctx.emit("layer_norm", x, weight, bias, axis=axis, epsilon=float(epsilon))
    axes = tuple(range(len(ctx.shape(x)) + axis, len(ctx.shape(x))))
    return (ctx.cast(y, stored), *_statistics(ctx, x, axes, epsilon))


def _promote(ctx: ImportContext, x: Value, *others: Value | None) -> Any:
    """Return operands of a normalisation in one type.

    Under autocast a half tensor meets parameters of f32: PyTorch then computes in the wider type, and only the result
    has the tensor's.
    """
    dtype = ctx.promoted_type(x, *(value for value in others if value is not None))
    return tuple(value if value is None else ctx.cast(value, dtype) for value in (x, *others))


def _statistics(ctx: ImportContext, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """Return the mean and the reciprocal deviation, which a backward graph may read."""
    mean = ctx.emit("reduce_mean", x, axes=tuple(axes), keepdims=True)
    variance = ctx.emit(
        "reduce_mean", ctx.emit("mul", *(2 * [ctx.emit("sub", x, mean)])), axes=tuple(axes), keepdims=True
    )
    shifted = ctx.emit("add", variance, ctx.constant(epsilon, dtype=ctx.type(x).dtype))
    return mean, ctx.emit("rsqrt", shifted)


def _batch_norm(
    ctx: ImportContext,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    epsilon: float,
) -> Any:
    stored = ctx.type(x).dtype
    x, scale, bias, mean, var = _promote(ctx, x, scale, bias, mean, var)
    scale, bias = _per_channel(ctx, x, scale, 1), _per_channel(ctx, x, bias, 0)
    y = ctx.emit("batch_norm", x, scale, bias, mean, var, epsilon=float(epsilon))
    return (ctx.cast(y, stored), None, None)


def _group_norm(
    ctx: ImportContext,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    n: int,
    c: int,
    inner: int,
    groups: int,
    epsilon: float,
) -> Any:
    stored = ctx.type(x).dtype
    x, scale, bias = _promote(ctx, x, scale, bias)
    scale, bias = _per_channel(ctx, x, scale, 1), _per_channel(ctx, x, bias, 0)
    y = ctx.emit("group_norm", x, scale, bias, num_groups=groups, epsilon=float(epsilon))
    rows = ctx.reshape(x, (n, groups, c // groups * inner))
    y = ctx.cast(y, stored)
    return (y, *(ctx.reshape(v, (n, groups)) for v in _statistics(ctx, rows, (2,), epsilon)))


def _per_channel(ctx: ImportContext, x: Value, value: Value | None, usual: float) -> Value:
    return value if value is not None else ctx.constant([usual] * ctx.shape(x)[1], dtype=ctx.type(x).dtype)


def _dropout(ctx: ImportContext, x: Value, ratio: float, training: bool | None = True) -> Any:
    if training is False or ratio == 0:
        return x, ctx.constant(np.broadcast_to(np.True_, ctx.shape(x)))
    return ctx.emit("dropout_training", x, ctx.seed(), outputs=2, ratio=float(ratio))


# ---- attention


def _attention(
    ctx: ImportContext,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0,
    causal: bool = False,
    **more: Any,
) -> Any:
    if dropout:
        ctx.fail("attention with dropout is not supported; export the model for inference")
    scale, shape = more.get("scale"), ctx.shape(q)
    if mask is not None:
        mask = mask if ctx.type(mask).dtype is DType.BOOL else ctx.cast(mask, ctx.type(q).dtype)
        mask = _mask_of_four_axes(ctx, mask, shape[:-3])
    q, k, v = (_four_axes(ctx, value, shape[:-3]) for value in (q, k, v))
    y = ctx.emit("attention", q, k, v, mask, causal=bool(causal), scale=None if scale is None else float(scale))
    return y if len(shape) == 4 else ctx.reshape(y, (*shape[:-1], ctx.shape(y)[-1]))


def _flash_attention(
    ctx: ImportContext, q: Value, k: Value, v: Value, dropout: float = 0, causal: bool = False, *_: Any, **more: Any
) -> Any:
    """Convert without the results for the gradient, which are not read where none is wanted."""
    y = _attention(ctx, q, k, v, more.get("attn_mask"), dropout, causal, scale=more.get("scale"))
    return (y, *(None,) * 8)


def _efficient_attention(
    ctx: ImportContext,
    q: Value,
    k: Value,
    v: Value,
    bias: Value | None,
    kept: bool,
    dropout: float = 0,
    causal: bool = False,
    **more: Any,
) -> Any:
    """Convert PyTorch's attention for f32 on a GPU; with `kept` it returns the results for the gradient."""
    return (_attention(ctx, q, k, v, bias, dropout, causal, scale=more.get("scale")), *(None,) * 3)


def _four_axes(ctx: ImportContext, value: Value, batch: tuple[int, ...]) -> Value:
    """Return queries, keys or values with one batch axis and one head axis."""
    shape = ctx.shape(value)
    if len(shape) == 4:
        return value
    if len(shape) < 4:
        return ctx.reshape(value, (1,) * (4 - len(shape)) + shape)  # type: ignore[no-any-return]
    return ctx.reshape(expand(ctx, value, (*batch, *shape[-3:])), (math.prod(batch), *shape[-3:]))  # type: ignore[no-any-return]


def _mask_of_four_axes(ctx: ImportContext, mask: Value, batch: tuple[int, ...]) -> Value:
    """Return a mask for queries of several batch axes."""
    shape = ctx.shape(mask)
    if len(batch) < 2 or len(shape) < 4:
        return mask
    given = batch if any(n != 1 for n in shape[:-3]) else (1,)
    return ctx.reshape(expand(ctx, mask, (*given, *shape[-3:])), (math.prod(given), *shape[-3:]))  # type: ignore[no-any-return]


TABLE: dict[str, Convert] = {
    "aten.mm": _mm, "aten.bmm": _mm, "aten.mv": _mm, "aten.dot": _mm, "aten.matmul": _mm, "aten.addmm": _addmm,
    "aten.baddbmm": _baddbmm, "aten.addmv": _baddbmm, "aten.addbmm": _addbmm,
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "aten._scaled_dot_product_flash_attention": _flash_attention,
    "aten._scaled_dot_product_efficient_attention": _efficient_attention,
    "aten.native_layer_norm": _layer_norm, "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.native_group_norm": _group_norm, "aten.native_dropout": _dropout,
    "aten._scaled_mm": scaled_mm,
    "aten._trilinear": _trilinear,
}  # fmt: skip

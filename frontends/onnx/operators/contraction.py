"""ONNX's sums of products: convolution, matrix products."""

from __future__ import annotations

import numpy as np

from ....ir import DType
from ..call import Convert, NodeCall
from .window import window_attributes


def _conv(call: NodeCall) -> None:
    kernel = call.ints("kernel_shape")
    spatial = call.type(1).shape[2:]
    if kernel is not None and kernel != spatial:
        call.fail(f"kernel_shape {list(kernel)} does not fit the filter's {list(spatial)}")
    given = window_attributes(call, spatial)
    call.result("conv", call.operand(0), call.operand(1), call.optional(2), groups=call.attribute("group", 1), **given)


def _conv_transpose(call: NodeCall) -> None:
    spatial, kernel = call.type(0).shape[2:], call.type(1).shape[2:]
    given = window_attributes(call, kernel)
    rank = len(kernel)
    extra = call.ints("output_padding") or (0,) * rank
    call.ints("kernel_shape")
    mode = call.attribute("auto_pad", "NOTSET") or "NOTSET"
    wanted = call.ints("output_shape")
    strides, dilations = call.ints("strides") or (1,) * rank, call.ints("dilations") or (1,) * rank
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(size * stride for size, stride in zip(spatial, strides, strict=True))
    if wanted is not None:
        full = [strides[n] * (spatial[n] - 1) + extra[n] + (kernel[n] - 1) * dilations[n] + 1 for n in range(rank)]
        small = tuple((full[n] - wanted[-rank:][n]) // 2 for n in range(rank))
        large = tuple(full[n] - wanted[-rank:][n] - small[n] for n in range(rank))
        given["pads"] = small + large if mode == "SAME_UPPER" else large + small
    groups = call.attribute("group", 1)
    call.result(
        "conv_transpose",
        call.operand(0),
        call.operand(1),
        call.optional(2),
        output_padding=extra,
        groups=groups,
        **given,
    )


def _gemm(call: NodeCall) -> None:
    given = {"alpha": call.attribute("alpha", 1.0), "beta": call.attribute("beta", 1.0)}
    flags = {"trans_a": bool(call.attribute("transA", 0)), "trans_b": bool(call.attribute("transB", 0))}
    call.result("gemm", call.operand(0), call.operand(1), call.optional(2), **given, **flags)


def _matmul(call: NodeCall) -> None:
    call.result("matmul", call.operand(0), call.operand(1))


def _determinant(call: NodeCall) -> None:
    """Convert to the product of the factors' diagonal, negative after an odd number of exchanges."""
    kind, shape = call.type(0).dtype, call.type(0).shape
    n, narrow = shape[-1], kind if kind in (DType.F32, DType.F64) else DType.F32
    if not n:
        call.give(call.constant(np.ones(shape[:-2]), kind))
        return
    value = call.operand(0) if narrow is kind else call.emit("cast", call.operand(0), to=narrow.value)
    factors, pivots = call.emit("lu", value, outputs=2)
    flat = call.emit("reshape", factors, shape=(*shape[:-2], n * n), allowzero=True)
    diagonal = call.emit("gather", flat, call.constant(np.arange(n) * (n + 1), DType.I64), axis=-1)
    moved = call.emit("not_equal", pivots, call.constant(np.arange(1, n + 1), DType.I32))
    signs = call.emit("where", moved, call.constant(-1, narrow), call.constant(1, narrow))
    product = call.emit("reduce_prod", call.emit("mul", diagonal, signs), axes=(-1,), keepdims=False)
    call.give(product if narrow is kind else call.emit("cast", product, to=kind.value))


TABLE: dict[str, Convert] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Det": _determinant,
}

"""torchvision's operations on regions and moved taps, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ir import DType
from ..import_context import Convert, ImportContext, Value
from .movement import slices


def _roi_align(
    ctx: ImportContext, x: Value, rois: Value, scale: float, height: int, width: int, samples: int, aligned: bool
) -> Any:
    """Convert the mean of samples; a number of samples below 1 means as many as a bin has pixels."""
    count = ctx.shape(rois)[0]
    image = ctx.cast(ctx.reshape(slices(ctx, rois, 1, 0, 1), (count,)), DType.I64)
    given: dict[str, Any] = {"sizes": (height, width), "scale": float(scale), "half_pixel": bool(aligned)}
    bounds = ctx.cast(slices(ctx, rois, 1, 1, 5), ctx.type(x).dtype)
    if samples > 0:
        return ctx.emit("roi_align", x, bounds, image, samples=samples, **given)
    return ctx.emit("roi_align_adaptive", x, bounds, image, **given)


def _roi_align_gradient(
    ctx: ImportContext, dy: Value, rois: Value, scale: float, height: int, width: int, *sizes_and_rest: Any
) -> Any:
    *shape, samples, aligned = sizes_and_rest
    image = ctx.constant(np.broadcast_to(np.zeros((), ctx.type(dy).dtype.numpy), tuple(shape)))
    return ctx.adjoint(_roi_align(ctx, image, rois, scale, height, width, samples, aligned), dy, [image])[0]


def _deform_conv(ctx: ImportContext, x: Value, w: Value, offset: Value, mask: Value, bias: Value, *windows: Any) -> Any:
    """Convert a convolution whose taps are moved; an unused mask has no meaning."""
    *pairs, _, offset_groups, masked = windows
    strides, pads, dilations = (tuple(pairs[n : n + 2]) for n in (0, 2, 4))
    given: dict[str, Any] = {"strides": strides, "pads": pads * 2, "dilations": dilations}
    operands = (x, w, offset, bias, mask if masked else None)
    return ctx.emit("deform_conv", *operands, offset_groups=offset_groups, **given)


def _deform_conv_gradient(
    ctx: ImportContext, dy: Value, x: Value, w: Value, offset: Value, mask: Value, bias: Value, *windows: Any
) -> Any:
    y, masked = _deform_conv(ctx, x, w, offset, mask, bias, *windows), windows[-1]
    dx, dw, moved, *weighted = ctx.adjoint(y, dy, [x, w, offset, *([mask] if masked else [])])
    total = ctx.emit("reduce_sum", dy, axes=(0, 2, 3), keepdims=False)
    return dx, dw, moved, weighted[0] if masked else ctx.zeros_like(mask), total


TABLE: dict[str, Convert] = {
    "torchvision.roi_align": _roi_align, "torchvision._roi_align_backward": _roi_align_gradient,
    "torchvision.deform_conv2d": _deform_conv, "torchvision._deform_conv2d_backward": _deform_conv_gradient,
}  # fmt: skip

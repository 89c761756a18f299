"""ONNX's sampling at computed positions, image blocks, einsum and constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...einsum import einsum_steps
from ..call import Convert, NodeCall
from ..protos import element_type
from ..type_promotion import TypePromotion, widest
from .window import window_attributes

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_sample(call: NodeCall) -> None:
    mode = call.attribute("mode", "linear")
    given = {
        "padding_mode": call.attribute("padding_mode", "zeros"),
        "align_corners": bool(call.attribute("align_corners", 0)),
    }
    call.result("grid_sample", call.operand(0), call.operand(1), mode=_MODES.get(mode, mode), **given)


def _affine_grid(call: NodeCall) -> None:
    """Convert an affine grid: points of the result times a matrix for each item of the batch.

    With aligned corners the standard's body divides by zero for an axis of one point, which is the middle in PyTorch.
    """
    size, theta = call.ints("size", 1), call.type(0)
    corners = bool(call.attribute("align_corners", 0))
    if size is None or len(size) not in (4, 5) or theta.shape != (size[0], len(size) - 2, len(size) - 1):
        call.fail(
            f"expected a matrix of D rows and D + 1 columns for each of {size and size[0]} items, found {theta}, for "
            f"the size {size}"
        )
    lines = [(2 * np.arange(n) - (n - 1)) / max(n - 1 if corners else n, 1) for n in size[2:]]
    points = np.stack([*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(size[2:])], axis=-1).reshape(
        -1, len(size) - 1
    )
    columns = call.emit("transpose", call.operand(0), perm=(0, 2, 1))
    moved = call.emit("matmul", call.constant(points, theta.dtype), columns)
    call.result("reshape", moved, shape=(size[0], *size[2:], len(size) - 2), allowzero=True)


def _einsum(call: NodeCall) -> None:
    operands = [call.operand(n) for n in range(len(call.inputs))]
    steps = einsum_steps(call.attribute("equation"), [call.builder.type_of(v).shape for v in operands])
    value: Any = operands[0]
    for number, step in enumerate(steps, 1):
        other = operands[number] if step.right is not None else None
        make = call.result if number == len(steps) else call.emit
        value = make(
            "einsum", value, other, left=step.left, right=step.right or (), sizes=step.sizes, results=step.results
        )


def _eye_like(call: NodeCall) -> None:
    shape = call.type(0).shape
    code = call.attribute("dtype", 0)
    dtype = element_type(code, call.where) if code else call.type(0).dtype
    call.give(call.constant(np.eye(shape[0], shape[1], call.attribute("k", 0)), dtype))


def _mel_weight_matrix(call: NodeCall) -> None:
    for position in range(len(call.inputs)):
        call.array(position, "which fixes the shape of the result")


def _deform_conv(call: NodeCall) -> None:
    """Convert a deformable convolution; groups follow from the shapes."""
    kernel = call.ints("kernel_shape") or call.type(1).shape[2:]
    call.attribute("group", 1)
    given = {**window_attributes(call, kernel), "offset_groups": call.attribute("offset_group", 1)}
    call.result("deform_conv", *(call.operand(n) for n in range(3)), call.optional(3), call.optional(4), **given)


def _roi_align(call: NodeCall) -> None:
    """Convert the mean, or the maximum, of samples; 0 means as many as a bin has pixels."""
    samples, how = call.attribute("sampling_ratio", 0), call.attribute("mode", "avg")
    if samples == 0 and how == "max":
        call.refuse("attribute 'sampling_ratio': the maximum of 0 samples, as many as a bin has pixels")
    mode = call.attribute("coordinate_transformation_mode", "half_pixel" if call.opset >= 16 else "output_half_pixel")
    given = {
        "sizes": (call.attribute("output_height", 1), call.attribute("output_width", 1)),
        "scale": call.attribute("spatial_scale", 1.0),
        "half_pixel": mode == "half_pixel",
    }
    operands = [call.operand(n) for n in range(3)]
    if samples == 0:
        call.result("roi_align_adaptive", *operands, **given)
    else:
        call.result("roi_align", *operands, samples=samples, mode=how, **given)


def _col2im(call: NodeCall) -> None:
    sizes, block = call.ints("image_shape", 1), call.ints("block_shape", 2)
    if sizes is None or block is None:
        call.fail("the shapes of the image and of a block are required")
    given = {name: call.ints(name) for name in ("strides", "pads", "dilations")}
    call.result("col2im", call.operand(0), sizes=sizes, block=block, **given)


TABLE: dict[str, Convert] = {
    "AffineGrid": _affine_grid,
    "GridSample": TypePromotion(_grid_sample, range(2), widest),
    "Einsum": _einsum,
    "EyeLike": _eye_like,
    "MelWeightMatrix": _mel_weight_matrix,
    "DeformConv": _deform_conv,
    "RoiAlign": _roi_align,
    "Col2Im": _col2im,
}

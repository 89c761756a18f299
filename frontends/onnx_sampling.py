"""ONNX's sampling at computed places, einsum and the small makers of constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from .einsum import einsum_steps
from .onnx_call import Call, Convert
from .onnx_model import element_type

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_sample(call: Call) -> None:
    mode = call.attribute("mode", "linear")
    given = {"padding_mode": call.attribute("padding_mode", "zeros"), "align_corners": bool(call.attribute("align_corners", 0))}
    call.result("grid_sample", call.operand(0), call.operand(1), mode=_MODES.get(mode, mode), **given)


def _einsum(call: Call) -> None:
    operands = [call.operand(n) for n in range(len(call.inputs))]
    steps = einsum_steps(call.attribute("equation"), [call.builder.type_of(v).shape for v in operands])
    value: Any = operands[0]
    for number, step in enumerate(steps, 1):
        other = operands[number] if step.right is not None else None
        make = call.result if number == len(steps) else call.emit
        value = make("einsum", value, other, left=step.left, right=step.right or (), sizes=step.sizes, results=step.results)


def _eye_like(call: Call) -> None:
    shape = call.type(0).shape
    code = call.attribute("dtype", 0)
    dtype = element_type(code, call.where) if code else call.type(0).dtype
    call.give(call.constant(np.eye(shape[0], shape[1], call.attribute("k", 0)), dtype))


def _mel_weight_matrix(call: Call) -> None:
    for position in range(len(call.inputs)):
        call.array(position, "which fixes the shape of the result")


TABLE: dict[str, Convert] = {
    "GridSample": _grid_sample,
    "Einsum": _einsum,
    "EyeLike": _eye_like,
    "MelWeightMatrix": _mel_weight_matrix,
}

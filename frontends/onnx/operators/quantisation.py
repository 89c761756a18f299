"""ONNX's operations on quantised integers.

Products are of integers, exactly; scales and zero points are applied around them.
"""

from __future__ import annotations

from typing import Any

from ....ir import DType
from ..call import Convert, NodeCall
from ..protos import element_type
from .window import window_attributes


def _quantize(call: NodeCall) -> None:
    call.attribute("saturate", 1)
    call.attribute("precision", 0)
    code = call.attribute("output_dtype", 0)
    zero = call.optional(2)
    dtype = call.builder.type_of(zero).dtype if zero else element_type(code, call.where) if code else DType.U8
    given = {"axis": call.attribute("axis", 1), "block": call.attribute("block_size", 0)}
    call.result("quantize", call.operand(0), call.operand(1), _zero_point(call, 1, 2), to=dtype.value, **given)


def _dequantize(call: NodeCall) -> None:
    call.attribute("output_dtype", 0)
    given = {"axis": call.attribute("axis", 1), "block": call.attribute("block_size", 0)}
    call.result("dequantize", call.operand(0), call.operand(1), _zero_point(call, 1, 2), **given)


def _zero_point(call: NodeCall, scale: int, zero: int) -> str | None:
    """Return a zero point in the shape of its scale.

    Of two scalars, exporters write one with an axis and one without.
    """
    point, wanted = call.optional(zero), call.type(scale)
    if point is None or call.type(zero).shape == wanted.shape or call.type(zero).size != 1 or wanted.size != 1:
        return point
    fitted: str = call.emit("reshape", point, shape=wanted.shape)
    return fitted


def _subtract_zero_point(call: NodeCall, position: int, zero: int, axis: int) -> str:
    """Return an operand of integers minus its zero point; a zero point per slice lies along an axis."""
    wide: str = call.emit("cast", call.operand(position), to="i32")
    point = call.optional(zero)
    if point is None:
        return wide
    shape = call.builder.type_of(point).shape
    point = call.emit("cast", point, to="i32")
    if shape and shape != (1,):
        rank = call.rank(position)
        point = call.emit("reshape", point, shape=tuple(-1 if n == axis % rank else 1 for n in range(rank)))
    value: str = call.emit("sub", wide, point)
    return value


def _matmul_integer(call: NodeCall) -> None:
    call.result("matmul", _subtract_zero_point(call, 0, 2, -2), _subtract_zero_point(call, 1, 3, -1))


def _conv(call: NodeCall, x: str, w: str, weight: int, bias: str | None = None) -> str:
    call.ints("kernel_shape")
    given: dict[str, Any] = {
        "groups": call.attribute("group", 1),
        **window_attributes(call, call.type(weight).shape[2:]),
    }
    value: str = call.emit("conv", x, w, bias, **given)
    return value


def _conv_integer(call: NodeCall) -> None:
    call.give(_conv(call, _subtract_zero_point(call, 0, 2, 0), _subtract_zero_point(call, 1, 3, 0), 1))


def _rescale(call: NodeCall, value: str, scales: tuple[int, int, int], zero: int, axis: int) -> None:
    """Define the result: integers times the scales of both operands, in the units of the result."""
    real = call.emit("cast", value, to="f32")
    factors = []
    for position in scales:
        scale: str = call.operand(position)
        kind = call.builder.type_of(scale)
        scale = scale if kind.dtype is DType.F32 else call.emit("cast", scale, to="f32")
        if kind.shape and kind.shape != (1,):
            rank = len(call.builder.type_of(value).shape)
            scale = call.emit("reshape", scale, shape=tuple(-1 if n == axis % rank else 1 for n in range(rank)))
        factors.append(scale)
    real = call.emit("mul", call.emit("mul", real, factors[0]), factors[1])
    call.result("quantize", real, factors[2], _zero_point(call, scales[2], zero), to=call.type(zero).dtype.value)


def _qlinear_matmul(call: NodeCall) -> None:
    value = call.emit("matmul", _subtract_zero_point(call, 0, 2, -2), _subtract_zero_point(call, 3, 5, -1))
    _rescale(call, value, (1, 4, 6), 7, -1)


def _qlinear_conv(call: NodeCall) -> None:
    value = _conv(call, _subtract_zero_point(call, 0, 2, 0), _subtract_zero_point(call, 3, 5, 0), 3, call.optional(8))
    _rescale(call, value, (1, 4, 6), 7, 1)


TABLE: dict[str, Convert] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}

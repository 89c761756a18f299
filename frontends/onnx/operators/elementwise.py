"""ONNX's elementwise operations: a table of names and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from ....ir import DType
from ..call import Convert, NodeCall
from ..protos import element_type
from ..type_promotion import TypePromotion, widest_real


@frozen
class Renamed:
    """Operation that has another name here.

    `attributes` maps ONNX attributes to (our name, ONNX default).
    """

    op: str
    attributes: Mapping[str, tuple[str, Any]] = {}

    def __call__(self, call: NodeCall) -> None:
        """Convert a node."""
        given = {ours: call.attribute(name, default) for name, (ours, default) in self.attributes.items()}
        call.result(self.op, *call.inputs, **given)


def _clip(call: NodeCall) -> None:
    """Convert a clip.

    Bounds are attributes before operator set 11; computed or integer bounds become `max` and `min`.
    """
    dtype = call.type(0).dtype
    bounds = [call.optional(1), call.optional(2)]
    static = all(bound is None or call.builder.constant(bound) is not None for bound in bounds)
    if dtype.is_float and static:
        call.result("clip", call.operand(0), min=call.number("min", 1), max=call.number("max", 2))
        return
    value = call.operand(0)
    for bound, op in zip(bounds, ("max", "min"), strict=True):
        value = value if bound is None else call.emit(op, value, bound)
    call.give(value)


def _cast(call: NodeCall) -> None:
    call.attribute("saturate", 1)
    call.attribute("round_mode", "up")
    _convert_type(call, element_type(call.attribute("to"), call.where))


def _cast_like(call: NodeCall) -> None:
    call.attribute("saturate", 1)
    _convert_type(call, call.type(1).dtype)


def _convert_type(call: NodeCall, dtype: DType) -> None:
    """Convert to an element type; floats become integers as in ONNX Runtime and in ONNX's evaluator.

    Both follow x86: a float beyond 32 or 64 bits, and NaN, become the lowest integer, whose low bits narrower types
    keep.
    """
    source = call.type(0).dtype
    if dtype is source:
        call.give(call.operand(0))
    elif dtype in (DType.F8E4M3, DType.F8E5M2) and source.is_float:
        call.result("cast", _saturate(call, dtype), to=dtype.value)
    elif not source.is_float or not dtype.is_int:
        call.result("cast", call.operand(0), to=dtype.value)
    elif dtype is DType.U64:
        call.give(_whole_u64(call, call.operand(0), source))
    else:
        wide = DType.I64 if dtype in (DType.U32, DType.I64) else DType.I32
        whole = _as_integers(call, call.operand(0), source, wide)
        call.give(whole if wide is dtype else call.emit("cast", whole, to=dtype.value))


def _saturate(call: NodeCall, dtype: DType) -> str:
    """Return an operand that is to become an 8-bit float, moved into its range.

    Those of `f8e4m3` are moved by the conversion. `FLOAT8E5M2` keeps infinities where it does not saturate.
    """
    saturates, largest = call.attribute("saturate", 1), float(dtype.element.largest)
    if not saturates and not dtype.element.infinite:
        call.refuse("conversions to FLOAT8E4M3FN saturate here", hint="set attribute 'saturate' to 1")
    if not saturates or not dtype.element.infinite:
        return call.operand(0)
    found: str = call.emit("clip", call.operand(0), min=-largest, max=largest)
    return found


def _as_integers(call: NodeCall, value: str, source: DType, wide: DType) -> str:
    """Return floats as signed integers, the lowest for those out of range and for NaN."""
    inside = call.emit("less", value, _power(call, source, 8 * wide.size - 1))
    lowest = call.constant(wide.element.lowest, wide)
    return str(call.emit("where", inside, call.emit("cast", value, to=wide.value), lowest))


def _whole_u64(call: NodeCall, value: str, source: DType) -> str:
    """Return floats as unsigned integers of 64 bits; from 2 ** 63 on the top bit is added after conversion."""
    bound = _power(call, source, 63)
    low = call.emit("cast", _as_integers(call, value, source, DType.I64), to="u64")
    rest = call.emit("cast", _as_integers(call, call.emit("sub", value, bound), source, DType.I64), to="u64")
    high = call.emit("add", rest, call.constant(1 << 63, DType.U64))
    return str(call.emit("where", call.emit("greater_or_equal", value, bound), high, low))


def _power(call: NodeCall, source: DType, exponent: int) -> str:
    """Return a power of two as a float, infinity beyond the type's range."""
    with np.errstate(over="ignore"):
        return call.constant(np.float64(2.0**exponent), source)


def _mod(call: NodeCall) -> None:
    call.result("mod", call.operand(0), call.operand(1), fmod=bool(call.attribute("fmod", 0)))


def _dropout(call: NodeCall) -> None:
    """Convert a dropout: at inference the input itself, with a mask that is true everywhere."""
    seed = call.attribute("seed", 0)
    ratio = call.number("ratio", 1, 0.5)
    training = call.array(2, "training_mode")
    if training is not None and training.any() and ratio:
        results = call.emit(
            "dropout_training", call.operand(0), call.constant(seed, DType.U32), outputs=2, ratio=float(ratio)
        )
        for position, value in enumerate(results[: len(call.outputs)]):
            call.give(value, position)
        return
    call.give(call.operand(0))
    if len(call.outputs) > 1 and call.outputs[1] is not None:
        call.give(call.builder.add_constant(np.broadcast_to(np.True_, call.type(0).shape), f"{call.origin}.mask"), 1)


def _identity(call: NodeCall) -> None:
    call.give(call.operand(0))


def _is_inf(call: NodeCall) -> None:
    signs = {name: bool(call.attribute(name, 1)) for name in ("detect_negative", "detect_positive")}
    call.result("is_inf", call.operand(0), **signs)


_SAME = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Neg Reciprocal Relu Round Sigmoid Sign Sin "
    "Sinh Softplus "
    "Softsign Sqrt Tan Tanh Mish Add Sub Mul Div Pow Equal Less Greater Sum Mean Max Min Where"
)
_OUR_NAMES = {
    "Not": "logical_not", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "LessOrEqual": "less_or_equal", "GreaterOrEqual": "greater_or_equal", "HardSwish": "hard_swish", "IsNaN": "is_nan",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "BitwiseNot": "bitwise_not",
    "PRelu": "prelu",
}  # fmt: skip

TABLE: dict[str, Convert] = {
    **{name: Renamed(name.lower()) for name in _SAME.split()},
    **{name: Renamed(op) for name, op in _OUR_NAMES.items()},
    "BitShift": Renamed("bit_shift", {"direction": ("direction", None)}),
    "LeakyRelu": Renamed("leaky_relu", {"alpha": ("alpha", 0.01)}),
    "Elu": Renamed("elu", {"alpha": ("alpha", 1.0)}),
    "Celu": Renamed("celu", {"alpha": ("alpha", 1.0)}),
    "Selu": Renamed("selu", {"alpha": ("alpha", 1.6732631921768188), "gamma": ("gamma", 1.0507010221481323)}),
    "HardSigmoid": Renamed("hard_sigmoid", {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}),
    "ThresholdedRelu": Renamed("thresholded_relu", {"alpha": ("alpha", 1.0)}),
    "Swish": Renamed("swish", {"alpha": ("alpha", 1.0)}),
    "Shrink": TypePromotion(Renamed("shrink", {"lambd": ("lambd", 0.5), "bias": ("bias", 0.0)}), range(1), widest_real),
    "Gelu": Renamed("gelu", {"approximate": ("approximate", "none")}),
    "Mod": _mod,
    "IsInf": _is_inf,
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Identity": _identity,
    "Dropout": _dropout,
}

"""ONNX's elementwise operations: most are ours by another name,
so most of this is one table of names and attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from ....ir import DType
from ..call import Convert, NodeCall
from ..model import element_type
from ..one_type import InOneType, real


@frozen
class Same:
    """An operation that is ours by another name; `attributes` maps ONNX attributes to (our name, ONNX default)."""

    op: str
    attributes: Mapping[str, tuple[str, Any]] = {}

    def __call__(self, call: NodeCall) -> None:
        """Convert a node."""
        given = {ours: call.attribute(name, default) for name, (ours, default) in self.attributes.items()}
        call.result(self.op, *call.inputs, **given)


def _clip(call: NodeCall) -> None:
    """Bounds were attributes before operator set 11; computed or integer bounds become `max` and `min`."""
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
    dtype = element_type(call.attribute("to"), call.where)
    if dtype is call.type(0).dtype:
        call.give(call.operand(0))
    else:
        call.result("cast", call.operand(0), to=dtype.value)


def _cast_like(call: NodeCall) -> None:
    call.attribute("saturate", 1)
    dtype = call.type(1).dtype
    if dtype is call.type(0).dtype:
        call.give(call.operand(0))
    else:
        call.result("cast", call.operand(0), to=dtype.value)


def _mod(call: NodeCall) -> None:
    call.result("mod", call.operand(0), call.operand(1), fmod=bool(call.attribute("fmod", 0)))


def _dropout(call: NodeCall) -> None:
    """At inference the input itself; the mask, where it is used, is then true everywhere."""
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
_RENAMED = {
    "Not": "logical_not", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "LessOrEqual": "less_or_equal", "GreaterOrEqual": "greater_or_equal", "HardSwish": "hard_swish", "IsNaN": "is_nan",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "BitwiseNot": "bitwise_not",
    "PRelu": "prelu",
}  # fmt: skip

TABLE: dict[str, Convert] = {
    **{name: Same(name.lower()) for name in _SAME.split()},
    **{name: Same(op) for name, op in _RENAMED.items()},
    "BitShift": Same("bit_shift", {"direction": ("direction", None)}),
    "LeakyRelu": Same("leaky_relu", {"alpha": ("alpha", 0.01)}),
    "Elu": Same("elu", {"alpha": ("alpha", 1.0)}),
    "Celu": Same("celu", {"alpha": ("alpha", 1.0)}),
    "Selu": Same("selu", {"alpha": ("alpha", 1.6732631921768188), "gamma": ("gamma", 1.0507010221481323)}),
    "HardSigmoid": Same("hard_sigmoid", {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}),
    "ThresholdedRelu": Same("thresholded_relu", {"alpha": ("alpha", 1.0)}),
    "Swish": Same("swish", {"alpha": ("alpha", 1.0)}),
    "Shrink": InOneType(Same("shrink", {"lambd": ("lambd", 0.5), "bias": ("bias", 0.0)}), range(1), real),
    "Gelu": Same("gelu", {"approximate": ("approximate", "none")}),
    "Mod": _mod,
    "IsInf": _is_inf,
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Identity": _identity,
    "Dropout": _dropout,
}

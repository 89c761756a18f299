"""The fixed table of scalar functions: meaning (NumPy), C text for both printers, and cost.

`flops` follows the usual convention of one operation per arithmetic result; `issue` is the rough number of issue slots
on a GPU (special-function and multi-instruction sequences cost more), used by the `bound` model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from attrs import frozen


@frozen
class Function:
    """A scalar function.

    `c` is a template over `{0}`, `{1}`, ... valid in CUDA C++ and OpenCL C for floats; `c_int` the one for integers
    where it differs. `result` says whether the value has the operands' type or is a bool, `exceeds` whether C, which
    computes with at least the bits of an int, can give narrower operands a value that their type has not.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    c: str
    flops: int = 1
    issue: int = 1
    result: Literal["same", "bool"] = "same"
    c_int: str = ""
    commutative: bool = False
    exceeds: bool = False


def _erf(x: Any) -> Any:
    """Error function in the precision of `x`, from the standard library's exact one."""
    import math

    return np.vectorize(math.erf, otypes=[np.asarray(x).dtype if np.asarray(x).dtype.kind == "f" else np.float64])(x)


def _divide(a: Any, b: Any) -> Any:
    """Float division, or integer division that truncates towards zero, as ONNX and C do."""
    if np.result_type(a, b).kind in "iu":
        wide = np.where(np.asarray(b) == 0, 1, b)
        return (np.sign(a) * np.sign(wide) * (np.abs(a) // np.abs(wide))).astype(np.result_type(a, b))
    return np.divide(a, b)


def _truncated_remainder(a: Any, b: Any) -> Any:
    return np.fmod(a, b)


_FLOAT_UNARY: dict[str, tuple[Callable[..., Any], str, int]] = {
    # name: (NumPy, C with the f suffix handled by the printer's type table, issue slots)
    "exp": (np.exp, "exp({0})", 4),
    "log": (np.log, "log({0})", 6),
    "sqrt": (np.sqrt, "sqrt({0})", 8),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), "rsqrt({0})", 4),
    "sin": (np.sin, "sin({0})", 20),
    "cos": (np.cos, "cos({0})", 20),
    "tan": (np.tan, "tan({0})", 30),
    "asin": (np.arcsin, "asin({0})", 20),
    "acos": (np.arccos, "acos({0})", 20),
    "atan": (np.arctan, "atan({0})", 20),
    "sinh": (np.sinh, "sinh({0})", 15),
    "cosh": (np.cosh, "cosh({0})", 12),
    "tanh": (np.tanh, "tanh({0})", 15),
    "asinh": (np.arcsinh, "asinh({0})", 20),
    "acosh": (np.arccosh, "acosh({0})", 20),
    "atanh": (np.arctanh, "atanh({0})", 20),
    "erf": (_erf, "erf({0})", 20),
    "floor": (np.floor, "floor({0})", 1),
    "ceil": (np.ceil, "ceil({0})", 1),
    "trunc": (np.trunc, "trunc({0})", 1),
    "round": (np.rint, "rint({0})", 1),
}

_TABLE = [
    Function("add", 2, np.add, "({0} + {1})", commutative=True, exceeds=True),
    Function("sub", 2, np.subtract, "({0} - {1})", exceeds=True),
    Function("mul", 2, np.multiply, "({0} * {1})", commutative=True, exceeds=True),
    Function("div", 2, _divide, "({0} / {1})", issue=8, exceeds=True),
    Function(
        "floormod",
        2,
        np.mod,
        "(fmod({0}, {1}) + (fmod({0}, {1}) != 0 && (fmod({0}, {1}) < 0) != ({1} < 0) ? {1} : 0))",
        issue=20,
        c_int="(({0} % {1} + {1}) % {1})",
    ),
    Function("fmod", 2, _truncated_remainder, "fmod({0}, {1})", issue=20, c_int="({0} % {1})"),
    Function("pow", 2, np.power, "pow({0}, {1})", issue=40, c_int="(long)pow((double){0}, (double){1})", exceeds=True),
    Function("min", 2, np.minimum, "fmin({0}, {1})", c_int="({0} < {1} ? {0} : {1})", commutative=True),
    Function("max", 2, np.maximum, "fmax({0}, {1})", c_int="({0} > {1} ? {0} : {1})", commutative=True),
    Function("neg", 1, np.negative, "(-{0})", exceeds=True),
    Function("abs", 1, np.abs, "fabs({0})", c_int="({0} < 0 ? -{0} : {0})", exceeds=True),
    Function(
        "sign", 1, np.sign, "({0} > 0 ? 1.0f : ({0} < 0 ? -1.0f : {0}))", issue=3, c_int="(({0} > 0) - ({0} < 0))"
    ),
    Function("lt", 2, np.less, "({0} < {1})", result="bool"),
    Function("le", 2, np.less_equal, "({0} <= {1})", result="bool"),
    Function("gt", 2, np.greater, "({0} > {1})", result="bool"),
    Function("ge", 2, np.greater_equal, "({0} >= {1})", result="bool"),
    Function("eq", 2, np.equal, "({0} == {1})", result="bool", commutative=True),
    Function("ne", 2, np.not_equal, "({0} != {1})", result="bool", commutative=True),
    Function("and", 2, np.logical_and, "({0} && {1})", result="bool", commutative=True),
    Function("or", 2, np.logical_or, "({0} || {1})", result="bool", commutative=True),
    Function("xor", 2, np.logical_xor, "({0} != {1})", result="bool", commutative=True),
    Function("not", 1, np.logical_not, "(!{0})", result="bool"),
    Function("isnan", 1, np.isnan, "({0} != {0})", result="bool"),
    Function("isinf", 1, np.isinf, "(fabs({0}) == cuts_inf())", result="bool"),
    Function("bitand", 2, np.bitwise_and, "({0} & {1})", commutative=True),
    Function("bitor", 2, np.bitwise_or, "({0} | {1})", commutative=True),
    Function("bitxor", 2, np.bitwise_xor, "({0} ^ {1})", commutative=True),
    Function("bitnot", 1, np.bitwise_not, "(~{0})", exceeds=True),
    Function("shl", 2, np.left_shift, "({0} << {1})", exceeds=True),
    Function("shr", 2, np.right_shift, "({0} >> {1})"),
    Function("select", 3, np.where, "({0} ? {1} : {2})"),
    *(Function(name, 1, fn, c, issue=issue) for name, (fn, c, issue) in _FLOAT_UNARY.items()),
]

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}

#: Identity element of each reduction, as a float.
COMBINERS: dict[str, float] = {
    "sum": 0.0,
    "prod": 1.0,
    "max": -np.inf,
    "min": np.inf,
    "argmax": -np.inf,
    "argmin": np.inf,
}
#: Binary function that each reduction repeats.
COMBINE_FUNCTION: dict[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}

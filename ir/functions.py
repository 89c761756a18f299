"""Tables of the scalar functions and of the reductions.

A function has its meaning in NumPy, the C text for both printers, and its cost.

`flops` follows the usual convention of one operation per arithmetic result; `issue` is the approximate number of issue
slots on a GPU (special functions and sequences of several instructions cost more), which the lower bound uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
from attrs import frozen

from .special_functions import log_gamma, polygamma, scaled_bessel
from .types import DType


@frozen
class Function:
    """Scalar function.

    `c` is a template over `{0}`, `{1}`, ... valid in CUDA C++ and OpenCL C for floats; `c_int` the one for integers
    where it differs. `{t}` stands for the name of the type computed in: cases that C leaves open (a NaN, an overflow, a
    division by zero) have a helper for each type in `backends/source/dialect/arithmetic.py`. `c_half` is the template
    for half types, whose few digits take fewer instructions, `issue_half` in place of `issue`, where there is one.
    `result` says whether the value has the operands' type or is a bool, `wraps` whether C's operator can give integers
    a value that their type has not: they are computed unsigned then, so that they wrap. `precise` says where a half
    type is too narrow: for the result, which outgrows one or cancels, or for the values computed inside. `domain` says
    for which operands there is such a function: a reinterpretation of bits, whose `result` is an element type, takes
    one type.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    c: str
    flops: int = 1
    issue: int = 1
    result: Literal["same", "bool"] | DType = "same"
    c_int: str = ""
    c_half: str = ""
    issue_half: int = 0
    commutative: bool = False
    wraps: bool = False
    precise: Literal["", "result", "inside"] = ""
    domain: Literal["numbers", "floats", "integers"] | DType = "numbers"

    def takes(self, dtype: DType) -> bool:
        """Return whether there is such a function of an element type."""
        if isinstance(self.domain, DType):
            return dtype is self.domain
        return self.domain == "numbers" or dtype.is_float == (self.domain == "floats")

    def result_type(self, operand: DType) -> DType:
        """Return the element type of the result for that of the operands."""
        return self.result if isinstance(self.result, DType) else DType.BOOL if self.result == "bool" else operand


def _erf(x: Any) -> Any:
    """Error function in the precision of `x`, from the standard library's exact one."""
    return np.vectorize(math.erf, otypes=[np.asarray(x).dtype if np.asarray(x).dtype.kind == "f" else np.float64])(x)


def _erfc(x: Any) -> Any:
    """One minus the error function, without the loss of digits of that difference."""
    return np.vectorize(math.erfc, otypes=[np.asarray(x).dtype if np.asarray(x).dtype.kind == "f" else np.float64])(x)


def _divide(a: Any, b: Any) -> Any:
    """Float division, or integer division towards zero, as ONNX and C do; by zero that is 0, as in NumPy."""
    if np.result_type(a, b).kind not in "iu":
        return np.divide(a, b)
    floor, rest = np.floor_divide(a, b), np.remainder(a, b)
    return floor + ((rest != 0) & ((np.asarray(a) < 0) != (np.asarray(b) < 0))).astype(floor.dtype)


def _power(a: Any, b: Any) -> Any:
    """Float power, or the exact one of integers, wrapped; a negative exponent gives the reciprocal, rounded towards
    zero (0 of 0).
    """
    if np.result_type(a, b).kind not in "iu":
        return np.power(a, b)
    base, exponent = np.broadcast_arrays(a, b)
    if base.dtype.kind == "u":
        return np.power(base, exponent)
    reciprocal = np.where(np.abs(base) == 1, np.where(exponent % 2 == 0, 1, base), 0)
    return np.where(exponent < 0, reciprocal, np.power(base, np.maximum(exponent, 0))).astype(base.dtype)


def _exponent(x: Any) -> Any:
    """Exponent of the greatest power of two up to a magnitude; that of 0 is 0, those of infinity and NaN are these."""
    exponent = np.where(x == 0, 0, np.frexp(x)[1] - 1).astype(np.asarray(x).dtype)
    return np.where(np.isfinite(x), exponent, np.abs(x))


def _ldexp(x: Any, exponent: Any) -> Any:
    """A number times a power of two, whose exponent is cut to an integer."""
    known = np.isnan(exponent)
    power = np.clip(np.where(known, 0, exponent), -9999, 9999).astype(np.int32)
    return np.where(known, exponent, np.ldexp(x, power))


def _reinterpretations() -> Iterator[Function]:
    """Yield the bits of floats as integers of equal size, and the floats of bits."""
    for real, bits in ((DType.F32, DType.I32), (DType.F64, DType.I64)):
        for name, given, found in ((f"bits_of_{real}", real, bits), (f"{real}_of_bits", bits, real)):
            numpy = partial(_reinterpret, given.numpy, found.numpy)
            yield Function(name, 1, numpy, f"cuts_{name}({{0}})", 0, result=found, domain=given)


def _reinterpret(given: Any, found: Any, x: Any) -> Any:
    return np.asarray(x).astype(given).view(found)


def _tf32(x: Any) -> Any:
    """Round to a significand of 11 bits, halves to even."""
    wide = np.asarray(x)
    bits = wide.astype(np.float32).view(np.uint32)
    odd = bits >> np.uint32(13) & np.uint32(1)
    rounded = ((bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(wide), rounded, wide).astype(wide.dtype if wide.dtype.kind == "f" else np.float64)


def _tf32_rest(x: Any) -> Any:
    """Return the remainder of rounding; NaN for an infinity."""
    wide = np.asarray(x)
    with np.errstate(invalid="ignore"):
        return wide - _tf32(wide)


#: Cut to 11 bits, a number times this is one of its two nearest, on average of random numbers neither too large nor too
#: small: one with a significand of m gets 0.36 * m of the last place more before it is cut. A number of f32.
TF32_NEAR = 1.0 + 2949 * 2.0**-23


def _tf32_near(x: Any) -> Any:
    """Scale in f32 so that cutting to 11 bits rounds; numbers of 11 bits stay the same."""
    wide = np.asarray(x)
    with np.errstate(over="ignore"):
        near = wide.astype(np.float32) * np.float32(TF32_NEAR)
    return near.astype(wide.dtype if wide.dtype.kind == "f" else np.float64)


def _tf32_cut(x: Any) -> Any:
    """Cut a significand to 11 bits, as matrix instructions cut their operands in TF32."""
    wide = np.asarray(x)
    cut = (wide.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(wide), cut, wide).astype(wide.dtype if wide.dtype.kind == "f" else np.float64)


_FLOAT_UNARY: dict[str, tuple[Callable[..., Any], str, int]] = {
    # name: (NumPy, C with the f suffix handled by the printer's type table, issue slots)
    "exp": (np.exp, "exp({0})", 4),
    "expm1": (np.expm1, "expm1({0})", 12),
    "log": (np.log, "log({0})", 6),
    "log1p": (np.log1p, "log1p({0})", 12),
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
    "erfc": (_erfc, "erfc({0})", 30),
    "lgamma": (log_gamma, "lgamma({0})", 60),
    "floor": (np.floor, "floor({0})", 1),
    "ceil": (np.ceil, "ceil({0})", 1),
    "trunc": (np.trunc, "trunc({0})", 1),
    "round": (np.rint, "rint({0})", 1),
}

#: The functions that PyTorch's autocast computes in f32, and roots, whose operands are variances.
_PRECISE: dict[str, Literal["", "result", "inside"]] = {
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "sinh", "cosh", "tan", "asin", "acos", "lgamma"), "result"),
    **dict.fromkeys(("sqrt", "rsqrt"), "inside"),
}

#: Functions of half types that are computed in f32 with its digits nearly, which takes less, and their instructions.
_HALF = {
    "exp": ("cuts_exp_half({0})", 4), "erf": ("cuts_erf_half({0})", 14), "erfc": ("cuts_erfc_half({0})", 14),
}  # fmt: skip

_TABLE = [
    Function("add", 2, np.add, "({0} + {1})", commutative=True, wraps=True),
    Function("sub", 2, np.subtract, "({0} - {1})", wraps=True),
    Function("mul", 2, np.multiply, "({0} * {1})", commutative=True, wraps=True),
    # The same, rounded before anything is added to it (`passes.lowering.fixed_roundings`).
    Function("product", 2, np.multiply, "cuts_product_{t}({0}, {1})", commutative=True, domain="floats"),
    Function("div", 2, _divide, "({0} / {1})", issue=8, c_int="cuts_div_{t}({0}, {1})"),
    # The same, as a thread computes it that divides several floats by one
    # (`passes.lowering.threads.reciprocal_division`): as exact, or as exact as a half type requires.
    Function("quotient", 2, _divide, "cuts_quotient_{t}({0}, {1})", issue=6, c_int="cuts_div_{t}({0}, {1})"),
    Function("near_quotient", 2, _divide, "cuts_near_quotient_{t}({0}, {1})", issue=2, c_int="cuts_div_{t}({0}, {1})"),
    # Division to two units in the last place, for quotients that are rounded to a half type.
    Function(
        "approximate_quotient",
        2,
        _divide,
        "cuts_approximate_quotient_{t}({0}, {1})",
        issue=6,
        c_int="cuts_div_{t}({0}, {1})",
    ),
    # The power of two that is the weight of a shifted score: subnormal results are 0.
    Function("near_exp2", 1, np.exp2, "cuts_near_exp2({0})", issue=2, domain="floats"),
    Function(
        "floormod",
        2,
        np.mod,
        "(fmod({0}, {1}) + (fmod({0}, {1}) != 0 && (fmod({0}, {1}) < 0) != ({1} < 0) ? {1} : 0))",
        issue=20,
        c_int="cuts_mod_{t}({0}, {1})",
    ),
    Function("fmod", 2, np.fmod, "fmod({0}, {1})", issue=20, c_int="cuts_rem_{t}({0}, {1})"),
    Function("pow", 2, _power, "pow({0}, {1})", issue=40, c_int="cuts_pow_{t}({0}, {1})", precise="result"),
    Function("min", 2, np.minimum, "cuts_min_{t}({0}, {1})", commutative=True),
    Function("max", 2, np.maximum, "cuts_max_{t}({0}, {1})", commutative=True),
    Function("atan2", 2, np.arctan2, "atan2({0}, {1})", issue=30),
    Function("hypot", 2, np.hypot, "hypot({0}, {1})", issue=12),
    Function(
        "logaddexp",
        2,
        np.logaddexp,
        "cuts_logaddexp_{t}({0}, {1})",
        4,
        24,
        commutative=True,
        precise="result",
        c_int="(fmax({0}, {1}) + log1p(exp(fmin({0}, {1}) - fmax({0}, {1}))))",
    ),
    # Derivatives of the logarithm of the gamma function, and Bessel functions times exp(-|x|): an integer order first.
    Function("polygamma", 2, polygamma, "cuts_polygamma_{t}({0}, {1})", issue=300, precise="result", domain="floats"),
    Function("bessel_ie", 2, scaled_bessel, "cuts_bessel_ie_{t}({0}, {1})", issue=300, domain="floats"),
    Function("gcd", 2, np.gcd, "cuts_gcd_{t}({0}, {1})", issue=300, commutative=True, domain="integers"),
    Function("copysign", 2, np.copysign, "copysign({0}, {1})"),
    Function("nextafter", 2, np.nextafter, "nextafter({0}, {1})", issue=12, domain="floats"),
    Function("ldexp", 2, _ldexp, "cuts_ldexp_{t}({0}, {1})", issue=8, domain="floats"),
    Function("logb", 1, _exponent, "cuts_logb_{t}({0})", issue=8, domain="floats"),
    Function("neg", 1, np.negative, "(-{0})", wraps=True),
    Function("abs", 1, np.abs, "fabs({0})", c_int="cuts_abs_{t}({0})"),
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
    Function("isnan", 1, np.isnan, "({0} != {0})", result="bool", c_int="0"),
    Function("isinf", 1, np.isinf, "(fabs({0}) == cuts_inf())", result="bool", c_int="0"),
    Function("bitand", 2, np.bitwise_and, "({0} & {1})", commutative=True, domain="integers"),
    Function("bitor", 2, np.bitwise_or, "({0} | {1})", commutative=True, domain="integers"),
    Function("bitxor", 2, np.bitwise_xor, "({0} ^ {1})", commutative=True, domain="integers"),
    Function("bitnot", 1, np.bitwise_not, "(~{0})", wraps=True, domain="integers"),
    Function("shl", 2, np.left_shift, "cuts_shl_{t}({0}, {1})", domain="integers"),
    Function("shr", 2, np.right_shift, "cuts_shr_{t}({0}, {1})", domain="integers"),
    Function("select", 3, np.where, "({0} ? {1} : {2})"),
    *_reinterpretations(),
    # Operands of matrix instructions, which cut f32 to 11 bits: a near number, or one of 11 bits and the remainder.
    Function("tf32_near", 1, _tf32_near, "cuts_tf32_near({0})", flops=0),
    Function("tf32", 1, _tf32, "cuts_tf32({0})", flops=0),
    Function("tf32_rest", 1, _tf32_rest, "cuts_tf32_rest({0})", flops=0),
    Function("tf32_cut", 1, _tf32_cut, "cuts_tf32_cut({0})", flops=0),
    *(
        Function(name, 1, fn, c, issue=issue, precise=_PRECISE.get(name, ""), c_half=half, issue_half=slots)
        for name, (fn, c, issue) in _FLOAT_UNARY.items()
        for half, slots in [_HALF.get(name, ("", 0))]
    ),
]

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}


@frozen
class Combiner:
    """Reduction by a function of two values, repeated in any order.

    `fn` names the function. `start` is its identity, as a real number; an infinity stands for the least or greatest
    value of a type. `position` marks reductions whose result is the position of the first such value, `floats` those
    without a meaning for integers.
    """

    name: str
    fn: str
    start: float
    position: bool = False
    floats: bool = False

    @property
    def function(self) -> Function:
        """The function it repeats."""
        return FUNCTIONS[self.fn]

    def arrive(self, array: np.ndarray[Any, Any], places: Any, values: np.ndarray[Any, Any]) -> None:
        """Combine values with elements of an array, in order."""
        if self.name != APPEND:
            self.function.numpy.at(array, places, values)  # type: ignore[attr-defined]
            return
        for place, value in zip(np.ravel(places), np.ravel(values), strict=True):
            end = int(array[place])
            array[place], array[end] = end + 1, value

    def identity(self, dtype: DType) -> float | int | bool:
        """Return the identity for an element type: the reduction over nothing."""
        if math.isinf(self.start):
            return dtype.element.lowest if self.start < 0 else dtype.element.highest
        return self.start if dtype.is_float else bool(self.start) if dtype is DType.BOOL else int(self.start)


_REDUCTIONS = (
    Combiner("sum", "add", 0.0),
    Combiner("prod", "mul", 1.0),
    Combiner("max", "max", -math.inf),
    Combiner("min", "min", math.inf),
    Combiner("logsumexp", "logaddexp", -math.inf, floats=True),
    Combiner("argmax", "max", -math.inf, position=True),
    Combiner("argmin", "min", math.inf, position=True),
)

#: The arrival of exactly one value at each element, which the value becomes: nothing is combined.
ONE_ARRIVAL = "one"
#: The arrival of values at a list: the element is the place in its tensor that the next value takes.
APPEND = "append"

COMBINERS: dict[str, Combiner] = {
    c.name: c for c in (*_REDUCTIONS, Combiner(ONE_ARRIVAL, "add", 0.0), Combiner(APPEND, "add", 0.0))
}
#: Reductions that yield a value, not its position; groups and kernels use only these.
VALUE_COMBINERS = frozenset(combiner.name for combiner in _REDUCTIONS if not combiner.position)
#: Reductions of the values that arrive at an element.
ARRIVALS = VALUE_COMBINERS | {ONE_ARRIVAL, APPEND}

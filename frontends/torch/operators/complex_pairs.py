"""PyTorch's complex tensors as pairs of real ones.

Operations that move or add elements apply to both parts by the tables for real tensors; products, magnitudes and
Fourier transforms have conversions here. Complex inputs and results of a whole graph have no type of ours:
`view_as_complex` and `view_as_real` stand at its borders.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen

from ....ir import DType
from ..import_context import Convert, ImportContext, Value
from .arithmetic import TABLE as ARITHMETIC
from .indexed import any_masked, refuse_choice
from .movement import TABLE as MOVEMENT
from .movement import unsqueeze

COMPLEX = {torch.complex32: DType.F16, torch.complex64: DType.F32, torch.complex128: DType.F64}
_TYPES = {real: kind for kind, real in COMPLEX.items()}
#: Integer powers up to this one are products.
MAX_MULTIPLIED_POWER = 4


@frozen
class Complex:
    """Real and imaginary part of a tensor."""

    real: Value
    imaginary: Value


def any_complex(argument: Any) -> bool:
    """Return whether an argument is complex, or a list with complex parts."""
    if isinstance(argument, (list, tuple)):
        return any(any_complex(a) for a in argument)
    return isinstance(argument, (Complex, complex))


def constant(ctx: ImportContext, tensor: torch.Tensor, hint: str) -> Complex:
    """Return a complex parameter."""
    parts = torch.view_as_real(tensor.detach().cpu().resolve_conj()).numpy()
    return Complex(*(ctx.constant(np.ascontiguousarray(parts[..., n]), hint) for n in range(2)))


# ---- arithmetic


def _real(op: str, ctx: ImportContext, a: Any, b: Any) -> Any:
    return ctx.emit(op, *ctx.promote(a, b))


def _parts(ctx: ImportContext, x: Any) -> tuple[Any, Any]:
    """Return the parts of an operand; the imaginary one of a real operand is the number 0."""
    if isinstance(x, Complex):
        return x.real, x.imaginary
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0.0)


def _sum(op: str) -> Convert:
    def convert(ctx: ImportContext, a: Any, b: Any, alpha: float = 1) -> Any:
        b = b if alpha == 1 else multiply(ctx, b, alpha)
        (re, im), (other, more) = _parts(ctx, a), _parts(ctx, b)
        shape = np.broadcast_shapes(*(ctx.shape(v) for v in (re, other) if isinstance(v, Value)))
        parts = (_real(op, ctx, re, other), _real(op, ctx, im, more))
        return Complex(*(ctx.emit("expand", v, shape=shape) if ctx.shape(v) != shape else v for v in parts))

    return convert


def product(op: str) -> Convert:
    """Return the conversion of a bilinear operation."""

    def convert(ctx: ImportContext, a: Any, b: Any) -> Any:
        (re, im), (other, more) = _parts(ctx, a), _parts(ctx, b)
        if not isinstance(b, (Complex, complex)):
            return Complex(_real(op, ctx, re, other), _real(op, ctx, im, other))
        if not isinstance(a, (Complex, complex)):
            return Complex(_real(op, ctx, re, other), _real(op, ctx, re, more))
        difference = ctx.emit("sub", _real(op, ctx, re, other), _real(op, ctx, im, more))
        return Complex(difference, ctx.emit("add", _real(op, ctx, re, more), _real(op, ctx, im, other)))

    return convert


multiply = product("mul")


def _absolute(ctx: ImportContext, x: Complex) -> Any:
    return ctx.emit("hypot", x.real, x.imaginary)


def _conjugate(ctx: ImportContext, x: Any) -> Any:
    return x.conjugate() if isinstance(x, complex) else Complex(x.real, ctx.emit("neg", x.imaginary))


def _reciprocal(ctx: ImportContext, x: Complex) -> Any:
    """Divide by the size twice: its square may overflow, or become 0."""
    size = _absolute(ctx, x)
    return _conjugate(ctx, _divide(ctx, _divide(ctx, x, size), size))


def _sign(ctx: ImportContext, x: Complex) -> Any:
    """Convert the number of size 1 at the same angle; that of 0 is 0."""
    size = _absolute(ctx, x)
    zero, one = (ctx.constant(number, dtype=ctx.type(size).dtype) for number in (0, 1))
    return _divide(ctx, x, ctx.emit("where", ctx.emit("equal", size, zero), one, size))


def _divide(ctx: ImportContext, a: Any, b: Any) -> Any:
    if isinstance(b, complex):
        return multiply(ctx, a, 1 / b)
    if isinstance(b, Complex):
        return multiply(ctx, a, _reciprocal(ctx, b))
    return Complex(_real("div", ctx, a.real, b), _real("div", ctx, a.imaginary, b))


def _product_along(ctx: ImportContext, x: Complex, axis: int | None = None, keepdim: bool = False, **_: Any) -> Any:
    """Convert the product of elements, whose halves are multiplied until one is left."""
    if axis is None or not ctx.shape(x.real):
        x, axis = _map_parts(ctx, "reshape", x, [math.prod(ctx.shape(x.real))]), 0
    axis %= len(ctx.shape(x.real))
    rest: list[Complex] = []
    while (count := ctx.shape(x.real)[axis]) > 1:
        first, second, *odd = (
            _map_parts(ctx, "slice", x, axis, start, min(start + count // 2, count))
            for start in range(0, count, count // 2)
        )
        rest += odd
        x = multiply(ctx, first, second)
    for other in rest:
        x = multiply(ctx, x, other)
    if not count:
        ctx.fail("products of no complex numbers are not supported")
    return x if keepdim else _map_parts(ctx, "squeeze", x, axis)


def _map_parts(ctx: ImportContext, name: str, x: Complex, *arguments: Any) -> Complex:
    """Apply a movement of elements to both parts."""
    return Complex(*(MOVEMENT[f"aten.{name}"](ctx, part, *arguments) for part in (x.real, x.imaginary)))


def _power(ctx: ImportContext, x: Complex, exponent: Any) -> Any:
    """Convert a real power: products for small integers, else the power of the size at a multiple of the angle."""
    if not isinstance(exponent, (int, float)):
        ctx.fail(f"complex numbers to the power of {exponent} are not supported")
    if exponent != int(exponent) or abs(exponent) > MAX_MULTIPLIED_POWER:
        angle = ctx.emit("mul", *ctx.promote(_angle(ctx, x), exponent))
        return polar(ctx, ctx.emit("pow", *ctx.promote(_absolute(ctx, x), exponent)), angle)
    if not exponent:
        return _full(ctx, ctx.shape(x.real), 1.0, _TYPES[ctx.type(x.real).dtype])
    found = functools.reduce(functools.partial(multiply, ctx), [x] * abs(int(exponent)))
    return _reciprocal(ctx, found) if exponent < 0 else found


def _cumulative_product(ctx: ImportContext, x: Complex, axis: int, **_: Any) -> Any:
    """Convert running products: each step multiplies by those that end twice as far away."""
    shape = ctx.shape(x.real)
    after, step = 2 * (len(shape) - 1 - axis % max(len(shape), 1)), 1
    while shape and step < shape[axis]:
        before = _map_parts(ctx, "slice", x, axis, 0, shape[axis] - step)
        x = multiply(ctx, x, _pad(ctx, before, [*[0] * after, step, 0], 1.0))
        step *= 2
    return x


def _compare(op: str, join: str) -> Convert:
    """Return the conversion of a comparison of both parts."""

    def convert(ctx: ImportContext, a: Any, b: Any) -> Any:
        pairs = zip(_parts(ctx, a), _parts(ctx, b), strict=True)
        return ctx.emit(join, *(_real(op, ctx, first, second) for first, second in pairs))

    return convert


def _hyperbolic_gradient(ctx: ImportContext, gradient: Any, y: Complex) -> Any:
    return multiply(ctx, gradient, _conjugate(ctx, _sum("sub")(ctx, 1.0, multiply(ctx, y, y))))


def polar(ctx: ImportContext, size: Any, angle: Value) -> Any:
    """Convert a number given by its size and angle."""
    return Complex(_real("mul", ctx, size, ctx.emit("cos", angle)), _real("mul", ctx, size, ctx.emit("sin", angle)))


# ---- from and to pairs in a last axis


def as_real(ctx: ImportContext, x: Complex) -> Any:
    """Return both parts along a new last axis."""
    last = len(ctx.shape(x.real))
    return ctx.emit("concat", unsqueeze(ctx, x.real, last), unsqueeze(ctx, x.imaginary, last), axis=last)


def as_complex(ctx: ImportContext, x: Value) -> Any:
    """Convert a last axis of real and imaginary parts."""
    shape = ctx.shape(x)[:-1]
    axis = len(shape)
    parts = [ctx.emit("slice", x, starts=(n,), ends=(n + 1,), axes=(axis,)) for n in range(2)]
    return Complex(*(ctx.reshape(part, shape) for part in parts))


# ---- conversion of nodes with complex operands


def _convert(ctx: ImportContext, x: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Convert between complex types; a real tensor gets an imaginary part of zeros."""
    kind = COMPLEX.get(dtype) if dtype is not None else None
    if isinstance(x, Complex):
        if dtype is not None and kind is None:
            ctx.fail("a complex tensor becomes a real one by its real part only; take .real")
        return x if kind is None else Complex(ctx.cast(x.real, kind), ctx.cast(x.imaginary, kind))
    assert kind is not None
    zeros = ctx.constant(np.broadcast_to(np.zeros((), kind.numpy), ctx.shape(x)))
    return Complex(ctx.cast(x, kind), zeros)


#: Conversions that make complex tensors of real ones.
TABLE: dict[str, Convert] = {
    "aten.complex": lambda ctx, re, im: Complex(re, im), "aten.polar": polar, "aten.view_as_complex": as_complex,
}  # fmt: skip
#: Conversions of complex tensors.
OF_COMPLEX: dict[str, Convert] = {
    "aten.add": _sum("add"), "aten.sub": _sum("sub"), "aten.mul": multiply, "aten.div": _divide,
    "aten.reciprocal": _reciprocal,
    "aten.abs": _absolute, "aten.sgn": _sign, "aten.pow": _power, "aten.prod": _product_along,
    "aten.cumprod": _cumulative_product, "aten.tanh_backward": _hyperbolic_gradient,
    "aten.eq": _compare("equal", "logical_and"), "aten.ne": _compare("not_equal", "logical_or"),
    "aten.view_as_real": as_real,
    "aten.exp": lambda ctx, x: _exponential(ctx, x), "aten.log": lambda ctx, x: _logarithm(ctx, x),
    "aten.sin": lambda ctx, x: _products(ctx, x, ("sin", "cosh"), ("cos", "sinh")),
    "aten.cos": lambda ctx, x: _conjugate(ctx, _products(ctx, x, ("cos", "cosh"), ("sin", "sinh"))),
    "aten.sinh": lambda ctx, x: _products(ctx, x, ("sinh", "cos"), ("cosh", "sin")),
    "aten.cosh": lambda ctx, x: _products(ctx, x, ("cosh", "cos"), ("sinh", "sin")),
    "aten.sqrt": lambda ctx, x: _square_root(ctx, x),
    "aten.tan": lambda ctx, x: _tangent(ctx, _tan(ctx, x.real), ctx.emit("tanh", x.imaginary), -1.0),
    "aten.tanh": lambda ctx, x: _tangent(ctx, ctx.emit("tanh", x.real), _tan(ctx, x.imaginary), 1.0),
    "aten.isnan": lambda ctx, x: ctx.emit("logical_or", *(ctx.emit("is_nan", part) for part in (x.real, x.imaginary))),
    "aten.where": lambda ctx, condition, a, b: _where(ctx, condition, a, b),
    "aten.constant_pad_nd": lambda *given: _pad(*given),
    "aten.angle": lambda ctx, x: _angle(ctx, x),
    "aten.scalar_tensor": lambda ctx, value, **more: _full(ctx, (), value, **more),
    "aten.full": lambda *given, **more: _full(*given, **more),
    "aten.new_empty_strided": lambda ctx, x, shape, strides, dtype=None, **_: _new(ctx, x, shape, dtype),
    "aten.real": lambda ctx, x: x.real, "aten.imag": lambda ctx, x: x.imaginary,
    "aten.conj": _conjugate, "aten._conj": _conjugate, "aten._conj_physical": _conjugate,
    "aten.conj_physical": _conjugate, "aten.mm": product("matmul"), "aten.bmm": product("matmul"),
    "aten.matmul": product("matmul"), "aten.mv": product("matmul"),
    "aten._to_copy": _convert,
    "aten.view.dtype": lambda ctx, *_: ctx.fail("views of complex numbers as another type are not supported"),
}  # fmt: skip
#: Operations that apply to both parts.
_TO_PARTS = (
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "select",
    "cat", "stack", "split_with_sizes", "split", "unbind", "index", "index_select", "gather", "flip", "repeat", "clone",
    "alias", "detach", "contiguous", "lift_fresh_copy", "sum", "mean", "neg", "cumsum", "unfold", "copy",
    "slice_scatter", "select_scatter", "index_put", "scatter", "scatter_add", "index_add", "as_strided", "diagonal",
    "triu", "tril", "roll", "zeros_like", "resolve_conj", "resolve_neg",
)  # fmt: skip


def _exponential(ctx: ImportContext, x: Complex) -> Any:
    return polar(ctx, ctx.emit("exp", x.real), x.imaginary)


def _logarithm(ctx: ImportContext, x: Complex) -> Any:
    return Complex(ctx.emit("log", _absolute(ctx, x)), _angle(ctx, x))


def _angle(ctx: ImportContext, x: Complex) -> Any:
    return ARITHMETIC["aten.atan2"](ctx, x.imaginary, x.real)


def _square_root(ctx: ImportContext, x: Complex) -> Any:
    """Return the root of half the angle."""
    angle = ctx.emit("mul", *ctx.promote(_angle(ctx, x), 0.5))
    return polar(ctx, ctx.emit("sqrt", _absolute(ctx, x)), angle)


def _tan(ctx: ImportContext, x: Value) -> Any:
    return ctx.emit("div", ctx.emit("sin", x), ctx.emit("cos", x))


def _tangent(ctx: ImportContext, re: Value, im: Value, sign: float) -> Any:
    """Return `(re + i im) / (1 + sign i re im)`, the addition theorem of the tangents, whose parts are bounded."""
    twist = ctx.emit("mul", *ctx.promote(ctx.emit("mul", re, im), sign))
    ones = ctx.emit("add", *ctx.promote(ctx.emit("mul", *ctx.promote(twist, 0.0)), 1.0))
    return _divide(ctx, Complex(re, im), Complex(ones, twist))


def _products(ctx: ImportContext, x: Complex, *names: tuple[str, str]) -> Any:
    """Return products, each of one function of the real part and one of the imaginary part."""
    return Complex(*(ctx.emit("mul", ctx.emit(f, x.real), ctx.emit(g, x.imaginary)) for f, g in names))


def _where(ctx: ImportContext, condition: Value, a: Any, b: Any) -> Any:
    pairs = zip(_parts(ctx, a), _parts(ctx, b), strict=True)
    return Complex(*(ctx.emit("where", condition, *ctx.promote(first, second)) for first, second in pairs))


def _pad(ctx: ImportContext, x: Complex, pads: Sequence[int], value: Any = 0) -> Any:
    pad = MOVEMENT["aten.constant_pad_nd"]
    return Complex(
        *(pad(ctx, part, pads, number) for part, number in zip(_parts(ctx, x), _parts(ctx, value), strict=True))
    )


def _full(
    ctx: ImportContext, shape: Sequence[int], value: complex, dtype: torch.dtype = torch.complex64, **_: Any
) -> Any:
    number, kind = complex(value), COMPLEX[dtype].numpy
    parts = (np.broadcast_to(np.asarray(n, kind), tuple(shape)) for n in (number.real, number.imag))
    return Complex(*(ctx.constant(part) for part in parts))


def _new(ctx: ImportContext, x: Complex, shape: Sequence[int], dtype: torch.dtype | None) -> Any:
    """Return a tensor without defined elements."""
    kind = dtype or _TYPES[ctx.type(x.real).dtype]
    return _full(ctx, shape, 0, kind) if kind in COMPLEX else MOVEMENT["aten.empty"](ctx, shape, dtype=kind)


def conversion(name: str, own: Mapping[str, Convert], table: Mapping[str, Convert]) -> Convert | None:
    """Return the conversion of an operation with complex operands, else None.

    It is the one in `own`, or the real one part by part.
    """
    packet = name if name in own else name.rpartition(".")[0]
    if packet in own:
        return own[packet]
    convert = table.get(name) or table.get(name.rpartition(".")[0])
    return _by_parts(convert) if convert is not None and packet.removeprefix("aten.") in _TO_PARTS else None


def _by_parts(convert: Convert) -> Convert:
    def apply(ctx: ImportContext, *arguments: Any, **keywords: Any) -> Any:
        whole = [_to_complex(ctx, a) for a in arguments]
        results = [convert(ctx, *(_part_of_argument(a, n) for a in whole), **keywords) for n in range(2)]
        if any(map(any_masked, results)):
            refuse_choice(ctx)
        if isinstance(results[0], (list, tuple)):
            return tuple(itertools.starmap(Complex, zip(*results, strict=True)))
        return Complex(*results)

    return apply


def _to_complex(ctx: ImportContext, argument: Any) -> Any:
    """Give real tensors imaginary parts; integers and truth values are indices, and stay."""
    if isinstance(argument, list):
        return [_to_complex(ctx, v) for v in argument]
    if isinstance(argument, Value) and ctx.type(argument).dtype.is_float:
        return _convert(ctx, argument, torch.complex128 if ctx.type(argument).dtype is DType.F64 else torch.complex64)
    return argument


def _part_of_argument(argument: Any, place: int) -> Any:
    if isinstance(argument, Complex):
        return argument.imaginary if place else argument.real
    return [_part_of_argument(a, place) for a in argument] if isinstance(argument, list) else argument

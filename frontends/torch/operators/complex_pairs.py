"""PyTorch's complex tensors as pairs of real ones.

What moves or adds elements is done to both parts by the tables for real tensors; products, sizes and Fourier transforms
have conversions here. Complex inputs and results of a whole graph have no type of ours: `view_as_complex` and
`view_as_real` stand at its borders.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen

from ....ir import DType
from ..reader import Convert, Reader, Value
from .arithmetic import TABLE as ARITHMETIC
from .masks import any_chosen, refuse_choice
from .movement import TABLE as MOVEMENT
from .movement import unsqueeze

COMPLEX = {torch.complex32: DType.F16, torch.complex64: DType.F32, torch.complex128: DType.F64}


@frozen
class Complex:
    """The real and the imaginary part of a tensor."""

    real: Value
    imaginary: Value


def any_complex(argument: Any) -> bool:
    """Whether an argument is, or a list of arguments has, a complex tensor."""
    if isinstance(argument, (list, tuple)):
        return any(any_complex(a) for a in argument)
    return isinstance(argument, (Complex, complex))


def constant(reader: Reader, tensor: torch.Tensor, hint: str) -> Complex:
    """Return a complex parameter."""
    parts = torch.view_as_real(tensor.detach().cpu().resolve_conj()).numpy()
    return Complex(*(reader.constant(np.ascontiguousarray(parts[..., n]), hint) for n in range(2)))


# ---- arithmetic


def _real(op: str, reader: Reader, a: Any, b: Any) -> Any:
    return reader.emit(op, *reader.common(a, b))


def _parts(reader: Reader, x: Any) -> tuple[Any, Any]:
    """Return the parts of an operand; the imaginary one of a real tensor or number is the number 0."""
    if isinstance(x, Complex):
        return x.real, x.imaginary
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0.0)


def _sum(op: str) -> Convert:
    def convert(reader: Reader, a: Any, b: Any, alpha: float = 1) -> Any:
        b = b if alpha == 1 else multiply(reader, b, alpha)
        (re, im), (other, more) = _parts(reader, a), _parts(reader, b)
        shape = np.broadcast_shapes(*(reader.shape(v) for v in (re, other) if isinstance(v, Value)))
        parts = (_real(op, reader, re, other), _real(op, reader, im, more))
        return Complex(*(reader.emit("expand", v, shape=shape) if reader.shape(v) != shape else v for v in parts))

    return convert


def product(op: str) -> Convert:
    """Return the conversion of what is linear in each of two operands."""

    def convert(reader: Reader, a: Any, b: Any) -> Any:
        (re, im), (other, more) = _parts(reader, a), _parts(reader, b)
        if not isinstance(b, (Complex, complex)):
            return Complex(_real(op, reader, re, other), _real(op, reader, im, other))
        if not isinstance(a, (Complex, complex)):
            return Complex(_real(op, reader, re, other), _real(op, reader, re, more))
        difference = reader.emit("sub", _real(op, reader, re, other), _real(op, reader, im, more))
        return Complex(difference, reader.emit("add", _real(op, reader, re, more), _real(op, reader, im, other)))

    return convert


multiply = product("mul")


def _square(reader: Reader, x: Complex) -> Any:
    return reader.emit("add", reader.emit("mul", x.real, x.real), reader.emit("mul", x.imaginary, x.imaginary))


def _absolute(reader: Reader, x: Complex) -> Any:
    return reader.emit("sqrt", _square(reader, x))


def _conjugate(reader: Reader, x: Complex) -> Any:
    return Complex(x.real, reader.emit("neg", x.imaginary))


def _reciprocal(reader: Reader, x: Complex) -> Any:
    size = _square(reader, x)
    return Complex(reader.emit("div", x.real, size), reader.emit("neg", reader.emit("div", x.imaginary, size)))


def _divide(reader: Reader, a: Any, b: Any) -> Any:
    if isinstance(b, complex):
        return multiply(reader, a, 1 / b)
    if isinstance(b, Complex):
        return multiply(reader, a, _reciprocal(reader, b))
    return Complex(_real("div", reader, a.real, b), _real("div", reader, a.imaginary, b))


def _power(reader: Reader, x: Complex, exponent: Any) -> Any:
    if exponent != 2:
        reader.fail(f"complex numbers to the power of {exponent} are not supported")
    return multiply(reader, x, x)


def polar(reader: Reader, size: Any, angle: Value) -> Any:
    """Convert a number given by its size and angle."""
    return Complex(
        _real("mul", reader, size, reader.emit("cos", angle)), _real("mul", reader, size, reader.emit("sin", angle))
    )


# ---- from and to pairs in a last axis


def as_real(reader: Reader, x: Complex) -> Any:
    """Return both parts along a new last axis."""
    last = len(reader.shape(x.real))
    return reader.emit("concat", unsqueeze(reader, x.real, last), unsqueeze(reader, x.imaginary, last), axis=last)


def as_complex(reader: Reader, x: Value) -> Any:
    """Convert a last axis of real and imaginary parts."""
    shape = reader.shape(x)[:-1]
    axis = len(shape)
    parts = [reader.emit("slice", x, starts=(n,), ends=(n + 1,), axes=(axis,)) for n in range(2)]
    return Complex(*(reader.reshape(part, shape) for part in parts))


# ---- how a node with complex operands is converted


def _to(reader: Reader, x: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Convert between complex types; a real tensor gets an imaginary part of zeros."""
    kind = COMPLEX.get(dtype) if dtype is not None else None
    if isinstance(x, Complex):
        if dtype is not None and kind is None:
            reader.fail("a complex tensor becomes a real one by its real part only; take .real")
        return x if kind is None else Complex(reader.cast(x.real, kind), reader.cast(x.imaginary, kind))
    assert kind is not None
    zeros = reader.constant(np.broadcast_to(np.zeros((), kind.numpy), reader.shape(x)))
    return Complex(reader.cast(x, kind), zeros)


#: Conversions that make complex tensors of real ones.
TABLE: dict[str, Convert] = {
    "aten.complex": lambda reader, re, im: Complex(re, im), "aten.polar": polar, "aten.view_as_complex": as_complex,
}  # fmt: skip
#: Conversions of complex tensors.
OF_COMPLEX: dict[str, Convert] = {
    "aten.add": _sum("add"), "aten.sub": _sum("sub"), "aten.mul": multiply, "aten.div": _divide,
    "aten.reciprocal": _reciprocal,
    "aten.abs": _absolute, "aten.pow": _power, "aten.view_as_real": as_real,
    "aten.exp": lambda reader, x: _exponential(reader, x),
    "aten.where": lambda reader, condition, a, b: _where(reader, condition, a, b),
    "aten.constant_pad_nd": lambda *given: _pad(*given),
    "aten.angle": lambda reader, x: ARITHMETIC["aten.atan2"](reader, x.imaginary, x.real),
    "aten.scalar_tensor": lambda reader, value, **more: _full(reader, (), value, **more),
    "aten.full": lambda *given, **more: _full(*given, **more),
    "aten.real": lambda reader, x: x.real, "aten.imag": lambda reader, x: x.imaginary,
    "aten.conj": _conjugate, "aten._conj": _conjugate, "aten._conj_physical": _conjugate,
    "aten.conj_physical": _conjugate, "aten.mm": product("matmul"), "aten.bmm": product("matmul"),
    "aten.matmul": product("matmul"), "aten.mv": product("matmul"),
    "aten._to_copy": _to,
}  # fmt: skip
#: Operations that do the same to both parts.
_TO_PARTS = (
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "select",
    "cat", "stack", "split_with_sizes", "split", "unbind", "index", "index_select", "gather", "flip", "repeat", "clone",
    "alias", "detach", "contiguous", "lift_fresh_copy", "sum", "mean", "neg", "cumsum", "unfold", "copy",
    "slice_scatter", "select_scatter", "as_strided", "diagonal",
    "resolve_conj", "resolve_neg",
)  # fmt: skip


def _exponential(reader: Reader, x: Complex) -> Any:
    return polar(reader, reader.emit("exp", x.real), x.imaginary)


def _where(reader: Reader, condition: Value, a: Any, b: Any) -> Any:
    pairs = zip(_parts(reader, a), _parts(reader, b), strict=True)
    return Complex(*(reader.emit("where", condition, *reader.common(first, second)) for first, second in pairs))


def _pad(reader: Reader, x: Complex, pads: Sequence[int], value: Any = 0) -> Any:
    pad = MOVEMENT["aten.constant_pad_nd"]
    return Complex(
        *(
            pad(reader, part, pads, number)
            for part, number in zip(_parts(reader, x), _parts(reader, value), strict=True)
        )
    )


def _full(reader: Reader, shape: Sequence[int], value: complex, dtype: torch.dtype = torch.complex64, **_: Any) -> Any:
    number, kind = complex(value), COMPLEX[dtype].numpy
    parts = (np.broadcast_to(np.asarray(n, kind), tuple(shape)) for n in (number.real, number.imag))
    return Complex(*(reader.constant(part) for part in parts))


def conversion(name: str, own: Mapping[str, Convert], table: Mapping[str, Convert]) -> Convert | None:
    """Return how an operation with complex operands is converted: as it has it in `own`, or part by part;
    None where it cannot be.
    """
    packet = name if name in own else name.rpartition(".")[0]
    if packet in own:
        return own[packet]
    convert = table.get(name) or table.get(name.rpartition(".")[0])
    return _by_parts(convert) if convert is not None and packet.removeprefix("aten.") in _TO_PARTS else None


def _by_parts(convert: Convert) -> Convert:
    def apply(reader: Reader, *arguments: Any, **keywords: Any) -> Any:
        whole = [_promoted(reader, a) for a in arguments]
        results = [convert(reader, *(_part(a, n) for a in whole), **keywords) for n in range(2)]
        if any(map(any_chosen, results)):
            refuse_choice(reader)
        if isinstance(results[0], (list, tuple)):
            return tuple(itertools.starmap(Complex, zip(*results, strict=True)))
        return Complex(*results)

    return apply


def _promoted(reader: Reader, argument: Any) -> Any:
    """Give real tensors imaginary parts; integers and truth values say where, and stay."""
    if isinstance(argument, list):
        return [_promoted(reader, v) for v in argument]
    if isinstance(argument, Value) and reader.type(argument).dtype.is_float:
        return _to(reader, argument, torch.complex128 if reader.type(argument).dtype is DType.F64 else torch.complex64)
    return argument


def _part(argument: Any, place: int) -> Any:
    if isinstance(argument, Complex):
        return argument.imaginary if place else argument.real
    return [_part(a, place) for a in argument] if isinstance(argument, list) else argument

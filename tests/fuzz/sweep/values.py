"""Values of operands: ordinary numbers, ends of types, and values between.

A program decides its possible values. Where floats are added or multiplied up, the order decides about overflows on the
way, so the greatest finite numbers are left out there; infinities and NaN are not. Where floats become integers they
are numbers that every integer type holds; other numbers have no defined conversion. Factors of the zeros of a table, or
of values of indices alone, are left out of sums (transforms are shortened so), and with it an infinity or a NaN: there
numbers are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cuts.ir.expr import Cast, dtype_of
from cuts.ir.statement import Program
from cuts.ir.traversal import distinct
from cuts.ir.types import DType, TensorType

from ...kernels.extremes import extremes

Array = np.ndarray[Any, Any]
Maker = Callable[[np.random.Generator, TensorType, bool], Array]
#: Floats that no sum of a few makes too large.
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, 2.5, 3.0, 1e-3, -7.25)


def operands(program: Program, types: Mapping[str, TensorType], seed: int, number: int) -> dict[str, Array]:
    """Return data set `number` for the operands of a program."""
    rng = np.random.default_rng([seed, number])
    wanted = conversions(program)
    if wanted:
        low = 0.5 if any(d.element.lowest == 0 for d in wanted) else -60.0
        return {name: _convertible(rng, type_, low) for name, type_ in types.items()}
    if transforms(program):
        return {name: _tame(rng, type_, False).astype(type_.dtype.numpy) for name, type_ in types.items()}
    ends, (turn, kind_of) = not adds_up(program), divmod(number, len(KINDS) + 1)
    if kind_of == len(KINDS):
        return {n: _pair_values(t, ends, order, turn) for order, (n, t) in enumerate(types.items())}
    common = KINDS[kind_of]
    arrays = {}
    for name, type_ in types.items():
        kind = common if rng.integers(3) else KINDS[int(rng.integers(len(KINDS)))]
        with np.errstate(over="ignore"):
            arrays[name] = np.asarray(kind(rng, type_, ends)).astype(type_.dtype.numpy)
    return arrays


def adds_up(program: Program) -> bool:
    """Return whether a program accumulates floats in a reduction or scatter."""
    return any(
        {st.combine, st.into} & {"sum", "prod"} and program.tensors[st.target].dtype.is_float
        for st in program.statements
    )


def transforms(program: Program) -> bool:
    """Return whether a program has constant factors: tables, functions of indices."""
    known = set(program.constants)
    for st in program.statements:
        known |= {st.target} if set(st.tensors_read) <= known else set()
    return bool(known & {tensor for st in program.statements for tensor in st.tensors_read})


def conversions(program: Program) -> set[DType]:
    """Return the integer types that a program converts floats to."""
    return {
        node.dtype
        for st in program.statements
        for node in distinct(st.body)
        if isinstance(node, Cast) and node.dtype.is_int and dtype_of(node.arg, program.tensors).is_float
    }


def _convertible(rng: np.random.Generator, type_: TensorType, low: float) -> Array:
    if type_.dtype.is_float:
        return rng.uniform(low, 60.0, type_.shape).astype(type_.dtype.numpy)
    return _small(rng, type_, False).astype(type_.dtype.numpy)


def _tame(rng: np.random.Generator, type_: TensorType, ends: bool) -> Array:
    return rng.standard_normal(type_.shape) * 2 if type_.dtype.is_float else _small(rng, type_, ends)


def _small(rng: np.random.Generator, type_: TensorType, ends: bool) -> Array:
    """Return numbers that name places, or nearly."""
    element = type_.dtype.element
    low, high = max(int(element.lowest), -3) if element.kind != "float" else -3, min(element.highest, 5)
    return rng.integers(low, int(high), type_.shape, endpoint=True)


def _any_number(rng: np.random.Generator, type_: TensorType, ends: bool) -> Array:
    """Return any number of a type."""
    if type_.dtype.is_float:
        return (
            _special(rng, type_, ends)
            if not ends
            else rng.standard_normal(type_.shape) * 2.0 ** rng.integers(-20, 12, type_.shape)
        )
    if type_.dtype is DType.BOOL:
        return rng.integers(0, 2, type_.shape)
    bounds = np.iinfo(type_.dtype.numpy)  # type: ignore[type-var]
    return rng.integers(bounds.min, bounds.max, type_.shape, type_.dtype.numpy.type, endpoint=True)


def _special(rng: np.random.Generator, type_: TensorType, ends: bool) -> Array:
    """Return tame numbers, some of them infinities, zeros or NaN; of integers the ends of the type."""
    tame = _tame(rng, type_, ends).astype(type_.dtype.numpy)
    chosen = rng.choice(np.array(_SPECIAL) if type_.dtype.is_float else extremes(type_.dtype), type_.shape)
    return np.where(rng.integers(0, 3, type_.shape) == 0, chosen.astype(type_.dtype.numpy), tame)


def _ends(rng: np.random.Generator, type_: TensorType, ends: bool) -> Array:
    """Return the values at which the arithmetic of a type goes wrong."""
    if type_.dtype.is_float and not ends:
        return rng.choice(np.array(_SPECIAL), type_.shape)
    return rng.choice(extremes(type_.dtype), type_.shape)


def _equal_values(rng: np.random.Generator, type_: TensorType, ends: bool) -> Array:
    """Return one number everywhere, or along an axis: where an identity that is not the type's own would win."""
    axis = int(rng.integers(-1, len(type_.shape)))
    shape = tuple(1 if axis in (-1, d) else n for d, n in enumerate(type_.shape))
    return np.broadcast_to(_ends(rng, TensorType(type_.dtype, shape), ends), type_.shape)


def _lonely(rng: np.random.Generator, type_: TensorType, ends: bool) -> Array:
    """Return tame numbers but for one at an end."""
    values = _tame(rng, type_, ends).astype(type_.dtype.numpy)
    if values.size:
        values.reshape(-1)[int(rng.integers(values.size))] = _ends(rng, TensorType(type_.dtype, (1,)), ends)[0]
    return values


def _pair_values(type_: TensorType, ends: bool, order: int, turn: int) -> Array:
    """Return ends of a type so that those of two operands meet in every pair, going on from turn to turn."""
    values = np.array(_SPECIAL) if type_.dtype.is_float and not ends else extremes(type_.dtype)
    places = np.arange(type_.size) + turn * type_.size
    with np.errstate(over="ignore"):
        return values[places // len(values) ** order % len(values)].reshape(type_.shape).astype(type_.dtype.numpy)


#: Contents of data sets, in turn; pairs come next.
KINDS: tuple[Maker, ...] = (_tame, _special, _ends, _lonely, _equal_values, _any_number, _small)

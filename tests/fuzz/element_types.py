"""Stretches of a graph in other element types.

Values become integers, conditions, or floats of another length, are computed with, and come back.

Every type in the table of `ir.types` is drawn. Integers take any value and wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from attrs import define
from cuts.ir.errors import CutsError
from cuts.ir.graph import Array
from cuts.ir.types import DType

from . import matrices, movement, scattering
from .growth import GREATEST, Growth

#: Operations of two operands, by operand types.
_OF_NUMBERS = ("add", "sub", "mul", "min", "max", "prelu")
_OF_INTEGERS = (*_OF_NUMBERS, "div", "mod", "bitwise_and", "bitwise_or", "bitwise_xor", "bit_shift")
_OF_CONDITIONS = ("logical_and", "logical_or", "logical_xor", "equal", "not_equal")
_COMPARISONS = ("greater", "greater_or_equal", "less", "less_or_equal", "equal", "not_equal")
#: Operations of one operand.
_TURNS = ("abs", "neg", "relu", "sign")
#: Reductions along axes that every number has.
_REDUCTIONS = ("reduce_max", "reduce_min", "reduce_mean")
_GROWING_REDUCTIONS = (*_REDUCTIONS, "reduce_sum", "reduce_l1", "reduce_sum_square", "reduce_prod")
#: Sums of floats stay below it, for half precision to hold them.
_MAX_MAGNITUDE = 1000.0
#: Numbers below which values of a stretch come back.
_BACK = 13
#: Nodes of a stretch at most.
_MAX_STEPS = 4


def numbers(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> Array:
    """Return random numbers of a type.

    These are normally distributed floats, conditions, and integers that are small or arbitrary.
    """
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    low, high = int(dtype.element.lowest), int(dtype.element.highest)
    small = rng.integers(max(low, -9), 9, shape)
    wide = rng.integers(low, high, shape, dtype.numpy.type, endpoint=True)
    return np.where(rng.integers(0, 3, shape) > 0, small.astype(dtype.numpy), wide)


@define
class TypedGrowth(Growth):
    """Growth of values of one element type, exact unless floating.

    They need not be real numbers.
    """

    def operand(self, *shape: int, scale: float = 1.0) -> str:
        """Add an operand: a constant or an input."""
        if self.flag():
            return self.source(*shape)
        return self._add_known(numbers(self.build.rng, self.dtype, shape))

    def positive(self, *shape: int) -> str:
        """Add a constant of numbers between 1 and 3."""
        return self._add_known(self.build.rng.integers(1, 4, shape))

    def keep(self, result: str, inputs: Sequence[str | None], bound: float | None = None, exact: bool = False) -> None:
        """Let later nodes of the stretch read a result of its type."""
        if self.build.types[result].dtype is self.dtype:
            Growth.keep(self, result, inputs, bound, exact)
            self.exact.update(() if self.dtype.is_float else {result})

    def _add_known(self, values: Array) -> str:
        name = self.build.array(values, self.dtype)
        self.bounds[name] = 4.0
        self.exact.add(name)
        return name


def stretch(growth: Growth, value: str) -> None:
    """Continue in a drawn element type for some nodes, and convert back."""
    dtype = growth.pick(tuple(DType))
    inner = TypedGrowth(growth.draw, growth.build, dtype=dtype)
    inner.values.append(_enter(growth, inner, value))
    for _ in range(growth.number(1, _MAX_STEPS)):
        _step(inner)
    _leave(growth, inner)


def _enter(growth: Growth, inner: TypedGrowth, value: str) -> str:
    """Return a value of the inner type: an input, or a conversion of an exact value in range."""
    exact = [v for v in growth.values if v in growth.exact]
    if not exact or growth.flag():
        return inner.source(*growth.shape(value))
    chosen, dtype = growth.pick(exact[::-1]), inner.dtype
    if not dtype.is_float:
        low = -100.0 if dtype.element.lowest < 0 else 0.0
        wide = growth.build.node("mul", chosen, growth.build.array(np.asarray(16.0), growth.dtype))
        chosen = growth.build.node("clip", wide, min=low, max=100.0)
    made = growth.build.node("cast", chosen, to=str(dtype))
    inner.bounds[made] = 4.0
    inner.exact.update({made} if not dtype.is_float or _holds(dtype, growth.dtype) else ())
    return made


def _step(growth: TypedGrowth) -> None:
    """Add a node to the last value; kinds that do not know the type say so, and another is tried."""
    value = growth.values[-1]
    fitting = [kind for ranks, kind in _kinds(growth.dtype) if len(growth.shape(value)) in ranks]
    try:
        growth.pick(fitting)(growth, value)
    except CutsError:
        arithmetic(growth, value)


def arithmetic(growth: Growth, value: str) -> None:
    """Combine a value with an operand, an earlier value or itself."""
    shape, dtype = growth.shape(value), growth.dtype
    equal_shapes = [v for v in growth.values if growth.shape(v) == shape]
    other = growth.pick([None, *equal_shapes[::-1]]) or growth.operand(*(d if growth.flag() else 1 for d in shape))
    ops = _OF_CONDITIONS if dtype is DType.BOOL else _OF_INTEGERS if dtype.is_int else _OF_NUMBERS
    op = growth.pick(ops)
    more = {"direction": growth.pick(("LEFT", "RIGHT"))} if op == "bit_shift" else {}
    bound = growth.bounds[value] * growth.bounds[other] + growth.bounds[value]
    if dtype.is_float and bound > GREATEST:
        op, bound = "max", growth.bounds[value] + growth.bounds[other]
    growth.grow(op, *((value, other) if growth.flag() else (other, value)), bound=bound, **more)


def turn(growth: Growth, value: str) -> None:
    """Add a function of one operand."""
    if growth.dtype is DType.BOOL:
        growth.grow("logical_not", value)
    elif growth.dtype.is_int and growth.flag():
        growth.grow("bitwise_not", value)
    else:
        growth.grow(growth.pick(_TURNS), value)


def choice(growth: Growth, value: str) -> None:
    """Choose between two values by an exact comparison."""
    shape = growth.shape(value)
    left = value if value in growth.exact else growth.operand(*shape)
    right, other = (growth.operand(*(d if growth.flag() else 1 for d in shape)) for _ in range(2))
    ops = ("equal", "logical_and") if growth.dtype is DType.BOOL else _COMPARISONS
    test = growth.build.node(growth.pick(ops), left, right)
    growth.grow("where", test, *((value, other) if growth.flag() else (other, value)))


def folding(growth: Growth, value: str) -> None:
    """Reduce some axes."""
    rank = len(growth.shape(value))
    axes = tuple(d for d in range(rank) if growth.flag()) or (rank - 1,)
    whole = growth.bounds[value] * prod(growth.shape(value)[a] for a in axes)
    exact = not growth.dtype.is_float
    ops = _GROWING_REDUCTIONS if exact else (*_REDUCTIONS, "reduce_sum") if whole < _MAX_MAGNITUDE else _REDUCTIONS
    growth.grow(growth.pick(ops), value, axes=axes, keepdims=growth.flag(), bound=4.0 if exact else whole)


def product(growth: Growth, value: str) -> None:
    """Multiply matrices."""
    *_, inner = growth.shape(value)
    bound = 4.0 * growth.bounds[value] * inner
    if growth.dtype.is_float and bound > _MAX_MAGNITUDE:
        turn(growth, value)
        return
    bound = bound if growth.dtype.is_float else 4.0
    growth.grow("matmul", value, growth.operand(inner, growth.pick((1, 4, 5))), bound=bound)


def ordering(growth: Growth, value: str) -> None:
    """Take the greatest or least elements along the last axis, in order."""
    if value not in growth.exact:
        value = growth.operand(*growth.shape(value))
    count = growth.number(1, growth.shape(value)[-1])
    for result in growth.build.results("top_k", value, k=count, largest=growth.flag()):
        growth.keep(result, (value,), exact=True)


def change(growth: Growth, value: str) -> None:
    """Convert to another integer type, or a wider float, and back."""
    others = [d for d in DType if d.is_float == growth.dtype.is_float and d is not DType.BOOL]
    there = growth.build.node("cast", value, to=str(growth.pick(others)))
    growth.grow("cast", there, to=str(growth.dtype), exact=not growth.dtype.is_float)


def narrowing(growth: Growth, value: str) -> None:
    """Narrow arbitrary integers to a shorter type, and convert back."""
    shorter = [d for d in DType if d.is_int and d is not DType.BOOL and d.size < growth.dtype.size]
    if not growth.dtype.is_int or not shorter:
        change(growth, value)
        return
    any_ = growth.grow("bitwise_xor", value, growth.operand(*growth.shape(value)), bound=4.0)
    there = growth.build.node("cast", any_, to=str(growth.pick(shorter)))
    growth.grow("cast", there, to=str(growth.dtype), exact=True, bound=4.0)


_ALL, _AXES, _MATRICES = range(9), range(1, 9), range(2, 6)
Maker = Callable[[Any, str], None]
_OF_ANY: tuple[tuple[range, Maker], ...] = (
    (_ALL, arithmetic), (_ALL, turn), (_ALL, choice), (_ALL, change), (_ALL, movement.reshaping),
    (_AXES, movement.transposition), (_AXES, movement.slicing), (_AXES, movement.concatenation),
    (_AXES, movement.repetition), (_AXES, movement.gathering), (_AXES, movement.splitting), (_AXES, movement.padding),
)  # fmt: skip
_OF_NUMBER: tuple[tuple[range, Maker], ...] = (
    (_AXES, folding), (_AXES, folding), (_MATRICES, product), (_AXES, ordering), (_AXES, matrices.cumulation),
    (_MATRICES, movement.triangle), (_ALL, movement.broadcast), (_AXES, scattering.scattering),
    (_ALL, narrowing),
)  # fmt: skip


def _kinds(dtype: DType) -> Sequence[tuple[range, Maker]]:
    return _OF_ANY if dtype is DType.BOOL else (*_OF_ANY, *_OF_NUMBER)


def _leave(growth: Growth, inner: TypedGrowth) -> None:
    """Convert the last value of a stretch to the graph's own type, integers when they are small."""
    value = inner.values[-1]
    if inner.dtype.is_int:
        value = growth.build.node("mod", value, growth.build.array(np.asarray(_BACK), inner.dtype))
    bound = inner.bounds[value] if inner.dtype.is_float else float(_BACK)
    exact = not inner.dtype.is_float or (value in inner.exact and _holds(growth.dtype, inner.dtype))
    made = growth.grow("cast", value, to=str(growth.dtype), bound=bound)
    growth.exact.update({made} if exact else ())


def _holds(wide: DType, narrow: DType) -> bool:
    """Return whether a conversion between two types of floats rounds nothing."""
    return wide.element.digits >= narrow.element.digits

"""Wrong elements of a result, beyond the effects of rounding.

Integers and conditions are exact. A float may be off by some units in its last place, as library functions are. Where
it is off by more, the declaration itself is evaluated in the precision of kernels, with and without rounding between
statements, and with every operand and every step moved by a rounding error. A kernel may lose as much as the
declaration does in one of these ways, and may return an infinity or a NaN that the declaration returns (an overflow on
the way).

Moving every step at random shows how much of a result is digits: J. Vignes, "A stochastic arithmetic for reliable
scientific computation", Mathematics and Computers in Simulation 35 (1993), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from attrs import define, evolve, field
from cuts.ir.expr import Cast, Const, Expr
from cuts.ir.statement import Program
from cuts.ir.traversal import distinct, rebuild
from cuts.ir.types import DType
from cuts.ops.reference import evaluate

from ...kernels.extremes import is_real
from .values import adds_up

Array = np.ndarray[Any, Any]
#: Units in the last place that a library's function may be off by; several of them in one operation.
ULPS = 16
#: Factor by which the declaration's own error still counts as rounding.
MARGIN = 8
#: How often operands and steps are moved by a rounding error, and roundings that a step is moved by.
MOVES, STEP = 5, 2.0
#: Scalar functions that round nothing.
EXACT = frozenset(
    ("min", "max", "neg", "abs", "sign", "floor", "ceil", "trunc", "round", "select", "copysign", "fmod", "floormod")
)


@define
class Judge:
    """Exact results of a program on a data set, with rounding.

    Both are computed on first use.
    """

    program: Program
    operands: Mapping[str, Array]
    expected: dict[str, Array] = field(init=False)
    _explained: list[dict[str, Array]] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.expected = evaluate(self.program, self.operands, checked=False)

    def wrong(self, name: str, found: Array) -> Array:
        """Return where a result is wrong."""
        expected, dtype = self.expected[name], self.program.tensors[name].dtype
        if found.shape != expected.shape or found.dtype != dtype.numpy:
            return np.ones(found.shape, bool)
        bad = ~near(found, expected, dtype, ULPS)
        if not bad.any():
            return bad
        with np.errstate(over="ignore"):
            made = np.array([way[name].astype(expected.dtype) for way in self.explanations()])
        for way in made:
            bad &= ~near(found, way, dtype, ULPS)
        if not dtype.is_float:
            return bad
        bad &= ~_may_overflow(found, expected, made)
        if adds_up(self.program):  # a common factor is taken out of a sum: inf * (1 + 0) is no inf * 1 + inf * 0
            bad &= ~(np.isinf(found) & np.isnan(expected))
        distances = np.array([_distance(way, expected) for way in made])
        lost = np.max(np.where(np.isfinite(distances), distances, 0.0), axis=0)
        distance = _distance(found, expected)
        return bad & ~(np.isfinite(distance) & (distance / MARGIN <= lost))

    def explanations(self) -> list[dict[str, Array]]:
        """Return the declaration's results in the precision of kernels."""
        if self._explained is None:
            narrow = working_type(self.program)
            ways = [
                evaluate(self.program, self.operands, narrow, checked=False),
                evaluate(self.program, self.operands, narrow, checked=False, stored=True),
                # A fused multiply-add rounds once, so that no product overflows in it; its literals are the kernel's.
                evaluate(self.program, self.operands, np.longdouble, checked=False),
                evaluate(self.program, self.operands, np.longdouble, checked=False, perturb=summed_in(narrow)),
                evaluate(with_literals(self.program, narrow), self.operands, np.longdouble, checked=False),
            ]
            for seed in range(MOVES):
                moved = Moving(seed, stored_epsilon(self.program) if seed % 2 else float(np.finfo(narrow).eps))
                given = {name: moved.array(array) for name, array in self.operands.items()}
                ways.append(
                    evaluate(self.program, given, narrow, checked=False, stored=bool(seed % 2), perturb=moved.step)
                )
            self._explained = ways
        return self._explained


def summed_in(kind: np.dtype[Any]) -> Callable[[str, Array], Array]:
    """Return a rounder of sums alone, as in fused multiply-adds.

    A number that both variants lose is a number there.
    """

    def step(fn: str, values: Array) -> Array:
        if fn not in ("add", "sub") or values.dtype.kind != "f":
            return values
        with np.errstate(all="ignore"):
            return np.asarray(values.astype(kind).astype(values.dtype))

    return step


def working_type(program: Program) -> np.dtype[Any]:
    """Return the narrowest type in which kernels compute a program's floats."""
    types = {t.dtype for t in program.tensors.values()}
    types |= {n.dtype for st in program.statements for n in distinct(st.body) if isinstance(n, Cast)}
    widths = [d.arithmetic.size for d in types if d.is_float]
    return np.dtype(np.float32 if min(widths, default=8) < 8 else np.float64)


def with_literals(program: Program, kind: np.dtype[Any]) -> Program:
    """Return a program with the literals of kernels that compute in `kind`."""

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Const) or not node.dtype.is_float:
            return node
        return Const(float(np.asarray(node.value).astype(kind)), node.dtype)

    with np.errstate(over="ignore"):
        return evolve(program, statements=tuple(evolve(s, body=rebuild(s.body, leaf)) for s in program.statements))


def stored_epsilon(program: Program) -> float:
    """Return the rounding error of a program's narrowest stored or computed floats."""
    kept = {st.target for st in program.statements} - set(program.outputs)
    widths = [program.tensors[name].dtype.element.epsilon for name in kept if program.tensors[name].dtype.is_float]
    return max([float(np.finfo(working_type(program)).eps), *widths])


def near(found: Array, expected: Array, dtype: DType, ulps: float) -> Array:
    """Compare a result with its truth, within rounding and the type's range.

    All zeros are equal.
    """
    if not dtype.is_float:
        return np.asarray(found == expected)
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        value, wanted = found.astype(np.float64), expected.astype(np.float64)
        held = expected.astype(dtype.numpy).astype(np.float64)
        same = (value == held) | (np.isnan(value) & np.isnan(wanted))
        rounding = ulps * float(info.eps) * np.abs(wanted) + float(info.smallest_normal)
        same |= np.isfinite(wanted) & (np.abs(value - wanted) <= rounding)
        most = float(info.max) * (1 - ulps * float(info.eps))
        same |= np.isinf(value) & (np.abs(wanted) >= most) & (np.sign(value) == np.sign(wanted))
    return np.asarray(same)


def _may_overflow(found: Array, expected: Array, made: Array) -> Array:
    """Return where an infinity, or NaN, may result from an overflow: the ways disagree themselves, and one of them has
    a NaN, or an infinity of that sign. A step that is fused with the next overflows in its own way.
    """
    disagree = (_class(made) != _class(expected)).any(axis=0)
    likely = np.isnan(found) | np.isnan(made).any(axis=0) | (np.signbit(made) == np.signbit(found)).any(axis=0)
    return np.asarray(~np.isfinite(found) & disagree & likely)


def _class(values: Array) -> Array:
    """Return whether numbers are finite, infinite with which sign, or none, as small integers."""
    return np.where(np.isnan(values), 3, np.where(np.isposinf(values), 2, np.where(np.isneginf(values), 1, 0)))


def _distance(found: Array, expected: Array) -> Array:
    """Return the distance of two results; infinite where one of them is no finite number."""
    with np.errstate(all="ignore"):
        distances = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return np.where(np.isfinite(distances), distances, np.inf)


@define
class Moving:
    """Perturbation of floats by a rounding error.

    Operands move all upwards or all downwards, steps at random where they round.
    """

    seed: int
    eps: float
    rng: np.random.Generator = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def array(self, array: Array) -> Array:
        """Return an array moved as a whole.

        Floats come in double precision.

        Elements are not moved separately: equal ones stay equal, or a variance of equal elements would be no fault.
        """
        if not is_real(array) or self.seed > 1:
            return array
        with np.errstate(all="ignore"):
            return np.asarray(array.astype(np.float64) * (1 + (-1) ** self.seed * self.eps))

    def step(self, fn: str, values: Array) -> Array:
        """Return the values of a scalar function moved, where it rounds."""
        if fn in EXACT or not is_real(values):
            return values
        by = self.rng.uniform(-1, 1, values.shape)
        return np.asarray(values * (1 + STEP * self.eps * by)).astype(values.dtype)

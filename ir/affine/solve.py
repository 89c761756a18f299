"""Inversion of quasi-affine index maps.

`solve` answers for which values of its unknown variables a tuple of index expressions takes given values. It covers the
maps of reshapes, transposes, slices, strides and splits: every expression is a mixed-radix sum of *digits*, a digit is
a variable or `(base // d) % m`, and the digits of one base add up to it again. Fusion needs it twice: to inline a
statement that does not write its axes in order, and to name the instance of a fused group that computes an element
(access maps of both directions).

`invert` finds all solutions of any map; `solve` those of maps whose digits determine them, and refuses others.

    solve([(a * 7 + b, p)])          a = p // 7, b = p % 7
    solve([(f // 7, p), (f % 7, q)]) f = 7*p + q
    solve([(c // 8, g)])             c = 8*g + x0          with a free variable x0 of extent 8
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from attrs import evolve, field, frozen

from .guard import Guard
from .index import FloorDiv, Index, Mod, Primary, Var, as_index
from .invert import Inverse
from .mixed_radix import Digit, digit_of, digits_of
from .traversal import substitute, variables


@frozen
class _State:
    """Derivations so far; the collections are filled in place."""

    values: dict[Var, Index] = field(factory=dict)
    guards: list[Guard] = field(factory=list)
    free: list[Var] = field(factory=list)
    digits: dict[Index, list[Digit]] = field(factory=dict)


def solve(equations: Sequence[tuple[Index, Index]], unknowns: Sequence[Var], prefix: str = "x") -> Inverse | None:
    """Solve `left(unknowns) = right` for the unknowns.

    None where the expressions are not of the form above.

    Variables of the right sides are known. Fresh free variables are named after `prefix`. Results are cached: groups of
    one structure need the same.
    """
    return _solve(tuple(equations), tuple(unknowns), prefix)


@lru_cache(maxsize=1 << 14)
def _solve(equations: tuple[tuple[Index, Index], ...], unknowns: tuple[Var, ...], prefix: str) -> Inverse | None:
    state = _State()
    for left, right in equations:
        if not _split_sum(left, right, state):
            return None
    while state.digits:
        base, digits = state.digits.popitem()
        if not _join_digits(base, digits, state, prefix):
            return None
    for var in unknowns:
        if var.extent == 1:
            state.values[var] = as_index(0)
        elif var not in state.values:
            state.values[var] = as_index(var)
            state.free.append(var)
    guards = tuple(dict.fromkeys(g for g in state.guards if not g.always))
    return Inverse(state.values, tuple(state.free), guards)


def _split_sum(left: Index, right: Index, state: _State) -> bool:
    """Derive the value of each primary of a mixed-radix sum; False where the sum is not injective."""
    found = digits_of(left, right)
    if found is None:
        return False
    primaries, guards = found
    state.guards.extend(guards)
    return all(_set_primary(primary, value, state) for primary, value in primaries)


def _set_primary(primary: Primary, value: Index, state: _State) -> bool:
    """Note the value of a variable, or of a digit of some base."""
    if isinstance(primary, Var):
        known = state.values.setdefault(primary, value)
        return known == value
    if not isinstance(primary, (FloorDiv, Mod)):
        return False
    base, digit = digit_of(primary, value)
    if not digit.size:  # the rest of a base has as many values as the base allows
        digit = evolve(digit, size=primary.bounds()[1] + 1)
    state.digits.setdefault(base, []).append(digit)
    return True


def _join_digits(base: Index, digits: list[Digit], state: _State, prefix: str) -> bool:
    """Add the digits of a base up; positions that no digit covers become free variables."""
    solved = variables(base) & state.values.keys()
    if solved:
        inner = substitute(base, state.values)
        return len(solved) == len(variables(base)) and all(d.of(inner) == d.value for d in digits)
    low, high = base.bounds()
    if low < 0:
        return False
    total, position = as_index(0), 1
    for digit in [*sorted(digits, key=lambda d: d.weight), Digit(0, 1, as_index(0))]:
        weight = digit.weight or max(position, high + 1)
        if weight % position:
            return False
        if weight > position:
            gap = Var(f"{prefix}{len(state.free)}", weight // position)
            state.free.append(gap)
            total = total + as_index(gap) * position
        total = total + digit.value * weight
        position = weight * digit.size
    state.guards.append(Guard(total, 0, high + 1))
    return _split_sum(base, total, state)


def is_bijection(values: Mapping[Var, Index], axes: Sequence[Var], onto: Sequence[Var]) -> bool:
    """Return whether `axes = values(onto)` is a bijection from `onto` to `axes`."""
    size, target = 1, 1
    for axis in axes:
        size *= axis.extent
    for var in onto:
        target *= var.extent
    if size != target or any(not variables(values[a]) <= set(onto) for a in axes):
        return False
    inverse = solve([(values[a], as_index(Var(f"y{n}", a.extent))) for n, a in enumerate(axes)], onto)
    return inverse is not None and not inverse.guards and not inverse.free

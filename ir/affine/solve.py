"""Inversion of quasi-affine index maps.

`solve` answers for which values of its unknown variables a tuple of index expressions takes given values. It covers the
maps of reshapes, transposes, slices, strides and splits: every expression is a mixed-radix sum of *digits*, a digit is
a variable or `(base // d) % m`, and the digits of one base add up to it again. Fusion needs it twice: to inline a
statement that does not write its axes in order, and to name the instance of a fused group that computes an element
(access maps of both directions).

`invert` finds all solutions of any map; `solve` asks it for those of maps whose digits determine them, and refuses
others.

    solve([(a * 7 + b, p)])          a = p // 7, b = p % 7
    solve([(f // 7, p), (f % 7, q)]) f = 7*p + q
    solve([(c // 8, g)])             c = 8*g + x0          with a free variable x0 of extent 8
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from .guard import substitute_guards
from .index import Index, Var, as_index
from .invert import Inverse, invert
from .traversal import substitute, variables


def solve(equations: Sequence[tuple[Index, Index]], unknowns: Sequence[Var], prefix: str = "x") -> Inverse | None:
    """Solve `left(unknowns) = right` for the unknowns.

    None where the expressions are not of the form above.

    Variables of the right sides are known. Fresh free variables are named after `prefix`. Results are cached: groups of
    one structure need the same.
    """
    return _solve(tuple(equations), tuple(unknowns), prefix)


@lru_cache(maxsize=1 << 14)
def _solve(equations: tuple[tuple[Index, Index], ...], unknowns: tuple[Var, ...], prefix: str) -> Inverse | None:
    inner = {var: Var(f".{var.name}", var.extent) for var in unknowns}
    left = [substitute(place, inner) for place, _ in equations]
    found = invert(left, [value for _, value in equations], tuple(inner.values()), by_digits=True)
    if not found.unique:
        return None
    fresh = [var for var in found.free if var not in inner.values()]
    names = {var: Var(f"{prefix}{n}", var.extent) for n, var in enumerate(fresh)}
    names |= {own: var for var, own in inner.items()}
    values = {var: substitute(found.values.get(own, as_index(own)), names) for var, own in inner.items()}
    free = (*(names[var] for var in fresh), *(var for var, own in inner.items() if own in found.free))
    return Inverse(values, free, substitute_guards(found.guards, names))


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

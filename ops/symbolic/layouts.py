"""Places of a tensor's elements in the memory of its greatest shape.

A bucket computes with tensors of its capacity, the greatest shape. The first elements of each dim are there:

    x[n, 8] in the memory of x[64, 8]          layout of dim 0: (n of 64)

A dim that merges others is a row-major list of factors, since its elements that are there are not neighbours:

    x[4, n] as y[4 * n] in y[4 * 64]           layout of dim 0: (4 of 4, n of 64)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...ir import DimFactor, DimLayout, SymbolicExtent


def merge_factors(factors: Sequence[DimFactor]) -> DimLayout:
    """Merge factors with whole inner ones, which keeps prefixes."""
    found: list[DimFactor] = []
    for factor in factors:
        if factor.capacity == 1 and factor.is_whole and found:
            continue
        if found and (factor.is_whole or (found[-1].capacity == 1 and found[-1].is_whole)):
            outer = found.pop()
            both = (outer, factor)
            found.append(DimFactor(math.prod(f.capacity for f in both), _product(outer.extent, factor.extent)))
        else:
            found.append(factor)
    return tuple(found)


def _product(a: SymbolicExtent, b: SymbolicExtent) -> SymbolicExtent:
    """Return the product of an extent and a constant one."""
    affine, factor = (b, a.const) if a.is_const else (a, b.const)
    return SymbolicExtent(affine.const * factor, tuple((name, n * factor) for name, n in affine.terms))


def regroup(factors: Sequence[DimFactor], shape: Sequence[int]) -> tuple[DimLayout, ...] | None:
    """Return the layouts of the same elements in another shape.

    None where a dim of the shape would hold parts of positions.
    """
    left, found = list(factors), list[DimLayout]()
    for size in reversed(shape):
        need, taken = size, list[DimFactor]()
        while need > 1:
            if not left:
                return None
            factor = left.pop()
            if need % factor.capacity == 0:
                taken.insert(0, factor)
                need //= factor.capacity
                continue
            split = _split(factor, need)
            if split is None:
                return None
            left.append(split[0])
            taken.insert(0, split[1])
            need = 1
        found.insert(0, merge_factors(taken) or (DimFactor(1, SymbolicExtent(1)),))
    return tuple(found) if all(factor.capacity == 1 and factor.is_whole for factor in left) else None


def _split(factor: DimFactor, inner: int) -> tuple[DimFactor, DimFactor] | None:
    """Split `inner` positions off a factor; all of them are there."""
    numbers = (factor.extent.const, *(n for _, n in factor.extent.terms), factor.capacity)
    if any(n % inner for n in numbers):
        return None
    terms = tuple((name, n // inner) for name, n in factor.extent.terms)
    outer = DimFactor(factor.capacity // inner, SymbolicExtent(factor.extent.const // inner, terms))
    return outer, DimFactor(inner, SymbolicExtent(inner))

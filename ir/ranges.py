"""What guards say: the ranges of variables where they hold, and which elements are looked at under which of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from attrs import frozen

from .evaluate import Values, index_value
from .expr import Expr, Guard, Read
from .index import FloorDiv, Index, IndexLike, Indirect, Var, is_affine
from .walk import distinct, indirects, substitute

#: Points at which is tried what the algebra cannot tell.
TRIED = 1 << 14


def ranges(guards: Iterable[Guard]) -> dict[Var, tuple[int, int]] | None:
    """Return least and greatest value of each variable that a guard limits by itself, or by a quotient of it; None
    where no value is left.
    """
    found: dict[Var, tuple[int, int]] = {}
    for guard in map(_undivided, guards):
        if guard.index.is_const and not guard.always:
            return None
        if len(guard.index.terms) == 1 and isinstance(guard.index.terms[0][0], Var):
            _narrow(found, guard)
    return None if any(low > high for low, high in found.values()) else found


def _undivided(guard: Guard) -> Guard:
    """Return a guard of a quotient as that of what is divided: `low <= n // d < high` is `low*d <= n < high*d`."""
    index = guard.index
    while len(index.terms) == 1 and isinstance(index.terms[0][0], FloorDiv) and index.terms[0][1] == 1:
        quotient, (low, high) = index.terms[0][0], (guard.low - index.const, guard.high - index.const)
        guard = Guard(quotient.num, low * quotient.den, high * quotient.den)
        index = guard.index
    return guard


def _narrow(found: dict[Var, tuple[int, int]], guard: Guard) -> None:
    ((var, factor),) = guard.index.terms
    assert isinstance(var, Var)
    low, high = guard.low - guard.index.const, guard.high - 1 - guard.index.const
    if factor < 0:
        low, high, factor = -high, -low, -factor
    first, last = found.get(var, var.bounds())
    found[var] = max(first, -(-low // factor)), min(last, high // factor)


def confined(index: Index, limits: Mapping[Var, tuple[int, int]]) -> Index:
    """Return an index over variables that take no other values than those within the limits."""
    inside: dict[Var, IndexLike] = {v: Var(f"{v.name}.", high - low + 1) + low for v, (low, high) in limits.items()}
    return substitute(index, inside)


def proven(index: Index, extent: int, guards: Iterable[Guard]) -> bool:
    """Whether an index lies within an axis wherever all guards hold.

    What the algebra cannot tell is tried, at every point where these are few enough, else at many: a place that is told
    to lie outside does.
    """
    if Guard(index, 0, extent).always:
        return True
    guards = tuple(guards)
    limits = ranges(guards)
    if limits is None:
        return True
    low, high = bounds(index, guards, limits)
    return (low >= 0 and high < extent) or not _escapes(index, extent, guards)


def _escapes(index: Index, extent: int, guards: tuple[Guard, ...]) -> bool:
    """Whether an index leaves its axis at one of the points that are tried."""
    at = points(dict.fromkeys(leaf for i in (index, *(g.index for g in guards)) for leaf in _leaves_of(i)))
    place = index_value(index, at.__getitem__)
    wrong = np.asarray((place < 0) | (place >= extent))
    for guard in guards:
        value = index_value(guard.index, at.__getitem__)
        wrong = wrong & (value >= guard.low) & (value < guard.high)
    return bool(wrong.any())


def _leaves_of(index: Index) -> Iterator[Var | Indirect]:
    """Yield what an index is computed from: variables, and elements of tensors, which may be any index."""
    for primary, _ in index.terms:
        if isinstance(primary, (Var, Indirect)):
            yield primary
        else:
            yield from (leaf for part in primary.parts for leaf in _leaves_of(part))


def points(leaves: Iterable[Var | Indirect]) -> dict[Var | Indirect, Values]:
    """Return values of some leaves at all points of their box, or at some of them, the same each time."""
    leaves = tuple(leaves)
    extents = [max(1, leaf.extent) for leaf in leaves]
    count = prod(extents)
    flat = np.arange(count) if count <= TRIED else np.unique(np.random.default_rng(0).integers(0, count, TRIED))
    return dict(zip(leaves, np.unravel_index(flat, extents), strict=True)) if leaves else {}


def injective(place: Index, axes: Sequence[Var]) -> bool:
    """Whether a flat place differs wherever one of the axes does: each has a place of its own, as digits of a number.

    What the algebra cannot tell is tried, as in `proven`.
    """
    axes = [a for a in axes if a.extent > 1]
    room = 1
    for factor, extent in sorted((abs(place.coefficient(a)), a.extent) for a in axes):
        if factor < room:
            break
        room += factor * (extent - 1)
    else:
        if is_affine(place):
            return True
    if not axes:
        return True
    found = np.asarray(index_value(place, points(axes).__getitem__))
    return found.size > 0 and np.unique(found).size == len(next(iter(points(axes).values())))


def bounds(index: Index, guards: Iterable[Guard], limits: Mapping[Var, tuple[int, int]]) -> tuple[int, int]:
    """Return bounds of an index where guards hold: a multiple of what a guard bounds is taken out where that leaves
    fewer terms.
    """
    low = high = 0
    for guard in guards:
        for primary, factor in guard.index.terms[:1]:
            times, left = divmod(index.coefficient(primary), factor)
            rest = index - guard.index * times
            if left == 0 and len(rest.terms) < len(index.terms):
                ends = sorted((times * guard.low, times * (guard.high - 1)))
                index, low, high = rest, low + ends[0], high + ends[1]
    first, last = confined(index, limits).bounds()
    return low + first, high + last


@frozen
class AddressedElement:
    """An element of a tensor that is looked at where all guards hold."""

    tensor: str
    indices: tuple[Index, ...]
    guards: tuple[Guard, ...] = ()


def elements(expr: Expr) -> Iterator[AddressedElement]:
    """Yield every element that an expression looks at, in its indices too.

    Guards are tested from left to right: one that looks at an element is reached where those before it hold.
    """
    for node in distinct(expr):
        guards = getattr(node, "guards", ())
        for number, guard in enumerate(guards):
            yield from _places(guard.index, guards[:number])
        if isinstance(node, Read):
            yield AddressedElement(node.tensor, node.indices, guards)
        for index in node.own_indices[: len(node.own_indices) - len(guards)]:
            yield from _places(index, guards)


def _places(index: Index, guards: tuple[Guard, ...]) -> Iterator[AddressedElement]:
    return (AddressedElement(i.tensor, i.indices, guards) for i in indirects(index))

"""Ranges of variables under guards, and the elements accessed under them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import numpy as np

from .guard import Guard
from .index import FloorDiv, Index, IndexLike, Indirect, Var, is_affine
from .traversal import substitute
from .values import Values, index_value

#: Points at which a property that the algebra does not decide is tested.
MAX_TESTED_POINTS = 1 << 14


def ranges(guards: Iterable[Guard]) -> dict[Var, tuple[int, int]] | None:
    """Return the range of each variable that guards limit.

    A guard limits a variable directly, or through a quotient of it. None where no value is left.
    """
    found: dict[Var, tuple[int, int]] = {}
    for guard in map(_multiply_out, guards):
        if guard.index.is_const and not guard.always:
            return None
        if len(guard.index.terms) == 1 and isinstance(guard.index.terms[0][0], Var):
            _narrow(found, guard)
    return None if any(low > high for low, high in found.values()) else found


def _multiply_out(guard: Guard) -> Guard:
    """Return a guard of a quotient as one of its dividend: `low <= n // d < high` is `low*d <= n < high*d`."""
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


def confine(index: Index, limits: Mapping[Var, tuple[int, int]]) -> Index:
    """Replace variables of an index by ones within the limits."""
    inside: dict[Var, IndexLike] = {v: Var(f"{v.name}.", high - low + 1) + low for v, (low, high) in limits.items()}
    return substitute(index, inside)


def proven(index: Index, extent: int, guards: Iterable[Guard]) -> bool:
    """Return whether an index is in range wherever all guards hold.

    Cases that the algebra does not decide are tested at every point where these are few enough, else at many: a place
    reported as out of range is one.
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
    """Return whether an index leaves its axis at one of the tested points."""
    at = points(dict.fromkeys(leaf for i in (index, *(g.index for g in guards)) for leaf in _leaves_of(i)))
    place = index_value(index, at.__getitem__)
    wrong = np.asarray((place < 0) | (place >= extent))
    for guard in guards:
        value = index_value(guard.index, at.__getitem__)
        wrong = wrong & (value >= guard.low) & (value < guard.high)
    return bool(wrong.any())


def _leaves_of(index: Index) -> Iterator[Var | Indirect]:
    """Yield the leaves of an index: variables, and elements of tensors, which may have any value."""
    for primary, _ in index.terms:
        if isinstance(primary, (Var, Indirect)):
            yield primary
        else:
            yield from (leaf for part in primary.parts for leaf in _leaves_of(part))


def points(leaves: Iterable[Var | Indirect]) -> dict[Var | Indirect, Values]:
    """Return values of some leaves at points of their box.

    All points where these are few enough, else a fixed sample.
    """
    leaves = tuple(leaves)
    extents = [max(1, leaf.extent) for leaf in leaves]
    count = prod(extents)
    if count > MAX_TESTED_POINTS:
        rng = np.random.default_rng(0)
        return {leaf: rng.integers(0, extent, MAX_TESTED_POINTS) for leaf, extent in zip(leaves, extents, strict=True)}
    return dict(zip(leaves, np.unravel_index(np.arange(count), extents), strict=True)) if leaves else {}


def is_injective(place: Index, axes: Sequence[Var]) -> bool:
    """Return whether different values of the axes give different flat places.

    Each value then has a place of its own, as digits of a number. Cases that the algebra does not decide are tested, as
    in `proven`.
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
    """Return bounds of an index where guards hold.

    A multiple of a guard's index is subtracted where that leaves fewer terms.
    """
    low = high = 0
    for guard in guards:
        for primary, factor in guard.index.terms[:1]:
            times, left = divmod(index.coefficient(primary), factor)
            rest = index - guard.index * times
            if left == 0 and len(rest.terms) < len(index.terms):
                ends = sorted((times * guard.low, times * (guard.high - 1)))
                index, low, high = rest, low + ends[0], high + ends[1]
    first, last = confine(index, limits).bounds()
    return low + first, high + last

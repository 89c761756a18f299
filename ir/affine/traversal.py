"""Traversal of indices: their parts, and indices with some parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import gcd

from attrs import evolve

from .index import FloorDiv, Index, IndexLike, Indirect, Primary, Var, as_index


def primaries(index: Index) -> Iterator[Primary]:
    """Yield every primary of an index, those inside a primary before it."""
    for primary, _ in index.terms:
        for part in primary.parts:
            yield from primaries(part)
        yield primary


@lru_cache(maxsize=1 << 17)
def variables(index: Index) -> frozenset[Var]:
    """Return every variable that occurs anywhere in the index."""
    found: set[Var] = set()
    for primary, _ in index.terms:
        if isinstance(primary, Var):
            found.add(primary)
        for part in primary.parts:
            found |= variables(part)
    return frozenset(found)


def steps_of(index: Index, axis: Var) -> int:
    """Return the extent of aligned blocks over which an index is constant.

    They are blocks of an axis. It is 0 where the index does not vary with the axis, and 1 where it may vary within any
    block.
    """
    found = 0
    for primary, _ in index.terms:
        if isinstance(primary, FloorDiv) and primary.num == as_index(axis):
            found = gcd(found, primary.den)
        elif primary == axis or any(axis in variables(part) for part in primary.parts):
            return 1
    return found


@lru_cache(maxsize=1 << 17)
def indirects(index: Index) -> tuple[Indirect, ...]:
    """Return every indirect read anywhere in the index, inner ones first."""
    return tuple(dict.fromkeys(primary for primary in primaries(index) if isinstance(primary, Indirect)))


def map_primaries(index: Index, change: Callable[[Primary, tuple[Index, ...]], Index | None]) -> Index:
    """Rebuild an index, simplified, with some primaries replaced.

    `change` gets each primary and its new parts, and returns its replacement; None keeps its kind.
    """
    result = Index(index.const)
    for primary, factor in index.terms:
        parts = tuple(map_primaries(part, change) for part in primary.parts)
        changed = change(primary, parts)
        result = result + (primary.with_parts(parts) if changed is None else changed) * factor
    return result


def substitute(index: Index, values: Mapping[Var, IndexLike]) -> Index:
    """Replace variables and simplify again."""
    if not any(v in values for v in variables(index)):
        return index
    result = Index(index.const)
    for primary, factor in index.terms:
        if isinstance(primary, Var):
            part = as_index(values.get(primary, primary))
        else:
            part = primary.with_parts(tuple(substitute(p, values) for p in primary.parts))
        result = result + part * factor
    return result


def rename_index(index: Index, names: Mapping[str, str]) -> Index:
    """Replace the names of tensors that the index reads."""

    def rename(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        if not isinstance(primary, Indirect):
            return None
        return Index(0, ((evolve(primary, tensor=names.get(primary.tensor, primary.tensor), indices=parts), 1),))

    return map_primaries(index, rename) if indirects(index) else index

"""Gather-to-slice: lookups at evenly stepping indices become affine indices.

Where a tensor is indexed by integers that are known at compile time, and these step evenly along each dim of their
table, the element that is read is an affine function of the axes, so that it fuses and moves as slices do:

    y[i, j] = x[t[i, j]]  with  t = [[0, 1, 2], [2, 3, 4]]   ->   y[i, j] = x[2*i + j]

Windows, diagonals and strided picks are often written so. Negative integers count from the end, as in any lookup; a
table with an integer out of range stays.

Integers that were only moved are looked up in the source of the copy: several of them side by side, as coordinates of
points, need no tensor of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from attrs import evolve

from ...ir import (
    Array,
    Expr,
    Index,
    Indirect,
    Primary,
    Program,
    Read,
    Statement,
    expr_indirects,
    indirects,
    map_guards,
    map_primaries,
    rebuild,
    solve,
    substitute,
)

#: Copies that together write a tensor, with the read of each.
Copies: TypeAlias = Mapping[str, Sequence[tuple[Statement, Read]]]
#: Replacement of a primary with new parts; None where it keeps its kind.
Lookup: TypeAlias = Callable[[Primary, tuple[Index, ...]], "Index | None"]


def tensors_looked_up(statement: Statement) -> set[str]:
    """Return the tensors whose elements a statement uses as indices."""
    found = (*expr_indirects(statement.body), *(i for index in statement.write for i in indirects(index)))
    return {inner.tensor for inner in found}


def fold_gathers(program: Program, tables: Mapping[str, Array]) -> Program:
    """Return a program with lookups in known tables as indices.

    Its meaning stays the same.
    """

    def lookup(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        if not isinstance(primary, Indirect) or primary.tensor not in tables:
            return None
        return _affine(primary, parts, tables[primary.tensor])

    if not tables:
        return program
    return evolve(program, statements=tuple(_replace_lookups(s, lookup) for s in program.statements))


def bypass_copies(statement: Statement, copies: Copies) -> Statement:
    """Return a statement that looks up integers at the sources of copies."""

    def lookup(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        known = isinstance(primary, Indirect) and primary.tensor in copies
        return _source(primary, parts, copies) if known and isinstance(primary, Indirect) else None

    return _replace_lookups(statement, lookup)


def _replace_lookups(statement: Statement, lookup: Lookup) -> Statement:
    """Return a statement with its lookups replaced."""

    def move(index: Index) -> Index:
        return map_primaries(index, lookup) if indirects(index) else index

    def leaf(node: Expr) -> Expr:
        if not any(map(indirects, node.own_indices)):
            return node
        return node.with_indices(move, lambda guards: map_guards(guards, move))

    return evolve(statement, write=tuple(map(move, statement.write)), body=rebuild(statement.body, leaf))


def _affine(lookup: Indirect, places: Sequence[Index], table: Array) -> Index | None:
    """Return a lookup at some places of its table as an index, None where its elements do not step evenly."""
    chosen = table[tuple(p.const if p.is_const else slice(None) for p in places)].astype(np.int64)
    chosen = np.where(chosen < 0, chosen + lookup.extent, chosen) if lookup.wraps else chosen
    if not chosen.size or chosen.min() < 0 or chosen.max() >= lookup.extent:
        return None
    first = int(chosen[(0,) * chosen.ndim])
    found, wanted = Index(first), np.full(chosen.shape, first)
    for dim, place in enumerate(p for p in places if not p.is_const):
        step = int(chosen.take(1, dim).flat[0]) - first if chosen.shape[dim] > 1 else 0
        found = found + place * step
        wanted = wanted + step * np.arange(chosen.shape[dim]).reshape(-1, *[1] * (chosen.ndim - 1 - dim))
    return found if np.array_equal(chosen, wanted) else None


def _source(lookup: Indirect, places: tuple[Index, ...], copies: Copies) -> Index | None:
    """Return a lookup in the source of a copied table, None where it is not certain which copy wrote the element."""
    for copy, read in copies[lookup.tensor]:
        found = solve(list(zip(copy.write, places, strict=True)), copy.axes)
        if found is None or found.free or not all(guard.always for guard in found.guards):
            continue
        there = tuple(substitute(i, found.values) for i in read.indices)
        source = evolve(lookup, tensor=read.tensor, indices=there)
        inner = _source(source, there, copies) if read.tensor in copies else None
        return Index(0, ((source, 1),)) if inner is None else inner
    return None

"""Lookups in known tables that say nothing an index could not: they become that index.

Where a tensor is indexed by integers that are known when it is compiled, and these step evenly along each dim of their
table, the element that is read is an affine function of the axes, so that it fuses and moves as slices do:

    y[i, j] = x[t[i, j]]  with  t = [[0, 1, 2], [2, 3, 4]]   ->   y[i, j] = x[2*i + j]

Windows, diagonals and strided picks are often written so. Negative integers count from the end, as in any lookup; a
table with an integer out of range stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve

from ...ir import (
    Array,
    Expr,
    Index,
    Indirect,
    Primary,
    Program,
    Statement,
    indirects,
    map_guards,
    map_primaries,
    rebuild,
)


def fold_lookups(program: Program, tables: Mapping[str, Array]) -> Program:
    """Return a program that means the same, given what is known of the elements of some tensors."""
    if not tables:
        return program
    return evolve(program, statements=tuple(_statement(s, tables) for s in program.statements))


def looked_up(program: Program) -> set[str]:
    """Return the tensors whose elements a program uses as indices."""
    found = (i for s in program.statements for n in _held(s) for i in indirects(n))
    return {inner.tensor for inner in found}


def _held(statement: Statement) -> list[Index]:
    found = [*statement.write]
    rebuild(statement.body, lambda node: found.extend(node.own_indices) or node)  # type: ignore[func-returns-value]
    return found


def _statement(statement: Statement, tables: Mapping[str, Array]) -> Statement:
    def lookup(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        known = isinstance(primary, Indirect) and primary.tensor in tables
        return _affine(primary, parts, tables[primary.tensor]) if known and isinstance(primary, Indirect) else None

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

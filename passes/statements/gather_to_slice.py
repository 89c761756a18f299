"""Gather-to-slice: lookups in known tables become indices.

Where a tensor is indexed by integers that are known at compile time, and these step evenly along each dim of their
table, the element that is read is an affine function of the axes, so that it fuses and moves as slices do:

    y[i, j] = x[t[i, j]]  with  t = [[0, 1, 2], [2, 3, 4]]   ->   y[i, j] = x[2*i + j]

Windows, diagonals and strided picks are often written so, borders and rolled images too (`ir.affine.tables`). Negative
integers count from the end, as in any lookup; a table with an integer out of range stays.

Integers that were only moved are looked up in the source of the copy: several of them side by side, as coordinates of
points, need no tensor of their own. An index of a dim of one element is 0 for every integer: a kernel that replaces one
element of each row needs no table of its places.

Likewise a constant mask that is a band becomes a condition on indices. A kernel then reads no mask, and leaves out the
blocks that a causal mask leaves out (`geometry/mask_bounds.py`):

    a[i, j] = s[i, j] if m[0, i, j] else -inf  with  m[0, i, j] = j <= i
      ->   a[i, j] = s[i, j] if j - i <= 0 else -inf

Elementwise statements read neither constants of equal elements nor integers that step evenly: values take no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from attrs import evolve

from ...ir import (
    Array,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Primary,
    Program,
    Read,
    Statement,
    dtype_of_numpy,
    expr_indirects,
    indirects,
    map_guards,
    map_primaries,
    rebuild,
    solve,
    substitute,
)
from ...ir.affine import straight_index, table_index
from .inline import constant
from .units import Unit

#: Fewest elements of a table that is compared with conditions.
MIN_TABLE_ELEMENTS = 64
#: Copies that together write a tensor, with the read of each.
Copies: TypeAlias = Mapping[str, Sequence[tuple[Statement, Read]]]
#: Replacement of a primary with new parts; None where it keeps its kind.
Lookup: TypeAlias = Callable[[Primary, tuple[Index, ...]], "Index | None"]


def tensors_looked_up(statement: Statement) -> set[str]:
    """Return the tensors whose elements a statement uses as indices."""
    found = (*expr_indirects(statement.body), *(i for index in statement.write for i in indirects(index)))
    return {inner.tensor for inner in found}


def fold_gathers(program: Program, tables: Mapping[str, Array]) -> Program:
    """Return a program with lookups in known tables as indices."""
    return evolve(program, statements=tuple(_fold_lookups(s, tables) for s in program.statements))


def _fold_lookups(statement: Statement, tables: Mapping[str, Array]) -> Statement:
    """Return a statement with lookups in known tables, and those in dims of one element, as indices."""

    def lookup(primary: Primary, parts: tuple[Index, ...], written: bool = True) -> Index | None:
        if not isinstance(primary, Indirect) or primary.tensor not in tables:
            return None
        return _known_index(primary, parts, tables[primary.tensor], written)

    def read(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        single = isinstance(primary, Indirect) and primary.extent == 1
        return Index(0) if single else lookup(primary, parts, written=False)

    return _replace_lookups(statement, lookup, read)


def bypass_copies(statement: Statement, copies: Copies) -> Statement:
    """Return a statement that looks up integers at the sources of copies."""

    def lookup(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        known = isinstance(primary, Indirect) and primary.tensor in copies
        return _source(primary, parts, copies) if known and isinstance(primary, Indirect) else None

    return _replace_lookups(statement, lookup, lookup)


def _replace_lookups(statement: Statement, written: Lookup, read: Lookup) -> Statement:
    """Return a statement with the lookups of its write and those of its body replaced."""
    if not tensors_looked_up(statement):
        return statement

    def move(index: Index, lookup: Lookup = read) -> Index:
        return map_primaries(index, lookup) if indirects(index) else index

    def leaf(node: Expr) -> Expr:
        if not any(map(indirects, node.own_indices)):
            return node
        return node.with_indices(move, lambda guards: map_guards(guards, move))

    write = tuple(move(index, written) for index in statement.write)
    return evolve(statement, write=write, body=rebuild(statement.body, leaf))


def _known_index(lookup: Indirect, places: Sequence[Index], table: Array, written: bool) -> Index | None:
    """Return a lookup at some places of its table as an index, None where no index gives its elements.

    Where a statement writes, its elements step evenly.
    """
    chosen = table[tuple(p.const if p.is_const else slice(None) for p in places)].astype(np.int64)
    chosen = np.where(chosen < 0, chosen + lookup.extent, chosen) if lookup.wraps else chosen
    if not chosen.size or chosen.min() < 0 or chosen.max() >= lookup.extent:
        return None
    return (straight_index if written else table_index)(chosen, [p for p in places if not p.is_const])


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


# ---- masks and equal elements


def replace_known_tables(units: Sequence[Unit], constants: Mapping[str, Array]) -> list[Unit]:
    """Return units that read neither band masks nor constants of equal elements.

    Conditions on indices, and values, are in their stead.
    """
    read = {t for unit in units for s in unit.statements for t in s.tensors_read} & constants.keys()
    tables = {t: constants[t] for t in read if constants[t].dtype == np.bool_}
    found = {t: limits for t, table in tables.items() if (limits := band_limits(table)) is not None}
    equal = {t: dtype_of_numpy(constants[t].dtype) for t in read - found.keys() if _is_uniform(constants[t])}
    values = {t: constant(constants[t].flat[0].item(), dtype) for t, dtype in equal.items() if dtype is not None}
    return [_replace_reads(unit, found, values) for unit in units] if found or values else list(units)


def replace_stepping_tables(units: Sequence[Unit], constants: Mapping[str, Array]) -> list[Unit]:
    """Return units that compute evenly stepping integers from indices."""
    return [_compute_steps(unit, constants) if unit.repeat is None else unit for unit in units]


def _compute_steps(unit: Unit, constants: Mapping[str, Array]) -> Unit:
    integers = {t: constants[t] for t in unit.reads if t in constants and constants[t].dtype.kind in "iu"}
    if not integers:
        return unit

    def replace(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.guards or node.tensor not in integers:
            return node
        table = integers[node.tensor]
        lookup = Indirect(node.tensor, node.indices, int(table.max(initial=0)) + 1, wraps=False)
        index, dtype = _known_index(lookup, node.indices, table, written=False), dtype_of_numpy(table.dtype)
        return node if index is None or dtype is None else IndexValue(index, dtype)

    statements = tuple(_fold_lookups(s, integers) for s in unit.statements)
    if all(map(_computes_elements, statements)):
        statements = tuple(evolve(s, body=rebuild(s.body, replace)) for s in statements)
    left = {t for s in statements for t in s.tensors_read}
    return evolve(unit, statements=statements, reads=tuple(t for t in unit.reads if t in left or t not in integers))


def _computes_elements(statement: Statement) -> bool:
    """Return whether a statement sends values, or computes its elements without sums."""
    return statement.into is not None or (statement.is_pointwise and not isinstance(statement.body, Read))


def _is_uniform(table: Array) -> bool:
    """Return whether an array of several elements was made of one."""
    return table.size >= MIN_TABLE_ELEMENTS and not any(table.strides)


def band_limits(table: Array) -> tuple[int, int, int, int] | None:
    """Return the dims and limits of a mask that is a band.

    They are `(row, column, low, high)`: it is true exactly for `low <= column - row < high`. `row` and `column` are
    dims, `low` and `high` differences of their indices. None for any other mask.
    """
    varying = [d for d in range(table.ndim) if not _is_repeated(table, d)]
    if len(varying) != 2 or table.size < MIN_TABLE_ELEMENTS:
        return None
    plane = table[tuple(slice(None) if d in varying else 0 for d in range(table.ndim))]
    rows, columns = plane.shape
    steps = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    inside = steps[plane]
    low, high = int(inside.min()), int(inside.max()) + 1
    same = np.array_equal(plane, (steps >= low) & (steps < high))
    return (varying[0], varying[1], low, high) if same else None


def _is_repeated(table: Array, dim: int) -> bool:
    first = table[tuple(slice(0, 1) if d == dim else slice(None) for d in range(table.ndim))]
    return table.shape[dim] == 1 or table.strides[dim] == 0 or bool(np.all(table == first))


def _replace_reads(unit: Unit, limits: Mapping[str, tuple[int, int, int, int]], values: Mapping[str, Const]) -> Unit:
    if unit.repeat is not None:
        values = {}
    if not any(t in limits or t in values for s in unit.statements for t in s.tensors_read):
        return unit

    def replace_value(node: Expr) -> Expr:
        return values.get(node.tensor, node) if isinstance(node, Read) and not node.guards else node

    def replace(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.guards or node.tensor not in limits:
            return node
        row, column, low, high = limits[node.tensor]
        difference: Index = node.indices[column] - node.indices[row]
        guard = Guard(difference, low, high)
        return Const(True, DType.BOOL) if guard.always else InRange((_one_sided(guard),))

    bodies = (rebuild(s.body, replace_value) if _computes_elements(s) else s.body for s in unit.statements)
    statements = tuple(evolve(s, body=rebuild(b, replace)) for s, b in zip(unit.statements, bodies, strict=True))
    left = {t for s in statements for t in s.tensors_read}
    return evolve(
        unit, statements=statements, reads=tuple(t for t in unit.reads if t in left or t not in {*limits, *values})
    )


def _one_sided(guard: Guard) -> Guard:
    """Return a guard with the limits that its index reaches as the ends of its range."""
    first, last = guard.index.bounds()
    return Guard(guard.index, max(guard.low, first), min(guard.high, last + 1))

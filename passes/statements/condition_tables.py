"""Condition tables: constant masks that two positions decide become conditions on indices.

    const m: bool[1, 4, 4]: m[0, i, j] = j <= i;    a[i, j] = s[i, j] if m[0, i, j] else -inf
      ->   a[i, j] = s[i, j] if j - i <= 0 else -inf

A kernel then reads no mask, and leaves out the blocks that a causal or a windowed mask leaves out
(`geometry/mask_bounds.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve

from ...ir import Array, Const, DType, Expr, Guard, Index, InRange, Read, rebuild
from .units import Unit

#: Fewest elements of a table that is compared with conditions.
MIN_TABLE_ELEMENTS = 64


def replace_condition_tables(units: Sequence[Unit], constants: Mapping[str, Array]) -> list[Unit]:
    """Return units with reads of constant masks replaced by conditions on indices."""
    read = {t for unit in units for s in unit.statements for t in s.tensors_read} & constants.keys()
    tables = {t: constants[t] for t in read if constants[t].dtype == np.bool_}
    found = {t: limits for t, table in tables.items() if (limits := band_limits(table)) is not None}
    return [_replace_reads(unit, found) for unit in units] if found else list(units)


def band_limits(table: Array) -> tuple[int, int, int, int] | None:
    """Return `(row, column, low, high)` where a mask is true exactly for `low <= column - row < high`.

    `row` and `column` are dims, `low` and `high` differences of their indices. None for any other mask.
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


def _replace_reads(unit: Unit, limits: Mapping[str, tuple[int, int, int, int]]) -> Unit:
    if not any(t in limits for s in unit.statements for t in s.tensors_read):
        return unit

    def replace(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.guards or node.tensor not in limits:
            return node
        row, column, low, high = limits[node.tensor]
        difference: Index = node.indices[column] - node.indices[row]
        guard = Guard(difference, low, high)
        return Const(True, DType.BOOL) if guard.always else InRange((_one_sided(guard),))

    statements = tuple(evolve(s, body=rebuild(s.body, replace)) for s in unit.statements)
    left = {t for s in statements for t in s.tensors_read}
    return evolve(unit, statements=statements, reads=tuple(t for t in unit.reads if t in left or t not in limits))


def _one_sided(guard: Guard) -> Guard:
    """Return a guard with the limits that its index reaches as the ends of its range."""
    first, last = guard.index.bounds()
    return Guard(guard.index, max(guard.low, first), min(guard.high, last + 1))

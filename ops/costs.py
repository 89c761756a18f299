"""Operations and memory traffic of a statement over a tile.

Both are derived from its accesses.

A tile is an extent per axis (of the output and of the reduction): integers, or NumPy arrays for many tiles at once.
These are the quantities that Tables 6 to 8 of DeepCuts list per operation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce as fold
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from ..ir import (
    FUNCTIONS,
    Call,
    Clamp,
    FloorDiv,
    Index,
    Indirect,
    Mod,
    Program,
    Statement,
    TensorType,
    Var,
    expr_indirects,
    expr_variables,
    indirects,
    reads,
    variables,
    walk,
)

Extent: TypeAlias = Any  #: an int or an integer array
Tile: TypeAlias = Mapping[Var, Extent]


@frozen
class Footprint:
    """Elements that one read, or the write, touches over a tile.

    `widths` is the box per dim of the tensor, from the least to the greatest index, and `elements` how many distinct
    ones are used; `accesses` counts every evaluation that reads. The box is `rows` runs of `row` elements that are
    contiguous in memory.
    """

    tensor: str
    type: TensorType
    widths: tuple[Extent, ...]
    elements: Extent
    accesses: Extent
    row: Extent
    rows: Extent

    @property
    def nbytes(self) -> Extent:
        """Bytes of the distinct elements."""
        return self.elements * self.type.dtype.size

    def transactions(self, width: int) -> Extent:
        """Return the memory transactions of `width` elements that fetch the box.

        Each run is fetched separately.
        """
        return self.rows * _ceil(self.row, width)


def full_tile(statement: Statement) -> dict[Var, int]:
    """Return the tile that covers the whole statement."""
    return {axis: axis.extent for axis in (*statement.axes, *statement.reduce)}


def complete(statement: Statement, tile: Tile) -> dict[Var, Extent]:
    """Return a tile with an extent for every axis.

    Missing axes have their full extent, and no extent exceeds it.
    """
    return {v: _minimum(tile[v], v.extent) if v in tile else v.extent for v in (*statement.axes, *statement.reduce)}


def flops(statement: Statement, tile: Tile) -> Extent:
    """Return the scalar operations over a tile.

    An operation counts once for each value of the axes it depends on, and equal operations count once: an operation
    that does not depend on an axis is hoisted out of its loop. A reduction adds one operation per term, a scatter one
    per arrival.
    """
    tile = complete(statement, tile)
    total: Extent = 0
    for node in dict.fromkeys(walk(statement.body)):
        if isinstance(node, Call):
            total = total + FUNCTIONS[node.fn].flops * _volume(tile, expr_variables(node))
    if not statement.is_pointwise:
        total = total + _product(list(tile.values()))
    return total


def footprints(statement: Statement, tensors: Mapping[str, TensorType], tile: Tile) -> tuple[Footprint, ...]:
    """Return the footprint of each distinct read.

    They come in order of first occurrence, indirect index tensors last.
    """
    tile = complete(statement, tile)
    found = [footprint(read.tensor, tensors[read.tensor], read.indices, tile) for read in reads(statement.body)]
    places = dict.fromkeys((*expr_indirects(statement.body), *(i for w in statement.write for i in indirects(w))))
    found.extend(footprint(i.tensor, tensors[i.tensor], i.indices, tile) for i in places)
    return tuple(found)


def footprint(tensor: str, type_: TensorType, indices: tuple[Index, ...], tile: Tile) -> Footprint:
    """Return the footprint of an access over a complete tile."""
    used: frozenset[Var] = frozenset().union(*(variables(i) for i in indices))
    accesses = _volume(tile, used)
    widths = tuple(_minimum(_width(i, tile), n) for i, n in zip(indices, type_.shape, strict=True))
    counts = [_minimum(_count(i, tile), w) for i, w in zip(indices, widths, strict=True)]
    row: Extent = 1
    open_: Extent = True
    for width, size in zip(reversed(widths), reversed(type_.shape), strict=True):
        row = row * _where(open_, width, 1)
        open_ = open_ & (width == size)
    return Footprint(
        tensor, type_, widths, _minimum(_product(counts), accesses), accesses, row, _product(list(widths)) // row
    )


@frozen
class Costs:
    """Total operations and bytes of a program.

    Operands and results count once each.
    """

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / max(1, self.bytes_read + self.bytes_written)


def program_costs(program: Program) -> Costs:
    """Return the costs of a program whose intermediates stay on chip."""
    work = sum(int(flops(s, full_tile(s))) for s in program.statements)
    touched: dict[str, int] = {}
    for statement in program.statements:
        for print_ in footprints(statement, program.tensors, full_tile(statement)):
            if print_.tensor in program.inputs:
                touched[print_.tensor] = min(print_.type.nbytes, touched.get(print_.tensor, 0) + int(print_.nbytes))
    return Costs(work, sum(touched.values()), sum(program.tensors[name].nbytes for name in program.outputs))


def _width(index: Index, tile: Tile) -> Extent:
    """Values from the least to the greatest over a tile."""
    return fold(lambda total, term: total + abs(term[1]) * (_primary_width(term[0], tile) - 1), index.terms, 1)


def _count(index: Index, tile: Tile) -> Extent:
    """Distinct values over a tile; exact for up to two primaries, else an upper bound.

    With coprime a and b, `a*i + b*j` takes a value again exactly where i moves by b and j by -a.
    """
    if not index.terms:
        return 1
    common = math.gcd(*(abs(factor) for _, factor in index.terms))
    steps = [abs(factor) // common for _, factor in index.terms]
    extents = [_primary_width(primary, tile) for primary, _ in index.terms]
    if len(steps) == 2:
        return extents[0] * extents[1] - _positive(extents[0] - steps[1]) * _positive(extents[1] - steps[0])
    return _minimum((_width(index, tile) - 1) // common + 1, _product(extents))


def _positive(extent: Extent) -> Extent:
    return max(extent, 0) if isinstance(extent, int) else np.maximum(extent, 0)


def _primary_width(primary: Var | FloorDiv | Mod | Clamp | Indirect, tile: Tile) -> Extent:
    if isinstance(primary, Var):
        return tile[primary]
    if isinstance(primary, FloorDiv):
        return (_width(primary.num, tile) - 1) // primary.den + 1
    if isinstance(primary, Mod):
        return _minimum(_width(primary.num, tile), primary.den)
    if isinstance(primary, Clamp):
        return _minimum(_width(primary.arg, tile), primary.high - primary.low + 1)
    used: frozenset[Var] = frozenset().union(*(variables(i) for i in primary.indices))
    return _minimum(_volume(tile, used), primary.extent)


def _volume(tile: Tile, axes: frozenset[Var]) -> Extent:
    return _product([tile[v] for v in sorted(axes, key=lambda v: v.name)])


def _product(extents: list[Extent]) -> Extent:
    return fold(lambda a, b: a * b, extents, 1)


def _minimum(a: Extent, b: Extent) -> Extent:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def _where(condition: Extent, a: Extent, b: Extent) -> Extent:
    if isinstance(condition, (bool, np.bool_)):
        return a if condition else b
    return np.where(condition, a, b)


def _ceil(a: Extent, b: int) -> Extent:
    return -(-a // b)

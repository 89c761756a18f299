"""Hierarchical reduction: totals of row results are summed row by row first.

The kernel that holds a row computes the consumers of a softmax or a norm. A sum over all rows at once cannot join it:
its blocks take equal parts of everything, so that each element goes to memory and comes back. A row's own sum is one
more reduction over the row, and the total then sums as many numbers as there are rows:

    m[i] = max_r x[i, r];   e[i, r] = exp(x[i, r] - m[i]);   t = sum_(i, r) e[i, r]
      ->   rows[i] = sum_r e[i, r];   t = sum_i rows[i]

The definitions of the elements show which of the summed axes are a row: reductions whose results do not vary along it
and that have as many terms. Rows longer than a block keeps stay as they are, and so do sums of half types, whose parts
would be rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from attrs import evolve

from ....ir import COMBINERS, Read, Statement, TensorType, Var, as_index, expr_variables, indirects, substitute_expr
from ...statements import DefUse, Edit, Match, NewUnit, Programs, RewriteRule, anything, axis_values, reduction, rewrite
from ..cut_units import MAX_KEPT_ROW


def sum_rows_first(programs: Programs) -> Programs:
    """Return programs in which totals of row results are hierarchical."""
    return rewrite(programs, RewriteRule(reduction(COMBINERS, anything()), _row, _sum_rows))


def _row(match: Match) -> tuple[Var, ...] | None:
    """Return the reduced axes that are a row, None where there is no such row, or no other axis."""
    total, index = match.root, match.index
    unit, dtype = index.unit_of(total), index.types[total.target].dtype
    alone = unit is not None and len(unit.statements) == 1 and total.along is None
    if not alone or len(total.reduce) < 2 or dtype.accumulator is not dtype:
        return None
    for held, maker in _row_results(total.reads, index, set()):
        row = tuple(v for v in total.reduce if v not in expr_variables(held))
        terms = prod(v.extent for v in row)
        same_extents = terms == prod(v.extent for v in maker.reduce)
        if same_extents and 1 < terms <= MAX_KEPT_ROW and any(v.extent > 1 for v in total.reduce if v not in row):
            return row
    return None


def _row_results(found: Iterable[Read], index: DefUse, seen: set[Read]) -> Iterator[tuple[Read, Statement]]:
    """Yield the results of reductions that elements depend on, by the variables of the reader, each with its reduction;
    elementwise statements are followed to their operands.
    """
    for read in found:
        maker = index.single_definition(read.tensor)
        if read in seen or maker is None:
            continue
        seen.add(read)
        if maker.combine is not None:
            yield read, maker
        elif maker.is_pointwise and maker.step is None and not any(map(indirects, read.indices)):
            values = axis_values(maker, read.indices)
            inner = () if values is None else (substitute_expr(r, values) for r in maker.reads)
            yield from _row_results([r for r in inner if isinstance(r, Read)], index, seen)


def _sum_rows(match: Match, row: tuple[Var, ...]) -> Edit:
    """Return the sum of each row in a unit of its own, and the total of these sums."""
    total, index = match.root, match.index
    others = tuple(v for v in total.reduce if v not in row)
    axes = (*others, *total.axes)
    place = tuple(map(as_index, axes))
    type_ = TensorType(index.types[total.target].dtype, tuple(a.extent for a in axes))
    name = index.add_tensor(f"{total.target}.rows", type_)
    part = evolve(total, target=name, axes=axes, write=place, reduce=row)
    return {total: [NewUnit("rows", (part,)), evolve(total, body=Read(name, place), reduce=others)]}

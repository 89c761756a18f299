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

from collections.abc import Iterator
from math import prod

from attrs import define, evolve, field

from ....ir import (
    COMBINERS,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_variables,
    indirects,
    solve,
    substitute_expr,
)
from ..cut_units import MAX_KEPT_ROW
from ..programs import Programs, Unit
from .rewriter import DefUseRewriter


def sum_rows_first(programs: Programs) -> Programs:
    """Return programs in which totals of row results are hierarchical."""
    writer = _TotalRewriter(programs)
    writer.units = [new for unit in programs.units for new in writer.rewrite_unit(unit)]
    return writer.result


@define
class _TotalRewriter(DefUseRewriter):
    """Rewrites totals; `looped` are tensors that loops write."""

    looped: set[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.looped = {t for unit in self.programs.units if unit.repeat is not None for t in unit.writes}

    def rewrite_unit(self, unit: Unit) -> Iterator[Unit]:
        """Yield a unit; its rows' sums precede it if it totals."""
        (total, *others) = unit.statements or (None,)
        row = self._row(total) if total is not None and not others and unit.repeat is None else ()
        if total is None or not row:
            yield unit
            return
        axes = (*(v for v in total.reduce if v not in row), *total.axes)
        place = tuple(map(as_index, axes))
        type_ = TensorType(self.types[total.target].dtype, tuple(a.extent for a in axes))
        name, self.has_changed = self.add_tensor(f"{total.target}.rows", type_), True
        part = evolve(total, target=name, axes=axes, write=place, reduce=row)
        rest = evolve(total, body=Read(name, place), reduce=tuple(v for v in total.reduce if v not in row))
        yield evolve(unit, name=f"{unit.name}.rows", statements=(part,), writes=(name,))
        yield evolve(unit, statements=(rest,), reads=(name,))

    def _row(self, total: Statement) -> tuple[Var, ...]:
        """Return the reduced axes that are a row, none where there is no such row, or no other axis."""
        if total.combine not in COMBINERS or total.along is not None or len(total.reduce) < 2:
            return ()
        if self.types[total.target].dtype.accumulator is not self.types[total.target].dtype:
            return ()
        for held, reduction in self._row_results(total.reads, set()):
            row = tuple(v for v in total.reduce if v not in expr_variables(held))
            terms = prod(v.extent for v in row)
            same_extents = terms == prod(v.extent for v in reduction.reduce)
            if same_extents and 1 < terms <= MAX_KEPT_ROW and any(v.extent > 1 for v in total.reduce if v not in row):
                return row
        return ()

    def _row_results(self, found: tuple[Read, ...], seen: set[Read]) -> Iterator[tuple[Read, Statement]]:
        """Yield the results of reductions that elements depend on, by the variables of the reader, each with its
        reduction; elementwise statements are followed to their operands.
        """
        for read in found:
            makers = self.definitions.get(read.tensor, [])
            if read in seen or len(makers) != 1 or read.tensor in self.looped:
                continue
            seen.add(read)
            (maker,) = makers
            if maker.combine is not None:
                yield read, maker
            elif maker.is_pointwise and maker.step is None and not any(map(indirects, read.indices)):
                known = solve(list(zip(maker.write, read.indices, strict=True)), maker.axes)
                if known is not None and not known.free and not known.guards:
                    inner = (substitute_expr(r, known.values) for r in maker.reads)
                    yield from self._row_results(tuple(r for r in inner if isinstance(r, Read)), seen)

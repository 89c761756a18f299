"""Totals of what rows compute are summed row by row first.

What follows a softmax or a norm is computed by whoever has the row. A sum over all rows at once is no part of that: its
blocks take equal parts of everything, so that each element goes to memory and comes back. A row's own sum is one more
reduction over the row, and what is left to sum are as many numbers as there are rows:

    m[i] = max_r x[i, r];   e[i, r] = exp(x[i, r] - m[i]);   t = sum_(i, r) e[i, r]
      ->   rows[i] = sum_r e[i, r];   t = sum_i rows[i]

Which of the summed axes are a row is read off what the elements are made of: the values that reductions left for them
do not vary along it, and those reductions have as many terms. Rows longer than what a block keeps stay as they are, and
so do sums of half types, whose parts would be rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from attrs import define, evolve, field

from ....ir import COMBINERS, Read, Statement, TensorType, Var, as_index, expr_variables, indirects, substitute_expr
from ..cutting import KEPT
from ..programs import Programs, Unit
from ..solve import solve
from .writing import Tracing


def sum_rows_first(programs: Programs) -> Programs:
    """Return programs in which totals of what rows compute are sums of the rows' sums."""
    writer = _Writer(programs)
    writer.units = [new for unit in programs.units for new in writer.divided(unit)]
    return writer.result


@define
class _Writer(Tracing):
    """Units as they become; `looped` are tensors that loops write."""

    looped: set[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.looped = {t for unit in self.programs.units if unit.repeat is not None for t in unit.writes}

    def divided(self, unit: Unit) -> Iterator[Unit]:
        """Yield a unit, before it the one of the rows' sums where it is a total of what they compute."""
        (total, *others) = unit.statements or (None,)
        row = self._row(total) if total is not None and not others and unit.repeat is None else ()
        if total is None or not row:
            yield unit
            return
        axes = (*(v for v in total.reduce if v not in row), *total.axes)
        place = tuple(map(as_index, axes))
        type_ = TensorType(self.types[total.target].dtype, tuple(a.extent for a in axes))
        name, self.found = self.tensor(f"{total.target}.rows", type_), True
        part = evolve(total, target=name, axes=axes, write=place, reduce=row)
        rest = evolve(total, body=Read(name, place), reduce=tuple(v for v in total.reduce if v not in row))
        yield evolve(unit, name=f"{unit.name}.rows", statements=(part,), writes=(name,))
        yield evolve(unit, statements=(rest,), reads=(name,))

    def _row(self, total: Statement) -> tuple[Var, ...]:
        """Return the reduced axes that are a row, none where there is no such row, or nothing beside it."""
        if total.combine not in COMBINERS or total.along is not None or len(total.reduce) < 2:
            return ()
        if self.types[total.target].dtype.accumulator is not self.types[total.target].dtype:
            return ()
        for held, reduction in self._held(total.reads, set()):
            row = tuple(v for v in total.reduce if v not in expr_variables(held))
            terms = prod(v.extent for v in row)
            alike = terms == prod(v.extent for v in reduction.reduce)
            if alike and 1 < terms <= KEPT and any(v.extent > 1 for v in total.reduce if v not in row):
                return row
        return ()

    def _held(self, found: tuple[Read, ...], seen: set[Read]) -> Iterator[tuple[Read, Statement]]:
        """Yield what reductions left for elements that are read, as reads by the variables of whoever reads them, each
        with its reduction; what is computed one by one is followed to what it is made of.
        """
        for read in found:
            makers = self.makers.get(read.tensor, [])
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
                    yield from self._held(tuple(r for r in inner if isinstance(r, Read)), seen)

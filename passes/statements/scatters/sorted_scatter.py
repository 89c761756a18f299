"""Sorted scatters: rows of floats summed in the order of their places.

The rows of an element lie side by side in the order of their places (`place_order`). One thread adds them up from the
first to the last, so that each row is read once, each element is written once, and the sum does not depend on the order
of arrival.

    scatter sum y[at[j], k] = u[j, k]
      ->  y[v, k] = sum[i] (u[order[begin[v] + i], k] if begin[v] + i < end[v] else 0)

Many rows may have one place, which no thread adds up alone. So the order is cut into chunks of C rows. A chunk adds up
its last rows, where the next chunk goes on with their place; an element adds its chunks, and its rows in its last one.

    from[c] = max(begin[place[C*c + C]], C*c)
    part[c, k] = sum[i < C] (u[order[from[c] + i], k] if from[c] + i < C*c + C else 0)
    y[v, k] = sum[c] (part[first[v] + c, k] if first[v] + c < last[v] else 0)
            + sum[i < C] (u[order[tail[v] + i], k] if tail[v] + i < end[v] else 0)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attrs import field, frozen

from ....ir import (
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    clamp,
    delinearise,
    linearise,
    row_major,
    substitute_expr,
)
from ..def_use import DefUse
from ..match import Match
from ..patterns import Scattered
from ..rewriter import RewriteRule
from .place_order import PlaceOrder, looked_up, order_places
from .scatter_rows import ScatterRows, element_of

#: Least elements that arrive, and least of a row, where a sort of places pays: it takes about as long as two million
#: additions of integers. Least elements of a tensor that has work for all threads.
MIN_SORTED_ELEMENTS, MIN_SORTED_ROW, MIN_TARGET_ELEMENTS = 1 << 21, 16, 1 << 19
#: Exponent of the rows of a chunk.
CHUNK_BITS = 7


def _sortable_rows(match: Match) -> ScatterRows | None:
    """Return the rows of a scatter of floats whose places are worth a sort."""
    statement, type_ = match.root, match.index.types[match.root.target]
    plain = type_.dtype.is_float and statement.combine is None
    rows = ScatterRows.looked_up(statement, type_) if plain else None
    if rows is None:
        return None
    width = type_.size // max(1, prod(rows.extents))
    large = rows.count * width >= MIN_SORTED_ELEMENTS and type_.size >= MIN_TARGET_ELEMENTS
    return rows if large and width >= MIN_SORTED_ROW else None


def _sum_sorted_rows(match: Match, rows: ScatterRows) -> Iterator[Statement]:
    """Yield the statements of a scatter that sums rows in the order of their places."""
    order, statements = order_places(match.root, rows, match.index)
    yield from statements
    yield from _SortedSum(match.root, rows, match.index, order).statements()


@frozen
class _SortedSum:
    """Statements that sum rows in an order.

    `columns` are the axes of the target that no integer indexes.
    """

    statement: Statement
    rows: ScatterRows
    index: DefUse
    order: PlaceOrder
    own: dict[int, Var] = field(init=False)
    columns: tuple[Var, ...] = field(init=False)

    @own.default
    def _own(self) -> dict[int, Var]:
        return self.statement.own_dims(self._type.shape)

    @columns.default
    def _columns(self) -> tuple[Var, ...]:
        return tuple(Var(f"p{n}", axis.extent) for n, axis in self.own.items())

    @property
    def _type(self) -> TensorType:
        return self.index.types[self.statement.target]

    @property
    def _wide(self) -> DType:
        return self._type.dtype.accumulator

    @property
    def _places(self) -> int:
        return prod(self.rows.extents)

    @property
    def _chunks(self) -> int:
        """Number of chunks that another one follows."""
        return self.rows.count - 1 >> CHUNK_BITS

    def _add(self, name: str, dtype: DType, shape: Sequence[int]) -> str:
        return self.index.add_tensor(f"{self.statement.target}.{name}", TensorType(dtype, tuple(shape)))

    def _sum(self, target: str, axes: Sequence[Var], write: Sequence[Index], term: Expr, step: Var) -> Statement:
        body = self.index.convert(term, self._wide)
        return Statement(target, tuple(axes), tuple(write), body, (step,), "sum", span=self.statement.span)

    def statements(self) -> Iterator[Statement]:
        """Yield numbered rows, sums of chunks, and sums of elements."""
        terms = self._add("terms", self._type.dtype, (self.rows.count, *(axis.extent for axis in self.columns)))
        yield self._numbered_rows(terms)
        axes, write = element_of(self._type)
        place = linearise([write[n] for n in self.rows.dims], row_major(self.rows.extents))
        start, total, parts = self.order.begin, self._add("total", self._wide, self._type.shape), ""
        if self._chunks:
            parts = self._add("part", self._wide, (self._chunks, *(axis.extent for axis in self.columns)))
            yield from self._chunk_sums(parts, terms)
            start, first, last = (self._add(n, DType.U32, (self._places,)) for n in ("tail", "first", "last"))
            yield from self._chunk_places(start, first, last)
        step = Var("i", 1 << CHUNK_BITS if parts else self.rows.count)
        beyond = looked_up(self.order.end, place, self.rows.count + 1)
        yield self._sum(total, axes, write, self._term(terms, start, place, step, beyond), step)
        result: Expr = Read(total, write)
        if parts:
            before = self._add("before", self._wide, self._type.shape)
            chunk = Var("c", self._chunks)
            number = looked_up(first, place, self._chunks + 1) + chunk
            counted = Guard(number - looked_up(last, place, self._chunks + 1), -self._chunks, 0)
            part = Read(parts, (clamp(number, 0, self._chunks - 1), *map(as_index, self.columns)), (counted,))
            yield self._sum(before, axes, write, part, chunk)
            result = Call("add", (Read(before, write), result))
        result = self.index.convert(result, self._type.dtype)
        yield Statement(self.statement.target, axes, write, result, span=self.statement.span)

    def _numbered_rows(self, terms: str) -> Statement:
        """Return the rows numbered by one axis, a view where they lie so."""
        row = Var("n", self.rows.count)
        keys = delinearise(as_index(row), [axis.extent for axis in self.rows.keys])
        places = dict(zip((*self.rows.keys, *self.own.values()), (*keys, *map(as_index, self.columns)), strict=True))
        body = substitute_expr(self.index.convert(self.statement.body, self._type.dtype), places)
        axes = (row, *self.columns)
        return Statement(terms, axes, tuple(map(as_index, axes)), body, span=self.statement.span)

    def _term(self, terms: str, start: str, at: Index, step: Var, end: Index) -> Read:
        """Return an element of the row at a step from a start in the order, 0 from an end on."""
        count = self.rows.count
        number = looked_up(start, at, count + 1) + step
        row = looked_up(self.order.order, clamp(number, 0, count - 1), count)
        return Read(terms, (row, *map(as_index, self.columns)), (Guard(number - end, -count, 0),))

    def _chunk_sums(self, parts: str, terms: str) -> Iterator[Statement]:
        """Yield the sums of chunks: those of their last rows that have the place of the next one's first."""
        chunk, step, places = Var("c", self._chunks), Var("i", 1 << CHUNK_BITS), self._places
        begin = as_index(chunk) * (1 << CHUNK_BITS)
        after = begin + (1 << CHUNK_BITS)
        start = self._add("from", DType.U32, (self._chunks,))
        place = clamp(looked_up(self.order.place, after, places + 1), 0, places - 1)
        first = Read(self.order.begin, (place,))
        later = Call("max", (first, IndexValue(begin, DType.U32)))
        inside = Call("lt", (Read(self.order.place, (after,)), Const(places, DType.U32)))
        body = Call("select", (inside, later, IndexValue(after, DType.U32)))
        yield Statement(start, (chunk,), (as_index(chunk),), body)
        axes = (chunk, *self.columns)
        yield self._sum(
            parts, axes, tuple(map(as_index, axes)), self._term(terms, start, as_index(chunk), step, after), step
        )

    def _chunk_places(self, tail: str, first: str, last: str) -> Iterator[Statement]:
        """Yield for each place its first row in its last chunk, its first chunk, and its last one."""
        axis = Var("v", self._places)
        here = (as_index(axis),)
        begin, end = Read(self.order.begin, here), Read(self.order.end, here)
        bits = Const(CHUNK_BITS, DType.U32)
        chunk: Expr = Call("shr", (Call("sub", (Call("max", (end, Const(1, DType.U32))), Const(1, DType.U32))), bits))
        for target, body in (
            (tail, Call("max", (begin, Call("shl", (chunk, bits))))),
            (first, Call("shr", (begin, bits))),
            (last, chunk),
        ):
            yield Statement(target, (axis,), here, body)


SORTED_SUM = RewriteRule(Scattered(("sum",)), _sortable_rows, _sum_sorted_rows)

"""Sorted scatters: rows of floats summed in the order of their places.

The rows of a place follow each other in their order (`place_order`), from `begin[v]` to `begin[v + 1]`. One thread adds
them up from the first to the last, so that each row is read once, each element is written once, and the sum does not
depend on the order of arrival.

    scatter sum y[at[j], k] = u[j, k]
      ->  y[v, k] = sum[i] (u[order[begin[v] + i], k] if begin[v] + i < begin[v + 1] else 0)

Many rows may have one place, which no thread adds up alone. So the order is cut into chunks of C rows. A chunk whose
rows all have one place adds them up; an element adds its whole chunks, and its rows before and after these.

    part[c, k] = sum[i < C] (u[order[C*c + i], k] if end[place of row order[C*c]] >= C*c + C else 0)
    y[v, k] = sum[c] (part[ceil(begin[v] / C) + c, k] if ceil(begin[v] / C) + c < end[v] // C else 0)
            + sum[i < 2 C] (u[order[begin[v] + i, or beyond the whole chunks], k] if one is left else 0)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from attrs import field, frozen

from ....ir import (
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    Indirect,
    InRange,
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
from .ordered_rows import OrderedRows, order_of_rows, ordered_place
from .place_lists import PlaceLists, list_places
from .place_order import order_places
from .scatter_rows import ScatterRows, element_of

#: Least elements that arrive, and least of a row, where an order of places pays, and least where they are in order.
MIN_SORTED_ELEMENTS, MIN_SORTED_ROW, MIN_ORDERED_ELEMENTS = 1 << 21, 16, 1 << 16
#: Least rows that are sorted by digits of their places; fewer are appended to lists.
MIN_DIGIT_ROWS = 1 << 18
#: Exponents of the rows of a chunk, and of the elements of a tensor that has work for all threads: chunks are shorter
#: where it has fewer.
CHUNK_BITS, MIN_CHUNK_BITS, FULL_BITS = 7, 4, 20
#: Least rows of a place in the mean that are loaded without conditions, several at once.
MIN_PLACE_ROWS = 2


@frozen
class _Sortable:
    """Rows of a scatter whose places are worth an order; `at` is the integer whose order they have."""

    rows: ScatterRows
    at: Indirect | None = None


def sorted_sum(ordered: Collection[str], narrow: bool = False) -> RewriteRule[_Sortable]:
    """Return the rule of sums in the order of places.

    Integers of `ordered` tensors have that order. With `narrow`, rows that need a sort are those of narrow types alone.
    """

    def sortable(match: Match) -> _Sortable | None:
        statement, type_ = match.root, match.index.types[match.root.target]
        plain = type_.dtype.is_float and statement.combine is None
        rows = ScatterRows.looked_up(statement, type_) if plain else None
        if rows is None:
            return None
        width = type_.size // max(1, prod(rows.extents))
        at = ordered_place(rows, match.index, ordered)
        if at is not None:
            return _Sortable(rows, at) if rows.count * width >= MIN_ORDERED_ELEMENTS else None
        worth = rows.count * width >= MIN_SORTED_ELEMENTS and width >= MIN_SORTED_ROW
        return _Sortable(rows) if worth and not (narrow and type_.dtype.accumulator is type_.dtype) else None

    return RewriteRule(Scattered(("sum",)), sortable, _sum_sorted_rows)


def _sum_sorted_rows(match: Match, found: _Sortable) -> Iterator[Statement]:
    """Yield the statements of a scatter that sums rows in the order of their places."""
    root, rows, index = match.root, found.rows, match.index
    order: OrderedRows | PlaceLists
    if found.at is None and rows.count < MIN_DIGIT_ROWS:
        order, statements = list_places(root, rows, index)
    elif found.at is None:
        order, statements = order_places(root, rows, index)
    else:
        order, statements = order_of_rows(root.target, rows, found.at, index, rows.keys[0])
    yield from statements
    yield from _SortedSum(root, rows, index, order).statements()


@frozen
class _SortedSum:
    """Statements that sum rows in an order.

    `columns` are the axes of the target that no integer indexes.
    """

    statement: Statement
    rows: ScatterRows
    index: DefUse
    order: OrderedRows | PlaceLists
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
    def _chunk(self) -> int:
        """Number of rows of a chunk."""
        missing = FULL_BITS + 1 - self._type.size.bit_length()
        return 1 << max(min(MIN_CHUNK_BITS, CHUNK_BITS), CHUNK_BITS - max(0, missing))

    @property
    def _chunks(self) -> int:
        """Number of whole chunks; no element adds one that none follows."""
        return self.rows.count // self._chunk

    def _add(self, name: str, dtype: DType, shape: Sequence[int]) -> str:
        return self.index.add_tensor(f"{self.statement.target}.{name}", TensorType(dtype, tuple(shape)))

    def _sum(self, target: str, axes: Sequence[Var], write: Sequence[Index], term: Expr, step: Var) -> Statement:
        body = self.index.convert(term, self._wide)
        return Statement(target, tuple(axes), tuple(write), body, (step,), "sum", span=self.statement.span)

    def statements(self) -> Iterator[Statement]:
        """Yield numbered rows, sums of chunks, and sums of elements."""
        terms = self._add("terms", self._type.dtype, (self.rows.count, *(axis.extent for axis in self.columns)))
        yield from self._numbered_rows(terms)
        axes, write = element_of(self._type)
        place = linearise([write[n] for n in self.rows.dims], row_major(self.rows.extents))
        begin, end = self.order.begin(place), self.order.end_of(place)
        first, chunks = (begin + self._chunk - 1) // self._chunk, self._chunks
        whole = clamp(end // self._chunk - first, 0, chunks)
        step, total = Var("i", min(2 * self._chunk, self.rows.count)), self._add("total", self._wide, self._type.shape)
        skipped, after = whole * self._chunk, clamp(begin + step - first * self._chunk + 1, 0, 1) * self.rows.count
        number = begin + step + skipped - clamp(skipped - after, 0, self.rows.count) if chunks else begin + step
        left = Guard(begin + step + skipped - end, -2 * self.rows.count, 0)
        if self.rows.count >= MIN_PLACE_ROWS * prod(self.rows.extents):
            number = end - 1 - clamp(end - 1 - number, 0, self.rows.count)  # no row is loaded but those of the place
            row = self.index.convert(self._row(terms, number), self._wide)
            term: Expr = Call("select", (InRange((left,)), row, Const(0, self._wide)))
        else:
            term = self._row(terms, number, left)
        yield self._sum(total, axes, write, term, step)
        result: Expr = Read(total, write)
        if chunks:
            parts = self._add("part", self._wide, (chunks, *(axis.extent for axis in self.columns)))
            yield from self._chunk_sums(parts, terms)
            before = self._add("before", self._wide, self._type.shape)
            c = Var("c", chunks + (chunks == step.extent))  # sums of one extent would share a loop's end
            counted = Guard(as_index(c) - whole, -chunks, 0)
            part = Read(parts, (clamp(first + c, 0, chunks - 1), *map(as_index, self.columns)), (counted,))
            yield self._sum(before, axes, write, part, c)
            result = Call("add", (Read(before, write), result))
        result = self.index.convert(result, self._type.dtype)
        yield Statement(self.statement.target, axes, write, result, span=self.statement.span)

    def _numbered_rows(self, terms: str) -> Iterator[Statement]:
        """Yield the rows numbered by one axis, a view where they lie so."""
        row = Var("n", self.rows.count)
        keys = delinearise(as_index(row), [axis.extent for axis in self.rows.keys])
        places = dict(zip((*self.rows.keys, *self.own.values()), (*keys, *map(as_index, self.columns)), strict=True))
        body = substitute_expr(self.index.convert(self.statement.body, self._type.dtype), places)
        axes = (row, *self.columns)
        yield Statement(terms, axes, tuple(map(as_index, axes)), body, span=self.statement.span)

    def _row(self, terms: str, number: Index, *guards: Guard) -> Read:
        """Return an element of the row at a place of the order, 0 where a guard fails."""
        return Read(terms, (self.order.row(number), *map(as_index, self.columns)), guards)

    def _chunk_sums(self, parts: str, terms: str) -> Iterator[Statement]:
        """Yield the sums of chunks whose rows have one place."""
        chunk, step = Var("c", self._chunks), Var("i", self._chunk)
        first = as_index(chunk) * self._chunk
        left = self.order.end_of(self.order.place_at(first)) - first
        # Sums without terms are left out where a place has few rows in the mean.
        seldom = self.rows.count < prod(self.rows.extents) * self._chunk
        sent = as_index(step) - clamp(left - self._chunk + 1, 0, 1) * self._chunk
        guard = Guard(sent, -self._chunk, 0) if seldom else Guard(left, self._chunk, self.rows.count + 1)
        axes = (chunk, *self.columns)
        term = self._row(terms, first + step, guard)
        yield self._sum(parts, axes, tuple(map(as_index, axes)), term, step)

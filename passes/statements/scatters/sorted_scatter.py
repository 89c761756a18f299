"""Sorted scatters: rows of floats summed in the order of their places.

The rows of a place follow each other in their order (`place_order`), from `begin[v]` to `begin[v + 1]`. One thread adds
them up from the first to the last, so that each row is read once, each element is written once, and the sum does not
depend on the order of arrival.

    scatter sum y[at[j], k] = u[j, k]
      ->  y[v, k] = sum[i] (u[order[begin[v] + i], k] if begin[v] + i < begin[v + 1] else 0)

Many rows may have one place, which no thread adds up alone. So the order is cut into chunks of C rows. A chunk adds up
its last rows, where the next chunk goes on with their place; an element adds its chunks, and its rows in its last one.

    from[c] = max(begin[place of row order[C*c + C]], C*c)
    part[c, k] = sum[i < C] (u[order[from[c] + i], k] if from[c] + i < C*c + C else 0)
    y[v, k] = sum[c] (part[first[v] + c, k] if first[v] + c < last[v] else 0)
            + sum[i < C] (u[order[tail[v] + i], k] if tail[v] + i < begin[v + 1] else 0)
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from math import prod

from attrs import field, frozen

from ....ir import (
    Call,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
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
    variables,
)
from ..def_use import DefUse
from ..match import Match
from ..patterns import Scattered
from ..rewriter import RewriteRule
from .ordered_rows import OrderedRows, order_of_rows, ordered_place
from .place_lists import PlaceLists, list_places
from .place_order import order_places
from .scatter_rows import ScatterRows, element_of, looked_up

#: Least elements that arrive, and least of a row, where an order of places pays, and least where they are in order.
MIN_SORTED_ELEMENTS, MIN_SORTED_ROW, MIN_ORDERED_ELEMENTS = 1 << 21, 16, 1 << 16
#: Least rows that are sorted by digits of their places; fewer are appended to lists.
MIN_DIGIT_ROWS = 1 << 18
#: Exponents of the rows of a chunk, and of the elements of a tensor that has work for all threads: chunks are shorter
#: where it has fewer.
CHUNK_BITS, MIN_CHUNK_BITS, FULL_BITS = 7, 4, 19


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
        last = clamp(end - 1, 0, self.rows.count - 1) // self._chunk
        tail = begin
        if self._chunks:
            first = begin + clamp(last * self._chunk - begin, 0, self.rows.count)
            tail = yield from self._hoist("tail", first, axes, place)
        step, total = Var("i", min(self._chunk, self.rows.count)), self._add("total", self._wide, self._type.shape)
        yield self._sum(total, axes, write, self._term(terms, tail + step, end), step)
        result: Expr = Read(total, write)
        if self._chunks:
            parts = self._add("part", self._wide, (self._chunks, *(axis.extent for axis in self.columns)))
            yield from self._chunk_sums(parts, terms)
            before = self._add("before", self._wide, self._type.shape)
            c = Var("c", self._chunks + (self._chunks == self._chunk))  # sums of one extent would share a loop's end
            number = begin // self._chunk + c
            counted = Guard(number - last, -self.rows.count, 0)
            part = Read(parts, (clamp(number, 0, self._chunks - 1), *map(as_index, self.columns)), (counted,))
            yield self._sum(before, axes, write, part, c)
            result = Call("add", (Read(before, write), result))
        result = self.index.convert(result, self._type.dtype)
        yield Statement(self.statement.target, axes, write, result, span=self.statement.span)

    def _hoist(self, name: str, value: Index, axes: Sequence[Var], place: Index) -> Generator[Statement, None, Index]:
        """Return an index that is computed once for each place where digits order many rows; yield its statement."""
        if not (isinstance(self.order, OrderedRows) and self.order.order):
            return value
        found, own = (
            self._add(name, DType.U32, (place.bounds()[1] + 1,)),
            tuple(v for v in axes if v in variables(place)),
        )
        yield Statement(found, own, (place,), IndexValue(value, DType.U32), span=self.statement.span)
        return looked_up(found, (place,), value.bounds()[1] + 1)

    def _numbered_rows(self, terms: str) -> Iterator[Statement]:
        """Yield the rows numbered by one axis, a view where they lie so."""
        row = Var("n", self.rows.count)
        keys = delinearise(as_index(row), [axis.extent for axis in self.rows.keys])
        places = dict(zip((*self.rows.keys, *self.own.values()), (*keys, *map(as_index, self.columns)), strict=True))
        body = substitute_expr(self.index.convert(self.statement.body, self._type.dtype), places)
        axes = (row, *self.columns)
        yield Statement(terms, axes, tuple(map(as_index, axes)), body, span=self.statement.span)

    def _term(self, terms: str, number: Index, end: Index) -> Read:
        """Return an element of the row at a place of the order, 0 from an end on."""
        at = (self.order.row(number), *map(as_index, self.columns))
        return Read(terms, at, (Guard(number - end, -self.rows.count, 0),))

    def _chunk_sums(self, parts: str, terms: str) -> Iterator[Statement]:
        """Yield the sums of chunks: those of their last rows that have the place of the next one's first."""
        chunk, step = Var("c", self._chunks), Var("i", self._chunk)
        first = as_index(chunk) * self._chunk
        after = first + self._chunk
        begin = self.order.begin(self.order.place_at(after))
        moved = first + clamp(begin - first, 0, self._chunk)
        start = yield from self._hoist("from", moved, (chunk,), as_index(chunk))
        number = start + step
        axes = (chunk, *self.columns)
        yield self._sum(parts, axes, tuple(map(as_index, axes)), self._term(terms, number, after), step)

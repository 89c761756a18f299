"""Passes of a radix sort over all blocks, least digit first.

A block sorts the digits of a tile. The first key of a tile with a digit has as many keys before it as there are with
lesser digits, and with the digit in tiles before; so keys move with their rows in runs of equal digits, in order.

    count[b, e] = number of keys of tile b with digit e;  start[e, b] = sum of all counts before (e, b)
    shift[b, e] = start[e, b] - sum[f < e] count[b, f]
    sorted[b, :] = places of tile b in the order of digits
    moved[r + shift[b, digit[b, sorted[b, r]]]] = key[b, sorted[b, r]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define

from ....ir import (
    ONE_ARRIVAL,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
)
from ..def_use import DefUse
from ..prefix_scan import divide_scans
from ..sorts import mark_sorts

#: Bits of a digit, and digits.
DIGIT_BITS, DIGITS = 8, 256
#: Least and most places of a tile that a block sorts, tiles that fill a machine, and their common factor.
MIN_TILE, MAX_TILE, MIN_TILES, TILE_STEP = 512, 4096, 128, 16
_ONE, _NONE = Const(1, DType.I32), Const(0, DType.I32)


def sort_keys(key: str, most: int, index: DefUse) -> tuple[str, str, list[Statement]]:
    """Return the tensors of sorted keys and their rows, and statements.

    Keys are at most `most`.
    """
    statements: list[Statement] = []
    before = ""
    for low in range(0, most.bit_length(), DIGIT_BITS):
        one = _Pass(index, key, before, low)
        program = Program(index.types, (key,), (), tuple(one.statements()))
        marked = divide_scans(mark_sorts(program))
        index.types.update(marked.tensors)
        statements += marked.statements
        key, before = one.moved, one.order
    return key, before, statements


def _tile_of(count: int) -> int:
    """Return the places of a tile, without remainder where that is possible: tiles are then rows of memory."""
    most = min(MAX_TILE, max(MIN_TILE, 1 << (count // MIN_TILES).bit_length()))
    whole = [size for size in range(most // 2, most + 1, TILE_STEP) if count % size == 0]
    return max(whole, default=most)


@define
class _Pass:
    """One pass over the digits of keys at bit `low`; `before` are the rows of keys that moved already."""

    index: DefUse
    key: str
    before: str
    low: int
    moved: str = ""
    order: str = ""

    def _add(self, name: str, dtype: DType, *shape: int) -> str:
        return self.index.add_tensor(f"{self.key}.{name}", TensorType(dtype, shape))

    def statements(self) -> Iterator[Statement]:
        """Yield all statements, in order."""
        (count,) = self.index.types[self.key].shape
        tile = _tile_of(count)
        tiles = -(-count // tile)
        b, i, j, r = Var("b", tiles), Var("i", tile), Var("j", tile), Var("r", tile)
        e, f, c, d = Var("e", DIGITS), Var("f", DIGITS), Var("c", DIGITS * tiles), Var("d", DIGITS * tiles)
        digit = self._add("digit", DType.U8, tiles, tile)
        number = Call("shr", (self._key_at(as_index(b) * tile + j, count), Const(self.low, DType.U32)))
        low = Cast(DType.U8, Call("bitand", (number, Const(DIGITS - 1, DType.U32))))
        yield _assign(digit, (b, j), low)
        own, counts = self._add("count", DType.I32, tiles, DIGITS), self._add("counts", DType.I32, DIGITS, tiles)
        place = _element(digit, DIGITS, b, j)
        yield Statement(own, (b, j), (as_index(b), place), _ONE, into="sum")
        yield Statement(counts, (b, j), (place, as_index(b)), _ONE, into="sum")
        row, start = (self._add(name, DType.I32, DIGITS * tiles) for name in ("row", "start"))
        yield _assign(row, (c,), Read(counts, (as_index(c) // tiles, as_index(c) % tiles)))
        yield _sum_before(start, (), c, Read(row, (as_index(d),)), d)
        lesser, shift = (self._add(name, DType.I32, tiles, DIGITS) for name in ("lesser", "shift"))
        yield _sum_before(lesser, (b,), e, Read(own, (as_index(b), as_index(f))), f)
        all_lesser = Read(start, (as_index(e) * tiles + b,))
        yield _assign(shift, (b, e), Call("sub", (all_lesser, Read(lesser, (as_index(b), as_index(e))))))
        near, ordered = (self._add(name, DType.I32, tiles, tile) for name in ("near", "sorted"))
        yield _count_before(near, digit, b, i, j)
        found = Call("eq", (Read(near, (as_index(b), as_index(j))), IndexValue(as_index(r), DType.I32)))
        yield _sum(ordered, (b, r), Call("select", (found, IndexValue(as_index(j), DType.I32), _NONE)), j)
        yield from self._moves(digit, shift, ordered, b, r, count)

    def _key_at(self, place: Index, count: int) -> Read:
        """Return a key; those beyond the end have the greatest digit."""
        guard = Guard(place, 0, count)
        return Read(self.key, (place,), () if guard.always else (guard,), float((1 << 32) - 1))

    def _moves(self, digit: str, shift: str, ordered: str, b: Var, r: Var, count: int) -> Iterator[Statement]:
        """Yield the stores of keys and of their rows."""
        source = _element(ordered, r.extent, b, r)
        place = as_index(b) * r.extent + source
        of = Index(0, ((Indirect(digit, (as_index(b), source), DIGITS, wraps=False), 1),))
        to = Index(0, ((Indirect(shift, (as_index(b), of), count, wraps=False), 1),)) + r
        self.moved, self.order = (self._add(name, DType.U32, count) for name in ("moved", "order"))
        guard = Guard(place, 0, count)
        row = Read(self.before, (place,), () if guard.always else (guard,)) if self.before else None
        for target, value in (
            (self.moved, self._key_at(place, count)),
            (self.order, row or IndexValue(place, DType.U32)),
        ):
            yield Statement(target, (b, r), (to,), value, into=ONE_ARRIVAL)


def _element(tensor: str, extent: int, *axes: Var) -> Index:
    """Return an element of a tensor as an index, which is always below `extent`."""
    return Index(0, ((Indirect(tensor, tuple(map(as_index, axes)), extent, wraps=False), 1),))


def _assign(target: str, axes: Sequence[Var], body: Expr) -> Statement:
    return Statement(target, tuple(axes), tuple(map(as_index, axes)), body)


def _sum(target: str, axes: Sequence[Var], body: Expr, over: Var) -> Statement:
    return Statement(target, tuple(axes), tuple(map(as_index, axes)), body, (over,), "sum")


def _sum_before(target: str, axes: Sequence[Var], along: Var, value: Expr, over: Var) -> Statement:
    """Return a prefix sum, without each element itself."""
    counted = InRange((Guard(as_index(along) - over, 1, along.extent),))
    return _sum(target, (*axes, along), Call("select", (counted, value, _NONE)), over)


def _count_before(target: str, digit: str, b: Var, i: Var, j: Var) -> Statement:
    """Return the number of places of a tile that come before each one: lesser digits, and equal ones before it."""
    own, other = (Read(digit, (as_index(b), as_index(place))) for place in (i, j))
    earlier = InRange((Guard(as_index(j) - i, 1 - i.extent, 0),))
    comes = Call("or", (Call("lt", (other, own)), Call("and", (Call("eq", (other, own)), earlier))))
    return _sum(target, (b, i), Call("select", (comes, _ONE, _NONE)), j)

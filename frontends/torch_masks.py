"""PyTorch's writing where a tensor of truth values says so, and the places of values among sorted ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.types import DType
from .torch_movement import expand, unsqueeze
from .torch_reader import Convert, Reader, Value


def is_mask(reader: Reader, indices: Sequence[Value | None]) -> bool:
    """Whether a tensor is indexed by truth values."""
    return any(v is not None and reader.type(v).dtype is DType.BOOL for v in indices)


def put_where(reader: Reader, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Any:
    """Write one value, or one per element of the other axes, wherever a mask is true."""
    given = [n for n, v in enumerate(indices) if v is not None]
    shape, own = reader.shape(x), reader.shape(values)
    if len(given) > 1:
        reader.fail("indexing by truth values and other tensors at once is not supported")
    first, mask = given[0], Value(indices[given[0]] or "")
    width = len(reader.shape(mask))
    behind = len(shape) - first - width
    whole = (1,) * (first + 1 + behind - len(own)) + own
    if whole[first] != 1:
        reader.fail("writing several values where truth values say is not supported, as how many there are depends on them")
    spread = (*whole[:first], *(1,) * width, *whole[first + 1 :])
    source = reader.cast(reader.emit("reshape", values, shape=spread), reader.type(x).dtype)
    condition = reader.emit("reshape", mask, shape=(*reader.shape(mask), *(1,) * behind))
    return reader.emit("where", condition, reader.emit("add", x, source) if accumulate else source, x)


def _masked_scatter(reader: Reader, x: Value, mask: Value, source: Value) -> Any:
    """The n-th true place gets the n-th element of the source, so a place asks how many are true before it."""
    shape = reader.shape(x)
    mask = expand(reader, mask, shape)
    if not reader.type(source).size:
        return x
    counts = reader.emit("cumsum", reader.cast(reader.emit("reshape", mask, shape=(-1,)), DType.I64), axis=0)
    zero, one = (reader.constant(n, dtype=DType.I64) for n in (0, 1))
    places = reader.emit("max", reader.emit("sub", counts, one), zero)
    found = reader.emit("gather", reader.emit("reshape", source, shape=(-1,)), places, axis=0)
    return reader.emit("where", mask, reader.emit("reshape", found, shape=shape), x)


def _places_among(reader: Reader, ordered: Value, x: Any, right: bool, narrow: bool) -> Any:
    """Return how many ordered values stand before each value: those that are less, or with `right` not greater."""
    rank = len(reader.shape(ordered))
    value = reader.operand(x, reader.type(ordered).dtype)
    one_list = rank == 1
    lists = ordered if one_list else unsqueeze(reader, ordered, rank - 1)
    before = reader.emit("less_or_equal" if right else "less", lists, unsqueeze(reader, value, len(reader.shape(value))))
    kind = DType.I32 if narrow else DType.I64
    return reader.emit("reduce_sum", reader.cast(before, kind), axes=(-1,), keepdims=False)


def _search(
    reader: Reader, ordered: Value, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    if sorter is not None:
        ordered = reader.emit("gather_elements", ordered, sorter, axis=-1)
    return _places_among(reader, ordered, x, right or side == "right", out_int32)


def _bucketize(reader: Reader, x: Any, ordered: Value, *, out_int32: bool = False, right: bool = False) -> Any:
    return _places_among(reader, ordered, x, right, out_int32)


TABLE: dict[str, Convert] = {
    "aten.masked_scatter": _masked_scatter, "aten.searchsorted": _search, "aten.bucketize": _bucketize,
    "aten._is_all_true": lambda reader, x: _none_is(reader, x, True), "aten._is_any_true": lambda reader, x: _none_is(reader, x, False),
}  # fmt: skip


def _none_is(reader: Reader, x: Value, least: bool) -> Any:
    found = reader.emit("reduce_min" if least else "reduce_max", reader.cast(x, DType.U8), keepdims=False)
    return reader.cast(found, DType.BOOL)

"""PyTorch's reading and writing where a tensor of truth values says so, and the places of values among sorted ones.

How many elements a mask chooses depends on values, so a choice has no type of ours. But what is computed of each chosen
element can be computed of every element, and written back by the same mask it is a choice between two tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from attrs import evolve, frozen

from ....ir import DType
from ..reader import Convert, Reader, Value
from .movement import expand, unsqueeze

#: Elements of constants that are compared one by one.
_SMALL = 1024


@frozen
class Chosen:
    """The elements of a tensor where a mask is true, as one axis with so many axes behind it."""

    elements: Value
    mask: Value
    behind: int


def any_chosen(argument: Any) -> bool:
    """Whether an argument is, or a list of arguments has, what a mask chooses."""
    return any(any_chosen(a) for a in argument) if isinstance(argument, (list, tuple)) else isinstance(argument, Chosen)


def choose(reader: Reader, x: Value, indices: Sequence[Value | None]) -> Chosen:
    """Read where a mask is true."""
    first, mask = _only_mask(reader, indices)
    return Chosen(x, mask, len(reader.shape(x)) - first - len(reader.shape(mask)))


def of_chosen(convert: Convert) -> Convert:
    """Return the conversion of a function of each element, of elements that one mask chooses."""

    def apply(reader: Reader, *arguments: Any, **keywords: Any) -> Chosen:
        chosen = [a for a in arguments if isinstance(a, Chosen)]
        if not chosen or not all(_alike(reader, chosen[0], c.mask, c.behind) for c in chosen):
            refuse_choice(reader)
        if any(isinstance(a, Value) and len(reader.shape(a)) > chosen[0].behind for a in arguments):
            refuse_choice(reader)
        found = convert(reader, *(a.elements if isinstance(a, Chosen) else a for a in arguments), **keywords)
        if not isinstance(found, Value):
            refuse_choice(reader)
        return evolve(chosen[0], elements=found)

    return apply


def refuse_choice(reader: Reader, *_: Any, **__: Any) -> NoReturn:
    """Raise where it matters how many elements a mask chooses."""
    reader.fail(
        "indexing by a tensor of truth values is not supported but to write by the same one, as the shape of the "
        "result depends on them"
    )


def _alike(reader: Reader, chosen: Chosen, mask: Value, behind: int) -> bool:
    """Whether a mask chooses the same places; one that is written out twice is computed by equal nodes."""
    if chosen.behind != behind or chosen.mask == mask:
        return chosen.behind == behind
    small = {v: (str(a.dtype), a.shape, a.tobytes()) for v, a in reader.constants.items() if a.size <= _SMALL}
    numbers: dict[Any, int] = {}
    number: dict[str | None, Any] = {v: numbers.setdefault(key, len(numbers)) for v, key in small.items()}
    for node in reader.nodes:
        key = (node.op, repr(sorted(node.attributes.items())), tuple(number.get(v, v) for v in node.inputs))
        number.update({v: numbers.setdefault((*key, n), len(numbers)) for n, v in enumerate(node.outputs)})
    return bool(number.get(mask, mask) == number.get(chosen.mask, chosen.mask))


def _only_mask(reader: Reader, indices: Sequence[Value | None]) -> tuple[int, Value]:
    """Return the mask among indices, and its first axis."""
    given = [n for n, v in enumerate(indices) if v is not None]
    if len(given) > 1:
        reader.fail("indexing by truth values and other tensors at once is not supported")
    return given[0], Value(indices[given[0]] or "")


def is_mask(reader: Reader, indices: Sequence[Value | None]) -> bool:
    """Whether a tensor is indexed by truth values."""
    return any(v is not None and reader.type(v).dtype is DType.BOOL for v in indices)


def put_where(
    reader: Reader, x: Value, indices: Sequence[Value | None], values: Value | Chosen, accumulate: bool = False
) -> Any:
    """Write one value, one per element of the other axes, or what the same mask chooses, wherever a mask is true."""
    first, mask = _only_mask(reader, indices)
    shape, width = reader.shape(x), len(reader.shape(mask))
    behind = len(shape) - first - width
    if isinstance(values, Chosen):
        if not _alike(reader, values, mask, behind):
            refuse_choice(reader)
        return _where_mask(reader, x, mask, behind, values.elements, accumulate)
    own = reader.shape(values)
    whole = (1,) * (first + 1 + behind - len(own)) + own
    if whole[first] != 1:
        reader.fail(
            "writing several values where truth values say is not supported, as how many there are depends on them"
        )
    spread = (*whole[:first], *(1,) * width, *whole[first + 1 :])
    return _where_mask(reader, x, mask, behind, reader.reshape(values, spread), accumulate)


def _where_mask(reader: Reader, x: Value, mask: Value, behind: int, source: Value, accumulate: bool) -> Any:
    source = reader.cast(source, reader.type(x).dtype)
    condition = reader.reshape(mask, (*reader.shape(mask), *(1,) * behind))
    return reader.emit("where", condition, reader.emit("add", x, source) if accumulate else source, x)


def _masked_scatter(reader: Reader, x: Value, mask: Value, source: Value) -> Any:
    """The n-th true place gets the n-th element of the source, so a place asks how many are true before it."""
    shape = reader.shape(x)
    mask = expand(reader, mask, shape)
    if not reader.type(source).size:
        return x
    counts = reader.emit("cumsum", reader.cast(reader.reshape(mask, (-1,)), DType.I64), axis=0)
    zero, one = (reader.constant(n, dtype=DType.I64) for n in (0, 1))
    places = reader.emit("max", reader.emit("sub", counts, one), zero)
    found = reader.emit("gather", reader.reshape(source, (-1,)), places, axis=0)
    return reader.emit("where", mask, reader.reshape(found, shape), x)


def _places_among(reader: Reader, ordered: Value, x: Any, right: bool, narrow: bool) -> Any:
    """Return how many ordered values stand before each value: those that are less, or with `right` not greater.

    All stand before NaN, on either side.
    """
    length, rank = reader.shape(ordered)[-1], len(reader.shape(ordered))
    ordered, value = reader.common(ordered, x)
    one_list = rank == 1
    lists = ordered if one_list else unsqueeze(reader, ordered, rank - 1)
    before = reader.emit(
        "less_or_equal" if right else "less", lists, unsqueeze(reader, value, len(reader.shape(value)))
    )
    count = reader.emit("reduce_sum", reader.cast(before, DType.I32), axes=(-1,), keepdims=False)  # below 2^31
    if reader.type(value).dtype.is_float:
        count = reader.emit("where", reader.emit("is_nan", value), reader.constant(length, dtype=DType.I32), count)
    return count if narrow else reader.cast(count, DType.I64)


def _search(
    reader: Reader,
    ordered: Value,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        ordered = reader.emit("gather_elements", ordered, sorter, axis=-1)
    return _places_among(reader, ordered, x, right or side == "right", out_int32)


def _bucketize(reader: Reader, x: Any, ordered: Value, *, out_int32: bool = False, right: bool = False) -> Any:
    return _places_among(reader, ordered, x, right, out_int32)


TABLE: dict[str, Convert] = {
    "aten.masked_scatter": _masked_scatter, "aten.searchsorted": _search, "aten.bucketize": _bucketize,
    "aten._is_all_true": lambda reader, x: _truth(reader, x, True),
    "aten._is_any_true": lambda reader, x: _truth(reader, x, False),
}  # fmt: skip


def _truth(reader: Reader, x: Value, every: bool) -> Any:
    found = reader.emit("reduce_min" if every else "reduce_max", reader.cast(x, DType.U8), keepdims=False)
    return reader.cast(found, DType.BOOL)

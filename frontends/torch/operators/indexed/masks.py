"""PyTorch's indexing by masks, and searches in sorted values.

The number of elements that a mask selects depends on values, so a selection has no type of ours. But an elementwise
function of selected elements can be computed of every element, and written back by the same mask it is a choice between
two tensors. Other selections need an import with computed sizes (`selections`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from attrs import evolve, frozen

from .....ir import DType
from ...import_context import Convert, ImportContext, Value
from ..movement import expand, unsqueeze

#: Elements up to which constants are compared by value.
_MAX_COMPARED_ELEMENTS = 1024


@frozen
class MaskedElements:
    """Elements of a tensor where a mask is true, as one axis.

    So many axes follow the mask's as `trailing` says.
    """

    elements: Value
    mask: Value
    trailing: int


def any_masked(argument: Any) -> bool:
    """Return whether an argument is a selection, or a list with one."""
    return (
        any(any_masked(a) for a in argument)
        if isinstance(argument, (list, tuple))
        else isinstance(argument, MaskedElements)
    )


def select_masked(ctx: ImportContext, x: Value, indices: Sequence[Value | None]) -> MaskedElements:
    """Select where a mask is true."""
    first, mask = only_mask(ctx, indices)
    return MaskedElements(x, mask, len(ctx.shape(x)) - first - len(ctx.shape(mask)))


def convert_masked(convert: Convert) -> Convert:
    """Return the conversion of an elementwise function of selected elements.

    All are selected by one mask.
    """

    def apply(ctx: ImportContext, *arguments: Any, **keywords: Any) -> MaskedElements:
        chosen = [a for a in arguments if isinstance(a, MaskedElements)]
        if not chosen or not all(_is_same_mask(ctx, chosen[0], c.mask, c.trailing) for c in chosen):
            refuse_choice(ctx)
        if any(isinstance(a, Value) and len(ctx.shape(a)) > chosen[0].trailing for a in arguments):
            refuse_choice(ctx)
        found = convert(ctx, *(a.elements if isinstance(a, MaskedElements) else a for a in arguments), **keywords)
        if not isinstance(found, Value):
            refuse_choice(ctx)
        return evolve(chosen[0], elements=found)

    return apply


def refuse_choice(ctx: ImportContext, *_: Any, **__: Any) -> NoReturn:
    """Raise where the number of selected elements matters."""
    ctx.fail(
        "indexing by a tensor of truth values is not supported but to write by the same one, as the shape of the "
        "result depends on them"
    )


def _is_same_mask(ctx: ImportContext, chosen: MaskedElements, mask: Value, trailing: int) -> bool:
    """Return whether a mask selects the same elements; equal nodes compute one that is written out twice."""
    if chosen.trailing != trailing or chosen.mask == mask:
        return chosen.trailing == trailing
    small = {
        v: (str(a.dtype), a.shape, a.tobytes()) for v, a in ctx.constants.items() if a.size <= _MAX_COMPARED_ELEMENTS
    }
    numbers: dict[Any, int] = {}
    number: dict[str | None, Any] = {v: numbers.setdefault(key, len(numbers)) for v, key in small.items()}
    for node in ctx.nodes:
        key = (node.op, repr(sorted(node.attributes.items())), tuple(number.get(v, v) for v in node.inputs))
        number.update({v: numbers.setdefault((*key, n), len(numbers)) for n, v in enumerate(node.outputs)})
    return bool(number.get(mask, mask) == number.get(chosen.mask, chosen.mask))


def only_mask(ctx: ImportContext, indices: Sequence[Value | None]) -> tuple[int, Value]:
    """Return the mask among indices, and its first axis."""
    given = [n for n, v in enumerate(indices) if v is not None]
    if len(given) > 1:
        ctx.fail("indexing by truth values and other tensors at once is not supported")
    return given[0], Value(indices[given[0]] or "")


def is_mask(ctx: ImportContext, indices: Sequence[Value | None]) -> bool:
    """Return whether a tensor is indexed by truth values."""
    return any(v is not None and ctx.type(v).dtype is DType.BOOL for v in indices)


def put_where(
    ctx: ImportContext,
    x: Value,
    indices: Sequence[Value | None],
    values: Value | MaskedElements,
    accumulate: bool = False,
) -> Any:
    """Write values wherever a mask is true.

    It is one value, one per element of the other axes, or a selection by the same mask.
    """
    first, mask = only_mask(ctx, indices)
    shape, width = ctx.shape(x), len(ctx.shape(mask))
    trailing = len(shape) - first - width
    if isinstance(values, MaskedElements):
        if not _is_same_mask(ctx, values, mask, trailing):
            refuse_choice(ctx)
        return _where_mask(ctx, x, mask, trailing, values.elements, accumulate)
    own = ctx.shape(values)
    whole = (1,) * (first + 1 + trailing - len(own)) + own
    if whole[first] != 1:
        ctx.fail(
            "writing several values where truth values say is not supported, as how many there are depends on them"
        )
    spread = (*whole[:first], *(1,) * width, *whole[first + 1 :])
    return _where_mask(ctx, x, mask, trailing, ctx.reshape(values, spread), accumulate)


def _where_mask(ctx: ImportContext, x: Value, mask: Value, trailing: int, source: Value, accumulate: bool) -> Any:
    source = ctx.cast(source, ctx.type(x).dtype)
    condition = ctx.reshape(mask, (*ctx.shape(mask), *(1,) * trailing))
    return ctx.emit("where", condition, ctx.emit("add", x, source) if accumulate else source, x)


def _masked_scatter(ctx: ImportContext, x: Value, mask: Value, source: Value) -> Any:
    """Convert by a prefix sum: the n-th true element gets the n-th element of the source."""
    shape = tuple(np.broadcast_shapes(ctx.shape(x), ctx.shape(mask)))
    x, mask = expand(ctx, x, shape), expand(ctx, mask, shape)
    if not ctx.type(source).size:
        return x
    counts = ctx.emit("cumsum", ctx.cast(ctx.reshape(mask, (-1,)), DType.I64), axis=0)
    zero, one = (ctx.constant(n, dtype=DType.I64) for n in (0, 1))
    places = ctx.emit("max", ctx.emit("sub", counts, one), zero)
    found = ctx.emit("gather", ctx.reshape(source, (-1,)), places, axis=0)
    return ctx.emit("where", mask, ctx.reshape(found, shape), x)


def _places_among(ctx: ImportContext, ordered: Value, x: Any, right: bool, narrow: bool) -> Any:
    """Return the number of ordered values less than each value, or with `right` not greater.

    All are less than NaN.
    """
    length, rank = ctx.shape(ordered)[-1], len(ctx.shape(ordered))
    ordered, value = ctx.promote(ordered, x)
    one_list = rank == 1
    lists = ordered if one_list else unsqueeze(ctx, ordered, rank - 1)
    before = ctx.emit("less_or_equal" if right else "less", lists, unsqueeze(ctx, value, len(ctx.shape(value))))
    count = ctx.emit("reduce_sum", ctx.cast(before, DType.I32), axes=(-1,), keepdims=False)  # below 2^31
    if ctx.type(value).dtype.is_float:
        count = ctx.emit("where", ctx.emit("is_nan", value), ctx.constant(length, dtype=DType.I32), count)
    return count if narrow else ctx.cast(count, DType.I64)


def _search(
    ctx: ImportContext,
    ordered: Value,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        ordered = ctx.emit("gather_elements", ordered, sorter, axis=-1)
    return _places_among(ctx, ordered, x, right or side == "right", out_int32)


def _bucketize(ctx: ImportContext, x: Any, ordered: Value, *, out_int32: bool = False, right: bool = False) -> Any:
    return _places_among(ctx, ordered, x, right, out_int32)


def unravel(ctx: ImportContext, rows: Value, shape: Sequence[int]) -> list[Value]:
    """Return the position along each axis of elements by their number."""
    found: list[Value] = []
    for axis, extent in enumerate(shape):
        stride = ctx.constant(max(1, math.prod(shape[axis + 1 :])), dtype=DType.I64)
        place = ctx.emit("div", rows, stride) if axis + 1 < len(shape) else rows
        found.append(ctx.emit("mod", place, ctx.constant(max(1, extent), dtype=DType.I64)) if axis else place)
    return found


def _nonzero(ctx: ImportContext, x: Value, *, size: int, fill_value: int = -1) -> Any:
    """Convert the places of elements that are not zero, up to a number of them."""
    shape, mask = ctx.shape(x), ctx.cast(ctx.reshape(x, (-1,)), DType.BOOL)
    if not shape:
        return ctx.constant(np.zeros((size, 0)), dtype=DType.I64)
    rows = ctx.emit("nonzero", mask, size=size)
    found = [unsqueeze(ctx, place, 1) for place in unravel(ctx, rows, shape)]
    places = ctx.emit("concat", *found, axis=1) if len(found) > 1 else found[0]
    if len(found) == 1 and fill_value == -1:
        return places
    missing = ctx.emit("less", unsqueeze(ctx, rows, 1), ctx.constant(0, dtype=DType.I64))
    return ctx.emit("where", missing, ctx.constant(fill_value, dtype=DType.I64), places)


def _scattered_gradient(ctx: ImportContext, dy: Value, mask: Value, sizes: Sequence[int]) -> Any:
    """Convert the gradient of the elements that a mask took in order; those that it did not take have none."""
    kind, count = ctx.type(dy).dtype, math.prod(sizes)
    taken = ctx.reshape(expand(ctx, mask, ctx.shape(dy)), (-1,))
    rank = ctx.emit("cumsum", ctx.cast(taken, DType.I64), axis=0, exclusive=True)
    rank = ctx.emit("where", taken, rank, ctx.constant(count, dtype=DType.I64))
    none = ctx.constant(np.zeros(count + 1), dtype=kind)
    found = ctx.emit("scatter_elements", none, rank, ctx.reshape(dy, (-1,)), axis=0, reduction="add")
    return ctx.reshape(ctx.emit("slice", found, starts=(0,), ends=(count,), axes=(0,)), tuple(sizes))


TABLE: dict[str, Convert] = {
    "aten.masked_scatter": _masked_scatter, "aten.masked_scatter_backward": _scattered_gradient,
    "aten.nonzero_static": _nonzero, "aten.searchsorted": _search, "aten.bucketize": _bucketize,
    "aten._is_all_true": lambda ctx, x: _truth(ctx, x, True),
    "aten._is_any_true": lambda ctx, x: _truth(ctx, x, False),
}  # fmt: skip


def _truth(ctx: ImportContext, x: Value, every: bool) -> Any:
    found = ctx.emit("reduce_min" if every else "reduce_max", ctx.cast(x, DType.U8), keepdims=False)
    return ctx.cast(found, DType.BOOL)

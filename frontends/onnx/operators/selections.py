"""ONNX's operations with computed sizes.

The number of their results depends on values.
"""

from __future__ import annotations

import math

from ....ir import DType
from ..call import Convert, NodeCall
from .indirect import compress


def _selected_rows(call: NodeCall, mask: str) -> str:
    """Return the numbers of the true elements of a list."""
    computed = call.builder.computed
    assert computed is not None
    if room := computed.room(call.builder.type_of(mask).shape[0]):  # the list may itself have a computed size
        padded = call.emit("pad", call.emit("cast", mask, to="u8"), pads=(0, room))
        mask = call.emit("cast", padded, to="bool")
    count = call.emit("reduce_sum", call.emit("cast", mask, to="i32"), axes=(0,), keepdims=False)
    found = computed.produce(call.builder, "nonzero", call.emit("identity", mask), 1, {"fill": 0}, call.origin)
    computed.set_count(count)
    return found[0]


def _nonzero(call: NodeCall) -> None:
    shape = call.type(0).shape
    if not shape:
        call.refuse("positions in a tensor without axes are not supported")
    flat = call.emit("reshape", call.operand(0), shape=(call.type(0).size,), allowzero=True)
    rows, found = _selected_rows(call, call.emit("cast", flat, to="bool")), []
    for axis, extent in enumerate(shape):
        below = call.constant(max(1, math.prod(shape[axis + 1 :])), DType.I64)
        place = call.emit("div", rows, below) if axis + 1 < len(shape) else rows
        place = call.emit("mod", place, call.constant(max(1, extent), DType.I64)) if axis else place
        found.append(call.emit("reshape", place, shape=(1, *call.builder.type_of(place).shape), allowzero=True))
    call.result("concat" if len(found) > 1 else "identity", *found, **({"axis": 0} if len(found) > 1 else {}))


def _compress(call: NodeCall) -> None:
    """Convert a selection along an axis, or of all elements.

    A condition may be shorter or longer than the axis.
    """
    if call.builder.constant(call.operand(1)) is not None:
        compress(call)
        return
    axis, value = call.attribute("axis", None), call.operand(0)
    if axis is None:
        value = call.emit("reshape", value, shape=(call.type(0).size,), allowzero=True)
    length = call.builder.type_of(value).shape[axis or 0]
    condition = call.operand(1)
    if call.type(1).shape[0] > length:
        condition = call.emit("slice", condition, starts=(0,), ends=(length,), axes=(0,))
    call.result("gather", value, _selected_rows(call, condition), axis=axis or 0)


def _unique(call: NodeCall) -> None:
    computed, axis = call.builder.computed, call.attribute("axis", None)
    assert computed is not None
    if axis is not None and call.rank() != 1:
        call.refuse("distinct slices along an axis are not supported")
    if not call.attribute("sorted", 1):
        call.refuse("distinct elements in the order of their occurrence are not supported")
    flat = call.emit("reshape", call.operand(0), shape=(call.type(0).size,), allowzero=True)
    if not computed.is_fixed(call.type(0).size):
        call.refuse("distinct elements of a computed number of them are not supported")
    found = computed.produce(call.builder, "unique", call.emit("identity", flat), 5, {"equal_nan": True}, call.origin)
    computed.set_count(call.emit("cast", found[4], to="i32"))
    for position, value in enumerate(found[: len(call.outputs)]):
        call.give(value, position)


#: Conversions that only an import with computed sizes has.
SELECTIONS: dict[str, Convert] = {"NonZero": _nonzero, "Compress": _compress, "Unique": _unique}

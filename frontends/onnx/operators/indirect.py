"""ONNX's operations at computed positions: scatter, top-k, reversal, unpooling."""

from __future__ import annotations

import math

import numpy as np

from ....ir import DType
from ..call import Convert, NodeCall
from ..type_promotion import TypePromotion, widest_number


def _scatter_elements(call: NodeCall) -> None:
    given = {"axis": call.attribute("axis", 0), "reduction": call.attribute("reduction", "none")}
    call.result("scatter_elements", *(call.operand(n) for n in range(3)), **given)


def _scatter_nd(call: NodeCall) -> None:
    """Convert a scatter; the axes of index rows and of their slices become one axis."""
    indices, updates = call.type(1).shape, call.type(2).shape
    rows = math.prod(indices[:-1])
    flat = call.emit("reshape", call.operand(1), shape=(rows, indices[-1]), allowzero=True)
    slices = call.emit("reshape", call.operand(2), shape=(rows, *updates[len(indices) - 1 :]), allowzero=True)
    call.result("scatter_nd", call.operand(0), flat, slices, reduction=call.attribute("reduction", "none"))


def _tensor_scatter(call: NodeCall) -> None:
    given = {"axis": call.attribute("axis", -2), "circular": call.attribute("mode", "linear") == "circular"}
    call.result("tensor_scatter", call.operand(0), call.operand(1), call.optional(2), **given)


def _reverse_sequence(call: NodeCall) -> None:
    given = {"time": call.attribute("time_axis", 0), "batch": call.attribute("batch_axis", 1)}
    call.result("reverse_sequence", call.operand(0), call.operand(1), **given)


def _top_k(call: NodeCall) -> None:
    count = call.number("k", 1)
    if count is None:
        call.fail("the number of elements is required")
    call.attribute("sorted", 1)
    given = {"axis": call.attribute("axis", -1), "largest": bool(call.attribute("largest", 1))}
    call.result("top_k", call.operand(0), k=int(count), **given)


def _hardmax(call: NodeCall) -> None:
    """Convert a hardmax; before operator set 13 all axes from `axis` on are one."""
    shape = call.type(0).shape
    axis = call.attribute("axis", -1 if call.opset >= 13 else 1) % max(1, len(shape))
    if 0 in shape:
        call.give(call.constant(np.zeros(shape), call.type(0).dtype))
    elif call.opset >= 13 or all(extent == 1 for extent in shape[axis + 1 :]):
        call.result("hardmax", call.operand(0), axis=axis)
    else:
        flat = call.emit("reshape", call.operand(0), shape=(*shape[:axis], math.prod(shape[axis:])), allowzero=True)
        call.result("reshape", call.emit("hardmax", flat, axis=axis), shape=shape, allowzero=True)


def _max_unpool(call: NodeCall) -> None:
    """Convert max unpooling.

    Positions count in the result of the attributes; a given shape puts that result into a corner of a larger one.
    """
    kernel = call.ints("kernel_shape") or ()
    rank, spatial = len(kernel), call.type(0).shape[2:]
    strides, pads = call.ints("strides") or (1,) * rank, call.ints("pads") or (0,) * (2 * rank)
    natural = [(spatial[n] - 1) * strides[n] - pads[n] - pads[n + rank] + kernel[n] for n in range(rank)]
    wanted = call.array(2, "which fixes the shape of the result")
    if wanted is None:
        call.result("max_unpool", call.operand(0), call.operand(1), sizes=tuple(natural))
        return
    asked = wanted.reshape(-1).tolist()
    more = [n - natural[axis] for axis, n in enumerate(asked[2:])]
    if tuple(asked[:2]) != call.type(0).shape[:2] or len(more) != rank or min(more, default=0) < 0:
        call.fail(
            f"expected a shape of at least {[*call.type(0).shape[:2], *natural]}, larger in space only, found {asked}"
        )
    placed = call.emit("max_unpool", call.operand(0), call.operand(1), sizes=tuple(natural))
    call.result("pad", placed, pads=(0,) * (rank + 4) + tuple(more))


def compress(call: NodeCall) -> None:
    """Convert a constant selection to a gather."""
    condition = call.array(1, "which fixes the shape of the result")
    if condition is None:
        call.fail("the condition is required")
    axis = call.attribute("axis", None)
    value = (
        call.operand(0)
        if axis is not None
        else call.emit("reshape", call.operand(0), shape=(call.type(0).size,), allowzero=True)
    )
    chosen = condition.reshape(-1).nonzero()[0]
    call.result("gather", value, call.constant(chosen, DType.I64), axis=axis or 0)


TABLE: dict[str, Convert] = {
    "ScatterElements": TypePromotion(_scatter_elements, (0, 2), widest_number),
    "Scatter": TypePromotion(_scatter_elements, (0, 2), widest_number),
    "ScatterND": TypePromotion(_scatter_nd, (0, 2), widest_number),
    "TensorScatter": _tensor_scatter,
    "ReverseSequence": _reverse_sequence,
    "TopK": _top_k,
    "Hardmax": _hardmax,
    "MaxUnpool": _max_unpool,
    "Compress": compress,
}

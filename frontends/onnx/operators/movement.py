"""ONNX's data movement, with shapes, axes and pads as attributes.

ONNX may give these as constant operands.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import DType
from ..call import Convert, NodeCall


def _reshape(call: NodeCall) -> None:
    shape = call.ints("shape", 1)
    if shape is None:
        call.fail("the target shape is absent")
    call.result("reshape", call.operand(0), shape=shape, allowzero=bool(call.attribute("allowzero", 0)))


def _to_shape(call: NodeCall, shape: tuple[int, ...]) -> None:
    call.result("reshape", call.operand(0), shape=shape, allowzero=True)


def _flatten(call: NodeCall) -> None:
    shape = call.type(0).shape
    axis = call.attribute("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        call.fail(f"expected an axis from {-len(shape)} to {len(shape)}, found {axis}")
    axis += len(shape) if axis < 0 else 0
    _to_shape(call, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(call: NodeCall) -> None:
    shape, axes = call.type(0).shape, call.ints("axes", 1)
    if axes is None:
        axes = tuple(n for n, extent in enumerate(shape) if extent == 1)
    dropped = {_axis(call, axis, len(shape)) for axis in axes}
    if any(shape[axis] != 1 for axis in dropped):
        call.fail(f"expected axes of size 1 to remove, found axes {list(axes)} of shape {list(shape)}")
    _to_shape(call, tuple(extent for n, extent in enumerate(shape) if n not in dropped))


def _unsqueeze(call: NodeCall) -> None:
    shape, axes = list(call.type(0).shape), call.ints("axes", 1) or ()
    places = sorted(_axis(call, axis, len(shape) + len(axes)) for axis in axes)
    if len(set(places)) < len(places):
        call.fail(f"expected each axis once, found {list(axes)}")
    for axis in places:
        shape.insert(axis, 1)
    _to_shape(call, tuple(shape))


def _axis(call: NodeCall, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        call.fail(f"expected an axis from {-rank} to {rank - 1}, found {axis}")
    return axis % rank


def _transpose(call: NodeCall) -> None:
    call.result("transpose", call.operand(0), perm=call.ints("perm") or tuple(reversed(range(call.rank()))))


def _concat(call: NodeCall) -> None:
    axis = call.attribute("axis")
    parts = [call.operand(n) for n in range(len(call.inputs))]
    filled = [part for part in parts if call.builder.type_of(part).size] or parts
    if len(filled) == 1:
        call.give(filled[0])
    else:
        call.result("concat", *filled, axis=axis)


def _slice(call: NodeCall) -> None:
    starts, ends = call.ints("starts", 1), call.ints("ends", 2)
    if starts is None or ends is None:
        call.fail("starts and ends are required")
    axes = call.ints("axes", 3)
    steps = call.ints("steps", 4)
    axes = tuple(range(len(starts))) if axes is None else axes
    type_ = call.type(0)
    cut = [slice(None)] * len(type_.shape)
    # A start before the first element is that element, where NumPy would take none backwards.
    extents = [type_.shape[_axis(call, axis, len(cut))] for axis in axes]
    starts = tuple(max(start, -extent) for start, extent in zip(starts, extents, strict=True))
    for n, axis in enumerate(axes):
        cut[axis] = slice(starts[n], ends[n], steps[n] if steps else 1)
    shape = tuple(len(range(extent)[part]) for extent, part in zip(type_.shape, cut, strict=True))
    if 0 in shape:
        call.give(call.constant(np.zeros(shape), type_.dtype))
        return
    call.result("slice", call.operand(0), starts=starts, ends=ends, axes=axes, steps=steps)


def _split(call: NodeCall) -> None:
    axis = _axis(call, call.attribute("axis", 0), call.rank())
    sizes, extent = call.ints("split", 1), call.type(0).shape[axis]
    count = call.attribute("num_outputs", len(call.outputs))
    if sizes is None:
        part = -(-extent // count)
        sizes = (*(part,) * (count - 1), extent - part * (count - 1))
    if min(sizes, default=0) < 0 or sum(sizes) != extent:
        call.fail(f"expected sizes that add up to {extent}, found {list(sizes)}")
    if 0 not in sizes:
        call.result("split", call.operand(0), axis=axis, split=sizes)
        return
    shape, dtype, start = call.type(0).shape, call.type(0).dtype, 0
    for position, size in enumerate(sizes):
        if size:
            call.give(
                call.emit("slice", call.operand(0), starts=(start,), ends=(start + size,), axes=(axis,)), position
            )
        else:
            call.give(call.constant(np.zeros((*shape[:axis], 0, *shape[axis + 1 :])), dtype), position)
        start += size


def _pad(call: NodeCall) -> None:
    rank = call.rank()
    pads, axes = call.ints("pads", 1), call.ints("axes", 3)
    if pads is None:
        call.fail("pads are required")
    if axes is not None:
        full = [0] * (2 * rank)
        for n, axis in enumerate(axes):
            position = _axis(call, axis, rank)
            full[position], full[position + rank] = pads[n], pads[n + len(axes)]
        pads = tuple(full)
    mode, fill = call.attribute("mode", "constant"), call.optional(2)
    if mode != "constant":
        call.attribute("value", 0.0)
        x, pads = _cut(call, pads) if mode == "wrap" else (call.operand(0), pads)
        call.result("pad", x, pads=pads, mode=mode)
    elif fill is not None and call.builder.constant(fill) is None:
        _pad_with(call, fill, pads)
    else:
        call.result("pad", call.operand(0), pads=pads, value=float(call.number("value", 2, 0.0) or 0))


def _cut(call: NodeCall, pads: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the tensor without elements that negative pads remove, and the other pads.

    As in ONNX Runtime, removed elements are not wrapped around.
    """
    shape, rank = call.type(0).shape, call.rank()
    starts = tuple(max(-before, 0) for before in pads[:rank])
    ends = tuple(extent - max(-after, 0) for extent, after in zip(shape, pads[rank:], strict=True))
    if starts == (0,) * rank and ends == shape:
        return call.operand(0), pads
    if any(start >= end for start, end in zip(starts, ends, strict=True)):
        call.fail(f"expected pads that leave elements to wrap around, found {list(pads)} for shape {list(shape)}")
    cut = call.emit("slice", call.operand(0), starts=starts, ends=ends, axes=tuple(range(rank)))
    return str(cut), tuple(max(pad, 0) for pad in pads)


def _pad_with(call: NodeCall, fill: str, pads: tuple[int, ...]) -> None:
    """Pad with a computed value: a `where` over a constant mask of the padding."""
    shape, rank = call.type(0).shape, call.rank()
    if call.type(2).size != 1:
        call.fail(f"operand 2 (value) must have one element, found shape {list(call.type(2).shape)}")
    inside = np.ones((1,) * rank, np.bool_)
    for axis, (extent, before, after) in enumerate(zip(shape, pads[:rank], pads[rank:], strict=True)):
        if before > 0 or after > 0:
            place = np.arange(extent + before + after) - before
            inside = inside & np.expand_dims((place >= 0) & (place < extent), [n for n in range(rank) if n != axis])
    value = call.emit("reshape", fill, shape=(), allowzero=True)
    call.result("where", call.constant(inside, DType.BOOL), call.emit("pad", call.operand(0), pads=pads), value)


def _gather(op: str) -> Convert:
    def convert(call: NodeCall) -> None:
        call.result(op, call.operand(0), call.operand(1), axis=call.attribute("axis", 0))

    return convert


def _gather_nd(call: NodeCall) -> None:
    call.result("gather_nd", call.operand(0), call.operand(1), batch_dims=call.attribute("batch_dims", 0))


def _expand(call: NodeCall) -> None:
    call.result("expand", call.operand(0), shape=call.ints("shape", 1))


def _tile(call: NodeCall) -> None:
    call.result("tile", call.operand(0), repeats=call.ints("repeats", 1))


def _depth_to_space(call: NodeCall) -> None:
    call.result(
        "depth_to_space", call.operand(0), blocksize=call.attribute("blocksize"), mode=call.attribute("mode", "DCR")
    )


def _space_to_depth(call: NodeCall) -> None:
    call.result(
        "space_to_depth", call.operand(0), blocksize=call.attribute("blocksize"), mode=call.attribute("mode", "DCR")
    )


def _trilu(call: NodeCall) -> None:
    upper, k = bool(call.attribute("upper", 1)), call.number("k", 1, 0)
    if call.type(0).dtype is DType.BOOL:  # an attention mask: zero is a number
        wide = call.emit("cast", call.operand(0), to="u8")
        call.result("cast", call.emit("trilu", wide, upper=upper, k=k), to="bool")
        return
    call.result("trilu", call.operand(0), upper=upper, k=k)


def _one_hot(call: NodeCall) -> None:
    depth, values = call.number("depth", 1), call.array(2, "values")
    if depth is None or values is None or values.size != 2:
        call.fail("expected a depth and two values")
    off, on = (float(v) for v in values.reshape(-1))
    dtype = call.type(2).dtype.value
    indices = call.operand(0) if call.type(0).dtype.is_int else call.emit("cast", call.operand(0), to="i64")
    call.result("one_hot", indices, depth=int(depth), axis=call.attribute("axis", -1), on=on, off=off, dtype=dtype)


def _shape(call: NodeCall) -> None:
    shape = call.type(0).shape
    part = shape[call.attribute("start", 0) : call.attribute("end", len(shape))]
    call.give(call.constant(part, DType.I64))


def _size(call: NodeCall) -> None:
    call.give(call.constant(call.type(0).size, DType.I64))


def _static_only(call: NodeCall) -> None:
    """Require constant operands, which fix the shape; such nodes are folded earlier."""
    for position in range(len(call.inputs)):
        call.array(position, "which fixes the shape of the result")


TABLE: dict[str, Convert] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Gather": _gather("gather"),
    "GatherElements": _gather("gather_elements"),
    "GatherND": _gather_nd,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "OneHot": _one_hot,
    "Shape": _shape,
    "Size": _size,
    "Range": _static_only,
    "ConstantOfShape": _static_only,
}

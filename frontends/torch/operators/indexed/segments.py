"""PyTorch's reductions of segments: consecutive elements along the first axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....ir import DType
from ...import_context import Convert, ImportContext, Value
from ..arithmetic import divide
from ..movement import expand, unsqueeze

#: Most comparisons of elements and ends of segments.
MAX_COMPARISONS = 1 << 20
_REDUCTIONS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "max", "min": "min"}


def ends_of_starts(ctx: ImportContext, starts: Value, count: int, last: bool) -> Any:
    """Return the end of each segment.

    With `last` the starts have the end of the last one.
    """
    segments = ctx.shape(starts)[0] - bool(last)
    after = ctx.emit("slice", starts, starts=(1,), ends=(segments + 1,), axes=(0,))
    if last:
        return after
    end = ctx.constant([count] * min(segments, 1), dtype=ctx.type(starts).dtype)
    return ctx.emit("concat", after, end, axis=0) if segments > 1 else end


def lengths_of_ends(ctx: ImportContext, ends: Value) -> Any:
    """Return the length of each segment; the first begins at 0."""
    (segments,) = ctx.shape(ends)
    first = ctx.constant([0] * min(segments, 1), dtype=ctx.type(ends).dtype)
    before = ctx.emit("slice", ends, starts=(0,), ends=(max(segments - 1, 0),), axes=(0,))
    return ctx.emit("sub", ends, ctx.emit("concat", first, before, axis=0) if segments > 1 else first)


def segment_of(ctx: ImportContext, ends: Value, count: int) -> Any:
    """Return the segment of each element.

    It is the number of segments that end before it, counted by comparisons, or by a prefix sum where these are many.
    """
    if count * math.prod(ctx.shape(ends)) > MAX_COMPARISONS:
        none = expand(ctx, ctx.constant(0, dtype=DType.I64), (count + 1,))
        ones = expand(ctx, ctx.constant(1, dtype=DType.I64), ctx.shape(ends))
        ended = ctx.emit("scatter_elements", none, ends, ones, axis=0, reduction="add")
        return ctx.emit("cumsum", ctx.emit("slice", ended, starts=(0,), ends=(count,), axes=(0,)), axis=0)
    places = ctx.constant(np.arange(count)[:, None], dtype=ctx.type(ends).dtype)
    ended = ctx.cast(ctx.emit("less_or_equal", ends, places), DType.I64)
    return ctx.emit("reduce_sum", ended, axes=(1,), keepdims=False)


def segment_sizes(ctx: ImportContext, segment: Value, kept: Value | None, segments: int) -> Value:
    """Return the number of elements of each segment that are kept."""
    ones = ctx.constant(np.broadcast_to(np.int64(1), ctx.shape(segment)))
    counted = ones if kept is None else ctx.cast(kept, DType.I64)
    return ctx.emit("segment_reduce", counted, segment, count=segments)  # type: ignore[no-any-return]


def _ends(ctx: ImportContext, lengths: Value | None, offsets: Value | None, axis: int, count: int) -> Value:
    given = offsets if lengths is None else lengths
    if given is None or axis != 0 or len(ctx.shape(given)) != 1:
        ctx.fail("expected lengths or offsets of one axis, and segments along the first axis")
    if lengths is not None:
        return ctx.emit("cumsum", lengths, axis=0)  # type: ignore[no-any-return]
    return ends_of_starts(ctx, given, count, last=True)  # type: ignore[no-any-return]


def _segment_reduce(
    ctx: ImportContext, x: Value, reduce: str, *, lengths: Value | None = None, indices: Value | None = None,
    offsets: Value | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Any:  # fmt: skip
    """Convert a reduction of segments; `initial` is one more element of each."""
    ends, kind = _ends(ctx, lengths, offsets, axis, ctx.shape(x)[0]), ctx.type(x).dtype
    (segments,) = ctx.shape(ends)
    if _REDUCTIONS[reduce] == "sum" and kind.is_float:
        first = ctx.constant([0], dtype=ctx.type(ends).dtype)
        bounds = offsets if lengths is None else ctx.emit("concat", first, ends, axis=0)
        y = ctx.emit("segment_sum", x, bounds)
    else:
        segment = segment_of(ctx, ends, ctx.shape(x)[0])
        y = ctx.emit("segment_reduce", x, segment, count=segments, reduction=_REDUCTIONS[reduce])
    if initial is not None:
        more = ctx.constant(initial, dtype=kind)
        y = ctx.emit({"sum": "add", "prod": "mul"}.get(_REDUCTIONS[reduce], reduce), y, more)
    if reduce != "mean":
        return y
    sizes = lengths_of_ends(ctx, ends)
    for _ in ctx.shape(x)[1:]:
        sizes = unsqueeze(ctx, sizes, len(ctx.shape(sizes)))
    mean = divide(ctx, y, ctx.cast(sizes, kind))
    if initial is None:
        return mean
    return ctx.emit("where", ctx.emit("equal", sizes, ctx.constant(0, dtype=DType.I64)), more, mean)


def _segment_gradient(
    ctx: ImportContext, dy: Value, y: Value, x: Value, reduce: str, *, lengths: Value | None = None,
    offsets: Value | None = None, axis: int = 0, initial: float | None = None,
) -> Any:  # fmt: skip
    """Convert the gradient; of an extreme, elements that have it share it."""
    kind = ctx.type(x).dtype
    ends = _ends(ctx, lengths, offsets, axis, ctx.shape(x)[0])
    segment = segment_of(ctx, ends, ctx.shape(x)[0])
    own, (segments,) = ctx.emit("gather", dy, segment, axis=0), ctx.shape(ends)
    if reduce == "sum":
        return own
    if reduce == "prod":
        dy = dy if initial is None else ctx.emit("mul", dy, ctx.constant(initial, dtype=kind))
        return ctx.adjoint(ctx.emit("segment_reduce", x, segment, count=segments, reduction="prod"), dy, [x])[0]
    if reduce == "mean":
        share = ctx.cast(ctx.emit("gather", segment_sizes(ctx, segment, None, segments), segment, axis=0), kind)
        return ctx.emit("div", own, ctx.reshape(share, (-1, *(1,) * (len(ctx.shape(x)) - 1))))
    has = ctx.emit("logical_or", ctx.emit("equal", x, ctx.emit("gather", y, segment, axis=0)), ctx.emit("is_nan", x))
    counted = ctx.emit("segment_reduce", ctx.cast(has, kind), segment, count=segments)
    share = ctx.emit("div", own, ctx.emit("gather", counted, segment, axis=0))
    return ctx.emit("where", has, share, ctx.constant(0, dtype=kind))


def _repetition(ctx: ImportContext, repeats: Value, *, output_size: int | None = None) -> Any:
    """Convert the number of each element, repeated as often as it says."""
    if output_size is None:
        ctx.fail("the length of the result depends on values; give output_size")
    return segment_of(ctx, ctx.emit("cumsum", repeats, axis=0), output_size)


TABLE: dict[str, Convert] = {
    "aten.repeat_interleave.Tensor": _repetition,
    "aten.segment_reduce": _segment_reduce, "aten._segment_reduce_backward": _segment_gradient,
}  # fmt: skip

"""Views of a tensor's bytes as another element type.

A type of fewer bytes splits each element, one of more joins neighbours; integers of each size stand between:

    f32 (3, 4) as i16   ->   bits as u32 (3, 4, 1), shifted by 0 and 16 as (3, 4, 2), cut to 16 bits: (3, 8)
    i16 (3, 8) as i32   ->   (3, 4, 2), shifted by 0 and 16, summed: (3, 4)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..import_context import Convert, ImportContext, Value, dtype_of
from .movement import TABLE as MOVEMENT

#: Integers by size: with a sign, and without one where there is such a type.
SIGNED_INTEGERS = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}
UNSIGNED_INTEGERS = {**SIGNED_INTEGERS, 1: DType.U8, 4: DType.U32, 8: DType.U64}


def _view(ctx: ImportContext, x: Value, dtype: torch.dtype) -> Any:
    old, new = ctx.type(x).dtype, dtype_of(dtype)
    if old is new:
        return x
    for kind in (old, new):
        if kind not in (*SIGNED_INTEGERS.values(), *UNSIGNED_INTEGERS.values(), DType.F32, DType.F64):
            ctx.fail(f"views of bytes as {kind} are not supported")
    bits = ctx.emit(f"bits_of_{old}", x) if old.is_float else x
    if new.size < old.size:
        bits = _split(ctx, bits, old.size, new.size)
    elif new.size > old.size:
        bits = _join(ctx, bits, old.size, new.size)
    return (
        ctx.emit(f"{new}_of_bits", ctx.cast(bits, SIGNED_INTEGERS[new.size])) if new.is_float else ctx.cast(bits, new)
    )


def _split(ctx: ImportContext, x: Value, size: int, part: int) -> Value:
    """Return the parts of integers, the low ones first."""
    shape, kind = ctx.shape(x), UNSIGNED_INTEGERS[size]
    if not shape:
        ctx.fail("views of one element as several are not supported")
    column = MOVEMENT["aten.view"](ctx, ctx.cast(x, kind), [*shape, 1])
    moved = ctx.emit("bit_shift", column, _shifts(ctx, size // part, part, kind), direction="RIGHT")
    return ctx.cast(MOVEMENT["aten.view"](ctx, moved, [*shape[:-1], shape[-1] * (size // part)]), SIGNED_INTEGERS[part])


def _join(ctx: ImportContext, x: Value, part: int, size: int) -> Value:
    """Return neighbours as one integer, the first one in its low bytes."""
    shape, kind = ctx.shape(x), UNSIGNED_INTEGERS[size]
    if not shape or shape[-1] % (size // part):
        ctx.fail(f"views of {shape} elements of {part} bytes as ones of {size} are not supported")
    parts = MOVEMENT["aten.view"](ctx, ctx.cast(x, kind), [*shape[:-1], shape[-1] // (size // part), size // part])
    mask = ctx.constant(np.asarray((1 << 8 * part) - 1, kind.numpy))
    low = ctx.emit("bitwise_and", parts, mask)
    moved = ctx.emit("bit_shift", low, _shifts(ctx, size // part, part, kind), direction="LEFT")
    return ctx.emit("reduce_sum", moved, axes=(-1,), keepdims=False)  # type: ignore[no-any-return]


def _shifts(ctx: ImportContext, count: int, part: int, kind: DType) -> Value:
    return ctx.constant(np.arange(count, dtype=kind.numpy) * kind.numpy.type(8 * part))


TABLE: dict[str, Convert] = {"aten.view.dtype": _view}

"""Products with weights of four bits in PyTorch's packed layouts.

    w[n, k] = (q[n, k] - 8) * scale[k // group, n] + zero[k // group, n]

A layout is a permutation of nibbles. It is a shape of them as they lie in memory, low ones first, and the order in
which its axes form a matrix:

    CUDA, words of 8 for lanes of matrix instructions, tiles of 8 rows and 16 columns
        [n // 8, k // 16I, n % 8, k % 8 // 2, k // 32 % (I // 2), k % 2, k // 16 % 2, k // 8 % 2]
    CPU, blocks of B rows, B depends on its vectors; a byte has row r and r + B / 2, in a shorter last block neighbours
        [n // B, k, n % (B / 2), n % B // (B / 2)]

Constants become matrices of integers at import, which the compiler packs again; of other weights kernels read the
nibbles where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .....ir import DType, GraphError
from ...import_context import Convert, ImportContext, Value

#: Offset of stored numbers, and rows of a whole block by PyTorch's name of the CPU.
_MIDDLE, _BLOCK_ROWS, _OTHER_ROWS = 8, {"AVX512": 64}, 32
#: Rows and columns of a tile, lanes that hold it, and the place of a word's nibbles in its two tiles.
_ROWS, _COLUMNS, _LANES = 8, 16, 32


def _arrange(ctx: ImportContext, x: Value, shape: Sequence[int], order: Sequence[int], result: Sequence[int]) -> Value:
    """Return the nibbles of bytes in a shape, with its axes in an order, as numbers around zero."""
    if x in ctx.constants:
        found: Any = ctx.constants[x]
        parts = np.stack([found & 15, found >> 4], -1).astype(np.int8) - _MIDDLE
        return ctx.constant(parts.reshape(shape).transpose(order).reshape(result).copy(), f"{x}.numbers")
    shifts = ctx.constant(np.arange(0, 8, 4, dtype=np.uint8))
    column = ctx.reshape(x, (*ctx.shape(x), 1))
    nibbles = ctx.emit("bitwise_and", ctx.emit("bit_shift", column, shifts, direction="RIGHT"), _byte(ctx, 15))
    numbers = ctx.emit("sub", ctx.cast(nibbles, DType.I8), ctx.constant(np.int8(_MIDDLE)))
    turned = ctx.emit("transpose", ctx.reshape(numbers, shape), perm=tuple(order))
    return ctx.reshape(turned, result)  # type: ignore[no-any-return]


def _byte(ctx: ImportContext, number: int) -> Value:
    return ctx.constant(np.uint8(number))


def _of_tiles(ctx: ImportContext, packed: Value) -> Value:
    """Return the numbers [N, K] of words in the layout of CUDA."""
    rows, columns, lanes, words = ctx.shape(packed)
    if lanes != _LANES or ctx.type(packed).dtype is not DType.I32:
        raise GraphError(f"expected a weight i32[N / 8, K / (16 I), 32, I / 2], found {ctx.type(packed)}")
    quads = _LANES // _ROWS
    if packed in ctx.constants:
        stored = ctx.constant(np.ascontiguousarray(ctx.constants[packed]).view(np.uint8), f"{packed}.bytes")
    else:
        shifts = ctx.constant(np.arange(0, 32, 8, dtype=np.int32))
        moved = ctx.emit("bit_shift", ctx.reshape(packed, (*ctx.shape(packed), 1)), shifts, direction="RIGHT")
        stored = ctx.cast(ctx.emit("bitwise_and", moved, ctx.constant(np.int32(255))), DType.U8)
    shape = (rows, columns, _ROWS, quads, words, 2, 2, 2)
    return _arrange(ctx, stored, shape, (0, 2, 1, 4, 6, 7, 3, 5), (rows * _ROWS, columns * words * 2 * _COLUMNS))


def _of_blocks(ctx: ImportContext, packed: Value) -> Value:
    """Return the numbers [N, K] of bytes in the layout of the CPU that imports them."""
    rows, depth = ctx.shape(packed)[0], 2 * ctx.shape(packed)[1]
    block = _BLOCK_ROWS.get(torch.backends.cpu.get_cpu_capability(), _OTHER_ROWS)
    whole = rows // block * block
    parts = []
    for first, count, size in ((0, whole, block), (whole, rows - whole, rows - whole)):
        if count:
            order = (0, 3, 2, 1) if size == block else (0, 2, 3, 1)
            part = _rows(ctx, packed, first, count)
            parts.append(_arrange(ctx, part, (count // size, depth, size // 2, 2), order, (count, depth)))
    if len(parts) > 1 and parts[0] in ctx.constants:
        return ctx.constant(np.concatenate([ctx.constants[part] for part in parts]), f"{packed}.numbers")
    return parts[0] if len(parts) == 1 else ctx.emit("concat", *parts, axis=0)


def _rows(ctx: ImportContext, packed: Value, first: int, count: int) -> Value:
    if packed in ctx.constants:
        return ctx.constant(ctx.constants[packed][first : first + count], f"{packed}.rows")
    return ctx.emit("slice", packed, starts=(first,), ends=(first + count,), axes=(0,))  # type: ignore[no-any-return]


def _product(ctx: ImportContext, a: Value, numbers: Value, group: int, steps: Value) -> Any:
    """Convert `a[M, K] @ w[N, K].T`, with scales and zeros `steps[K / group, N, 2]`."""
    rows, depth = ctx.shape(numbers)
    if group < 1 or depth % group or ctx.shape(steps) != (depth // max(group, 1), rows, 2):
        expected = f"{depth} / group" if group < 1 or depth % group else str(depth // group)
        raise GraphError(
            f"expected scales and zeros [{expected}, {rows}, 2] of groups of {group}, found {list(ctx.shape(steps))}",
            hint="groups divide the columns of the weight, padded to those of the packed one",
        )
    kind = ctx.type(a).dtype
    turned = ctx.emit("transpose", ctx.cast(steps, kind), perm=(2, 1, 0))
    scale, zero = (
        ctx.reshape(ctx.emit("slice", turned, starts=(n,), ends=(n + 1,), axes=(0,)), (rows, depth // group))
        for n in range(2)
    )
    weight = ctx.emit("dequantize", numbers, scale, axis=1, block=group)
    groups = (rows, depth // group, group)
    shifted = ctx.emit("add", ctx.reshape(weight, groups), ctx.reshape(zero, (*groups[:2], 1)))
    return ctx.emit("gemm", a, ctx.reshape(shifted, (rows, depth)), trans_b=True)


def _tiled_product(ctx: ImportContext, a: Value, packed: Value, group: int, steps: Value) -> Any:
    return _product(ctx, a, _of_tiles(ctx, packed), group, steps)


def _blocked_product(ctx: ImportContext, a: Value, packed: Value, group: int, steps: Value) -> Any:
    return _product(ctx, a, _of_blocks(ctx, packed), group, steps)


TABLE: dict[str, Convert] = {
    "aten._weight_int4pack_mm": _tiled_product, "aten._weight_int4pack_mm_for_cpu": _blocked_product,
}  # fmt: skip

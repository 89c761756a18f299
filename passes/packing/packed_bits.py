"""Packs integers of a byte into as few bits as necessary.

    const %q: i8[64, 128], all numbers from -8 to 7
      ->   const %q.4: u8[64, 64], two numbers in a byte
           %q[n, k] = i8((%q.4[n, k // 2] >> 4 * (k % 2)) & 15) - 8

A byte holds neighbours of the innermost dim, the first in its low bits. Models in 4 bits thus need no element type:
importers give bytes, whose bits are found here.
"""

from __future__ import annotations

import numpy as np

from ...ir import Array, Call, Cast, Const, DType, Expr, IndexValue, Read, Statement, TensorType, Var, as_index

#: Bits of a byte, and numbers of fewer bits that are packed.
_BYTE, _BITS = 8, (1, 2, 4)


def needed_bits(values: Array) -> int:
    """Return the bits that integers need; 0 for more than four."""
    if values.dtype not in (np.int8, np.uint8) or not values.size:
        return 0
    span = int(values.max()) - min(int(values.min()), 0)
    return next((bits for bits in _BITS if span < 1 << bits), 0)


def pack_array(values: Array, bits: int, low: int) -> Array:
    """Return the numbers minus `low`, packed along the last axis.

    The first lies in the low bits.
    """
    count = _BYTE // bits
    rest = -values.shape[-1] % count
    shifted = (values.astype(np.int16) - low).astype(np.uint8)
    padded = np.pad(shifted, [*([(0, 0)] * (values.ndim - 1)), (0, rest)])
    parts = padded.reshape(*values.shape[:-1], -1, count)
    shifts = (np.arange(count) * bits).astype(np.uint8)
    packed: Array = np.bitwise_or.reduce(parts << shifts, axis=-1)
    return packed


def unpacking_statement(packed: str, target: str, type_: TensorType, bits: int, low: int) -> Statement:
    """Return the statement that unpacks a tensor of bytes."""
    axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(type_.shape))
    count, last = _BYTE // bits, as_index(axes[-1])
    word = Read(packed, (*map(as_index, axes[:-1]), last // count))
    shift = IndexValue((last % count) * bits, DType.U8)
    body: Expr = Call("bitand", (Call("shr", (word, shift)), Const((1 << bits) - 1, DType.U8)))
    if type_.dtype is not DType.U8:
        body = Cast(type_.dtype, body)
    if low:
        body = Call("sub", (body, Const(-low, type_.dtype)))
    return Statement(target, axes, tuple(map(as_index, axes)), body)

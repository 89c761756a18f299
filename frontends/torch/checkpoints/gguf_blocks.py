"""Block formats of GGUF as matrices of integers with scales.

A block has bytes of numbers, of scales and of shifts. The package `gguf` dequantises it; with scales of one in their
place, the result is the numbers, with numbers of one the scales, and with numbers of zero the shifts:

    d = 0.5, m = 2, q = [3, 7]   ->   d = 1, m = 0 : [3, 7]     q = 1, m = 0 : 0.5     q = 0 : 2

Products and sums of these are those of the package, bit by bit: a scale times a number is exact in f32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeAlias

import numpy as np
from attrs import frozen

from ....ir import Array

#: First byte of a field, and the bytes that stand in its place.
Field: TypeAlias = tuple[int, bytes]
#: Rows of a matrix that are dequantised at once, in elements.
ELEMENTS_AT_ONCE = 1 << 22
_ONE, _ZERO = b"\x00\x3c", b"\x00\x00"


@frozen
class BlockFormat:
    """Format of blocks: numbers that share a scale, and bytes of fields.

    With `unit` scales are one and shifts zero, with `ones` all numbers are one. `shifts` has the fields without which
    there are no shifts, `zeros` makes all numbers zero.
    """

    group: int
    unit: tuple[Field, ...]
    ones: tuple[Field, ...]
    zeros: tuple[Field, ...] = ()
    shifts: tuple[Field, ...] = ()


#: Scales and minima of Q4_K and Q5_K: eight of six bits each; all scales are one, minima zero.
_SIXES = b"\x01" * 4 + b"\x00" * 4 + b"\x01" * 4
BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    "Q8_0": BlockFormat(32, ((0, _ONE),), ((2, b"\x01" * 32),)),
    "Q4_0": BlockFormat(32, ((0, _ONE),), ((2, b"\x99" * 16),)),
    "Q4_1": BlockFormat(32, ((0, _ONE + _ZERO),), ((4, b"\x11" * 16),), ((4, b"\x00" * 16),), ((2, _ZERO),)),
    "Q5_0": BlockFormat(32, ((0, _ONE),), ((2, b"\xff" * 4 + b"\x11" * 16),)),
    "Q5_1": BlockFormat(
        32, ((0, _ONE + _ZERO),), ((4, b"\x00" * 4 + b"\x11" * 16),), ((4, b"\x00" * 20),), ((2, _ZERO),)
    ),
    "Q2_K": BlockFormat(
        16, ((0, b"\x01" * 16), (80, _ONE + _ZERO)), ((16, b"\x55" * 64),), ((16, b"\x00" * 64),), ((82, _ZERO),)
    ),
    "Q3_K": BlockFormat(16, ((96, b"\x11" * 8 + b"\xaa" * 4), (108, _ONE)), ((0, b"\xff" * 32 + b"\x55" * 64),)),
    "Q4_K": BlockFormat(
        32, ((0, _ONE + _ZERO + _SIXES),), ((16, b"\x11" * 128),), ((16, b"\x00" * 128),), ((2, _ZERO),)
    ),
    "Q5_K": BlockFormat(
        32, ((0, _ONE + _ZERO + _SIXES),), ((16, b"\x00" * 32 + b"\x11" * 128),), ((16, b"\x00" * 160),), ((2, _ZERO),)
    ),
    "Q6_K": BlockFormat(16, ((192, b"\x01" * 16 + _ONE),), ((0, b"\x11" * 128 + b"\xaa" * 64),)),
}  # fmt: skip


def split_blocks(blocks: Array, kind: str) -> tuple[Array, Array, Array | None]:
    """Return numbers i8[N, K], scales f32[N, groups] and shifts of blocks."""
    known = BLOCK_FORMATS[kind]
    parts = [(_dequantise(each, kind, known.unit), *_steps(each, kind, known)) for each in _chunks(blocks)]
    numbers, scales, shifts = zip(*parts, strict=True)
    whole = np.concatenate([part.astype(np.int8) for part in numbers])
    return whole, np.concatenate(scales), np.concatenate(shifts) if known.shifts else None


def _chunks(blocks: Array) -> Iterator[Array]:
    rows = max(1, ELEMENTS_AT_ONCE // max(1, blocks.shape[1]))
    for first in range(0, max(1, len(blocks)), rows):
        yield blocks[first : first + rows]


def _steps(blocks: Array, kind: str, known: BlockFormat) -> tuple[Array, Array]:
    scales = _dequantise(blocks, kind, known.ones + known.shifts)[:, :: known.group]
    shifts = _dequantise(blocks, kind, known.zeros)[:, :: known.group] if known.shifts else scales[:0]
    return scales.copy(), shifts.copy()


def _dequantise(blocks: Array, kind: str, fields: tuple[Field, ...]) -> Array:
    """Return the numbers of blocks with other bytes in some fields."""
    package = import_module("gguf")
    type_ = package.GGMLQuantizationType[kind]
    size = package.GGML_QUANT_SIZES[type_][1]
    changed = blocks.reshape(-1, size).copy()
    for start, stead in fields:
        changed[:, start : start + len(stead)] = np.frombuffer(stead, np.uint8)
    found: Array = package.quants.dequantize(changed.reshape(blocks.shape), type_)
    return found

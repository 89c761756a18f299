"""PyTorch's Fourier transforms, axis by axis, on pairs in a last axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..import_context import Convert, ImportContext, Value
from .complex_pairs import Complex, as_complex, as_real
from .movement import unsqueeze


def _scale(ctx: ImportContext, x: Any, mode: int, count: int, inverse: int = 1) -> Any:
    """Divide by the root of the number of transformed elements, or by it, as PyTorch's norm mode says.

    The transforms have divided by the `inverse` number.
    """
    scale = inverse / (1, count**0.5, count)[mode]
    return x if scale == 1 else ctx.emit("mul", x, ctx.constant(scale, dtype=ctx.type(x).dtype))


def _transform(ctx: ImportContext, x: Value, axes: Sequence[int], inverse: bool) -> Any:
    """Transform pairs in a last axis along several axes; inverses divide by the number of elements."""
    for axis in axes:
        x = ctx.emit("dft", x, axis=axis, inverse=inverse)
    return x


def _count(ctx: ImportContext, x: Value, axes: Sequence[int]) -> int:
    return int(np.prod([ctx.shape(x)[a] for a in axes], dtype=int))


def _fft(ctx: ImportContext, x: Complex, axes: Sequence[int], mode: int, forward: bool) -> Any:
    rank = len(ctx.shape(x.real))
    found = _transform(ctx, as_real(ctx, x), [a % rank for a in axes], not forward)
    count = _count(ctx, x.real, axes)
    return as_complex(ctx, _scale(ctx, found, mode, count, 1 if forward else count))


def _fft_of_real(ctx: ImportContext, x: Value, axes: Sequence[int], mode: int, onesided: bool) -> Any:
    rank = len(ctx.shape(x))
    places = [a % rank for a in axes]
    found = ctx.emit("dft", unsqueeze(ctx, x, rank), axis=places[-1], onesided=bool(onesided))
    found = _transform(ctx, found, places[:-1], False)
    return as_complex(ctx, _scale(ctx, found, mode, _count(ctx, x, axes)))


def _fft_to_real(ctx: ImportContext, x: Complex, axes: Sequence[int], mode: int, length: int) -> Any:
    rank = len(ctx.shape(x.real))
    places = [a % rank for a in axes]
    pairs = _transform(ctx, as_real(ctx, x), places[:-1], True)
    found = ctx.emit("irdft", pairs, axis=places[-1], length=length)
    shape = ctx.shape(found)[:-1]
    count = length * _count(ctx, x.real, places[:-1])
    return _scale(ctx, ctx.reshape(found, shape), mode, count, count)


TABLE: dict[str, Convert] = {"aten._fft_r2c": _fft_of_real}
OF_COMPLEX: dict[str, Convert] = {"aten._fft_c2c": _fft, "aten._fft_c2r": _fft_to_real}

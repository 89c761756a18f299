"""PyTorch's Fourier transforms: of one axis after the other,
by the transforms of pairs in a last axis that the vocabulary has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..reader import Convert, Reader, Value
from .complex_pairs import Complex, as_complex, as_real
from .movement import unsqueeze


def _scaled(reader: Reader, x: Any, mode: int, count: int) -> Any:
    """Divide by the root of how many elements are transformed, or by their number,
    as PyTorch's number of a norm says.
    """
    return (
        x
        if not mode
        else reader.emit("mul", x, reader.constant(count**-0.5 if mode == 1 else 1 / count, dtype=reader.type(x).dtype))
    )


def _transform(reader: Reader, x: Value, axes: Sequence[int], inverse: bool) -> Any:
    """Transform pairs in a last axis along several axes, without a scale."""
    for axis in axes:
        length = reader.shape(x)[axis]
        x = reader.emit("dft", x, axis=axis, inverse=inverse)
        if inverse:
            x = reader.emit("mul", x, reader.constant(length, dtype=reader.type(x).dtype))
    return x


def _count(reader: Reader, x: Value, axes: Sequence[int]) -> int:
    return int(np.prod([reader.shape(x)[a] for a in axes], dtype=int))


def _fft(reader: Reader, x: Complex, axes: Sequence[int], mode: int, forward: bool) -> Any:
    rank = len(reader.shape(x.real))
    found = _transform(reader, as_real(reader, x), [a % rank for a in axes], not forward)
    return as_complex(reader, _scaled(reader, found, mode, _count(reader, x.real, axes)))


def _fft_of_real(reader: Reader, x: Value, axes: Sequence[int], mode: int, onesided: bool) -> Any:
    rank = len(reader.shape(x))
    places = [a % rank for a in axes]
    found = reader.emit("dft", unsqueeze(reader, x, rank), axis=places[-1], onesided=bool(onesided))
    found = _transform(reader, found, places[:-1], False)
    return as_complex(reader, _scaled(reader, found, mode, _count(reader, x, axes)))


def _fft_to_real(reader: Reader, x: Complex, axes: Sequence[int], mode: int, length: int) -> Any:
    rank = len(reader.shape(x.real))
    places = [a % rank for a in axes]
    pairs = _transform(reader, as_real(reader, x), places[:-1], True)
    found = reader.emit("irdft", pairs, axis=places[-1], length=length)
    found = reader.emit("mul", found, reader.constant(length, dtype=reader.type(found).dtype))
    shape = reader.shape(found)[:-1]
    count = length * _count(reader, x.real, places[:-1])
    return _scaled(reader, reader.reshape(found, shape), mode, count)


TABLE: dict[str, Convert] = {"aten._fft_r2c": _fft_of_real}
OF_COMPLEX: dict[str, Convert] = {"aten._fft_c2c": _fft, "aten._fft_c2r": _fft_to_real}

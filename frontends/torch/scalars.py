"""Numbers beside tensors, converted to element types as PyTorch does.

u8 + 300                 wraps: arithmetic and comparisons convert the number as they convert tensors
u8.clamp(max=300)        is refused: bounds, fills, exponents and factors are checked
u8.clamp(min=-5)         wraps: the check lets negative numbers of an unsigned type pass
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ...ir import GraphError

#: A number argument of a call.
Number = float | int | bool
#: Makes a tensor without axes of a number, in an element type.
Conversion = Callable[[Number, torch.dtype], torch.Tensor]


def convert_wrapping(value: Number, kind: torch.dtype) -> torch.Tensor:
    """Return a number converted as in arithmetic: integers wrap, floats round."""
    return _convert(lambda number, to: torch.tensor(number, dtype=_own_type(number)).to(to), value, kind)


def convert_checked(value: Number, kind: torch.dtype) -> torch.Tensor:
    """Return a number converted as in fills, bounds and exponents.

    Raises `GraphError` where the type cannot hold it.
    """
    return _convert(lambda number, to: torch.full((2,), number, dtype=to)[0], value, kind)  # of one: unchecked halves


def convert_for_where(value: Number, kind: torch.dtype) -> torch.Tensor:
    """Return a number converted as in `where`.

    It is as `convert_checked`, but half types take integers beyond them as infinities.
    """
    return _convert(lambda number, to: torch.scalar_tensor(number, dtype=to), value, kind)


def is_beyond(value: object, kind: torch.dtype) -> bool:
    """Return whether a finite number is an infinity in a float type."""
    if not isinstance(value, (int, float)) or not kind.is_floating_point or not math.isfinite(value):
        return False
    return bool(convert_wrapping(value, kind).isinf())


def _own_type(number: Number) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    return torch.int64 if isinstance(number, int) else torch.float64


def _convert(convert: Conversion, value: Number, kind: torch.dtype) -> torch.Tensor:
    try:
        return convert(value, kind)
    except (RuntimeError, OverflowError) as error:
        name = str(kind).removeprefix("torch.")
        raise GraphError(
            f"number {value} cannot be converted to {name} without overflow",
            hint="convert the tensor to a wider type first, or choose a number that its type holds",
        ) from error

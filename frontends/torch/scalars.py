"""Numbers beside tensors, converted to an element type by PyTorch itself: each operation wraps or checks as there.

u8 + 300                 wraps: arithmetic and comparisons convert the number as they convert tensors
u8.clamp(max=300)        is refused: bounds, fills, exponents and factors are checked
u8.clamp(min=-5)         wraps: the check lets negative numbers of an unsigned type pass
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ...ir import GraphError

#: A number as a call has it.
Number = float | int | bool
#: Makes a tensor without axes of a number, in an element type.
Conversion = Callable[[Number, torch.dtype], torch.Tensor]


def wrapped(value: Number, kind: torch.dtype) -> torch.Tensor:
    """Return a number as arithmetic and comparisons convert it: integers wrap, floats round."""
    return _converted(lambda number, to: torch.tensor(number, dtype=_own_type(number)).to(to), value, kind)


def filled(value: Number, kind: torch.dtype) -> torch.Tensor:
    """Return a number as fills, bounds and exponents convert it; raise `GraphError` where the type cannot hold it."""
    return _converted(lambda number, to: torch.full((2,), number, dtype=to)[0], value, kind)  # of one: unchecked halves


def chosen(value: Number, kind: torch.dtype) -> torch.Tensor:
    """Return a number as choices convert it: as `filled`, but half types take integers beyond them as infinities."""
    return _converted(lambda number, to: torch.scalar_tensor(number, dtype=to), value, kind)


def is_beyond(value: object, kind: torch.dtype) -> bool:
    """Whether a finite number is an infinity in a float type."""
    if not isinstance(value, (int, float)) or not kind.is_floating_point or not math.isfinite(value):
        return False
    return bool(wrapped(value, kind).isinf())


def _own_type(number: Number) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    return torch.int64 if isinstance(number, int) else torch.float64


def _converted(convert: Conversion, value: Number, kind: torch.dtype) -> torch.Tensor:
    try:
        return convert(value, kind)
    except (RuntimeError, OverflowError) as error:
        name = str(kind).removeprefix("torch.")
        raise GraphError(
            f"number {value} cannot be converted to {name} without overflow",
            hint="convert the tensor to a wider type first, or choose a number that its type holds",
        ) from error

"""Test whether rounding explains a kernel's result.

Explanations are its number of operations, or else the condition of the group there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cuts.ir.segment import FusedGroup
from cuts.numerics.comparison import Comparison, compare
from cuts.numerics.tolerance import epsilon, tolerance
from cuts.passes.fusion.interpret import interpret

from .cases import accumulation

Array = np.ndarray[Any, Any]

#: How often inputs are moved by their rounding, and how many times as far an element may be off as it moves then: the
#: margin of `tolerance`.
MOVES, MARGIN = 4, 8.0


def judge(name: str, group: FusedGroup, inputs: Mapping[str, Array], found: Array, expected: Array) -> Comparison:
    """Compare an output of a group with its reference.

    An element that is further off than the number of operations explains may be off by as much as rounding errors of
    the inputs move it: `exp(exp(x))` multiplies them by `exp(x)`, up to 88 in single precision.
    """
    allowed = 4 * tolerance(group.tensors[name].dtype, *accumulation(group))
    result = compare(name, found, expected, allowed)
    if result.error <= allowed or found.shape != expected.shape:
        return result
    reach = MARGIN * _moves(name, group, inputs, expected)
    with np.errstate(invalid="ignore", over="ignore"):  # a value too large for the kernel's type is an infinity in it
        explained = np.abs(found.astype(np.float64) - expected) <= reach
        rounded = expected.astype(found.dtype)
    return compare(name, np.where(explained, rounded, found), expected, allowed)


def _moves(name: str, group: FusedGroup, inputs: Mapping[str, Array], expected: Array) -> Array:
    """Return how far each element of an output moves where inputs are off by a rounding error, 0 where it is no longer
    a number.
    """
    generator = np.random.default_rng(0)
    farthest = np.zeros(expected.shape)
    for _ in range(MOVES):
        moved = {
            tensor: array * (1 + epsilon(group.tensors[tensor].dtype) * generator.choice((-1, 1), array.shape))
            if group.tensors[tensor].dtype.is_float
            else array
            for tensor, array in inputs.items()
        }
        with np.errstate(invalid="ignore", over="ignore"):
            far = np.abs(interpret(group, moved)[name].astype(np.float64) - expected)
        farthest = np.maximum(farthest, np.where(np.isfinite(far), far, 0.0))
    return farthest

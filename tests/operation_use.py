"""Use of an operation: types of operands, attributes, values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import frozen
from cuts.ir.types import DType, TensorType
from cuts.ops import Instance, Registry

REGISTRY = Registry.builtin()


@frozen
class Use:
    """Use of an operation.

    It has types of operands, attributes, and distributions of values.
    """

    op: str
    types: tuple[TensorType | None, ...]
    attributes: Mapping[str, Any] = {}
    low: float = -0.9
    classes: int = 1  # integers are below this
    ascending: bool = False  # integers are in order

    @cached_property
    def instance(self) -> Instance:
        return REGISTRY[self.op].instantiate(self.types, self.attributes)

    def values(self, seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {
            n: self._value(rng, t)
            for n, t in zip(self.instance.inputs, self.types, strict=False)
            if n is not None and t is not None
        }

    def _value(self, rng: np.random.Generator, type_: TensorType) -> Any:
        """Floats are spread evenly and in random order, so that no two are so close that a step swaps them."""
        if not type_.dtype.is_float:
            found = rng.integers(0, max(2 if type_.dtype is DType.BOOL else 1, self.classes), type_.shape)
            return (np.sort(found) if self.ascending else found).astype(type_.dtype.numpy)
        high = 0.95 if self.low < 0.9 else self.low + 1
        places = rng.permutation(type_.size) + rng.uniform(0.2, 0.8, type_.size)
        return (self.low + places * (high - self.low) / type_.size).reshape(type_.shape)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def i64(*shape: int) -> TensorType:
    return TensorType(DType.I64, shape)


def boolean(*shape: int) -> TensorType:
    return TensorType(DType.BOOL, shape)


def uses(
    op: str,
    *shapes: Sequence[int] | TensorType | None,
    low: float = -0.9,
    classes: int = 1,
    ascending: bool = False,
    **attributes: Any,
) -> Use:
    """Return a use; operands are fp32 where only a shape is given."""
    types = tuple(s if s is None or isinstance(s, TensorType) else f32(*s) for s in shapes)
    return Use(op, types, attributes, low, classes, ascending)

"""Formats of quantised weights, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import frozen

from ..ir import DType, UsageError

WeightsName: TypeAlias = Literal["int8", "int4", "fp8"]


@frozen
class WeightFormat:
    """Numbers of quantised weights.

    They have an element type, a largest one, and the length of a group that has a scale (0: a channel).
    """

    name: WeightsName
    dtype: DType
    largest: float
    group: int = 0


_ROWS = (
    WeightFormat("int8", DType.I8, 127.0),
    WeightFormat("int4", DType.I8, 7.0, 128),
    WeightFormat("fp8", DType.F8E4M3, 448.0),
)
WEIGHT_FORMATS: Mapping[str, WeightFormat] = {row.name: row for row in _ROWS}


def find_weight_format(name: str) -> WeightFormat:
    """Return a format by its name.

    Raises `UsageError` for an unknown name.
    """
    if name not in WEIGHT_FORMATS:
        raise UsageError(f"unknown weights '{name}'", hint=f"weights are: {', '.join(WEIGHT_FORMATS)}")
    return WEIGHT_FORMATS[name]

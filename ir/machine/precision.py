"""Precision policies: storage and multiplication types of a compiled f32 graph.

A policy belongs to the compilation, not to the model. `passes.graph.precision` writes it into types and casts; kernels
see nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import frozen

from ..types import DType

PrecisionName: TypeAlias = Literal["fp32", "fp32x3", "tf32", "bf16", "fp16"]


@frozen
class Precision:
    """Types in which numbers of f32 are stored and multiplied.

    `stored` is the type of values between kernels, to which operands of a contraction are rounded before they are
    multiplied; `math` is the math mode of sums of products of f32 (`ir.machine`; empty: products and sums
    in f32).
    """

    name: PrecisionName
    stored: DType
    math: str = ""


_ROWS = (
    Precision("fp32", DType.F32),
    Precision("fp32x3", DType.F32, "fp32x3"),
    Precision("tf32", DType.F32, "tf32"),
    Precision("bf16", DType.BF16),
    Precision("fp16", DType.F16),
)

PRECISIONS: Mapping[str, Precision] = {row.name: row for row in _ROWS}

"""Precision policies: in which types a compiled graph of f32 keeps its values and multiplies, as data.

A policy belongs to the compilation, not to the model. `passes.graph.precision` writes it into types and casts; kernels
see nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import frozen

from .types import DType

PrecisionName: TypeAlias = Literal["fp32", "fp32x3", "tf32", "bf16", "fp16"]


@frozen
class Precision:
    """How numbers of f32 are kept and multiplied.

    `stored` is the type of values between kernels, `product` the type that operands of a contraction are rounded to
    before they are multiplied: an element type, or tf32, which is only a way to multiply. `parts` numbers of it stand
    for an operand, and `every` elements of a sum (0: all of it) are added up before the partial sum goes to one that
    rounds to nearest. All add up in f32. `atoms` says whether there is no such product but a matrix instruction.
    """

    name: PrecisionName
    stored: DType
    product: str
    parts: int = 1
    every: int = 0
    atoms: bool = False


_ROWS = (
    Precision("fp32", DType.F32, "f32"),
    Precision("fp32x3", DType.F32, "tf32", parts=2, every=32, atoms=True),
    Precision("tf32", DType.F32, "tf32", atoms=True),
    Precision("bf16", DType.BF16, "bf16"),
    Precision("fp16", DType.F16, "f16"),
)

PRECISIONS: Mapping[str, Precision] = {row.name: row for row in _ROWS}

"""Groups of batched matrix products, by format."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from cuts.ir.affine import Var, as_index
from cuts.ir.expr import Read, call
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.types import DType, TensorType


@frozen
class Format:
    """Storage type of operands, and math mode."""

    stored: DType
    math: str


FORMATS: Mapping[str, Format] = {
    "bf16": Format(DType.BF16, ""),
    "f16": Format(DType.F16, ""),
    "tf32": Format(DType.F32, "tf32"),
    "fp32x3": Format(DType.F32, "fp32x3"),
}


def product_group(format_: Format, shape: tuple[int, int, int, int], out: DType) -> FusedGroup:
    """Return the group of a batched matrix product.

    It is y[b, m, n] = sum over k of a[b, m, k] * c[b, k, n], added up in f32 and stored as `out`.
    """
    b, m, n, k = (Var(name, extent) for name, extent in zip("bmnk", shape, strict=True))
    first, second = (Read(t, tuple(as_index(v) for v in at)) for t, at in (("a", (b, m, k)), ("c", (b, k, n))))
    total = Reduction("t", (k,), "sum", call("mul", first, second), format_.math)
    axes = tuple(as_index(v) for v in (b, m, n))
    segment = Segment((b, m, n), (total,), (Output("y", axes, Read("t", axes)),))
    kinds = {"a": (format_.stored, (b, m, k)), "c": (format_.stored, (b, k, n)), "t": (DType.F32, (b, m, n)),
             "y": (out, (b, m, n))}  # fmt: skip
    tensors = {name: TensorType(kind, tuple(v.extent for v in at)) for name, (kind, at) in kinds.items()}
    return FusedGroup((segment,), tensors, ("a", "c"), ("y",))

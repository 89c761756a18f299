"""Uses of operations beside those of `operations.py`."""

from __future__ import annotations

from cuts.ir.types import DType, TensorType
from cuts.tests.operation_use import Use, i64, uses


def _integers(kind: DType, *shape: int) -> TensorType:
    return TensorType(kind, shape)


def _floats8(*shape: int) -> TensorType:
    return TensorType(DType.F8E4M3, shape)


DIFFERENTIABLE: list[Use] = [
    uses("attention_state", (1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3), causal=True),
    uses("attention_scores_gradient", (1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3), (1, 4, 3, 3), (1, 4, 3), (1, 4, 3, 3)),
    uses("average_pool", (1, 2, 5, 4), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), divisor=5),
    uses("roi_align_adaptive", (1, 2, 5, 4), (3, 4), i64(3), low=0.1, sizes=(2, 1), scale=4.0),
    *(uses("grouped_matmul", (rows, 4), (2, 4, 3), i64(2), classes=rows + 1, ascending=True)
      for rows in (2, 5, 130)),
    uses("grouped_outer", (5, 4), (5, 3), i64(2), classes=6, ascending=True),
    uses("frexp", (3, 4)),
    *(uses(op, (3, 4), low=0.1) for op in ("lgamma", "digamma")),
    *(uses("polygamma", (3, 4), low=low, n=n) for n, low in ((1, 0.1), (2, 0.1), (3, 0.1))),
    *(uses(op, (3, 4), order=n) for op in ("bessel_i", "bessel_ie") for n in (0, 1, 2)),
    uses("erfinv", (3, 4)),
    *(uses("lu", (2, n, n)) for n in (1, 3, 6)),
    *(uses("cholesky", (n, n), low=0.9) for n in (1, 2)),
    *(uses("solve_triangular", (n, n), (n, 2), low=0.2, upper=upper, unit=unit)
      for n, upper, unit in ((3, False, False), (6, True, False), (6, False, True))),
    uses("erfinv_grad", (3, 4), (3, 4)),
    uses("fractional_max_pool", (1, 2, 6, 5), (1, 2, 2), low=0.05, kernel_shape=(2, 2), sizes=(3, 4)),
    uses("mode", (2, 5), axis=1, keepdims=False),
    uses("segment_sum", (7, 2), i64(4), classes=7, ascending=True),
    *(uses("segment_reduce", (7, 2), i64(7), classes=2, low=0.2, count=2, reduction=how)
      for how in ("sum", "prod", "max", "min")),
]  # fmt: skip
#: Operations without gradients.
FLAT: list[Use] = [
    uses("quantize", (2, 3), (3,), _floats8(3), low=0.1, to="f8e4m3"),
    uses("dequantize", _floats8(2, 3), (3,), _floats8(3), low=0.1),
    *(uses("scaled_matmul", *(_floats8(*shape) for shape in ((4, 8), (8, 6))), *scales, low=0.2, to="bf16")
      for scales in (((1, 1), (1, 1)), ((4, 1), (1, 6)), ((4, 2), (2, 1)))),
    *(uses("exchanges", i64(2, n), classes=n + 1, ascending=True) for n in (1, 3)),
    *(uses(op, i64(2, 3), i64(3), classes=60) for op in ("gcd", "lcm")),
    uses("nextafter", (2, 3), (3,)),
    uses("bits_of_f32", (2, 3)),
    uses("bits_of_f64", TensorType(DType.F64, (2, 3))),
    uses("f32_of_bits", _integers(DType.I32, 2, 3), classes=99),
    uses("f64_of_bits", i64(2, 3), classes=99),
    uses("mode", _integers(DType.I32, 3, 7), classes=3, axis=0),
    uses("histogram", (40,), (), (), bins=5),
    uses("histogram", _integers(DType.I32, 40), _integers(DType.I32), _integers(DType.I32), classes=9, bins=4),
]  # fmt: skip

"""ONNX's sums of products: convolution, matrix products."""

from __future__ import annotations

from .onnx_call import Call, Convert
from .onnx_window import window_attributes


def _conv(call: Call) -> None:
    kernel = call.ints("kernel_shape")
    spatial = call.type(1).shape[2:]
    if kernel is not None and kernel != spatial:
        call.fail(f"kernel_shape {list(kernel)} does not fit the filter's {list(spatial)}")
    given = window_attributes(call, spatial)
    call.result("conv", call.operand(0), call.operand(1), call.optional(2), groups=call.attribute("group", 1), **given)


def _gemm(call: Call) -> None:
    given = {"alpha": call.attribute("alpha", 1.0), "beta": call.attribute("beta", 1.0)}
    flags = {"trans_a": bool(call.attribute("transA", 0)), "trans_b": bool(call.attribute("transB", 0))}
    call.result("gemm", call.operand(0), call.operand(1), call.optional(2), **given, **flags)


def _matmul(call: Call) -> None:
    call.result("matmul", call.operand(0), call.operand(1))


TABLE: dict[str, Convert] = {"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul}

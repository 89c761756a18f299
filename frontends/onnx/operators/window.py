"""ONNX's windows over spatial axes: padding rules and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from ....ir import Attribute
from ..call import Convert, NodeCall


def window_attributes(call: NodeCall, kernel: Sequence[int]) -> dict[str, Attribute]:
    """Return strides, dilations and explicit pads of a window.

    `auto_pad` is resolved with the static shape.
    """
    rank = len(kernel)
    if call.rank(0) != rank + 2:
        call.fail(f"expected an input of {rank + 2} axes for a kernel of {rank}, found {call.rank(0)}")
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    pads = call.ints("pads") or (0,) * (2 * rank)
    mode = call.attribute("auto_pad", "NOTSET") or "NOTSET"
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max(0, (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size)
            for size, stride, window, dilation in zip(call.type(0).shape[2:], strides, kernel, dilations, strict=True)
        ]
        small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        pads = small + large if mode == "SAME_UPPER" else large + small
    elif mode == "VALID":
        pads = (0,) * (2 * rank)
    elif mode != "NOTSET":
        call.fail(f"auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {mode}")
    return {"strides": strides, "dilations": dilations, "pads": pads}


def _pool_attributes(call: NodeCall) -> dict[str, Attribute]:
    kernel = call.ints("kernel_shape")
    if kernel is None:
        call.fail("attribute 'kernel_shape' is required")
    return {
        "kernel_shape": kernel,
        "ceil_mode": bool(call.attribute("ceil_mode", 0)),
        **window_attributes(call, kernel),
    }


def _max_pool(call: NodeCall) -> None:
    reversed_axes = bool(call.attribute("storage_order", 0))
    given = _pool_attributes(call)
    if len(call.outputs) > 1 and call.outputs[1] is not None:
        call.result("max_pool_positions", call.operand(0), reversed_axes=reversed_axes, **given)
    else:
        call.result("max_pool", call.operand(0), **given)


def _lp_pool(call: NodeCall) -> None:
    call.result("lp_pool", call.operand(0), p=call.attribute("p", 2), **_pool_attributes(call))


def _global_lp_pool(call: NodeCall) -> None:
    """Convert to one window over all spatial axes."""
    call.result("lp_pool", call.operand(0), kernel_shape=call.type(0).shape[2:], p=call.attribute("p", 2))


def _average_pool(call: NodeCall) -> None:
    padded = bool(call.attribute("count_include_pad", 0))
    call.result("average_pool", call.operand(0), count_include_pad=padded, **_pool_attributes(call))


def _global_average_pool(call: NodeCall) -> None:
    call.result("global_average_pool", call.operand(0))


def _global_max_pool(call: NodeCall) -> None:
    call.result("global_max_pool", call.operand(0))


TABLE: dict[str, Convert] = {
    "MaxPool": _max_pool,
    "LpPool": _lp_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "GlobalLpPool": _global_lp_pool,
}

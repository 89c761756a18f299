"""ONNX's resampling: `Resize` since operator set 10, `Upsample` before."""

from __future__ import annotations

import math

from ..ir.graph import Attribute
from .onnx_call import Call, Convert


def _upsample(call: Call) -> None:
    scales = _scales(call, "scales", 1)
    if scales is None:
        call.fail("scales are required")
    _resample(call, call.attribute("mode", "nearest"), scales, None, "asymmetric", "floor")


def _resize(call: Call) -> None:
    mode = call.attribute("mode", "nearest")
    if call.opset == 10:
        _resize_10(call, mode)
        return
    for name, usual in (("antialias", 0), ("exclude_outside", 0), ("keep_aspect_ratio_policy", "stretch")):
        if call.attribute(name, usual) != usual:
            call.fail(f"attribute '{name}': only {usual!r} is supported, found {call.attributes[name]!r}")
    call.attribute("extrapolation_value", 0.0)
    call.attribute("cubic_coeff_a", -0.75)
    axes = call.ints("axes")
    scales, sizes = _scales(call, "scales", 2), call.ints("sizes", 3)
    shape = call.type(0).shape
    if axes is not None:
        scales = None if not scales else tuple(_spread(axes, scales, (1.0,) * len(shape)))
        sizes = None if not sizes else tuple(int(v) for v in _spread(axes, sizes, shape))
    place = call.attribute("coordinate_transformation_mode", "half_pixel")
    _resample(call, mode, scales, sizes, place, call.attribute("nearest_mode", "round_prefer_floor"))


def _resize_10(call: Call, mode: str) -> None:
    """The first version had no rounding rule: axes that shrink took the element after, axes that grow the one before."""
    scales, shape = _scales(call, "scales", 1) or (), call.type(0).shape
    shrinks = any(scale < 1 for scale in scales)
    if not shrinks or mode != "nearest" or len(scales) != len(shape):
        _resample(call, mode, scales, None, "asymmetric", "floor")
        return
    small = tuple(min(scale, 1.0) for scale in scales)
    large = tuple(max(scale, 1.0) for scale in scales)
    place: dict[str, Attribute] = {"coordinate_transformation_mode": "asymmetric"}
    down: dict[str, Attribute] = {"sizes": _floor(shape, small), "scales": small, "nearest_mode": "ceil", **place}
    up: dict[str, Attribute] = {"sizes": _floor(shape, scales), "scales": large, "nearest_mode": "floor", **place}
    (value,) = call.builder.add_node("resize_nearest", [call.operand(0)], down, call.origin, [None])
    call.result("resize_nearest", value, **up)


def _floor(shape: tuple[int, ...], scales: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(math.floor(extent * scale) for extent, scale in zip(shape, scales, strict=True))


def _scales(call: Call, name: str, position: int) -> tuple[float, ...] | None:
    """Return scales given as an attribute or a constant operand; an empty operand is an absent one."""
    given = call.attribute(name, None)
    array = call.array(position, name) if given is None else None
    values = given if array is None else array.reshape(-1).tolist()
    return tuple(float(v) for v in values) if values else None


def _spread(axes: tuple[int, ...], values: tuple[float, ...], usual: tuple[float, ...]) -> list[float]:
    full = list(usual)
    for axis, value in zip(axes, values, strict=True):
        full[axis] = value
    return full


def _resample(call: Call, mode: str, scales: tuple[float, ...] | None, sizes: tuple[int, ...] | None, place: str, nearest: str) -> None:
    shape = call.type(0).shape
    if not sizes:
        if scales is None or len(scales) != len(shape):
            call.fail(f"expected {len(shape)} scales or sizes")
        sizes = _floor(shape, scales)
    given = {"sizes": sizes, "scales": scales, "coordinate_transformation_mode": place}
    if mode == "nearest":
        call.result("resize_nearest", call.operand(0), nearest_mode=nearest, **given)
    elif mode in ("linear", "bilinear"):
        call.result("resize_linear", call.operand(0), **given)
    else:
        call.fail(f"mode: expected nearest or linear, found {mode}")


TABLE: dict[str, Convert] = {"Resize": _resize, "Upsample": _upsample}

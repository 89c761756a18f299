"""ONNX's resampling: `Resize` since operator set 10, `Upsample` earlier."""

from __future__ import annotations

import math

import numpy as np

from ....ir import Attribute, DType
from ...resampling import ROUNDING, Rule, axis_table
from ..call import Convert, NodeCall

_KERNELS = {"bilinear": "linear"}
#: Coordinate rules of our resizing operations.
_PLAIN = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


def _upsample(call: NodeCall) -> None:
    scales = _scales(call, "scales", 1)
    if scales is None:
        call.fail("scales are required")
    _resample(call, call.attribute("mode", "nearest"), scales, None, "asymmetric", "floor")


def _resize(call: NodeCall) -> None:
    mode = call.attribute("mode", "nearest")
    if call.opset == 10:
        _resize_10(call, mode)
        return
    axes = call.ints("axes")
    scales, sizes = _scales(call, "scales", 2), call.ints("sizes", 3)
    policy, shape = call.attribute("keep_aspect_ratio_policy", "stretch"), call.type(0).shape
    if axes is not None:
        scales = None if not scales else tuple(_fill_axes(axes, scales, (1.0,) * len(shape)))
    if sizes and policy != "stretch":
        scales, sizes = _same_ratio(policy, axes or tuple(range(len(shape))), sizes, shape)
    elif axes is not None:
        sizes = None if not sizes else tuple(int(v) for v in _fill_axes(axes, sizes, shape))
    place = call.attribute("coordinate_transformation_mode", "half_pixel")
    roi = _roi(call, axes) if place == "tf_crop_and_resize" else [(0.0, 1.0)] * len(shape)
    flags = {
        "antialias": bool(call.attribute("antialias", 0)),
        "exclude_outside": bool(call.attribute("exclude_outside", 0)),
    }
    extrapolation, nearest = (
        call.attribute("extrapolation_value", 0.0),
        call.attribute("nearest_mode", "round_prefer_floor"),
    )
    rule = Rule(_KERNELS.get(mode, mode), place, call.attribute("cubic_coeff_a", -0.75), **flags, nearest=nearest)
    plain = rule.kernel == "nearest" or (rule.kernel == "linear" and not any(flags.values()))
    if plain and place in _PLAIN:
        _resample(call, mode, scales, sizes, place, nearest)
    else:
        _by_axis(call, rule, scales, sizes, roi, extrapolation)


def _roi(call: NodeCall, axes: tuple[int, ...] | None) -> list[tuple[float, float]]:
    """Return the bounds of the region of interest along each axis, the whole axis by default."""
    rank = call.rank()
    array = call.array(1, "roi")
    if array is None or array.size == 0:
        return [(0.0, 1.0)] * rank
    ends = array.reshape(2, -1)
    found = dict(zip(axes or range(rank), ends.T.tolist(), strict=True))
    return [tuple(found.get(axis, found.get(axis - rank, (0.0, 1.0)))) for axis in range(rank)]


def _same_ratio(
    policy: str, axes: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return scales and sizes of one ratio for all axes, no larger, or no smaller, than the given sizes."""
    ratios = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    scales = tuple(_fill_axes(axes, (scale,) * len(axes), (1.0,) * len(shape)))
    return scales, tuple(math.floor(scale * extent + 0.5) for scale, extent in zip(scales, shape, strict=True))


def _by_axis(
    call: NodeCall,
    rule: Rule,
    scales: tuple[float, ...] | None,
    sizes: tuple[int, ...] | None,
    roi: list[tuple[float, float]],
    extrapolation: float,
) -> None:
    """Resample axis by axis through tables; points outside a region get the extrapolation value."""
    if rule.kernel not in ("nearest", "linear", "cubic"):
        call.fail(f"mode: expected nearest, linear or cubic, found {rule.kernel}")
    if rule.place not in (*_PLAIN, "half_pixel_symmetric", "tf_crop_and_resize"):
        call.fail(f"coordinate_transformation_mode: found {rule.place}, which is none of the standard's")
    if rule.nearest not in ROUNDING:
        call.fail(f"nearest_mode: expected {', '.join(ROUNDING)}, found {rule.nearest}")
    type_ = call.type(0)
    shape = type_.shape
    sizes = sizes or _floor(shape, scales or ())
    if 0 in sizes:
        call.give(call.constant(np.zeros(sizes), type_.dtype))
        return
    scales = scales or tuple(size / extent for size, extent in zip(sizes, shape, strict=True))
    value, outside = call.operand(0), np.zeros(sizes, np.bool_)
    kind = type_.dtype if rule.kernel == "nearest" else _real(type_.dtype)
    if kind is not type_.dtype:
        value = call.emit("cast", value, to=kind.value)
    crops = rule.place == "tf_crop_and_resize"
    for axis, size in enumerate(sizes):
        if size == shape[axis] and scales[axis] == 1 and not (crops and roi[axis] != (0.0, 1.0)):
            continue
        places, weights, beyond = axis_table(rule, shape[axis], size, scales[axis], roi[axis])
        value = call.emit(
            "sample_axis", value, call.constant(places, DType.I64), call.constant(weights, kind), axis=axis
        )
        outside |= beyond.reshape([-1 if n == axis else 1 for n in range(len(sizes))])
    if crops and outside.any():
        fill = call.constant(extrapolation, kind)
        value = call.emit("where", call.constant(outside, DType.BOOL), fill, value)
    call.give(value if kind is type_.dtype else _nearest_integer(call, value, type_.dtype, kind))


def _real(dtype: DType) -> DType:
    """Return the element type in which a mean of elements is computed."""
    return dtype if not dtype.is_int else DType.F32 if dtype.size < 4 else DType.F64


def _nearest_integer(call: NodeCall, value: str, dtype: DType, kind: DType) -> str:
    near = call.emit(
        "clip", call.emit("round", value), min=float(dtype.element.lowest), max=float(dtype.element.highest)
    )
    return str(call.emit("cast", near, to=dtype.value))


def _resize_10(call: NodeCall, mode: str) -> None:
    """Convert the first version, which has no rounding rule.

    Axes that shrink take the next element, axes that grow the previous one.
    """
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


def _scales(call: NodeCall, name: str, position: int) -> tuple[float, ...] | None:
    """Return scales given as an attribute or a constant operand; an empty operand is an absent one."""
    given = call.attribute(name, None)
    array = call.array(position, name) if given is None else None
    values = given if array is None else array.reshape(-1).tolist()
    return tuple(float(v) for v in values) if values else None


def _fill_axes(axes: tuple[int, ...], values: tuple[float, ...], usual: tuple[float, ...]) -> list[float]:
    full = list(usual)
    for axis, value in zip(axes, values, strict=True):
        full[axis] = value
    return full


def _resample(
    call: NodeCall, mode: str, scales: tuple[float, ...] | None, sizes: tuple[int, ...] | None, place: str, nearest: str
) -> None:
    shape = call.type(0).shape
    if not sizes:
        if scales is None or len(scales) != len(shape):
            call.fail(f"expected {len(shape)} scales or sizes")
        sizes = _floor(shape, scales)
    given: dict[str, Attribute | None] = {"sizes": sizes, "scales": scales, "coordinate_transformation_mode": place}
    if mode == "nearest":
        call.result("resize_nearest", call.operand(0), nearest_mode=nearest, **given)
    elif mode in ("linear", "bilinear"):
        _linear(call, given)
    else:
        call.fail(f"mode: expected nearest or linear, found {mode}")


def _linear(call: NodeCall, given: dict[str, Attribute | None]) -> None:
    """Convert a linear resizing; a mean of integers is truncated as in ONNX Runtime."""
    dtype = call.type(0).dtype
    if not dtype.is_int:
        call.result("resize_linear", call.operand(0), **given)
        return
    mean = call.emit("resize_linear", call.emit("cast", call.operand(0), to=_real(dtype).value), outputs=1, **given)
    call.result("cast", mean, to=dtype.value)


TABLE: dict[str, Convert] = {"Resize": _resize, "Upsample": _upsample}

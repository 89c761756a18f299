"""Counterparts of attention, transforms and sampling: PyTorch, torchvision, NumPy and ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..needs import optional_module
from .counterparts_torch import Array, Attributes, Counterpart, F, of_tensors, tensor, torch

torchvision: Any = optional_module("torchvision")
onnx: Any = optional_module("onnx")
onnxruntime: Any = optional_module("onnxruntime")
#: The version of the standard that nodes are written in.
OPSET = 23


def node(op: str, **attributes: str) -> Counterpart:
    """Return a node as ONNX Runtime computes it.

    `attributes` maps its attributes to ours.
    """

    def apply(a: Attributes, *operands: Array | None) -> Any:
        return _compute(op, {theirs: a[ours] for theirs, ours in attributes.items()}, *operands)

    return apply


def _compute(op: str, attributes: Attributes, *operands: Array | None) -> Any:
    names = ["" if o is None else f"x{n}" for n, o in enumerate(operands)]
    given = {name: o for name, o in zip(names, operands, strict=True) if o is not None}
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(o.dtype) for name, o in given.items()}
    inputs = [onnx.helper.make_tensor_value_info(n, kinds[n], o.shape) for n, o in given.items()]
    result = onnx.helper.make_empty_tensor_value_info("y")
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, names, ["y"], **attributes)], op, inputs, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes are no public names
        if "NOT_IMPLEMENTED" in str(error) or "INVALID" in str(error):
            return None
        raise
    return session.run(None, given)[0]


def _single(function: Counterpart) -> Counterpart:
    """Return a counterpart that computes in single precision."""

    def apply(a: Attributes, *operands: Array | None) -> Any:
        floats = [o for o in operands if o is not None and o.dtype.kind == "f"]
        if any(np.abs(o[np.isfinite(o)]).max(initial=0) > np.finfo(np.float32).max for o in floats):
            return None
        return function(a, *(o if o is None or o.dtype.kind != "f" else o.astype(np.float32) for o in operands))

    return apply


def _reverse(a: Attributes, x: Array, lengths: Array) -> Any:
    if a["time"] + a["batch"] != 1 or ((lengths < 0) | (lengths > x.shape[a["time"]])).any() or not x.size:
        return None
    return _compute("ReverseSequence", {"time_axis": a["time"], "batch_axis": a["batch"]}, x, lengths.astype(np.int64))


def _rotate(a: Attributes, x: Array, cosine: Array, sine: Array) -> Any:
    pairs, (batch, _, steps, _) = cosine.shape[-1], x.shape
    if cosine.ndim > 3 or not x.size or not pairs:
        return None
    tables = [np.ascontiguousarray(np.broadcast_to(t, (batch, steps, pairs))) for t in (cosine, sine)]
    given = {"interleaved": int(a["interleaved"]), "rotary_embedding_dim": 2 * pairs if 2 * pairs < x.shape[-1] else 0}
    return _compute("RotaryEmbedding", given, x, *tables)


def _attention(a: Attributes, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """PyTorch gives zeros where a row is masked whole; it has no softcap."""
    if a["softcap"] or not all(q.shape[1:]) or not all(k.shape[1:]):
        return None
    rows, columns = q.shape[2], k.shape[2]
    bias = torch.zeros(q.shape[0], q.shape[1], rows, columns, dtype=q.dtype)
    if mask is not None:
        bias = bias.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else bias + mask
    if a["causal"]:
        seen = torch.arange(columns)[None] - torch.arange(rows)[:, None] <= a["offset"]
        bias = bias.masked_fill(~seen, -math.inf)
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, bias, scale=a["scale"])


def _grid_sample(a: Attributes, x: Any, grid: Any) -> Any:
    modes = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    if x.ndim not in (4, 5) or not all(x.shape[1:]) or (x.ndim == 5 and a["mode"] == "cubic"):
        return None
    more = {"padding_mode": a["padding_mode"], "align_corners": a["align_corners"]}
    return F.grid_sample(x, grid, modes[a["mode"]], **more)


def _resize(mode: str) -> Counterpart:
    """PyTorch resizes axes of space, to given sizes; its nearest place is rounded down."""
    names = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("", "bicubic", ""), "nearest": ("nearest",) * 3}

    def apply(a: Attributes, x: Any) -> Any:
        name = names[mode][x.ndim - 3] if 3 <= x.ndim <= 5 else ""
        place, corners = a["coordinate_transformation_mode"], a["coordinate_transformation_mode"] == "align_corners"
        wanted = {"nearest": ("asymmetric",)}.get(mode, ("half_pixel", "align_corners"))
        if (not name or not x.is_floating_point() or place not in wanted or a["scales"] is not None or not x.numel()
                or tuple(a["sizes"][:2]) != tuple(x.shape[:2]) or min(a["sizes"]) < 1
                or a.get("nearest_mode", "floor") != "floor"):  # fmt: skip
            return None
        return F.interpolate(x, tuple(a["sizes"][2:]), mode=name, align_corners=corners if mode != "nearest" else None)

    return of_tensors(apply)


def _deform(a: Attributes, x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None) -> Any:
    rank = x.ndim - 2
    if (
        rank != 2
        or tuple(a["pads"][:2]) != tuple(a["pads"][2:])
        or not offset.numel()
        or not x.numel()
        or not w.numel()
    ):
        return None
    return torchvision.ops.deform_conv2d(
        x, offset, w, b, tuple(a["strides"]), tuple(a["pads"][:2]), tuple(a["dilations"]), mask
    )


def _align(a: Attributes, x: Any, rois: Any, batch: Any) -> Any:
    if x.ndim != 4 or a.get("mode", "avg") != "avg" or not x.numel() or not rois.numel():
        return None
    sizes = (rois[:, 2:] - rois[:, :2]) * a["scale"]
    counted = "samples" in a or ((sizes >= 0) & (sizes <= 100)).all()
    if ((batch < 0) | (batch >= len(x))).any() or not counted:
        return None
    rows = torch.cat([batch[:, None].to(rois.dtype), rois], 1)
    return torchvision.ops.roi_align(x, rows, tuple(a["sizes"]), a["scale"], a.get("samples", 0), a["half_pixel"])


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


def _pairs(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def _dft(a: Attributes, x: Array) -> Any:
    count = x.shape[a["axis"]] if a["length"] is None else a["length"]
    if count < 1 or (a["inverse"] and a["onesided"]):
        return None
    found = (np.fft.ifft if a["inverse"] else np.fft.fft)(_complex(x), count, a["axis"])
    return _pairs(np.take(found, np.arange(count // 2 + 1 if a["onesided"] else count), a["axis"]))


def _irdft(a: Attributes, x: Array) -> Any:
    count = 2 * (x.shape[a["axis"]] - 1) if a["length"] is None else a["length"]
    return None if count < 1 else np.fft.irfft(_complex(x), count, a["axis"])[..., None]


def _irfft2(a: Attributes, x: Array) -> Any:
    width = 2 * (x.shape[-2] - 1) if a["width"] is None else a["width"]
    return None if width < 1 or not x.shape[-3] else np.fft.irfft2(_complex(x), (x.shape[-3], width))


def _frames(a: Attributes, x: Array, window: Array | None = None) -> Any:
    if a["length"] < 1:
        return None
    views = np.lib.stride_tricks.sliding_window_view(x, a["length"], axis=-2)[..., :: a["step"], :, :]
    return np.swapaxes(views, -1, -2) * (1 if window is None else window[:, None])


def _sample(a: Attributes, x: Array, places: Array, weights: Array) -> Any:
    axis = a["axis"]
    if not x.shape[axis]:
        return None
    wrapped = np.where(places < 0, places + x.shape[axis], places).clip(0, x.shape[axis] - 1)
    taken = np.take(x, wrapped, axis)
    return np.einsum(
        taken, [*range(taken.ndim)], weights, [axis, axis + 1], [d for d in range(taken.ndim) if d != axis + 1]
    )


def _quantise(a: Attributes, x: Array, scale: Array, zero: Array | None = None) -> Any:
    """One scale, numbers that the integers hold, and types that PyTorch has."""
    kinds = {"u8": torch.uint8, "i8": torch.int8}
    if str(a["to"]) not in kinds or scale.size != 1 or not (scale > 0).all() or not np.isfinite(x / scale).all():
        return None
    limits = torch.iinfo(kinds[str(a["to"])])
    start = 0 if zero is None else int(zero.reshape(())) if zero.size == 1 else None
    if start is None or not limits.min <= start <= limits.max or abs(x / scale).max(initial=0) > 1e6:
        return None
    made = torch.fake_quantize_per_tensor_affine(tensor(x), float(scale.reshape(())), start, limits.min, limits.max)
    return np.rint(made.numpy() / scale.reshape(()) + start).astype(np.int64)


#: Operations that transform, sample or attend.
SAMPLING: dict[str, Callable[..., Any]] = {
    "attention": of_tensors(_attention), "rotary": _single(_rotate), "reverse_sequence": _reverse,
    "shrink": _single(node("Shrink", lambd="lambd", bias="bias")),
    "thresholded_relu": _single(node("ThresholdedRelu", alpha="alpha")),
    "grid_sample": of_tensors(_grid_sample), "resize_linear": _resize("linear"), "resize_cubic": _resize("cubic"),
    "resize_nearest": _resize("nearest"), "deform_conv": of_tensors(_deform), "roi_align": of_tensors(_align),
    "roi_align_adaptive": of_tensors(_align),
    "dft": _dft, "irdft": _irdft, "mixed_radix": _dft, "mixed_radix_real": _irdft, "irfft2": _irfft2,
    "rfft2": lambda a, x: _pairs(np.fft.rfft2(x)) if x.size else None,
    "frames": _frames, "sample_axis": _sample, "quantize": _quantise,
}  # fmt: skip

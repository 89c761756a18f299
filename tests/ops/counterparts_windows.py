"""PyTorch's convolutions and pooling as counterparts of operations."""

from __future__ import annotations

import math
from typing import Any

from .counterparts_torch import Attributes, Counterpart, F, of_tensors, torch


def pads(a: Attributes, rank: int) -> tuple[int, ...] | None:
    """Return PyTorch's pads, last axis first; none where some are negative."""
    listed = a["pads"]
    if min(listed, default=0) < 0:
        return None
    return tuple(p for axis in reversed(range(rank)) for p in (listed[axis], listed[rank + axis]))


def _symmetric(a: Attributes, rank: int) -> tuple[int, ...] | None:
    begin, end = tuple(a["pads"][:rank]), tuple(a["pads"][rank:])
    return begin if begin == end and min(begin, default=0) >= 0 else None


def _spatial(x: Any, most: int = 3) -> int:
    """Return the number of spatial axes, 0 where PyTorch has no windows for it."""
    return x.ndim - 2 if 1 <= x.ndim - 2 <= most and all(x.shape[1:]) else 0


def _convolution(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    rank = _spatial(x)
    if not rank or pads(a, rank) is None or not x.is_floating_point() or not all(w.shape):
        return None
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    padded, window = F.pad(x, pads(a, rank)), {"stride": a["strides"], "dilation": a["dilations"]}
    taps = [d * (k - 1) + 1 for d, k in zip(a["dilations"], w.shape[2:], strict=True)]
    if any(n < tap for n, tap in zip(padded.shape[2:], taps, strict=True)):
        return None
    return function(padded, w, b, groups=a["groups"], **window)


def _transpose(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    rank = _spatial(x)
    if not rank or _symmetric(a, rank) is None or not all(w.shape):
        return None
    extra = a["output_padding"]
    if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, a["strides"], a["dilations"], strict=True)):
        return None
    begin, spans = _symmetric(a, rank) or (), zip(a["dilations"], w.shape[2:], strict=True)
    taps = [d * (k - 1) + 1 for d, k in spans]
    whole = [(n - 1) * s + tap for n, s, tap in zip(x.shape[2:], a["strides"], taps, strict=True)]
    sizes = [n - 2 * p + e for n, p, e in zip(whole, begin, extra, strict=True)]
    if min(sizes) < 1:
        return None
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    return function(
        x, w, b, stride=a["strides"], padding=_symmetric(a, rank), output_padding=extra, groups=a["groups"],
        dilation=a["dilations"],
    )  # fmt: skip


def _pool(a: Attributes, x: Any) -> Any:
    rank = _spatial(x)
    begin = _symmetric(a, rank) if rank else None
    if begin is None or any(2 * p > k for p, k in zip(begin, a["kernel_shape"], strict=True)):
        return None
    if any(n + 2 * p < d * (k - 1) + 1 for n, p, d, k in zip(
        x.shape[2:], begin, a["dilations"], a["kernel_shape"], strict=True)):  # fmt: skip
        return None
    return rank, begin


def _max_pool(a: Attributes, x: Any) -> Any:
    if (found := _pool(a, x)) is None or not x.is_floating_point():
        return None
    rank, begin = found
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    values, places = function(
        x, a["kernel_shape"], a["strides"], begin, a["dilations"], a["ceil_mode"], return_indices=True
    )
    return values, places


def _max_pool_positions(a: Attributes, x: Any) -> Any:
    """PyTorch counts within a plane; of several elements that are no numbers it takes the last."""
    found = None if a["reversed_axes"] else _max_pool(a, x)
    if found is None or torch.isnan(x).any():
        return None
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
    return found[0], found[1] + planes * math.prod(x.shape[2:])


def _average_pool(a: Attributes, x: Any) -> Any:
    if max(a["dilations"], default=1) > 1 or (found := _pool(a, x)) is None:
        return None
    rank, begin = found
    given = (x, a["kernel_shape"], a["strides"], begin, a["ceil_mode"], a["count_include_pad"])
    if a["divisor"] is None:
        return (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1](*given)
    return (F.avg_pool2d, F.avg_pool3d)[rank - 2](*given, a["divisor"]) if rank > 1 and a["divisor"] else None


def _fractional_max_pool(a: Attributes, x: Any, offsets: Any) -> Any:
    """PyTorch has the offset of the last of two axes first."""
    rank = x.ndim - 2
    if rank not in (2, 3) or not x.numel() or not ((offsets >= 0) & (offsets < 1)).all():
        return None
    function = (F.fractional_max_pool2d, F.fractional_max_pool3d)[rank - 2]
    given = offsets.flip(-1) if rank == 2 else offsets
    return function(x, a["kernel_shape"], a["sizes"], return_indices=True, _random_samples=given)


def _lp_pool(a: Attributes, x: Any) -> Any:
    """PyTorch keeps signs of odd powers."""
    rank = _spatial(x, 2)
    if a["p"] < 2 or a["p"] % 2 or not rank or any(a["pads"]) or max(a["dilations"]) > 1 or _pool(a, x) is None:
        return None
    kernel, strides = tuple(a["kernel_shape"]), tuple(a["strides"])
    if rank == 1:
        return F.lp_pool1d(x, a["p"], kernel[0], strides[0], a["ceil_mode"])
    return F.lp_pool2d(x, a["p"], kernel, strides, a["ceil_mode"])


def _fold(a: Attributes, x: Any) -> Any:
    begin = _symmetric(a, len(a["sizes"]))
    if len(a["sizes"]) != 2 or begin is None or not x.is_floating_point() or not all(x.shape[1:]):
        return None
    return F.fold(x, a["sizes"], a["block"], a["dilations"], begin, a["strides"])


def _unpool(a: Attributes, x: Any, places: Any) -> Any:
    count = x.shape[0] * x.shape[1] * math.prod(a["sizes"])
    places = torch.where(places < 0, places + count, places).reshape(-1)
    if ((places < 0) | (places >= count)).any() or len(set(places.tolist())) < len(places):
        return None
    return torch.zeros(count, dtype=x.dtype).index_put((places,), x.reshape(-1)).reshape(*x.shape[:2], *a["sizes"])


#: Operations on windows.
WINDOWS: dict[str, Counterpart] = {
    "conv": of_tensors(_convolution), "conv_transpose": of_tensors(_transpose), "col2im": of_tensors(_fold),
    "max_pool": of_tensors(lambda a, x: None if (y := _max_pool(a, x)) is None else y[0]),
    "max_pool_positions": of_tensors(_max_pool_positions), "average_pool": of_tensors(_average_pool),
    "fractional_max_pool": of_tensors(_fractional_max_pool),
    "lp_pool": of_tensors(_lp_pool), "max_unpool": of_tensors(_unpool),
}  # fmt: skip

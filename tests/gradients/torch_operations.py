"""PyTorch versions of operations that take more than a line.

They are functions of attributes and operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

Oracle = Callable[..., Any]
Attributes = Mapping[str, Any]


def _pads(a: Attributes, rank: int) -> tuple[int, ...]:
    """Return a declaration's pads (all begins, then all ends) as PyTorch's (begin and end of each axis, the last one
    first).
    """
    pads = a.get("pads", (0,) * 2 * rank)
    return tuple(p for axis in reversed(range(rank)) for p in (pads[axis], pads[rank + axis]))


def _window(a: Attributes, rank: int) -> dict[str, Any]:
    return {
        theirs: tuple(a.get(ours, (1,) * rank)) for ours, theirs in (("strides", "stride"), ("dilations", "dilation"))
    }


def conv(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    rank = x.ndim - 2
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return function(F.pad(x, _pads(a, rank)), w, b, groups=a.get("groups", 1), **_window(a, rank))


def conv_transpose(a: Attributes, x: Any, w: Any, b: Any) -> Any:
    stride, more = a["strides"][0], a.get("output_padding", (0,))[0]
    y = F.conv_transpose1d(x, w, b, stride=stride, groups=a.get("groups", 1), output_padding=more)
    begin, end = a["pads"]
    return y[..., begin : y.shape[-1] - end]


def max_pool(a: Attributes, x: Any) -> Any:
    rank = x.ndim - 2
    function = (F.max_pool1d, F.max_pool2d)[rank - 1]
    return function(F.pad(x, _pads(a, rank), value=-np.inf), a["kernel_shape"], **_window(a, rank))


def average_pool(a: Attributes, x: Any) -> Any:
    pads = _pads(a, x.ndim - 2)
    total = F.avg_pool2d(F.pad(x, pads), a["kernel_shape"], a["strides"], divisor_override=a.get("divisor"))
    if "divisor" in a:
        return total
    if a.get("count_include_pad"):
        return total
    return total / F.avg_pool2d(F.pad(torch.ones_like(x), pads), a["kernel_shape"], a["strides"])


def batch_norm_training(a: Attributes, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    axes = [n for n in range(x.ndim) if n != 1]
    y = F.batch_norm(x, None, None, scale, bias, training=True)
    return y, 0.9 * mean + 0.1 * x.mean(axes), 0.9 * var + 0.1 * x.var(axes, unbiased=a["unbiased"])


def reduction(name: str) -> Oracle:
    functions: dict[str, Callable[[Any, Any, bool], Any]] = {
        "sum": lambda x, d, k: x.sum(d, k),
        "prod": lambda x, d, k: x.prod(d[0], k) if len(d) == 1 else x.prod().reshape((1,) * x.ndim if k else ()),
        "max": lambda x, d, k: x.amax(d, k),
        "min": lambda x, d, k: x.amin(d, k),
        "mean": lambda x, d, k: x.mean(d, k),
        "l1": lambda x, d, k: x.abs().sum(d, k),
        "l2": lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k),
        "sum_square": lambda x, d, k: (x * x).sum(d, k),
        "log_sum": lambda x, d, k: x.sum(d, k).log(),
        "log_sum_exp": lambda x, d, k: x.logsumexp(d, k),
    }
    return lambda a, x: functions[name](x, tuple(a.get("axes", range(x.ndim))), a.get("keepdims", True))


def col2im(a: Attributes, x: Any) -> Any:
    """PyTorch folds planes, with the same padding on both sides."""
    if len(a["sizes"]) == 2:
        return F.fold(x, a["sizes"], a["block"])
    begin, end = a["pads"]
    y = F.fold(x, (1, a["sizes"][0] + begin + end), (1, a["block"][0]), stride=(1, a["strides"][0]))
    return y[:, :, 0, begin : begin + a["sizes"][0]]


def cumsum(a: Attributes, x: Any) -> Any:
    turned = x.flip(a["axis"]) if a.get("reverse") else x
    y = turned.cumsum(a["axis"]) - (turned if a.get("exclusive") else 0)
    return y.flip(a["axis"]) if a.get("reverse") else y


def piece(a: Attributes, x: Any) -> Any:
    for axis, bounds in enumerate(zip(a["starts"], a["ends"], a["steps"], strict=True)):
        x = x.index_select(axis, torch.arange(*bounds))
    return x


def pad(a: Attributes, x: Any) -> Any:
    places = [np.arange(n) for n in x.shape]
    rank = x.ndim
    mode = a["mode"]
    if mode == "constant":
        return F.pad(x, _pads(a, rank))
    for axis, place in enumerate(places):
        x = x.index_select(axis, torch.tensor(np.pad(place, (a["pads"][axis], a["pads"][rank + axis]), mode)))
    return x


def scatter(a: Attributes, y: Any, place: Any, update: Any) -> Any:
    how = a["reduction"]
    combine = {
        "none": lambda _, u: u, "add": torch.add, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum,
    }[how]  # fmt: skip
    y = y.clone()
    y[place] = combine(y[place].clone(), update)
    return y


def scatter_elements(a: Attributes, x: Any, indices: Any, updates: Any) -> Any:
    for at in np.ndindex(*indices.shape):
        x = scatter(a, x, (int(indices[at]), *at[1:]), updates[at])
    return x


def scatter_nd(a: Attributes, x: Any, indices: Any, updates: Any) -> Any:
    for at in range(len(indices)):
        x = scatter(a, x, tuple(int(i) for i in indices[at]), updates[at])
    return x


def class_loss(function: Callable[..., Any]) -> Oracle:
    return lambda a, x, target, weight: function(
        x, target, weight.detach(), reduction=a.get("reduction", "mean"), ignore_index=a.get("ignore_index", -100)
    )


def element_loss(function: Callable[..., Any]) -> Oracle:
    return lambda a, x, target: function(x, target, reduction=a.get("reduction", "mean"))


def attention(a: Attributes, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    times = q.shape[1] // k.shape[1]
    z = q @ k.repeat_interleave(times, 1).transpose(-1, -2) / np.sqrt(q.shape[-1])
    if a.get("softcap"):
        z = a["softcap"] * torch.tanh(z / a["softcap"])
    z = z if mask is None else z + mask
    if a.get("causal"):
        seen = torch.ones(z.shape[-2:]).tril(a["offset"]).bool()
        z = z.masked_fill(~seen, -np.inf)
    return torch.softmax(z, -1) @ v.repeat_interleave(times, 1)


def bag(a: Attributes, table: Any, indices: Any, weights: Any) -> Any:
    rows = table[indices] * weights[..., None]
    return {"sum": rows.sum(1), "mean": rows.mean(1), "max": rows.amax(1)}[a["mode"]]


def lstm(a: Attributes, x: Any, w: Any, r: Any, b: Any) -> Any:
    """LSTM in the declaration's gate order.

    PyTorch orders the gates i, f, c, o; the declaration i, o, f, c.
    """
    hidden = r.shape[-1]
    order = torch.cat([torch.arange(k * hidden, (k + 1) * hidden) for k in (0, 2, 3, 1)])
    biases = (b[0][: 4 * hidden][order], b[0][4 * hidden :][order])
    zero = torch.zeros(1, x.shape[1], hidden, dtype=x.dtype)
    y, h, c = torch._VF.lstm(x, (zero, zero), [w[0][order], r[0][order], *biases], True, 1, 0.0, True, False, False)
    return y[:, None], h, c


def gru(a: Attributes, x: Any, w: Any, r: Any, b: Any) -> Any:
    """PyTorch orders the gates r, z, n; the declaration z, r, n."""
    hidden = r.shape[-1]
    order = torch.cat([torch.arange(k * hidden, (k + 1) * hidden) for k in (1, 0, 2)])
    weights = []
    for d in range(len(w)):
        weights += [w[d][order], r[d][order], b[d][: 3 * hidden][order], b[d][3 * hidden :][order]]
    zero = torch.zeros(len(w), x.shape[1], hidden, dtype=x.dtype)
    y, h = torch._VF.gru(x, zero, weights, True, 1, 0.0, True, len(w) == 2, False)
    return y.reshape(*y.shape[:2], len(w), hidden).transpose(1, 2), h


def rnn(a: Attributes, x: Any, w: Any, r: Any) -> Any:
    y, h = torch._VF.rnn_tanh(
        x, torch.zeros(1, x.shape[1], r.shape[-1], dtype=x.dtype), [w[0], r[0]], False, 1, 0.0, True, False, False
    )
    return y[:, None], h


def same_name(module: Any, name: str) -> Oracle:
    return lambda a, x: getattr(module, name)(x)


def sgd_momentum(a: Attributes, w: Any, g: Any, rate: Any, v: Any) -> Any:
    slope = g + a["weight_decay"] * w
    velocity = 0.9 * v + slope
    return w - rate * (slope + 0.9 * velocity), velocity


def slope(function: Oracle) -> Oracle:
    """Derivative of a function of one operand, times its result's gradient."""
    return lambda a, x, dy: torch.autograd.grad(function(a, x).sum(), x, create_graph=True)[0] * dy


def segments(a: Attributes, x: Any, segment: Any) -> Any:
    parts = [x[segment == number] for number in range(a["count"])]
    extremes = {"max": lambda part: part.amax(0), "min": lambda part: part.amin(0)}
    how = extremes.get(a["reduction"]) or (lambda part: getattr(part, a["reduction"])(0))
    return torch.stack([how(part) for part in parts])


def groups(ends: Any) -> list[slice]:
    last = ends.tolist()
    return [slice(first, end) for first, end in zip([0, *last[:-1]], last, strict=True)]


def grouped_product(a: Attributes, x: Any, y: Any, ends: Any) -> Any:
    parts = [x[group] @ y[number] for number, group in enumerate(groups(ends))]
    return F.pad(torch.cat(parts), (0, 0, 0, len(x) - int(ends[-1])))


def bessel(scaled: bool) -> Oracle:
    def oracle(a: Attributes, x: Any) -> Any:
        zero, one = (getattr(torch.special, f"i{n}{'e' if scaled else ''}")(x) for n in (0, 1))
        return (zero, one, zero - 2 * one / x)[a["order"]]

    return oracle

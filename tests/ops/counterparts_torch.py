"""PyTorch's own functions as counterparts of operations: of all attributes of a use, and its operands as NumPy arrays.

Floats come and go in double precision. A counterpart gives nothing where PyTorch has no such use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..needs import optional_module

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]
Counterpart = Callable[..., Any]

torch: Any = optional_module("torch")
F: Any = torch and torch.nn.functional


def tensor(array: Array | None) -> Any:
    """Return an array as a tensor; unsigned integers that PyTorch lacks as those of 64 bits."""
    if array is None:
        return None
    wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
    if wide and array.size and array.max() >= 1 << 63:
        raise OverflowError("PyTorch has no such integers")
    return torch.from_numpy(np.array(array.astype(np.int64) if wide else array))


def of_tensors(function: Callable[..., Any]) -> Counterpart:
    """Return a counterpart whose operands are tensors."""

    def apply(a: Attributes, *operands: Array | None) -> Any:
        try:
            found = function(a, *(tensor(o) for o in operands))
        except OverflowError:  # a number that the element type does not hold
            return None
        if found is None:
            return None
        return tuple(map(_array, found)) if isinstance(found, (tuple, list)) else _array(found)

    return apply


def _array(result: Any) -> Array:
    return np.asarray(result.detach().resolve_conj().numpy())


def named(name: str, **attributes: str) -> Counterpart:
    """Return a function of one tensor by its name; `attributes` maps its parameters to ours."""

    def apply(a: Attributes, x: Any) -> Any:
        module = F if hasattr(F, name) and not name.startswith("erf") else torch
        return getattr(module, name)(x, **{theirs: a[ours] for theirs, ours in attributes.items()})

    return of_tensors(apply)


# ---- windows


def pads(a: Attributes, rank: int) -> tuple[int, ...] | None:
    """Return pads as PyTorch writes them, the last axis first; none where some are negative."""
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


def _transposed(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
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


def _pooled(a: Attributes, x: Any) -> Any:
    rank = _spatial(x)
    begin = _symmetric(a, rank) if rank else None
    if begin is None or any(2 * p > k for p, k in zip(begin, a["kernel_shape"], strict=True)):
        return None
    if any(n + 2 * p < d * (k - 1) + 1 for n, p, d, k in zip(
        x.shape[2:], begin, a["dilations"], a["kernel_shape"], strict=True)):  # fmt: skip
        return None
    return rank, begin


def _max_pool(a: Attributes, x: Any) -> Any:
    if (found := _pooled(a, x)) is None or not x.is_floating_point():
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
    if max(a["dilations"], default=1) > 1 or (found := _pooled(a, x)) is None:
        return None
    rank, begin = found
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    return function(x, a["kernel_shape"], a["strides"], begin, a["ceil_mode"], a["count_include_pad"])


def _lp_pool(a: Attributes, x: Any) -> Any:
    """PyTorch keeps signs of odd powers."""
    rank = _spatial(x, 2)
    if a["p"] < 2 or a["p"] % 2 or not rank or any(a["pads"]) or max(a["dilations"]) > 1 or _pooled(a, x) is None:
        return None
    kernel, strides = tuple(a["kernel_shape"]), tuple(a["strides"])
    if rank == 1:
        return F.lp_pool1d(x, a["p"], kernel[0], strides[0], a["ceil_mode"])
    return F.lp_pool2d(x, a["p"], kernel, strides, a["ceil_mode"])


def _folded(a: Attributes, x: Any) -> Any:
    begin = _symmetric(a, len(a["sizes"]))
    if len(a["sizes"]) != 2 or begin is None or not x.is_floating_point() or not all(x.shape[1:]):
        return None
    return F.fold(x, a["sizes"], a["block"], a["dilations"], begin, a["strides"])


def _unpooled(a: Attributes, x: Any, places: Any) -> Any:
    count = x.shape[0] * x.shape[1] * math.prod(a["sizes"])
    places = torch.where(places < 0, places + count, places).reshape(-1)
    if ((places < 0) | (places >= count)).any() or len(set(places.tolist())) < len(places):
        return None
    return torch.zeros(count, dtype=x.dtype).index_put((places,), x.reshape(-1)).reshape(*x.shape[:2], *a["sizes"])


# ---- normalisations and distributions


def _trailing(function: Callable[..., Any]) -> Counterpart:
    def apply(a: Attributes, x: Any, scale: Any, bias: Any = None) -> Any:
        shape = tuple(x.shape[a["axis"] :])
        if not x.numel() or not math.prod(shape):
            return None
        parts = [None if part is None else part.broadcast_to(shape) for part in (scale, bias)]
        return function(x, shape, parts, a["epsilon"])

    return of_tensors(apply)


def _group_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    return F.group_norm(x, a["num_groups"], scale, bias, a["epsilon"]) if x.numel() else None


def _instance_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    if not x.numel() or math.prod(x.shape[2:]) < 2:
        return None
    return F.instance_norm(x, weight=scale, bias=bias, eps=a["epsilon"])


def _batch_norm(a: Attributes, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return F.batch_norm(x, mean, var, scale, bias, eps=a["epsilon"]) if a["epsilon"] > 0 and x.numel() else None


def _batch_norm_training(a: Attributes, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    count = x.numel() // max(x.shape[1], 1)
    if not a["unbiased"] or count < 2 or a["epsilon"] <= 0 or not math.isfinite(a["momentum"]):
        return None
    mean, var = mean.clone(), var.clone()
    return F.batch_norm(x, mean, var, scale, bias, True, 1 - a["momentum"], a["epsilon"]), mean, var


def _lrn(a: Attributes, x: Any) -> Any:
    if a["size"] < 1 or a["size"] % 2 == 0 or x.ndim < 3 or not x.numel():
        return None
    return F.local_response_norm(x, a["size"], a["alpha"], a["beta"], a["bias"])


def _lp_norm(a: Attributes, x: Any) -> Any:
    """PyTorch divides by no less than a given number: the least one here, so that zeros stay zeros."""
    return F.normalize(x, a["p"], a["axis"], eps=5e-324)


# ---- losses


def _class_loss(name: str) -> Counterpart:
    def apply(a: Attributes, x: Any, target: Any, weight: Any = None) -> Any:
        target = target.long()
        if (((target < 0) | (target >= x.shape[1])) & (target != a["ignore_index"])).any() or not x.shape[1]:
            return None
        return getattr(F, name)(x, target, weight, ignore_index=a["ignore_index"], reduction=a["reduction"])

    return of_tensors(apply)


def _element_loss(name: str, probabilities: bool = False) -> Counterpart:
    def apply(a: Attributes, x: Any, target: Any) -> Any:
        if probabilities and not ((x >= 0) & (x <= 1) & (target >= 0) & (target <= 1)).all():
            return None
        return getattr(F, name)(x, target, reduction=a["reduction"])

    return of_tensors(apply)


# ---- places named by integers


def _placed(places: Any, size: int) -> Any:
    """Return integers as indices, the nearest ones where they are none."""
    return torch.where(places < 0, places + size, places).clamp(0, size - 1).long()


def _gathered_grad(a: Attributes, dy: Any, places: Any) -> Any:
    axis, size, rank = a["axis"], a["size"], places.ndim
    wrapped = torch.where(places < 0, places + size, places).long().reshape(-1)
    if not 0 <= axis <= dy.ndim - rank or size < 1:
        return None
    rows = dy.reshape(*dy.shape[:axis], wrapped.numel(), *dy.shape[axis + rank :])
    inside = torch.nonzero((wrapped >= 0) & (wrapped < size)).reshape(-1)
    zeros = torch.zeros(*dy.shape[:axis], size, *dy.shape[axis + rank :], dtype=dy.dtype)
    return zeros.index_add(axis, wrapped[inside], rows.index_select(axis, inside))


def _gathered_rows(a: Attributes, x: Any, places: Any) -> Any:
    batch, depth = a.get("batch_dims", 0), places.shape[-1]
    if batch or not depth or not all(x.shape[:depth]):
        return None
    return x[tuple(_placed(places[..., d], x.shape[d]) for d in range(depth))]


def _bags(a: Attributes, table: Any, places: Any, weights: Any = None, lengths: Any = None) -> Any:
    """PyTorch's bags are slices of one list; those of no element are zero."""
    if not all(table.shape) or (weights is not None and a["mode"] != "sum"):
        return None
    bags, most = places.shape
    counts = torch.full((bags,), most) if lengths is None else lengths.long()
    if ((counts < 0) | (counts > most)).any():
        return None
    there = torch.arange(most)[None] < counts[:, None]
    offsets = torch.cumsum(counts, 0) - counts
    shares = None if weights is None else weights[there]
    return F.embedding_bag(
        _placed(places, len(table))[there], table, offsets, mode=a["mode"], per_sample_weights=shares
    )


def _interaction(a: Attributes, x: Any, first: Any, second: Any) -> Any:
    if not x.shape[1]:
        return None
    rows, columns = (_placed(p, x.shape[1]) for p in (first, second))
    return torch.einsum("npe,npe->np", x[:, rows], x[:, columns])


def _extreme(function: str) -> Counterpart:
    def apply(a: Attributes, x: Any) -> Any:
        if not x.ndim or not x.shape[a["axis"]]:
            return None
        return tuple(getattr(torch, function)(x, a["axis"], *([a["keepdims"]] if "keepdims" in a else [])))

    return of_tensors(apply)


# ---- steps of optimisers


def _step(kind: str) -> Counterpart:
    def apply(a: Attributes, w: Any, g: Any, rate: Any, *state: Any) -> Any:
        if not 0 <= float(rate) < math.inf or a["weight_decay"] < 0 or not math.isfinite(a["weight_decay"]):
            return None
        w = w.clone().requires_grad_()
        more: dict[str, Any] = {"lr": float(rate), "weight_decay": a["weight_decay"], "foreach": False}
        if kind == "adam":
            betas, (m, v, step) = (a["beta1"], a["beta2"]), state
            if not all(0 <= beta < 1 for beta in betas) or a["epsilon"] < 0 or float(step) < 1 or float(step) % 1:
                return None
            made = (torch.optim.AdamW if a["decoupled"] else torch.optim.Adam)(
                [w], betas=betas, eps=a["epsilon"], **more
            )
            made.state[w] = {"step": step - 1, "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
        else:
            momentum = a.get("momentum", 0.0)
            if not 0 <= momentum < math.inf or (a.get("nesterov") and not momentum) or (state and not momentum):
                return None
            made = torch.optim.SGD([w], momentum=momentum, nesterov=a.get("nesterov", False), **more)
            made.state[w] = {"momentum_buffer": state[0].clone()} if state else {}
        w.grad = g
        made.step()
        kept = made.state[w]
        return w, *(kept[n] for n in ("momentum_buffer", "exp_avg", "exp_avg_sq") if n in kept)

    return of_tensors(apply)


def _recurrent(kind: str) -> Counterpart:
    """PyTorch's gates stand in another order: of a long short-term memory i, f, c, o, of a gated unit r, z, n."""
    orders = {"rnn": (0,), "lstm": (0, 2, 3, 1), "gru": (1, 0, 2)}

    def apply(
        a: Attributes, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h0: Any = None, *more: Any
    ) -> Any:
        usual = {"rnn": ("tanh",), "lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh")}[kind]
        cell, peepholes = (*more, None, None)[:2]
        plain = tuple(a["activations"]) == usual and a["clip"] is None and not a.get("input_forget")
        if (not plain or lengths is not None or peepholes is not None or a["direction"] == "reverse" or not all(x.shape)
                or not all(r.shape) or (kind == "gru" and not a["linear_before_reset"])):  # fmt: skip
            return None
        hidden, sides = r.shape[-1], len(w)
        order = torch.cat([torch.arange(k * hidden, (k + 1) * hidden) for k in orders[kind]])
        weights = [part for d in range(sides) for part in (w[d][order], r[d][order], *(
            () if b is None else (b[d][: len(order)][order], b[d][len(order) :][order])))]  # fmt: skip
        start = torch.zeros(sides, x.shape[1], hidden, dtype=x.dtype) if h0 is None else h0
        state: Any = start if kind != "lstm" else (start, torch.zeros_like(start) if cell is None else cell)
        function = getattr(torch._VF, {"rnn": "rnn_tanh"}.get(kind, kind))
        y, *last = function(x, state, weights, b is not None, 1, 0.0, False, sides == 2, False)
        return y.reshape(*y.shape[:2], sides, hidden).transpose(1, 2), *last

    return of_tensors(apply)


def _hardmax(a: Attributes, x: Any) -> Any:
    if not x.shape[a["axis"]]:
        return None
    return torch.zeros_like(x).scatter(a["axis"], x.argmax(a["axis"], True), 1.0)


#: Operations that are functions of PyTorch.
TORCH: dict[str, Counterpart] = {
    "erf": named("erf"), "erfc": named("erfc"), "elu": named("elu", alpha="alpha"),
    "celu": of_tensors(lambda a, x: F.celu(x, a["alpha"]) if 0 < a["alpha"] < math.inf else None),
    "gelu": named("gelu", approximate="approximate"), "hard_swish": named("hardswish"), "mish": named("mish"),
    "leaky_relu": named("leaky_relu", negative_slope="alpha"), "sigmoid": named("sigmoid"),
    "softplus": of_tensors(lambda a, x: F.softplus(x, threshold=700)), "softsign": named("softsign"),
    "selu": of_tensors(lambda a, x: F.selu(x) if (a["alpha"], a["gamma"]) == (
        1.6732632423543772, 1.0507009873554805) else None),
    "swish": of_tensors(lambda a, x: F.silu(x) if a["alpha"] == 1 else x * torch.sigmoid(a["alpha"] * x)),
    "sigmoid_grad": of_tensors(lambda a, y, dy: torch.ops.aten.sigmoid_backward(dy, y)),
    "swish_grad": of_tensors(lambda a, x, dy: torch.ops.aten.silu_backward(dy, x) if a["alpha"] == 1 else None),
    "gelu_grad": of_tensors(lambda a, x, dy: torch.ops.aten.gelu_backward(dy, x, approximate=a["approximate"])),
    "softmax": of_tensors(lambda a, x: torch.softmax(x, a["axis"])),
    "log_softmax": of_tensors(lambda a, x: torch.log_softmax(x, a["axis"])),
    "softmax_grad": of_tensors(lambda a, y, dy: torch.ops.aten._softmax_backward_data(dy, y, a["axis"], y.dtype)),
    "log_softmax_grad": of_tensors(
        lambda a, y, dy: torch.ops.aten._log_softmax_backward_data(dy, y, a["axis"], y.dtype)),
    "layer_norm": _trailing(lambda x, shape, parts, epsilon: F.layer_norm(x, shape, *parts, epsilon)),
    "rms_norm": _trailing(lambda x, shape, parts, epsilon: F.rms_norm(x, shape, parts[0], epsilon)),
    "group_norm": of_tensors(_group_norm), "instance_norm": of_tensors(_instance_norm),
    "batch_norm": of_tensors(_batch_norm), "batch_norm_training": of_tensors(_batch_norm_training),
    "lp_norm": of_tensors(_lp_norm), "lrn": of_tensors(_lrn),
    "conv": of_tensors(_convolution), "conv_transpose": of_tensors(_transposed), "col2im": of_tensors(_folded),
    "max_pool": of_tensors(lambda a, x: None if (y := _max_pool(a, x)) is None else y[0]),
    "max_pool_positions": of_tensors(_max_pool_positions), "average_pool": of_tensors(_average_pool),
    "lp_pool": of_tensors(_lp_pool), "max_unpool": of_tensors(_unpooled),
    "nll_loss": _class_loss("nll_loss"), "cross_entropy": _class_loss("cross_entropy"),
    "mse_loss": _element_loss("mse_loss"), "l1_loss": _element_loss("l1_loss"),
    "bce_loss": _element_loss("binary_cross_entropy", probabilities=True),
    "bce_with_logits": _element_loss("binary_cross_entropy_with_logits"),
    "gather_grad": of_tensors(_gathered_grad), "gather_nd": of_tensors(_gathered_rows),
    "embedding_bag": of_tensors(_bags),
    "interaction": of_tensors(_interaction),
    "max_position": _extreme("max"), "min_position": _extreme("min"),
    "cummax": _extreme("cummax"), "cummin": _extreme("cummin"),
    "logcumsumexp": of_tensors(lambda a, x: torch.logcumsumexp(x, a["axis"])),
    "reduce_log_sum_exp": of_tensors(
        lambda a, x: torch.logsumexp(x, tuple(a["axes"]), a["keepdims"]) if a["axes"] else None),
    "hardmax": of_tensors(_hardmax),
    "sgd": _step("sgd"), "sgd_momentum": _step("sgd"), "adam": _step("adam"),
    "rnn": _recurrent("rnn"), "lstm": _recurrent("lstm"), "gru": _recurrent("gru"),
}  # fmt: skip

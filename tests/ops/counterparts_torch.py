"""PyTorch's own functions as counterparts of operations.

They take all attributes of a use, and its operands as NumPy arrays.

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
    """Return an array as a tensor.

    Unsigned types that PyTorch lacks become 64 bits.
    """
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


def by_name(name: str, **attributes: str) -> Counterpart:
    """Return a function of one tensor by its name.

    `attributes` maps its parameters to ours.
    """

    def apply(a: Attributes, x: Any) -> Any:
        module = F if hasattr(F, name) and not name.startswith("erf") else torch
        return getattr(module, name)(x, **{theirs: a[ours] for theirs, ours in attributes.items()})

    return of_tensors(apply)


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


def _place(places: Any, size: int) -> Any:
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


def _unique(a: Attributes, x: Any, places: Any = None) -> Any:
    if places is not None or a["equal_nan"] or x.isnan().any():
        return None
    find = torch.unique_consecutive if a["consecutive"] else torch.unique
    y, inverse, counts = find(x, return_inverse=True, return_counts=True)
    first = torch.stack([(inverse == run).nonzero()[0, 0] for run in range(len(y))]) if len(y) else counts
    number = len(y)
    y, first, counts = (F.pad(v, (0, a["size"]))[: a["size"]] for v in (y, first, counts))
    return y, first, inverse, counts, torch.tensor(number)


def _gathered_rows(a: Attributes, x: Any, places: Any) -> Any:
    batch, depth = a.get("batch_dims", 0), places.shape[-1]
    if batch or not depth or not all(x.shape[:depth]):
        return None
    return x[tuple(_place(places[..., d], x.shape[d]) for d in range(depth))]


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
    return F.embedding_bag(_place(places, len(table))[there], table, offsets, mode=a["mode"], per_sample_weights=shares)


def _interaction(a: Attributes, x: Any, first: Any, second: Any) -> Any:
    if not x.shape[1]:
        return None
    rows, columns = (_place(p, x.shape[1]) for p in (first, second))
    return torch.einsum("npe,npe->np", x[:, rows], x[:, columns])


def _extreme(function: str) -> Counterpart:
    def apply(a: Attributes, x: Any) -> Any:
        if not x.ndim or not x.shape[a["axis"]]:
            return None
        return tuple(getattr(torch, function)(x, a["axis"], *([a["keepdims"]] if "keepdims" in a else [])))

    return of_tensors(apply)


def _hardmax(a: Attributes, x: Any) -> Any:
    if not x.shape[a["axis"]]:
        return None
    return torch.zeros_like(x).scatter(a["axis"], x.argmax(a["axis"], True), 1.0)


#: Operations that are functions of PyTorch.
TORCH: dict[str, Counterpart] = {
    "erf": by_name("erf"), "erfc": by_name("erfc"), "elu": by_name("elu", alpha="alpha"),
    "celu": of_tensors(lambda a, x: F.celu(x, a["alpha"]) if 0 < a["alpha"] < math.inf else None),
    "gelu": by_name("gelu", approximate="approximate"), "hard_swish": by_name("hardswish"), "mish": by_name("mish"),
    "leaky_relu": by_name("leaky_relu", negative_slope="alpha"), "sigmoid": by_name("sigmoid"),
    "softplus": of_tensors(lambda a, x: F.softplus(x, threshold=700)), "softsign": by_name("softsign"),
    "selu": of_tensors(lambda a, x: F.selu(x) if (a["alpha"], a["gamma"]) == (
        1.6732632423543772, 1.0507009873554805) else None),
    "swish": of_tensors(lambda a, x: F.silu(x) if a["alpha"] == 1 else x * torch.sigmoid(a["alpha"] * x)),
    "sigmoid_grad": of_tensors(lambda a, y, dy: torch.ops.aten.sigmoid_backward(dy, y)),
    "softsign_grad": of_tensors(lambda a, x, dy: dy / (1 + x.abs()) / (1 + x.abs())),
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
    "unique": of_tensors(_unique),
    "nonzero": of_tensors(lambda a, x: torch.nonzero_static(x, size=a["size"], fill_value=a["fill"])[:, 0]),
    "frexp": lambda a, x: (np.frexp(x)[0], np.where(np.isfinite(x), np.frexp(x)[1], 0)),
}  # fmt: skip

"""Calls of PyTorch, element types and extreme values, for `test_torch_types`.

A call takes tensors and is compared on every element type that PyTorch itself computes it for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from attrs import frozen

F = torch.nn.functional
Function = Callable[..., Any]

TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
_UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p
log2 neg reciprocal round rsqrt sigmoid sign sgn sin sinh sqrt square tan tanh trunc isnan isinf
isfinite isposinf isneginf signbit logical_not bitwise_not relu frac positive deg2rad rad2deg
nan_to_num logit"""
_ACTIVATIONS = """relu6 hardtanh celu selu elu gelu silu mish softplus logsigmoid hardswish hardsigmoid hardshrink
softshrink leaky_relu softsign"""
_BINARY = """add sub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 hypot copysign eq ne
lt le gt ge bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift logical_and
logical_or logical_xor logaddexp xlogy heaviside"""
_WITH_NUMBER = """add sub mul div floor_divide remainder fmod pow eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor
bitwise_left_shift bitwise_right_shift xlogy float_power"""
_WHOLE = "sum mean prod amax amin argmax argmin any all var std median max min count_nonzero"
_ALONG = """sum mean prod amax amin argmax argmin any all var std median max min count_nonzero softmax
log_softmax logsumexp cumsum cumprod cummax cummin logcumsumexp"""
#: Calls that end the process in PyTorch where integers meet 0 or -1.
_TRAPS = ("remainder", "fmod", "floor_divide", "floor", "trunc")


def _rounding(mode: str) -> Function:
    return lambda a, b: torch.div(a, b, rounding_mode=mode)


UNARY: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _UNARY.split()},
    **{name: getattr(F, name) for name in _ACTIVATIONS.split()},
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "elu 2": lambda x: F.elu(x, 2.0),
    "softplus 3": lambda x: F.softplus(x, beta=3.0, threshold=4.0), "threshold": lambda x: F.threshold(x, 1.0, 2.0),
    "clamp": lambda x: x.clamp(-1, 3), "clamp real": lambda x: x.clamp(-1.5, 2.5),
    "clamp above": lambda x: x.clamp(max=2.5),
    "clamp below": lambda x: x.clamp(min=-1.5), "clamp_min": lambda x: torch.clamp_min(x, 1.5),
    "clamp_max": lambda x: torch.clamp_max(x, 3),
    "round decimals": lambda x: torch.round(x, decimals=1), "to bool": lambda x: x.bool(),
    "to float": lambda x: x.float(),
    "to bytes": lambda x: x if x.dtype.is_floating_point else x.to(torch.uint8), "to half": lambda x: x.half(),
    "masked_fill": lambda x: x.masked_fill(x > 1, 2), "lerp": lambda x: torch.lerp(x, x * 2, 0.25),
}  # fmt: skip
BINARY: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _BINARY.split()},
    "floor": _rounding("floor"), "trunc": _rounding("trunc"), "where": lambda a, b: torch.where(a > b, a, b),
    "clamp tensors": lambda a, b: torch.clamp(a, b, b),
}  # fmt: skip
#: Exact forms of calls where PyTorch loses digits even in f64: 1 + tanh(u), which vanishes far below zero.
EXACT: dict[str, Function] = {
    "gelu tanh": lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
}
WITH_NUMBER = {
    **{name: getattr(torch, name) for name in _WITH_NUMBER.split()},
    "floor": _rounding("floor"),
    "trunc": _rounding("trunc"),
}
REDUCTIONS: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _WHOLE.split()},
    **{f"{name} along": partial(getattr(torch, name), dim=-1) for name in _ALONG.split()},
    **{f"{name} as float": partial(getattr(torch, name), dim=0, dtype=torch.float32) for name in ("sum", "mean",
    "prod")},
    **{f"norm {order}": partial(torch.linalg.vector_norm, ord=order) for order in (0, 1, 2, 3.0, math.inf)},
    "sort": lambda x: torch.sort(x, stable=True), "sort down": lambda x: torch.sort(x, stable=True, descending=True),
    "kthvalue": lambda x: torch.kthvalue(x, 1)[0], "topk": lambda x: torch.topk(x, min((2, *x.shape[-1:])))[0],
    "flip": lambda x: torch.flip(x, (-1,)), "aminmax": lambda x: tuple(torch.aminmax(x, dim=-1)),
    "pad": lambda x: F.pad(x, (1, 1), value=3),
    "triu": torch.triu, "product": lambda x: x @ x.mT if x.ndim == 2 else x @ x,
}  # fmt: skip


def _is_defined(name: str, kind: torch.dtype) -> bool:
    """Return whether there is a result to compare with.

    PyTorch has none for the median of no integers, none for the softmax of integers but an empty one, and its remainder
    of large doubles is NaN in vectors; its own threshold of integers goes through floats. Integers to negative powers
    are refused by the reference. Integers beside floats of fewer digits are rounded before a comparison, which the
    reference, in f64, does not do.
    """
    call, _, operands = name.partition(" ")
    if call in ("median", "softmax", "log_softmax") and "empty" in operands:
        return kind.is_floating_point
    if call in ("remainder", "fmod"):
        return kind is not torch.float64
    if call == "pow" and not kind.is_floating_point:
        return operands.replace(".", "").isdigit() or "float" in operands
    if call == "threshold":
        return kind.is_floating_point
    mixed = operands.startswith("torch.") and kind.is_floating_point != ("float" in operands)
    return not (call in ("eq", "ne", "lt", "le", "gt", "ge", "where") and mixed)


@frozen
class Case:
    """Call on operands, described by its name."""

    name: str
    function: Function
    operands: tuple[torch.Tensor, ...]


def extremes(kind: torch.dtype) -> torch.Tensor:
    """Return small values, zeros, NaN and ends of an element type."""
    if kind is torch.bool:
        return torch.tensor([True, False, True, True, False, False])
    if not kind.is_floating_point:
        low, high = torch.iinfo(kind).min, torch.iinfo(kind).max
        below = [-1, -2, -3, -5, -7, low // 2, -100] if low else []
        return torch.tensor([0, 1, 2, 3, 5, 7, high, low, high - 1, low + 1, high // 2, 64, 100, *below], dtype=kind)
    ends = torch.finfo(kind)
    halves = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, -7.25, 1e-4, -1e-4, 0.1, 20.5, -20.5]
    small = [1e-8, -1e-8, -1e-6, -18.0, -30.0, 88.9, -104.0] if kind is not torch.float16 else []
    return torch.tensor([*halves, *small, math.inf, -math.inf, math.nan, ends.max, ends.min, ends.tiny], dtype=kind)


def cases(kind: torch.dtype) -> Iterator[Case]:
    """Yield the calls on one element type.

    Second operands are of this type and of every other.
    """
    yield from (case for case in _drafts(kind) if _is_defined(case.name, kind))


def _drafts(kind: torch.dtype) -> Iterator[Case]:
    values = extremes(kind)
    for name, function in UNARY.items():
        yield from (Case(f"{name} {x.ndim}-d", function, (x,)) for x in (values, values[2], values[:0]))
    for name, function in WITH_NUMBER.items():
        yield from _with_numbers(name, function, values)
    for name, function in BINARY.items():
        yield from _pairs(name, function, values)
    for name, function in REDUCTIONS.items():
        for shape, x in _matrices(values).items():
            yield Case(f"{name} {shape}", function, (x,))


def _with_numbers(name: str, function: Function, values: torch.Tensor) -> Iterator[Case]:
    risky = name in _TRAPS and not values.dtype.is_floating_point
    for number in (2, 3, 2.5, 0.5, *(() if risky else (0, -1, -2, True))):
        yield Case(f"{name} {number!r}", lambda x, n=number: function(x, n), (values,))
    for number in () if risky else (2, -3, 0.5):
        yield Case(f"{name} of {number!r}", lambda x, n=number: function(n, x), (values,))


def _pairs(name: str, function: Function, values: torch.Tensor) -> Iterator[Case]:
    for other in TYPES:
        second = extremes(other)
        if name in _TRAPS and not values.dtype.is_floating_point and not other.is_floating_point:
            second = second[(second != 0) & (second != -1)] if other is not torch.bool else second[:0]
        yield Case(f"{name} {other}", function, (values[:, None], second[None]))
    yield Case(f"{name} 0-d", function, (values, values[2]))


def _matrices(values: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {"0-d": values[1], "empty rows": values[:0].reshape(0, 3), "empty columns": values[:0].reshape(2, 0)}
    if not values.dtype.is_floating_point:
        return {**found, "whole": values[: len(values) // 2 * 2].reshape(2, -1)}
    none = torch.tensor([1, math.nan, -1, 0.5, math.inf, 1.5], dtype=values.dtype).reshape(2, 3)
    return {**found, "tame": values[2:8].reshape(2, 3), "not a number": none}

"""NumPy's version of each operation, independent of its declaration.

It is the second opinion on the reference.

An oracle takes the attributes of an instance and its operands, floats as doubles, and returns a result or several. Most
operations that NumPy has a word for are here; `neural.py` asks PyTorch for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cuts.ir.evaluation import round_to, saturate
from cuts.ir.types import DType, dtype_of_numpy

from ...kernels.extremes import is_real, powers, truncating_division

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]
Oracle = Callable[..., Any]


def _plain(function: Callable[..., Any]) -> Oracle:
    """An oracle that has no attributes."""
    return lambda a, *operands: function(*operands)


def _integer(of_floats: Callable[..., Any], of_integers: Callable[..., Any]) -> Oracle:
    """An oracle of two operands that integers have a meaning of their own for."""
    return lambda a, x, y: of_floats(x, y) if is_real(x) else of_integers(*np.broadcast_arrays(x, y))


def _divide(x: Array, y: Array) -> Array:
    return truncating_division(x.reshape(-1), y.reshape(-1)).reshape(x.shape)


def _power(x: Array, y: Array) -> Any:
    exponent = y.astype(x.dtype)
    if is_real(x):
        return np.power(x, exponent)
    x, exponent = np.broadcast_arrays(x, exponent)
    return None if (exponent < 0).any() else powers(x.reshape(-1), exponent.reshape(-1)).reshape(x.shape)


def _shift(a: Attributes, x: Array, y: Array) -> Array:
    x, y = np.broadcast_arrays(x, y)
    bits, left = 8 * x.dtype.itemsize, a["direction"] == "LEFT"
    inside = (y >= 0) & (y < bits)
    places = np.where(inside, y, 0).astype(x.dtype)
    gone = np.where(x < 0, -1, 0).astype(x.dtype) if not left else np.zeros_like(x)
    return np.where(inside, np.left_shift(x, places) if left else np.right_shift(x, places), gone)


def _wide(x: Array) -> Array:
    """Return integers in the type of 64 bits of their kind, in which sums of many fit."""
    return x if is_real(x) else x.astype(np.uint64 if x.dtype.kind == "u" else np.int64)


def _quotient(total: Array, count: int, dtype: Any) -> Array:
    if is_real(total):
        return np.asarray(total / count)
    return _divide(np.asarray(total), np.full(np.shape(total), count, total.dtype)).astype(dtype)


def _reduction(function: Callable[..., Any]) -> Oracle:
    return lambda a, x: function(x, axis=tuple(a["axes"]), keepdims=a["keepdims"])


def _sum(x: Array, **how: Any) -> Array:
    return np.asarray(np.add.reduce(x, dtype=x.dtype, **how))


def _mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = int(np.prod([x.shape[d] for d in axis]))
    return None if count == 0 else _quotient(_sum(_wide(x), axis=axis, keepdims=keepdims), count, x.dtype)


def _extreme(name: str) -> Oracle:
    """The greatest or least along axes; of nothing there is none that NumPy knows."""
    return _reduction(lambda x, axis, keepdims: getattr(np, name)(x, axis=axis, keepdims=keepdims) if x.size else None)


def _place(name: str) -> Oracle:
    def compute(a: Attributes, x: Array) -> Any:
        if not x.size:
            return None
        axis, n = a["axis"], x.shape[a["axis"]]
        turned = np.flip(x, axis) if a["select_last_index"] else x
        place = getattr(np, name)(turned, axis=axis)
        place = n - 1 - place if a["select_last_index"] else place
        return np.expand_dims(place, axis) if a["keepdims"] else place

    return compute


def _scan(name: str, neutral: int) -> Oracle:
    def compute(a: Attributes, x: Array) -> Array:
        axis = a["axis"]
        x = np.flip(x, axis) if a["reverse"] else x
        if a["exclusive"]:
            first = np.full_like(np.take(x, [], axis), neutral, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
            x = np.concatenate([first, x], axis).take(range(x.shape[axis]), axis)
        total = getattr(np, name)(x, axis=axis, dtype=x.dtype)
        return np.asarray(np.flip(total, axis) if a["reverse"] else total)

    return compute


def _clip(a: Attributes, x: Array) -> Array:
    low, high = (None if a[n] is None else np.asarray(a[n], x.dtype) for n in ("min", "max"))
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _reshape(a: Attributes, x: Array) -> Any:
    shape = [x.shape[j] if d == 0 and not a["allowzero"] else d for j, d in enumerate(a["shape"])]
    return x.reshape(shape) if x.size or -1 not in shape else None


def _slice(a: Attributes, x: Array) -> Array:
    cut: list[Any] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(a["axes"], a["starts"], a["ends"], a["steps"], strict=True):
        n = x.shape[axis]
        stop = end + n if end < 0 else end
        cut[axis] = slice(start, None if stop < 0 and step < 0 else stop if stop >= 0 else 0, step)
        if start < -n:
            cut[axis] = slice(0 if step > 0 else None, cut[axis].stop, step) if step > 0 else slice(0, 0, 1)
            if step < 0 and stop < 0 and n:
                cut[axis] = slice(0, None, step)
    return x[tuple(cut)]


def _pad(a: Attributes, x: Array) -> Any:
    if not x.ndim:
        return x
    pads = [(a["pads"][d], a["pads"][d + x.ndim]) for d in range(x.ndim)]
    if any(low < 0 or high < 0 for low, high in pads) or not x.size:
        return None
    if a["mode"] == "constant":
        return np.pad(x, pads, constant_values=np.asarray(a["value"]).astype(x.dtype))
    return np.pad(x, pads, mode=a["mode"])


def _gather(a: Attributes, x: Array, places: Array) -> Any:
    n = x.shape[a["axis"]]
    return np.take(x, _nearest(places, n), axis=a["axis"]) if n else None


def _nearest(places: Array, n: int) -> Array:
    """Return integers as indices of an axis, the nearest ones where they are none."""
    wide = [int(p) for p in places.reshape(-1)]
    return np.array([min(max(p + n if p < 0 else p, 0), n - 1) for p in wide], np.int64).reshape(places.shape)


def _gathered_elements(a: Attributes, x: Array, places: Array) -> Any:
    n, axis = x.shape[a["axis"]], a["axis"]
    if not n or any(p > q for d, (p, q) in enumerate(zip(places.shape, x.shape, strict=True)) if d != axis):
        return None
    x = x[tuple(slice(None) if d == axis else slice(p) for d, p in enumerate(places.shape))]
    return np.take_along_axis(x, _nearest(places, n), axis)


def _scatter(a: Attributes, x: Array, places: Array, updates: Array) -> Any:
    result, axis, n = x.copy(), a["axis"], x.shape[a["axis"]]
    for at in np.ndindex(places.shape):
        place = int(places[at])
        place = place + n if place < 0 else place
        where = (*at[:axis], place, *at[axis + 1 :])
        if 0 <= place < n and all(p < d for p, d in zip(where, x.shape, strict=True)):
            result[where] = _combine(a["reduction"], result[where], updates[at])
    return result


def _scattered_nd(a: Attributes, x: Array, rows: Array, updates: Array) -> Array:
    result, depth = x.copy(), rows.shape[-1]
    for number, row in enumerate(rows):
        at = tuple(int(p) + n if p < 0 else int(p) for p, n in zip(row, x.shape, strict=False))
        if all(0 <= p < n for p, n in zip(at, x.shape[:depth], strict=True)):
            result[at] = _combine(a["reduction"], result[at], updates[number])
    return result


def _combine(how: str, old: Any, new: Any) -> Any:
    functions = {"none": lambda p, q: q, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    return functions[how](old, new)


def _top(a: Attributes, x: Array) -> Any:
    axis, n = a["axis"], x.shape[a["axis"]]
    if not x.size:
        empty = x.take(range(a["start"], a["k"]), axis) if n else x
        return empty, np.zeros(empty.shape, np.int64)
    key = np.where(np.isnan(x), np.inf, x) if is_real(x) else x
    nan = np.isnan(x) if is_real(x) else np.zeros(x.shape, bool)
    rows, gone = np.moveaxis(key, axis, -1).reshape(-1, n), np.moveaxis(nan, axis, -1).reshape(-1, n)
    order = [
        sorted(range(n), key=lambda j, r=r, g=g: (g[j], r[j]) if not a["largest"] else (not g[j], _Reversed(r[j])))
        for r, g in zip(rows, gone, strict=True)
    ]
    shape = (*(d for k, d in enumerate(x.shape) if k != axis), n)
    places = np.moveaxis(np.array(order, np.int64).reshape(shape), -1, axis).take(range(a["start"], a["k"]), axis)
    return np.take_along_axis(x, places, axis), places


class _Reversed:
    """A key that sorts the other way round."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)


def _one_hot(a: Attributes, places: Array) -> Array:
    axis = a["axis"] % (places.ndim + 1)
    wanted = np.arange(a["depth"]).reshape([-1 if d == axis else 1 for d in range(places.ndim + 1)])
    hit = (
        np.equal.outer(np.zeros(0), 0)
        if a["depth"] < 0
        else (np.expand_dims(places, axis) == wanted) | (np.expand_dims(places, axis) == wanted - a["depth"])
    )
    return np.where(hit, a["on"], a["off"])


def _depth_to_space(a: Attributes, x: Array) -> Array:
    b, (n, c, h, w) = a["blocksize"], x.shape
    if a["mode"] == "DCR":
        return x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)
    return x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


def _space_to_depth(a: Attributes, x: Array) -> Array:
    b, (n, c, h, w) = a["blocksize"], x.shape
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    perm = (0, 3, 5, 1, 2, 4) if a["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(perm).reshape(n, c * b * b, h // b, w // b)


def _infinite(a: Attributes, x: Array) -> Array:
    return (np.isposinf(x) & a["detect_positive"]) | (np.isneginf(x) & a["detect_negative"])


def _general(a: Attributes, x: Array, y: Array, z: Array | None = None) -> Any:
    made = (x.T if a["trans_a"] else x) @ (y.T if a["trans_b"] else y)
    alpha, beta = (np.asarray(a[n]).astype(x.dtype) for n in ("alpha", "beta"))
    return alpha * made + (0 if z is None or not beta else beta * z)


def _einsum(a: Attributes, x: Array, y: Array | None = None) -> Any:
    if any(d == 1 for o in (x, y) if o is not None for d in o.shape) or not all(a["sizes"]):
        return None  # axes of one element repeat, which NumPy's does not
    pairs = [x, list(a["left"])] + ([] if y is None else [y, list(a["right"])])
    labels = {*a["left"], *(a["right"] if y is not None else ())}
    if not labels >= set(range(max(len(a["sizes"]), a["results"]))):
        return None
    return np.einsum(*pairs, list(range(a["results"])))


def _variadic(function: Callable[..., Any]) -> Oracle:
    def compute(a: Attributes, *operands: Array) -> Any:
        total = operands[0]
        for operand in operands[1:]:
            total = function(total, operand)
        return total

    return compute


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.logaddexp.reduce(x, axis=axis, keepdims=keepdims) if len(axis) == 1 else None)


def _split(a: Attributes, x: Array) -> tuple[Array, ...]:
    return tuple(np.split(x, np.cumsum(a["split"])[:-1], a["axis"])) if a["split"] else ()


def _convert(a: Attributes, x: Array) -> Array:
    wanted = DType(a["to"]) if not isinstance(a["to"], DType) else a["to"]
    if wanted.is_float:
        return round_to(x, wanted).astype(np.float64)
    return saturate(x, wanted) if wanted.is_int and is_real(x) else x.astype(wanted.numpy)


ORACLES: dict[str, Oracle] = {
    "cast": _convert,
    **{op: _plain(getattr(np, name)) for op, name in (
        ("acos", "arccos"), ("acosh", "arccosh"), ("asin", "arcsin"), ("asinh", "arcsinh"), ("atan", "arctan"),
        ("atanh", "arctanh"), ("ceil", "ceil"), ("cos", "cos"), ("cosh", "cosh"), ("exp", "exp"), ("expm1", "expm1"),
        ("floor", "floor"), ("log", "log"), ("log1p", "log1p"), ("round", "rint"), ("sin", "sin"), ("sinh", "sinh"),
        ("sqrt", "sqrt"), ("tan", "tan"), ("tanh", "tanh"), ("trunc", "trunc"), ("abs", "abs"), ("neg", "negative"),
        ("sign", "sign"), ("is_nan", "isnan"), ("logical_not", "logical_not"), ("bitwise_not", "bitwise_not"),
        ("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("atan2", "arctan2"), ("hypot", "hypot"),
        ("copysign", "copysign"), ("greater", "greater"), ("greater_or_equal", "greater_equal"), ("less", "less"),
        ("less_or_equal", "less_equal"), ("equal", "equal"), ("not_equal", "not_equal"),
        ("logical_and", "logical_and"), ("logical_or", "logical_or"), ("logical_xor", "logical_xor"),
        ("bitwise_and", "bitwise_and"), ("bitwise_or", "bitwise_or"), ("bitwise_xor", "bitwise_xor"),
        ("where", "where"), ("matmul", "matmul"))},
    "identity": _plain(np.array), "dropout": _plain(np.array),
    "reciprocal": _plain(lambda x: 1 / x), "rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "relu": _plain(lambda x: np.maximum(x, x.dtype.type(0))), "clip": _clip, "is_inf": _infinite,
    "leaky_relu": lambda a, x: np.where(x >= 0, x, a["alpha"] * x),
    "thresholded_relu": lambda a, x: np.where(x > a["alpha"], x, 0),
    "shrink": lambda a, x: np.where(x < -a["lambd"], x + a["bias"], np.where(x > a["lambd"], x - a["bias"], 0)),
    "hard_sigmoid": lambda a, x: np.clip(a["alpha"] * x + a["beta"], 0, 1),
    "div": _integer(np.divide, _divide), "pow": _plain(_power), "bit_shift": _shift,
    "mod": lambda a, x, y: (np.fmod if a["fmod"] else np.remainder)(x, y),
    "prelu": _plain(lambda x, y: np.where(x >= 0, x, y * x)),
    "expand": lambda a, x: np.broadcast_to(x, np.broadcast_shapes(x.shape, a["shape"])),
    "sum": _variadic(np.add), "min": _variadic(np.minimum), "max": _variadic(np.maximum),
    "mean": lambda a, *x: _quotient(_variadic(np.add)(a, *map(_wide, x)), len(x), x[0].dtype),
    "gemm": _general, "einsum": _einsum,
    "reduce_sum": _reduction(_sum),
    "reduce_prod": _reduction(lambda x, **how: np.multiply.reduce(x, dtype=x.dtype, **how)),
    "reduce_max": _extreme("max"), "reduce_min": _extreme("min"), "reduce_mean": _reduction(_mean),
    "reduce_l1": _reduction(lambda x, **how: _sum(np.abs(x), **how)),
    "reduce_l2": _reduction(lambda x, **how: np.sqrt(_sum(x * x, **how))),
    "reduce_sum_square": _reduction(lambda x, **how: _sum(x * x, **how)),
    "reduce_log_sum": _reduction(lambda x, **how: np.log(_sum(x, **how))),
    "argmax": _place("argmax"), "argmin": _place("argmin"),
    "cumsum": _scan("cumsum", 0), "cumprod": _scan("cumprod", 1),
    "reshape": _reshape, "transpose": lambda a, x: np.transpose(x, a["perm"]),
    "slice": _slice, "split": _split, "concat": lambda a, *x: np.concatenate(x, a["axis"]), "pad": _pad,
    "tile": lambda a, x: np.tile(x, a["repeats"]), "depth_to_space": _depth_to_space,
    "space_to_depth": _space_to_depth,
    "trilu": lambda a, x: (np.triu if a["upper"] else np.tril)(x, a["k"]),
    "gather": _gather, "gather_elements": _gathered_elements, "one_hot": _one_hot,
    "scatter_elements": _scatter, "scatter_nd": _scattered_nd, "top_k": _top,
    "global_max_pool": _plain(lambda x: x.max(tuple(range(2, x.ndim)), keepdims=True) if x.size else None),
    "global_average_pool": _plain(lambda x: x.mean(tuple(range(2, x.ndim)), keepdims=True) if x.size else None),
}  # fmt: skip


def second_opinion(op: str, attributes: Attributes, operands: list[Array | None]) -> list[Array] | None:
    """Return NumPy's results of an operation, or None without a version."""
    oracle = ORACLES.get(op)
    if oracle is None:
        return None
    base = operands[0]
    if op == "pow" and base is not None and is_real(base):
        # The exponent becomes a number of the base's type: an odd integer may be rounded to an even one.
        operands = [base, *(_convert({"to": dtype_of_numpy(base.dtype)}, y) for y in operands[1:] if y is not None)]
    wide = [o.astype(np.float64) if o is not None and is_real(o) else o for o in operands]
    while wide and wide[-1] is None:
        wide.pop()
    try:
        with np.errstate(all="ignore"):
            answer = oracle(attributes, *wide)
    except OverflowError:  # NumPy has no integer for an attribute that is an infinity
        return None
    if answer is None:
        return None
    return [np.asarray(r) for r in (answer if isinstance(answer, tuple) else (answer,))]

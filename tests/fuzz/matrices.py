"""Kinds of nodes with products of matrices, normalisations and reductions."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from .growth import MAX_ELEMENTS, Growth
from .movement import activation


def product(growth: Growth, value: str) -> None:
    """Add a product with a matrix on either side.

    It is batched where the value is; sometimes both factors are shifted first.
    """
    shifted = growth.pick((False, False, True))
    if shifted:
        value = growth.grow("add", value, growth.positive(1), bound=growth.bounds[value] + 2)
    *batch, rows, inner = growth.shape(value)
    columns = growth.pick((1, 4, 5, 16, 19, 32))
    shared = growth.flag()
    other = growth.weight(inner, *(() if shared else batch), inner, columns)
    if shifted:
        other = growth.grow("add", other, growth.positive(1), bound=growth.bounds[other] + 2)
    if growth.flag():
        growth.grow("matmul", value, other, bound=_sum_scale(growth, value, other, inner))
        return
    other = growth.weight(rows, *(() if shared else batch), columns, rows)
    growth.grow("matmul", other, value, bound=_sum_scale(growth, value, other, rows))


def computed_factors(growth: Growth, value: str) -> None:
    """Add a product of two computed factors, nonzero at zero.

    Where a tile reaches beyond both, only masks keep the elements outside from the sum.
    """
    ops, inner = ("cos", "sigmoid", "softplus"), growth.shape(value)[-1]
    left = growth.grow(growth.pick(ops), value, bound=growth.bounds[value] + 1)
    other = growth.operand(inner, growth.pick((4, 16, 19, 32)))
    right = growth.grow(growth.pick(ops), other, bound=5.0)
    growth.grow("matmul", left, right, bound=_sum_scale(growth, left, right, inner))


def _sum_scale(growth: Growth, value: str, other: str, terms: int) -> float:
    return growth.bounds[value] * growth.bounds[other] / 2 * terms**0.5 + 4


def dense_layer(growth: Growth, value: str) -> None:
    """Add a dense layer over the last axis.

    `gemm` for a matrix, else a product and a bias.
    """
    shape = growth.shape(value)
    outer, inner = prod(shape[:-1]), shape[-1]
    width = growth.pick((1, 3, 8, 17, 32))
    if len(shape) != 2:
        made = growth.grow("matmul", value, growth.weight(inner, inner, width), bound=growth.bounds[value] * 4)
        growth.grow("add", made, growth.operand(width), bound=growth.bounds[made] + 4)
        return
    across, turned = growth.flag(), growth.flag()
    if across:
        outer, inner = inner, outer
    other = growth.weight(inner, *((width, inner) if turned else (inner, width)))
    bias = [growth.operand(*growth.pick(((width,), (outer, width), (outer, 1))))] if growth.flag() else []
    bound = _sum_scale(growth, value, other, inner)
    factors = {"alpha": growth.pick((1.0, 0.5)), "beta": growth.pick((1.0, -2.0))}
    made = growth.grow("gemm", value, other, *bias, trans_a=across, trans_b=turned, bound=bound + 8, **factors)
    if growth.flag():
        growth.grow(growth.pick(("add", "mul")), made, growth.constant(width), bound=(bound + 8) * 4)


def perceptron(growth: Growth, value: str) -> None:
    """Add two dense layers with an activation between, and a residual."""
    inner, width = growth.shape(value)[-1], growth.pick((1, 4, 7))
    hidden = growth.grow("matmul", value, growth.weight(inner, inner, width), bound=growth.bounds[value] * 4)
    hidden = growth.grow(growth.pick(("relu", "gelu", "sigmoid")), hidden)
    made = growth.grow("matmul", hidden, growth.weight(width, width, inner), bound=growth.bounds[value] * 8)
    if growth.flag():
        growth.grow("add", value, made, bound=growth.bounds[made] + growth.bounds[value])


def square_of_rows(growth: Growth, value: str) -> None:
    """Add the product of a value with its own transpose.

    Both operands come from one tensor.
    """
    *batch, _, inner = growth.shape(value)
    perm = (*range(len(batch)), len(batch) + 1, len(batch))
    turned = growth.grow("transpose", value, perm=perm, exact=True)
    made = growth.build.node("matmul", value, turned)
    growth.grow(
        "mul", made, growth.build.array(1.0 / inner / growth.bounds[value], growth.dtype), bound=growth.bounds[value]
    )


def attention(growth: Growth, value: str) -> None:
    """Add attention of a value over other keys and values."""
    shape = growth.shape(value)
    heads, rows, width = shape[1:] if len(shape) == 4 else (1, *shape[-2:])
    batch = shape[0] if len(shape) > 2 else 1
    if len(shape) != 4:
        value = growth.grow("reshape", value, shape=(batch, heads, rows, width), exact=True)
    groups = growth.pick([g for g in (heads, 1) if heads % g == 0])
    length, last = growth.pick((rows, 1, 5)), growth.pick((width, 3))
    keys, values = growth.operand(batch, groups, length, width), growth.operand(batch, groups, length, last)
    growth.grow("attention", value, keys, values, causal=growth.flag(), bound=4.0)


def normalisation(growth: Growth, value: str) -> None:
    """Add a normalisation over the last axes, or over channels.

    Epsilon keeps rows of equal elements from amplifying rounding errors.
    """
    shape = growth.shape(value)
    ops = ["softmax", "layer_norm", "rms_norm", "log_softmax"] + (
        ["batch_norm", "instance_norm", "group_norm", "lrn"] if len(shape) > 2 else []
    )
    op = growth.pick(ops)
    if op in ("softmax", "log_softmax"):
        growth.grow(
            op,
            value,
            axis=growth.number(-len(shape), len(shape) - 1),
            bound=1.0 if op == "softmax" else growth.bounds[value] * 2 + 4,
        )
    elif op in ("layer_norm", "rms_norm"):
        axis = growth.number(0, len(shape) - 1)
        scales = [growth.operand(*shape[axis:]) for _ in range(2 if op == "layer_norm" and growth.flag() else 1)]
        growth.grow(op, value, *scales, axis=axis, epsilon=0.5, bound=16.0)
    elif op == "lrn":
        growth.grow(op, value, size=growth.number(1, 4), alpha=0.01)
    else:
        _channel_norm(growth, value, op)


def _channel_norm(growth: Growth, value: str, op: str) -> None:
    channels = growth.shape(value)[1]
    if op == "batch_norm":
        operands = (
            growth.positive(channels),
            growth.constant(channels),
            growth.constant(channels),
            growth.positive(channels),
        )
        growth.grow(op, value, *operands, bound=growth.bounds[value] * 4 + 4)
        return
    more = {"num_groups": growth.pick([g for g in (1, 2, channels) if channels % g == 0])} if op == "group_norm" else {}
    growth.grow(op, value, growth.operand(channels), growth.operand(channels), epsilon=0.5, bound=16.0, **more)


def reduction(growth: Growth, value: str) -> None:
    """Add a reduction over some axes."""
    rank = len(growth.shape(value))
    axes = tuple(sorted(growth.draw(_subsets(rank)))) if growth.pick((True, True, False)) else tuple(range(rank))
    op = growth.pick(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_l1", "reduce_log_sum_exp"))
    terms = prod(growth.shape(value)[a] for a in axes)
    grows = terms if op in ("reduce_sum", "reduce_l1") else 1
    exact = op in ("reduce_max", "reduce_min")
    growth.grow(
        op, value, axes=axes, keepdims=growth.flag(), exact=exact, bound=growth.bounds[value] * grows + 8 * (not exact)
    )


def statistics(growth: Growth, value: str) -> None:
    """Reduce an axis, repeat the result along another, and join both.

    They are joined where they fit.
    """
    shape = growth.shape(value)
    axis, other = growth.number(0, len(shape) - 1), growth.number(0, len(shape) - 1)
    if growth.flag():
        scale = growth.operand(*(1 if d == axis else n for d, n in enumerate(shape)))
        value = growth.grow("mul", value, scale, bound=growth.bounds[value] * 4)
    least = growth.grow(growth.pick(("reduce_max", "reduce_mean", "reduce_min")), value, axes=(axis,), keepdims=True)
    repeats = tuple(growth.number(2, 3) if d == other else 1 for d in range(len(shape)))
    if prod(shape) // shape[axis] * prod(repeats) <= MAX_ELEMENTS:
        growth.grow("tile", least, repeats=repeats)
    growth.grow("sub", value, least, bound=2 * growth.bounds[value])


def border(growth: Growth, value: str) -> None:
    """Reduce an axis of all rows, and one row again.

    The others read that row under a condition.
    """
    shape = growth.shape(value)
    axis = growth.number(0, len(shape) - 1)
    place = growth.number(0, shape[axis] - 1)
    least = growth.grow(growth.pick(("reduce_max", "reduce_mean", "reduce_sum")), value, axes=(axis,), keepdims=True,
                        bound=growth.bounds[value] * shape[axis])  # fmt: skip
    less = growth.grow("sub", value, least, bound=growth.bounds[value] + growth.bounds[least])
    before, after = ([n if d == axis else 0 for d in range(len(shape))] for n in (place, shape[axis] - 1 - place))
    around = growth.grow("pad", least, pads=(*before, *after), mode="constant", bound=growth.bounds[least])
    growth.grow(growth.pick(("sub", "max")), less, around, bound=growth.bounds[less] + growth.bounds[around])


def branches(growth: Growth, value: str) -> None:
    """Grow two branches of a value in turn, and join them."""
    left = right = value
    for _ in range(growth.number(1, 2)):
        left = growth.grow(growth.pick(("relu", "tanh", "sigmoid", "abs")), left)
        right = growth.grow("softmax", right, axis=growth.number(0, len(growth.shape(value)) - 1), bound=1.0)
        if growth.flag():
            left, right = right, left
    growth.grow(growth.pick(("add", "mul", "max")), left, right, bound=growth.bounds[value] + 1)


def rotation(growth: Growth, value: str) -> None:
    """Rotate pairs of the last axis by position-dependent angles.

    The position is that along the preceding axis.
    """
    shape = growth.shape(value)
    if len(shape) != 4 or shape[3] < 2:
        activation(growth, value)
        return
    half = growth.number(1, shape[3] // 2)
    angles = [growth.operand(1, 1, shape[2], half) for _ in range(2)]
    growth.grow("rotary", value, *angles, interleaved=growth.flag(), bound=growth.bounds[value] * 4)


def _subsets(rank: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank)


def cumulation(growth: Growth, value: str) -> None:
    """Add a cumulative sum along an axis."""
    shape = growth.shape(value)
    axis = growth.number(0, len(shape) - 1)
    growth.grow(
        "cumsum",
        value,
        axis=axis,
        exclusive=growth.flag(),
        reverse=growth.flag(),
        bound=growth.bounds[value] * shape[axis],
    )

"""Derived gradients at drawn shapes and attributes, family by family: sizes of 1, odd sizes, negative steps, broadcasts."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from cuts.tests.operations import Use, i64, uses
from hypothesis import given, settings
from hypothesis import strategies as st

from .finite import check

Draw = Callable[[int, int], int]


def broadcast(draw: Draw) -> Use:
    shape = [draw(1, 3) for _ in range(draw(1, 3))]
    other = [n if draw(0, 1) else 1 for n in shape[draw(0, len(shape) - 1) :]]
    return uses(("add", "mul", "div", "max", "pow")[draw(0, 4)], shape, other, low=0.2)


def product(draw: Draw) -> Use:
    batch, m, k, n = ([draw(1, 2)] * draw(0, 1)), draw(1, 3), draw(1, 3), draw(1, 3)
    return uses("matmul", [*batch, m, k], [k, n] if draw(0, 1) else [*batch, k, n])


def general_product(draw: Draw) -> Use:
    m, k, n = draw(1, 3), draw(1, 3), draw(1, 3)
    a, b = draw(0, 1), draw(0, 1)
    c = [(m, n), (1, n), (m, 1), (n,)][draw(0, 3)]
    return uses("gemm", (k, m) if a else (m, k), (n, k) if b else (k, n), c, trans_a=bool(a), trans_b=bool(b), beta=0.5)


def transposed_convolution(draw: Draw) -> Use:
    groups, stride, kernel = draw(1, 2), draw(1, 3), draw(1, 3)
    dilation = draw(1, 2)
    reach = dilation * (kernel - 1)
    return uses(
        "conv_transpose", (draw(1, 2), 2 * groups, draw(2, 4)), (2 * groups, draw(1, 2), kernel), groups=groups, strides=(stride,),
        dilations=(dilation,), pads=(min(reach, draw(0, 1)), 0), output_padding=(draw(0, stride - 1),),
    )  # fmt: skip


def reduction(draw: Draw) -> Use:
    shape = [draw(1, 3) for _ in range(draw(1, 3))]
    axes = tuple(a for a in range(len(shape)) if draw(0, 1))
    kind = ("sum", "mean", "max", "min", "prod", "l2", "log_sum_exp")[draw(0, 6)]
    return uses(f"reduce_{kind}", shape, low=0.2, axes=axes or (0,), keepdims=bool(draw(0, 1)))


def norm(draw: Draw) -> Use:
    shape = [draw(1, 3) for _ in range(draw(1, 3))]
    axis = draw(0, len(shape) - 1)
    affine = [shape[axis:]] * (2 if (op := ("layer_norm", "rms_norm")[draw(0, 1)]) == "layer_norm" else 1)
    return uses(op, shape, *affine, axis=axis, epsilon=0.1)


def reshape(draw: Draw) -> Use:
    factors = [draw(1, 3) for _ in range(4)]
    cut, other = draw(1, 3), draw(1, 3)
    return uses("reshape", (prod(factors[:cut]), prod(factors[cut:])), shape=(prod(factors[:other]), prod(factors[other:])))


def piece(draw: Draw) -> Use:
    size, step = draw(1, 7), (-3, -2, -1, 1, 2, 3)[draw(0, 5)]
    low, high = sorted((draw(0, size), draw(0, size)))
    high = min(size, max(high, low + 1))
    low = high - 1 if low == high else low
    return uses(
        "slice", (size, 2), starts=(low,) if step > 0 else (high - 1,), ends=(high,) if step > 0 else (low - 1 - size,), steps=(step,)
    )


def pad(draw: Draw) -> Use:
    size, mode = draw(2, 5), ("constant", "edge", "reflect", "wrap")[draw(0, 3)]
    return uses("pad", (size,), pads=(draw(0, size - 1), draw(0, size - 1)), mode=mode)


def gather(draw: Draw) -> Use:
    shape = [draw(1, 4) for _ in range(draw(1, 3))]
    axis = draw(0, len(shape) - 1)
    return uses("gather", shape, i64(*(draw(1, 3) for _ in range(draw(0, 2)))), classes=shape[axis], axis=axis)


def resize(draw: Draw) -> Use:
    mode = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")[draw(0, 3)]
    op = ("resize_nearest", "resize_linear")[draw(0, 1)]
    return uses(op, (1, draw(1, 5)), sizes=(1, draw(1, 8)), coordinate_transformation_mode=mode)


def attention(draw: Draw) -> Use:
    groups, times, m, n, e = draw(1, 2), draw(1, 2), draw(1, 3), draw(1, 3), draw(1, 2)
    q, k, v = (1, groups * times, m, e), (1, groups, n, e), (1, groups, n, draw(1, 2))
    return uses("attention", q, k, v, causal=bool(draw(0, 1)), offset=draw(0, 1))


FAMILIES = (
    broadcast, product, general_product, transposed_convolution, reduction, norm, reshape, piece, pad, gather, resize, attention,
)  # fmt: skip


@given(st.data())
@settings(max_examples=150)
def test_gradients_at_any_shape(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(FAMILIES))
    check(family(lambda low, high: data.draw(st.integers(low, high))))

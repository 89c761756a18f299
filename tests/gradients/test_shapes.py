"""Derived gradients at drawn shapes and attributes.

Sizes of 1, odd sizes, negative steps, broadcasts.

Every listed use is tried with other sizes, the same in place of the same; families draw attributes too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest
from attrs import evolve
from cuts.ir.errors import CutsError
from cuts.ir.types import TensorType
from cuts.ops.reference import evaluate
from cuts.tests.amounts import examples
from cuts.tests.operations import DIFFERENTIABLE, SCALAR, Use, i64, uses
from hypothesis import HealthCheck, assume, given, settings
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
        "conv_transpose", (draw(1, 2), 2 * groups, draw(2, 4)), (2 * groups, draw(1, 2), kernel), groups=groups,
        strides=(stride,), dilations=(dilation,), pads=(min(reach, draw(0, 1)), 0),
        output_padding=(draw(0, stride - 1),),
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
    return uses(
        "reshape", (prod(factors[:cut]), prod(factors[cut:])), shape=(prod(factors[:other]), prod(factors[other:]))
    )


def piece(draw: Draw) -> Use:
    size, step = draw(1, 7), (-3, -2, -1, 1, 2, 3)[draw(0, 5)]
    low, high = sorted((draw(0, size), draw(0, size)))
    high = min(size, max(high, low + 1))
    low = high - 1 if low == high else low
    return uses(
        "slice",
        (size, 2),
        starts=(low,) if step > 0 else (high - 1,),
        ends=(high,) if step > 0 else (low - 1 - size,),
        steps=(step,),
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


def split(draw: Draw) -> Use:
    parts = [draw(1, 3) for _ in range(draw(1, 3))]
    return uses("split", (2, sum(parts)), split=tuple(parts), axis=1)


def octave(draw: Draw) -> Use:
    n, (c, d, k, m), (p, q), (r, s) = (
        draw(1, 2),
        [draw(1, 2) for _ in range(4)],
        (draw(1, 2), draw(1, 2)),
        (2 * draw(0, 1) + 1, 3),
    )
    return uses(
        "octave_conv", (n, c, 2 * p, 2 * q), (n, d, p, q), (k, c, r, s), (k, d, r, s), (m, c, r, s), (m, d, r, s)
    )


def recurrence(draw: Draw) -> Use:
    op, gates = (("rnn", 1), ("lstm", 4), ("gru", 3))[draw(0, 2)]
    steps, batch, features, hidden, both = draw(1, 3), draw(1, 2), draw(1, 2), draw(1, 2), draw(0, 1)
    rows, lengths = gates * hidden, i64(batch) if draw(0, 1) else None
    operands = (
        (steps, batch, features),
        (1 + both, rows, features),
        (1 + both, rows, hidden),
        (1 + both, 2 * rows),
        lengths,
    )
    return uses(
        op, *operands, direction="bidirectional" if both else "reverse" if draw(0, 1) else "forward", classes=steps + 1
    )


def fourier_output(draw: Draw) -> Use:
    size, sizes = draw(2, 3), (draw(1, 9), draw(1, 9))
    tiles = [-(-n // (9 - size)) for n in sizes]
    return uses("fourier_output", (8, 5, 2, draw(1, 2), 1, *tiles), size=(size, size), sizes=sizes)


#: Operations whose sizes depend on each other, each with the family that draws them.
LINKED_OPERATIONS = {"conv_transpose", "split", "octave_conv", "rnn", "lstm", "gru", "fourier_output"}
FAMILIES = (
    broadcast, product, general_product, transposed_convolution, reduction, norm, reshape, piece, pad, gather, resize,
    attention,
    split, octave, recurrence, fourier_output,
)  # fmt: skip


@given(st.data())
@settings(max_examples=examples(90, 2200))
def test_gradients_at_any_shape(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(FAMILIES))
    check(family(lambda low, high: data.draw(st.integers(low, high))))


def resize_use(draw: Draw, use: Use) -> Use | None:
    """Return a use with other sizes, or None where its declaration refuses.

    Half of the sizes stay. Integers below an attribute stay below it.
    """
    sizes = sorted({n for type_ in use.types if type_ is not None for n in type_.shape})
    other = {n: n if draw(0, 1) else draw(1, 5) for n in sizes}
    types = tuple(None if t is None else TensorType(t.dtype, tuple(other[n] for n in t.shape)) for t in use.types)
    classes = use.classes if use.classes in use.attributes.values() else other.get(use.classes, use.classes)
    made = evolve(use, types=types, classes=classes)
    try:
        return made if made.instance and sum(t.size for t in types if t is not None) <= 200 else None
    except CutsError:
        return None


@pytest.mark.parametrize(
    "use", [use for use in (*DIFFERENTIABLE, *SCALAR) if use.op not in LINKED_OPERATIONS], ids=lambda use: use.op
)
@given(data=st.data())
@settings(max_examples=3, suppress_health_check=[HealthCheck.filter_too_much])
def test_gradients_at_other_sizes(use: Use, data: st.DataObject) -> None:
    made = resize_use(lambda low, high: data.draw(st.integers(low, high)), use)
    assume(made is not None)
    results = evaluate(made.instance.program, made.values()).values()
    assume(all(np.isfinite(result).all() for result in results))  # infinities of empty segments have no differences
    check(made)

"""Every derived gradient, printed and read back, equals central differences in float64."""

from __future__ import annotations

import pytest
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR, Use, uses
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from .finite import check, derive


@pytest.mark.parametrize("use", DIFFERENTIABLE, ids=lambda use: use.op)
def test_gradient_equals_differences(use: Use) -> None:
    check(use)


@pytest.mark.parametrize("use", SCALAR, ids=lambda use: use.op)
def test_gradient_of_scalar_functions(use: Use) -> None:
    if derive(use.instance).operand_gradients:
        check(use)
    else:
        assert use.op in {"ceil", "floor", "round", "sign", "trunc"}


def is_rounded(use: Use) -> bool:
    """Return whether a use has 8-bit floats, whose conversions have gradients."""
    return any(t.dtype.is_float and t.dtype.size == 1 for t in use.instance.program.tensors.values())


@pytest.mark.parametrize("use", [use for use in FLAT if not is_rounded(use)], ids=lambda use: use.op)
def test_what_is_flat_has_no_gradient(use: Use) -> None:
    assert not derive(use.instance).operand_gradients


@given(st.data())
@settings(max_examples=40)
def test_gradients_of_convolutions_of_any_shape(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    rank, groups = draw(1, 2), draw(1, 2)
    kernel = [draw(1, 3) for _ in range(rank)]
    dilations = [draw(1, 2) for _ in range(rank)]
    pads = [draw(0, 2) for _ in range(2 * rank)]
    size = [draw(1, 6 if rank == 1 else 4) for _ in range(rank)]
    assume(
        all(
            s + pads[j] + pads[rank + j] > d * (k - 1)
            for j, (s, k, d) in enumerate(zip(size, kernel, dilations, strict=True))
        )
    )
    channels, filters = groups * draw(1, 2), groups * draw(1, 2)
    strides = tuple(draw(1, 3) for _ in range(rank))
    shapes = (draw(1, 2), channels, *size), (filters, channels // groups, *kernel)
    check(uses("conv", *shapes, strides=strides, dilations=tuple(dilations), pads=tuple(pads), groups=groups))


@given(st.data())
@settings(max_examples=20)
def test_gradients_of_windows_of_any_shape(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(("max_pool", "average_pool")))
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    begin, end = data.draw(st.integers(0, kernel - 1)), data.draw(st.integers(0, kernel - 1))
    size = data.draw(st.integers(max(1, kernel - begin - end), 8))
    check(uses(op, (1, 2, size), kernel_shape=(kernel,), strides=(stride,), pads=(begin, end)))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
@settings(max_examples=20)
def test_gradients_of_rows_of_any_shape(shape: list[int], data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(("softmax", "log_softmax", "lp_norm")))
    check(uses(op, shape, axis=data.draw(st.integers(-len(shape), len(shape) - 1))))

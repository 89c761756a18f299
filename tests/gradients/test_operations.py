"""Every derived gradient, printed and read back, equals central differences in float64."""

from __future__ import annotations

import pytest
from cuts.ir.types import DType, TensorType
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from .finite import REGISTRY, Use, check, derive, i64, uses

WINDOWED = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
CASES = [
    uses("add", (2, 3), (3,)),
    uses("sub", (2, 1), (2, 3)),
    uses("mul", (2, 3), (1, 3)),
    uses("div", (2, 3), (3,), low=0.2),
    uses("mod", (2, 3), (3,), low=0.2, fmod=True),
    uses("mod", (2, 3), (3,), low=0.2),
    uses("pow", (2, 3), (3,), low=0.2),
    uses("prelu", (2, 3), (3,)),
    uses("where", TensorType(DType.BOOL, (2, 3)), (2, 3), (3,), classes=2),
    uses("max", (2, 3), (3,), (2, 1)),
    uses("mean", (2, 3), (3,)),
    uses("expand", (2, 1), shape=(2, 3)),
    uses("matmul", (2, 3, 4), (4, 5)),
    uses("matmul", (4,), (2, 4, 3)),
    uses("matmul", (3,), (3,)),
    uses("gemm", (4, 3), (5, 4), (5,), trans_a=True, trans_b=True, alpha=0.5, beta=2.0),
    uses("conv_transpose", (1, 4, 3), (4, 2, 3), (4,), strides=(2,), pads=(1, 0), output_padding=(1,), groups=2),
    uses("max_pool", (1, 2, 5, 4), **WINDOWED),
    uses("average_pool", (1, 2, 5, 4), **WINDOWED),
    uses("average_pool", (1, 2, 5, 4), **WINDOWED, count_include_pad=True),
    uses("global_average_pool", (2, 3, 2, 2)),
    uses("global_max_pool", (2, 3, 2, 2)),
    uses("softmax", (3, 4)),
    uses("softmax", (3, 4), axis=0),
    uses("log_softmax", (3, 4)),
    uses("layer_norm", (3, 4), (4,), (4,)),
    uses("layer_norm", (2, 3, 2), (3, 2), axis=1),
    uses("rms_norm", (3, 4), (4,)),
    uses("group_norm", (2, 4, 3), (4,), (4,), num_groups=2),
    uses("instance_norm", (2, 3, 4), (3,), (3,)),
    uses("batch_norm", (2, 3, 2), (3,), (3,), (3,), (3,), low=0.2),
    uses("batch_norm_training", (2, 3, 2), (3,), (3,), (3,), (3,), low=0.2, unbiased=True),
    uses("lp_norm", (3, 4), p=1),
    uses("lp_norm", (3, 4)),
    uses("lrn", (1, 5, 2), size=3),
    *(uses(f"reduce_{kind}", (2, 3, 2), low=0.2, axes=(1,), keepdims=False) for kind in (
        "sum", "prod", "max", "min", "mean", "l1", "l2", "sum_square", "log_sum", "log_sum_exp")),
    uses("reduce_prod", (2, 3)),
    uses("cumsum", (2, 4), axis=1, exclusive=True),
    uses("cumsum", (2, 4), axis=1, reverse=True),
    uses("reshape", (2, 6), shape=(3, 4)),
    uses("transpose", (2, 3, 4), perm=(2, 0, 1)),
    uses("slice", (7, 3), starts=(5, 1), ends=(0, 3), steps=(-2, 1)),
    uses("split", (5, 2), split=(2, 3)),
    uses("concat", (2, 3), (4, 3), axis=0),
    *(uses("pad", (4, 3), pads=(2, 1, 1, 2), mode=mode) for mode in ("constant", "edge", "reflect", "wrap")),
    uses("tile", (2, 3), repeats=(2, 2)),
    uses("depth_to_space", (1, 8, 2, 2), blocksize=2),
    uses("space_to_depth", (1, 2, 4, 4), blocksize=2),
    uses("trilu", (3, 4)),
    uses("gather", (4, 2), i64(5), classes=4),
    uses("gather_elements", (4, 3), i64(2, 3), classes=4),
    uses("gather_nd", (2, 2, 3), i64(3, 2), classes=2),
    uses("resize_nearest", (1, 1, 3, 4), sizes=(1, 1, 6, 3)),
    uses("resize_linear", (1, 1, 3, 4), sizes=(1, 1, 6, 3)),
    uses("resize_linear", (1, 1, 5), sizes=(1, 1, 3), coordinate_transformation_mode="align_corners"),
    uses("winograd_input", (1, 1, 4, 4)),
    uses("winograd_output", (4, 4, 1, 1, 1, 2)),
    *(uses(op, (3, 4), i64(3), (4,), classes=4, low=0.2, reduction=r)
      for op in ("nll_loss", "cross_entropy") for r in ("none", "sum", "mean")),
    *(uses(op, (2, 3), (2, 3), low=0.1, reduction=r)
      for op in ("mse_loss", "l1_loss", "bce_loss", "bce_with_logits") for r in ("none", "mean")),
    uses("attention", (1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3), causal=True, offset=1, softcap=2.0),
    uses("attention", (1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 3), (3, 4)),
    uses("rotary", (1, 2, 3, 6), (3, 2), (3, 2), interleaved=True),
    uses("rotary", (1, 2, 3, 4), (3, 2), (3, 2)),
    uses("octave_conv", (1, 2, 4, 4), (1, 1, 2, 2), (2, 2, 3, 3), (2, 1, 3, 3), (1, 2, 3, 3), (1, 1, 3, 3)),
    uses("einsum", (3, 4), (4, 5), left=(0, 2), right=(2, 1), sizes=(3, 5, 4), results=2),
    *(uses(op, (4, 3), i64(*places), updates, classes=4, reduction=r)
      for op, places, updates in (("scatter_elements", (2, 3), (2, 3)), ("scatter_nd", (3, 1), (3, 3)))
      for r in ("none", "add", "mul", "max", "min")),
    uses("tensor_scatter", (2, 5, 2), (2, 3, 2), i64(2), classes=2),
    uses("reverse_sequence", (4, 3), i64(3), classes=4),
    *(uses("embedding_bag", (5, 2), i64(3, 4), (3, 4), classes=5, mode=mode) for mode in ("sum", "mean", "max")),
    uses("interaction", (2, 3, 4), i64(5), i64(5), classes=3),
    uses("top_k", (2, 5), k=2),
    uses("max_unpool", (1, 1, 2, 2), i64(1, 1, 2, 2), classes=16, sizes=(4, 4)),
    uses("dft", (2, 5, 2), axis=1, inverse=True),
    uses("irdft", (2, 4, 2), axis=1),
    uses("rfft2", (1, 3, 4)),
    uses("irfft2", (1, 3, 3, 2)),
    uses("frames", (1, 7, 1), (3,), length=3, step=2),
    uses("sample_axis", (4, 3), i64(5, 2), (5, 2), classes=4, axis=0),
    *(uses("grid_sample", (1, 2, 4, 3), (1, 2, 2, 2), mode=mode) for mode in ("linear", "cubic")),
    uses("dropout_training", (3, 4), TensorType(DType.U32, ())),
    uses("cumprod", (2, 4), axis=1),
    uses("max_pool_positions", (1, 1, 6), kernel_shape=(3,), strides=(2,)),
    uses("lp_pool", (1, 1, 6), low=0.2, kernel_shape=(3,), strides=(2,)),
    uses("softmax_grad", (3, 4), (3, 4)),
    uses("log_softmax_grad", (3, 4), (3, 4)),
    uses("lstm", (2, 1, 2), (1, 8, 2), (1, 8, 2), (1, 16)),
    uses("gru", (2, 1, 2), (2, 6, 2), (2, 6, 2), (2, 12), direction="bidirectional"),
    uses("rnn", (3, 2, 2), (1, 2, 2), (1, 2, 2), None, i64(2), classes=3),
]  # fmt: skip


@pytest.mark.parametrize("use", CASES, ids=lambda use: use.op)
def test_gradient_equals_differences(use: Use) -> None:
    check(use)


POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}
UNARY = sorted(
    n for n, d in REGISTRY.items() if len(d.operands) == len(d.results) == 1 and d.family in ("unary", "unary_number", "copy")
    and all(a.default is not None for a in d.attributes.values())
)  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_gradient_of_scalar_functions(op: str) -> None:
    use = uses(op, (3, 4), low=1.05 if op == "acosh" else 0.1 if op in POSITIVE else -0.93)
    if derive(use.instance).found:
        check(use)
    else:
        assert op in {"ceil", "floor", "round", "sign", "trunc"}


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
    assume(all(s + pads[j] + pads[rank + j] > d * (k - 1) for j, (s, k, d) in enumerate(zip(size, kernel, dilations, strict=True))))
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

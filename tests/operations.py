"""Uses of every operation at small shapes, for gradients, kernels and devices.

A new operation needs a line here; `tests/ops/test_every_operation.py` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import frozen
from cuts.ir.types import DType, TensorType
from cuts.ops import Instance, Registry

REGISTRY = Registry.builtin()


@frozen
class Use:
    """Use of an operation.

    It has types of operands, attributes, and distributions of values.
    """

    op: str
    types: tuple[TensorType | None, ...]
    attributes: Mapping[str, Any] = {}
    low: float = -0.9
    classes: int = 1  # integers are below this

    @cached_property
    def instance(self) -> Instance:
        return REGISTRY[self.op].instantiate(self.types, self.attributes)

    def values(self, seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {
            n: self._value(rng, t)
            for n, t in zip(self.instance.inputs, self.types, strict=False)
            if n is not None and t is not None
        }

    def _value(self, rng: np.random.Generator, type_: TensorType) -> Any:
        """Floats are spread evenly and in random order, so that no two are so close that a step swaps them."""
        if not type_.dtype.is_float:
            return rng.integers(0, max(2 if type_.dtype is DType.BOOL else 1, self.classes), type_.shape).astype(
                type_.dtype.numpy
            )
        high = 0.95 if self.low < 0.9 else self.low + 1
        places = rng.permutation(type_.size) + rng.uniform(0.2, 0.8, type_.size)
        return (self.low + places * (high - self.low) / type_.size).reshape(type_.shape)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def i64(*shape: int) -> TensorType:
    return TensorType(DType.I64, shape)


def boolean(*shape: int) -> TensorType:
    return TensorType(DType.BOOL, shape)


def uses(
    op: str, *shapes: Sequence[int] | TensorType | None, low: float = -0.9, classes: int = 1, **attributes: Any
) -> Use:
    """Return a use; operands are fp32 where only a shape is given."""
    types = tuple(s if s is None or isinstance(s, TensorType) else f32(*s) for s in shapes)
    return Use(op, types, attributes, low, classes)


WINDOW_ATTRIBUTES = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
DIFFERENTIABLE: list[Use] = [
    uses("add", (2, 3), (3,)),
    uses("sub", (2, 1), (2, 3)),
    uses("mul", (2, 3), (1, 3)),
    uses("div", (2, 3), (3,), low=0.2),
    uses("mod", (2, 3), (3,), low=0.2, fmod=True),
    uses("mod", (2, 3), (3,), low=0.2),
    uses("pow", (2, 3), (3,), low=0.2),
    uses("atan2", (2, 3), (3,)),
    uses("hypot", (2, 3), (3,)),
    uses("copysign", (2, 3), (3,)),
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
    uses("max_pool", (1, 2, 5, 4), **WINDOW_ATTRIBUTES),
    uses("average_pool", (1, 2, 5, 4), **WINDOW_ATTRIBUTES),
    uses("average_pool", (1, 2, 5, 4), **WINDOW_ATTRIBUTES, count_include_pad=True),
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
    uses("resize_cubic", (1, 1, 3, 4), sizes=(1, 1, 6, 3)),
    uses("resize_linear", (1, 1, 5), sizes=(1, 1, 3), coordinate_transformation_mode="align_corners"),
    uses("winograd_input", (1, 1, 4, 4)),
    uses("winograd_output", (4, 4, 1, 1, 1, 2)),
    uses("line_input", (1, 1, 6, 3), size=3, pads=(1, 0, 1, 0)),
    uses("line_output", (8, 1, 1, 2, 2), size=5, axis=1, sizes=(2, 7)),
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
    uses("scatter_nd", (4, 5), i64(18, 1), (18, 5), classes=4,
         reduction="add"),  # enough wide slices to be put in order
    uses("gather_grad", (3, 4), i64(3), classes=5, axis=0, size=5),
    uses("gather_grad", (18, 5), i64(18), classes=4, axis=0, size=4),
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
    uses("max_position", (3, 4), axis=1),
    uses("min_position", (3, 4), axis=0, keepdims=False),
    uses("cummax", (2, 4), axis=1),
    uses("cummin", (4, 2), axis=0),
    uses("logcumsumexp", (2, 4), axis=1),
    uses("logcumsumexp", (70, 1), axis=0),
    uses("max_pool_positions", (1, 1, 6), kernel_shape=(3,), strides=(2,)),
    uses("lp_pool", (1, 1, 6), low=0.2, kernel_shape=(3,), strides=(2,)),
    uses("softmax_grad", (3, 4), (3, 4)),
    *(uses(op, (3, 4), (3, 4)) for op in ("sigmoid_grad", "swish_grad", "gelu_grad", "softsign_grad")),
    uses("gelu_grad", (3, 4), (3, 4), approximate="tanh"),
    uses("log_softmax_grad", (3, 4), (3, 4)),
    uses("lstm", (2, 1, 2), (1, 8, 2), (1, 8, 2), (1, 16)),
    uses("gru", (2, 1, 2), (2, 6, 2), (2, 6, 2), (2, 12), direction="bidirectional"),
    uses("gru", (2, 1, 2), (2, 6, 2), (2, 6, 2), (2, 12), direction="bidirectional", linear_before_reset=True),
    uses("lstm", (3, 2, 2), (1, 8, 2), (1, 8, 2), (1, 16), together=True),
    uses("gru", (3, 2, 2), (1, 6, 2), (1, 6, 2), (1, 12), linear_before_reset=True, together=True),
    uses("rnn", (3, 2, 2), (1, 2, 2), (1, 2, 2)),
    uses("rnn", (3, 2, 2), (1, 2, 2), (1, 2, 2), None, i64(2), classes=3),
    uses("conv", (2, 4, 5, 4), (6, 2, 3, 2), (6,), strides=(2, 1), pads=(1, 0, 1, 1), dilations=(1, 2), groups=2),
    uses("conv", (1, 2, 4, 3, 3), (2, 2, 2, 2, 2)),
    uses("clip", (3, 4), min=-0.5, max=0.4),
    uses("gelu", (3, 4), approximate="tanh"),
    uses("sum", (2, 3), (3,), (2, 1)),
    uses("min", (2, 3), (3,), (2, 1)),
    uses("cast", (2, 3), to="f64"),
    uses("dequantize", TensorType(DType.U8, (2, 3)), (3,), TensorType(DType.U8, (3,)), classes=200, low=0.1),
    uses("winograd_filter", (2, 1, 3, 3)),
    uses("line_filter", (2, 1, 1, 7), size=7, axis=1),
    uses("fourier_input", (1, 1, 6, 5), size=(3, 3), pads=(1, 1, 1, 1)),
    uses("fourier_filter", (2, 1, 3, 3)),
    uses("fourier_output", (8, 5, 2, 2, 1, 1, 1), (2,), size=(3, 3), sizes=(6, 5)),
    uses("col2im", (1, 8, 6), sizes=(3, 4), block=(2, 2)),
    uses("col2im", (2, 3, 4), sizes=(8,), block=(3,), strides=(2,), pads=(1, 0)),
    uses("deform_conv", (1, 2, 3, 4), (3, 2, 2, 2), (1, 8, 2, 3), (3,), (1, 4, 2, 3)),
    *(uses("roi_align", (1, 1, 4, 4), (2, 4), i64(2), low=0.1, sizes=(1, 2), samples=2, scale=3.0,
           mode=mode) for mode in ("avg", "max")),
    uses("sgd", (3, 2), (3, 2), (), weight_decay=0.1),
    uses("sgd_momentum", (3, 2), (3, 2), (), (3, 2), weight_decay=0.1, nesterov=True),
    uses("adam", (3, 2), (3, 2), (), (3, 2), (3, 2), (), low=0.4, weight_decay=0.1, beta2=0.9),
]  # fmt: skip

#: Operations of one tensor whose attributes have defaults, where they are smooth.
_ABOVE = {"acosh": 1.05, "log": 0.1, "sqrt": 0.1, "rsqrt": 0.1, "reciprocal": 0.1}
SCALAR: list[Use] = [
    uses(n, (3, 4), low=_ABOVE.get(n, -0.93)) for n, d in REGISTRY.items()
    if len(d.operands) == len(d.results) == 1 and d.family in ("unary", "unary_number", "copy")
]  # fmt: skip
#: Operations without gradients: the results are integers or conditions, or constant almost everywhere.
FLAT: list[Use] = [
    *(uses(op, (2, 3), (3,)) for op in ("greater", "greater_or_equal", "less", "less_or_equal", "equal", "not_equal")),
    *(uses(op, i64(2, 3), i64(3), classes=3) for op in ("greater_or_equal", "equal", "bitwise_and", "bitwise_or",
                                                        "bitwise_xor")),
    *(uses(op, boolean(2, 3), boolean(3)) for op in ("logical_and", "logical_or", "logical_xor")),
    uses("logical_not", boolean(2, 3)),
    uses("bitwise_not", i64(2, 3), classes=9),
    *(uses("bit_shift", TensorType(DType.U32, (2, 3)), TensorType(DType.U32, (3,)), classes=9,
           direction=d) for d in ("LEFT", "RIGHT")),
    *(uses(op, (2, 3)) for op in ("is_inf", "is_nan")),
    *(uses(op, (3, 4), axis=1, keepdims=False) for op in ("argmax", "argmin")),
    uses("hardmax", (3, 4)),
    uses("one_hot", i64(2, 3), classes=4, depth=4, on=2.0, off=-1.0),
    uses("quantize", (2, 3), (3,), TensorType(DType.U8, (3,)), classes=9, low=0.1),
    *(uses("cast", (2, 3), to=to) for to in ("i32", "bool")),
]  # fmt: skip

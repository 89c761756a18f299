"""The same operations through PyTorch: what `cuts` is compared with. TF32 is off unless the precision asks for it, and
cuDNN benchmarks its algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from cuts.bench.gradient_cases import GradientCase
from cuts.bench.shapes import Case
from cuts.ir.attributes import Attribute
from cuts.ir.types import DType

Tensors = Mapping[str, Any]


def load_torch(precision: str = "fp32") -> Any:
    """Import PyTorch with cuDNN's benchmark mode; products of f32 are strict, unless the precision is `tf32`."""
    torch = import_module("torch")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.set_grad_enabled(False)
    return torch


def function_of(case: Case, torch: Any) -> Callable[..., Any]:
    """Return a case as a function of its inputs in order."""
    if isinstance(case, GradientCase):
        return _gradient(case, torch)
    steps = [(_BUILDERS[op](torch, attributes), operands, result) for op, operands, result, attributes in case.nodes]
    names = tuple(case.inputs)

    def run(*inputs: Any) -> Any:
        values = dict(zip(names, inputs, strict=True))
        for call, operands, result in steps:
            values[result] = call(*(values[t] for t in operands))
        return values[steps[-1][2]]

    return run


Builder = Callable[[Any, Mapping[str, Attribute]], Callable[..., Any]]


def _ints(value: Attribute) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


def _conv(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    pads, strides, groups = _ints(a["pads"]), _ints(a["strides"]), int(str(a["groups"]))
    return lambda x, w: torch.nn.functional.conv2d(x, w, None, strides, pads[:2], 1, groups)


def _gradient(case: GradientCase, torch: Any) -> Callable[..., Any]:
    """Return the gradient of one operand of a convolution; the operand itself only lends its shape."""
    ((_, _, _, a),), position = case.nodes, case.position
    strides, pads, groups = _ints(a["strides"]), _ints(a["pads"]), int(str(a["groups"]))
    wanted = [position == 0, position == 1, False]

    def run(other: Any, given: Any) -> Any:
        shaped = other.new_empty(1).expand(case.forward[position])
        image, weight = (shaped, other) if position == 0 else (other, shaped)
        return torch.ops.aten.convolution_backward(
            given, image, weight, None, strides, pads[:2], (1, 1), False, (0, 0), groups, wanted
        )[position]

    return run


def _pool(kind: str) -> Builder:
    def build(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
        call, pads = getattr(torch.nn.functional, kind), _ints(a.get("pads", (0, 0)))
        return lambda x: call(x, _ints(a["kernel_shape"]), _ints(a["strides"]), pads[:2])

    return build


def _permuted(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    return lambda x: x.permute(_ints(a["perm"])).contiguous()


def _layer_norm(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    return lambda x, scale, bias: torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias)


def _batch_norm(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    return lambda x, scale, bias, mean, var: torch.nn.functional.batch_norm(x, mean, var, scale, bias)


def _plain(path: str, **fixed: object) -> Builder:
    def build(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
        call = torch
        for name in path.split("."):
            call = getattr(call, name)
        return lambda *x: call(*x, **fixed)

    return build


def _sum(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    return lambda x: torch.sum(x, _ints(a["axes"]), keepdim=True)


_BUILDERS: Mapping[str, Builder] = {
    "conv": _conv,
    "matmul": _plain("matmul"),
    "gemm": _plain("nn.functional.linear"),
    "relu": _plain("relu"),
    "add": _plain("add"),
    "mul": _plain("mul"),
    "sigmoid": _plain("sigmoid"),
    "softmax": _plain("softmax", dim=-1),
    "transpose": _permuted,
    "max_pool": _pool("max_pool2d"),
    "average_pool": _pool("avg_pool2d"),
    "global_average_pool": lambda torch, a: lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "reduce_sum": _sum,
}


class View:
    """Memory of ours as an array of a library that knows `__cuda_array_interface__`; nothing is copied."""

    def __init__(self, address: int, shape: Sequence[int], kind: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "typestr": kind,
            "data": (address, False),
            "version": 3,
        }


def tensor_at(torch: Any, address: int, shape: Sequence[int], dtype: DType) -> Any:
    """Return memory of ours as a tensor; PyTorch knows bfloat16 by no name that others have, so it goes as bits."""
    if dtype is DType.BF16:
        return torch.as_tensor(View(address, shape, "<i2"), device="cuda").view(torch.bfloat16)
    return torch.as_tensor(View(address, shape, dtype.numpy.str), device="cuda")

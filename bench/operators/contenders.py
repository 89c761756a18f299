"""Contenders of a row, in one precision and on the same tensors.

Contenders are the kernels of `cuts`, PyTorch eager, torch.compile, the fastest plan that the heuristics of cuBLASLt
propose (planned, timed and run by `nvmath-python`), the fastest plan of cuDNN in the better of two layouts, and a copy
on the device. TF32 is off unless the precision is `tf32`; cuDNN benchmarks its algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from attrs import define, evolve
from cuts.backends.device import Device, Pointer
from cuts.backends.library.cudnn import Numerics, Wanted
from cuts.backends.library.recognise import Block, Convolution, find_convolution
from cuts.backends.library.routine import require_library
from cuts.bench.operators.cases import OPERANDS, RESULT_GRADIENT, GradientCase, pair
from cuts.bench.operators.shapes import TO_FIRST, TO_LAST, Case
from cuts.bench.operators.timing import Contender, by_torch, in_order, set_precision, sets_for
from cuts.bench.operators.tuning import Tuned, TunedBuffers, group_of
from cuts.ir import BackendError, install_command
from cuts.ir.graph import Attribute
from cuts.ir.machine import MATH_MODES, PRECISIONS
from cuts.ir.types import DType, TensorType, row_major
from cuts.runtime.arrays import DeviceArray

#: Plans that the heuristics are asked for, and runs of each.
PLANS, RUNS = 32, 10
#: How the policies of f32 multiply; half types are multiplied as they are, and added up in f32.
_COMPUTE_TYPES = {"fp32": "COMPUTE_32F_PEDANTIC", "fp32x3": "COMPUTE_32F_PEDANTIC", "tf32": "COMPUTE_32F_FAST_TF32"}

#: Operations that are a product of two matrices: the two, from the inputs of a case.
_FACTORS: Mapping[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "matmul": lambda a, b: (a, b),
    "gemm": lambda a, b: (a, b.T),  # weights of a dense layer, stored as frameworks do
}


def is_product(case: Case) -> bool:
    """Return whether a case is one product of matrices."""
    return len(case.nodes) == 1 and case.nodes[0][0] in _FACTORS


def best_product(case: Case, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a product by the fastest plan for the given inputs.

    It is a function of a case's inputs.

    Raises `BackendError` where nvmath-python is not installed, or has no plan.
    """
    factors = _FACTORS[case.nodes[0][0]]
    try:
        advanced: Any = import_module("nvmath.linalg.advanced")
        kind = advanced.MatmulComputeType[_COMPUTE_TYPES.get(case.precision, "COMPUTE_32F")]
        product = advanced.Matmul(*factors(*inputs), options={"compute_type": kind})
        product.plan(preferences={"limit": PLANS})
        product.autotune(iterations=RUNS)
    except Exception as error:  # besides ImportError, nvmath raises errors of its own
        raise BackendError(f"cuBLASLt cannot be used: {error}", hint=install_command("libraries")) from error

    def run(*given: Any) -> Any:
        a, b = factors(*given)
        product.reset_operands(a=a, b=b)
        return product.execute()

    return run


#: Name of a peer, and the function that makes its contender.
PeerWay: TypeAlias = tuple[str, Callable[[], Contender]]


def load_torch(precision: str = "fp32") -> Any:
    """Import PyTorch with cuDNN's benchmark mode.

    Products of f32 are strict, unless the precision is `tf32`.
    """
    torch = import_module("torch")
    set_precision(torch, precision)
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
        order = torch.channels_last if case.channels_last else torch.contiguous_format
        shaped = torch.empty(case.forward[position], dtype=other.dtype, device=other.device, memory_format=order)
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


def _permute(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    return lambda x: x.permute(_ints(a["perm"])).contiguous()


def _layer_norm(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    return lambda x, scale, bias: torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias)


def _batch_norm(torch: Any, a: Mapping[str, Attribute]) -> Callable[..., Any]:
    return lambda x, scale, bias, mean, var: torch.nn.functional.batch_norm(x, mean, var, scale, bias)


def _plain_builder(path: str, **fixed: object) -> Builder:
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
    "matmul": _plain_builder("matmul"),
    "gemm": _plain_builder("nn.functional.linear"),
    "relu": _plain_builder("relu"),
    "add": _plain_builder("add"),
    "mul": _plain_builder("mul"),
    "sigmoid": _plain_builder("sigmoid"),
    "softmax": _plain_builder("softmax", dim=-1),
    "transpose": _permute,
    "max_pool": _pool("max_pool2d"),
    "average_pool": _pool("avg_pool2d"),
    "global_average_pool": lambda torch, a: lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "reduce_sum": _sum,
}


_BITS = {DType.BF16: (np.int16, "bfloat16"), DType.F8E4M3: (np.uint8, "float8_e4m3fn")}


def tensor_at(torch: Any, device: Device, place: Pointer, type_: TensorType) -> Any:
    """Return memory of ours as a tensor.

    Types that have no name that PyTorch and others know go as bits.
    """
    array = DeviceArray(type_, place, device, type_.strides)
    bits, name = _BITS.get(type_.dtype, (None, ""))
    if bits is not None:
        return torch.as_tensor(array.view(bits), device="cuda").view(getattr(torch, name))
    return torch.as_tensor(array, device="cuda")


#: Error relative to the root mean square of a result at which a row counts as wrong.
WRONG = 1e-3
#: The parts of a convolution whose gradients rows compute, by the position of the operand.
PARTS: tuple[Wanted, Wanted] = ("image", "filter")


@define
class Peers:
    """Libraries on the same tensors; `call` is PyTorch's function of the case."""

    tuned: Tuned
    device: Device
    torch: Any
    sets: Sequence[TunedBuffers]
    call: Callable[..., Any]

    def ways(self, *modes: str) -> list[PeerWay]:
        """Return PyTorch, and torch.compile in some modes, for these shapes alone."""
        compiled = [("compile", partial(self._compile_case, mode)) for mode in modes]
        return [("torch", lambda: self.record("torch", self.call)), *compiled]

    def _compile_case(self, mode: str) -> Contender:
        self.torch._dynamo.reset()
        return self.record("compile", self.torch.compile(self.call, mode=mode, dynamic=False))

    def libraries(self, case: Case) -> list[PeerWay]:
        """Return cuBLASLt or cuDNN where the case is theirs."""
        if is_product(case):
            return [("cublaslt", lambda: self.record("cublaslt", best_product(case, self._views(self.sets[0]))))]
        if isinstance(case, GradientCase):
            return [("cudnn", lambda: self._cudnn(*gradient_of(case)))]
        convolution = convolution_of(case)
        return [] if convolution is None else [("cudnn", lambda: self._cudnn(convolution))]

    def difference(self) -> str:
        """Return the first set's difference from PyTorch, or nothing without one."""
        wanted = self.call(*self._views(self.sets[0]))
        parts = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        self.torch.cuda.synchronize()
        pairs = zip(self.tuned.case.outputs, parts, strict=True)
        return next((text for name, part in pairs if (text := self._differs(self.tuned.name(name), part))), "")

    def _differs(self, name: str, wanted: Any) -> str:
        """Return the difference of one result from PyTorch's: floats relative to their root mean square, others
        exactly.
        """
        type_ = self.tuned.graph.types[name]
        found = np.empty(type_.shape, type_.dtype.numpy)
        self.device.download(found, self.sets[0].place(name))
        wanted = wanted.permute(TO_LAST) if self.tuned.case.channels_last else wanted.reshape(type_.shape)
        if not type_.dtype.is_float:
            wrong = int((found != wanted.cpu().numpy()).sum())
            return f"{wrong} of {found.size} integers differ from PyTorch's" if wrong else ""
        wanted = wanted.float()
        error = self.torch.from_numpy(found.astype(np.float32)).to(wanted.device) - wanted
        scale = float(wanted.square().mean().sqrt()) or 1.0
        worst = float(error.abs().max()) / scale
        # PyTorch rounds a half type after every operation of a case, at most four; the largest value has most to lose.
        math = PRECISIONS[self.tuned.case.precision].math
        rounding = max(type_.dtype.element.epsilon, MATH_MODES[math].epsilon if math else 0.0)
        allowed = max(WRONG, 4 * rounding * max(1.0, float(wanted.abs().max()) / scale))
        return "" if worst <= allowed else f"differs from PyTorch by {worst:.2g} of the root mean square"

    def _views(self, memory: TunedBuffers) -> list[Any]:
        views = []
        for name, shape in self.tuned.case.inputs.items():
            last = self.tuned.case.is_channels_last(name)
            type_ = TensorType(self.tuned.case.type_of(name).dtype, tuple(shape[d] for d in TO_LAST) if last else shape)
            view = tensor_at(self.torch, self.device, memory.place(self.tuned.name(name)), type_)
            views.append(view.permute(TO_FIRST) if last else view)
        return views

    def record(self, name: str, call: Any) -> Contender:
        """Record a call on every set as a CUDA graph of PyTorch's.

        Each set has results of its own.
        """
        inputs = [self._views(memory) for memory in self.sets]
        return by_torch(self.device, self.torch, name, [partial(call, *each) for each in inputs])

    def _cudnn(self, convolution: Convolution, wanted: Wanted = "result") -> Contender:
        library: Any = require_library("cudnn")
        policy = PRECISIONS[self.tuned.case.precision]
        numerics = Numerics(policy.stored, tensor_cores=policy.math == "tf32")
        found = []
        for there, places in ((convolution, self._places), (channels_last(convolution), self._copies)):
            sets = [places(memory) for memory in self.sets]
            plans = library.plans(self.device, there, sets[0], numerics, wanted)
            found += [(plan.seconds, plan.launch, sets) for plan in plans]
        if not found:
            raise BackendError(f"cuDNN has no plan in {policy.name}")
        _, best, sets = min(found, key=lambda each: each[0])
        return Contender("cudnn", self.device.capture(in_order([best.launch_on(each) for each in sets])), len(sets))

    def _places(self, memory: TunedBuffers) -> Mapping[str, Pointer]:
        """Return where the tensors of the case lie."""
        return {
            tensor: memory.place(self.tuned.name(tensor))
            for tensor in (*self.tuned.case.inputs, *self.tuned.case.outputs)
        }

    def _copies(self, memory: TunedBuffers) -> Mapping[str, Pointer]:
        """Return copies of the tensors, to be read in another order: their numbers are random either way."""
        copies = {}
        for tensor, place in self._places(memory).items():
            nbytes = self.tuned.type_of(self.tuned.name(tensor)).nbytes
            copies[tensor] = Pointer(self.device.allocate(nbytes))
            self.device.copy(copies[tensor], place, nbytes)
        return copies


def convolution_of(case: Case) -> Convolution | None:
    """Return a case's convolution of any type, or None without one."""
    group = group_of(evolve(case, precision="fp32", channels_last=False)) if len(case.nodes) == 1 else None
    return find_convolution(group) if group else None


def gradient_of(case: GradientCase) -> tuple[Convolution, Wanted]:
    """Return a gradient row's convolution on tensors, and the computed part."""
    ((_, _, result, attributes),) = case.nodes
    image, weight = case.forward
    names = [result if case.position == place else operand for place, operand in enumerate(OPERANDS)]
    strides, pads = pair(attributes["strides"]), pair(attributes["pads"])
    blocks = (dense(names[0], image), dense(names[1], weight), dense(RESULT_GRADIENT, case.inputs[RESULT_GRADIENT]))
    return Convolution(*blocks, strides, (1, 1), pads, pads), PARTS[case.position]


def dense(tensor: str, shape: tuple[int, ...]) -> Block:
    """Return a tensor in the usual order of dims."""
    return Block(tensor, shape, row_major(shape))


def channels_last(convolution: Convolution) -> Convolution:
    """Return a convolution on dense tensors whose channels are the innermost dim."""

    def transpose_block(block: Block) -> Block:
        steps, size = [0] * len(block.sizes), 1
        for dim in (1, *reversed(range(2, len(block.sizes))), 0):
            steps[dim], size = size, size * block.sizes[dim]
        return Block(block.tensor, block.sizes, tuple(steps))

    return evolve(
        convolution,
        image=transpose_block(convolution.image),
        filter=transpose_block(convolution.filter),
        result=transpose_block(convolution.result),
    )


def copying(device: Device, nbytes: int, cache: int) -> Contender:
    """Return the device's copy of half of `nbytes` as a contender.

    It reads half of `nbytes` and writes as many.
    """
    half = max(16, nbytes // 2)
    pairs = [(Pointer(device.allocate(half)), Pointer(device.allocate(half))) for _ in range(sets_for(2 * half, cache))]

    def run() -> None:
        for source, destination in pairs:
            device.copy(destination, source, half)

    return Contender("copy", device.capture(run), len(pairs))


def copy_bandwidth(device: Device, nbytes: int = 1 << 30) -> float:
    """Return bytes per second, read and written, of a large copy."""
    source, destination = Pointer(device.allocate(nbytes)), Pointer(device.allocate(nbytes))
    return 2 * nbytes / device.time(lambda: device.copy(destination, source, nbytes), warmup=2, repeats=10).median

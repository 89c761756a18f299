"""Launch parameters of a plan, for callers that launch its kernels."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ...ir import DType, KernelFunction, TensorMap
from ..plan import Plan


@frozen
class ArgumentAddress:
    """Argument of a launch: a tensor and its place in the arena.

    `offset` counts bytes from the arena's first one to the tensor's first element. A kernel of CUDA takes the pointer
    to it; one of OpenCL takes the arena and, as a 32-bit integer, `base`. With a `map`, a kernel of CUDA takes the
    tensor map of the tensor by value (`CUtensorMap`) in place of the pointer.
    """

    tensor: str
    dtype: DType
    written: bool
    offset: int
    map: TensorMap | None = None

    @property
    def base(self) -> int:
        """The offset in elements."""
        return self.offset // self.dtype.size


@frozen
class LaunchParameters:
    """One launch of a run: a kernel and its arguments.

    `arguments` are in the order of the kernel's parameters: `tensor`, `dtype`, `written`, and `offset` in bytes
    from the start of the arena, or `base` in elements. A kernel of CUDA takes a pointer for each; one of OpenCL the
    arena and the base, a 32-bit integer. After them, a kernel of OpenCL with `dynamic_shared` takes local memory of
    so many bytes. `binary` is the compiled kernel, where the plan has it. A kernel with a zero in its grid is not
    launched.
    """

    kernel: KernelFunction
    binary: bytes | None
    arguments: tuple[ArgumentAddress, ...]


def tensor_offset(plan: Plan, tensor: str, iteration: int = 0) -> int:
    """Return the bytes from the arena's start to a tensor.

    In a loop a tensor may move with the iteration.
    """
    storage = plan.storages[tensor]
    return plan.buffers[storage.buffer].offset + storage.start(iteration) * plan.types[tensor].dtype.size


def launch_parameters(plan: Plan) -> Iterator[LaunchParameters]:
    """Yield the launches of a run in order.

    Each waits for those before it."""
    for number, iteration in plan.launches():
        step = plan.steps[number]
        kernel = plan.kernels[step.kernel]
        addresses = (
            ArgumentAddress(t, a.dtype, a.written, tensor_offset(plan, t, iteration), a.map)
            for a, t in zip(kernel.arguments, step.tensors, strict=True)
        )
        yield LaunchParameters(kernel, plan.binaries[step.kernel], tuple(addresses))

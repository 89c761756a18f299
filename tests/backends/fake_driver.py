"""A CUDA driver in Python: memory is the host's, a kernel is a function of addresses, a graph runs when it is launched.

Like the real one it takes arguments from memory when it is told of them, and not later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

#: Kernels by name: each takes the addresses of its arguments.
Kernels = Mapping[str, Callable[..., None]]


class Params(SimpleNamespace):
    """The parameters of a node."""


class FakeDriver:
    """What `cuda.bindings.driver` has, as far as chains use it; `calls` counts them."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor"
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
    CUDA_KERNEL_NODE_PARAMS = Params
    CUDA_MEMCPY3D = Params

    def __init__(self, kernels: Kernels | None = None) -> None:
        self.kernels = kernels or {}
        self.calls: dict[str, int] = {}
        self.contexts: list[str] = []
        self.fails: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu"):
            return found

        def counted(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return (999,) if name in self.fails else found(*arguments)

        return counted

    def cuInit(self, flags: int) -> tuple[int]:
        return (0,)

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[int, int]:
        return 0, {"major": 9, "minor": 0}[attribute]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, str]:
        return 0, f"context {device}"

    def cuGetErrorName(self, code: int) -> tuple[int, bytes]:
        return 0, b"CUDA_ERROR_UNKNOWN"

    def cuCtxPushCurrent(self, context: str) -> tuple[int]:
        self.contexts.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, str]:
        return 0, self.contexts.pop()

    def cuCtxSynchronize(self) -> tuple[int]:
        return (0,)

    def cuMemcpyHtoD(self, destination: int, source: int, nbytes: int) -> tuple[int]:
        ctypes.memmove(destination, source, nbytes)
        return (0,)

    def cuMemcpyDtoDAsync(self, destination: int, source: int, nbytes: int, stream: int) -> tuple[int]:
        return self.cuMemcpyHtoD(destination, source, nbytes)

    def cuModuleLoadData(self, code: bytes) -> tuple[int, bytes]:
        return 0, code

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> tuple[int, str]:
        return 0, name.decode()

    def cuFuncSetAttribute(self, function: str, attribute: int, value: int) -> tuple[int]:
        return (0,)

    def cuLaunchKernel(self, function: str, *rest: Any) -> tuple[int]:
        self._kernel(function, rest[-2])()
        return (0,)

    def cuGraphCreate(self, flags: int) -> tuple[int, list[Any]]:
        return 0, []

    def cuGraphAddKernelNode(self, graph: list[Any], before: Any, count: int, params: Params) -> tuple[int, int]:
        return self._add(graph, before, self._kernel(params.func, params.kernelParams))

    def cuGraphAddMemcpyNode(
        self, graph: list[Any], before: Any, count: int, params: Params, context: str
    ) -> tuple[int, int]:
        return self._add(graph, before, self._copy(params))

    def _add(self, graph: list[Any], before: Sequence[int] | None, action: Callable[[], None]) -> tuple[int, int]:
        assert list(before or []) == ([len(graph) - 1] if graph else []), "each node comes behind the one before"
        graph.append(action)
        return 0, len(graph) - 1

    def cuGraphInstantiate(self, graph: list[Any], flags: int) -> tuple[int, list[Any]]:
        return 0, list(graph)

    def cuGraphExecKernelNodeSetParams(self, executable: list[Any], node: int, params: Params) -> tuple[int]:
        executable[node] = self._kernel(params.func, params.kernelParams)
        return (0,)

    def cuGraphExecMemcpyNodeSetParams(
        self, executable: list[Any], node: int, params: Params, context: str
    ) -> tuple[int]:
        executable[node] = self._copy(params)
        return (0,)

    def cuGraphLaunch(self, executable: list[Any], stream: int) -> tuple[int]:
        assert self.contexts, "a context is current"
        for action in executable:
            action()
        return (0,)

    def cuGraphExecDestroy(self, executable: list[Any]) -> tuple[int]:
        return (0,)

    def cuGraphDestroy(self, graph: list[Any]) -> tuple[int]:
        return (0,)

    def cuEventCreate(self, flags: int) -> tuple[int, str]:
        return 0, "event"

    def cuEventRecord(self, event: str, stream: int) -> tuple[int]:
        return (0,)

    def cuStreamWaitEvent(self, stream: int, event: str, flags: int) -> tuple[int]:
        return (0,)

    def _kernel(self, name: str, arguments: int) -> Callable[[], None]:
        run, count = self.kernels[name], self.kernels[name].__code__.co_argcount
        pointers = (ctypes.c_void_p * count).from_address(arguments)
        values = [ctypes.c_uint64.from_address(p or 0).value for p in pointers]
        return lambda: run(*values)

    def _copy(self, params: Params) -> Callable[[], None]:
        source, destination, nbytes = params.srcDevice, params.dstDevice, params.WidthInBytes
        return lambda: ctypes.memmove(destination, source, nbytes)

"""CUDA driver in Python that records graphs.

Like the real driver it reads arguments from memory when a node is added, not later.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from .fake_bindings import FakeBindings

#: Streams that there are from the start.
STREAMS = (0, 7, 8, 9)


class Params(SimpleNamespace):
    """The parameters of a node."""


class FakeDriver(FakeBindings):
    """Driver whose graphs run when they are launched.

    `calls` counts the calls, `fails` is the call that fails. Graphs are chains unless there are `fronts`: then each
    node has its predecessors, and the last node that may run runs first.
    """

    fronts: list[list[int]] | None = None
    captured: list[Any] | None = None
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
    CUDA_KERNEL_NODE_PARAMS = Params
    CUDA_MEMCPY3D = Params

    def __init__(
        self, kernels: Mapping[str, Callable[..., None]] | None = None, attributes: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(
            kernels or {}, {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0} | dict(attributes or {})
        )
        self.calls: Counter[str] = Counter()
        self.fails: set[str] = set()
        self.live |= {stream: f"stream {stream}" for stream in STREAMS}

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        call = super().__getattr__(name)

        def count_call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            return (2,) if name in self.fails else call(*arguments)

        return count_call

    def _cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:
        self.captured = []
        return (0,)

    def _cuStreamEndCapture(self, stream: int) -> tuple[int, list[Any] | None]:
        found, self.captured = self.captured, None
        return 0, found

    def _cuLaunchKernel(self, function: str, *rest: Any) -> tuple[int]:
        if self.captured is None:
            return super()._cuLaunchKernel(function, *rest)
        self.captured.append(self._kernel(function, rest[-2]))
        return (0,)

    def _cuGraphCreate(self, flags: int) -> tuple[int, list[Any]]:
        return 0, []

    def _cuGraphAddKernelNode(self, graph: list[Any], before: Any, count: int, params: Params) -> tuple[int, int]:
        return self._add(graph, before, self._kernel(params.func, params.kernelParams))

    def _cuGraphAddMemcpyNode(
        self, graph: list[Any], before: Any, count: int, params: Params, context: str
    ) -> tuple[int, int]:
        return self._add(graph, before, self._copy(params))

    def _add(self, graph: list[Any], before: Sequence[int] | None, action: Callable[[], object]) -> tuple[int, int]:
        if self.fronts is None:
            assert list(before or []) == ([len(graph) - 1] if graph else []), "each node follows the one before"
        else:
            self.fronts.append(list(before or []))
        graph.append(action)
        return 0, len(graph) - 1

    def _cuGraphInstantiate(self, graph: list[Any], flags: int) -> tuple[int, list[Any]]:
        return 0, list(graph)

    def _cuGraphExecKernelNodeSetParams(self, executable: list[Any], node: int, params: Params) -> tuple[int]:
        executable[node] = self._kernel(params.func, params.kernelParams)
        return (0,)

    def _cuGraphExecMemcpyNodeSetParams(
        self, executable: list[Any], node: int, params: Params, context: str
    ) -> tuple[int]:
        executable[node] = self._copy(params)
        return (0,)

    def _cuGraphLaunch(self, executable: list[Any], stream: int) -> tuple[int]:
        assert stream in self.live
        fronts, left = self.fronts or [[n - 1] for n in range(len(executable))], list(range(len(executable)))
        while left:
            number = next(n for n in reversed(left) if not set(left).intersection(fronts[n]))
            left.remove(number)
            executable[number]()
        return (0,)

    def _cuGraphExecDestroy(self, executable: list[Any]) -> tuple[int]:
        return (0,)

    _cuGraphDestroy = _cuGraphExecDestroy

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[int]:
        assert stream in self.live and self.live[event], "what is waited for was recorded"
        return (0,)

    def _kernel(self, name: str, arguments: int) -> Callable[[], None]:
        run = self.kernels[name]
        pointers = (ctypes.c_void_p * run.__code__.co_argcount).from_address(arguments)
        values = [ctypes.c_uint64.from_address(p or 0).value for p in pointers]
        return lambda: run(*values)

    def _copy(self, params: Params) -> Callable[[], object]:
        source, destination, nbytes = params.srcDevice, params.dstDevice, params.WidthInBytes
        return lambda: ctypes.memmove(destination, source, nbytes)

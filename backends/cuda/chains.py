"""Chains on a GPU: one CUDA graph, launched on whichever stream is wanted; arguments that moved are set in it.

A graph may be launched on several streams: the driver lets one launch of it begin when the one before has ended, so the
memory that its kernels share is never used by two. All calls go through NVIDIA's bindings and the primary context of
the device, which PyTorch uses too.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ...ir import BackendError, KernelFunction, Target
from ..chains import BlockPlace, Chain, ChainPlan, Chains, Copied, moved
from ..device import Array, Buffer, Pointer
from ..library import DIALECT, Routine
from .calls import DriverCalls, DriverError
from .compile import compile_kernels
from .device import CudaDevice, Foreign

_DEFAULT_SHARED = 48 * 1024  # what a block may have without asking for more
#: Most launches that are recorded: a recording holds some hundred bytes for each of them, in the driver's memory.
LONGEST_RECORDING = 1 << 17


class CudaChains(Chains):
    """Chains of one GPU, by its number."""

    waits = False

    def __init__(self, target: Target, ordinal: int, cu: Any = None) -> None:
        self._calls = _calls(cu)
        self.cu = self._calls.cu
        self.target, self.ordinal = target, ordinal
        self._foreign: CudaDevice | None = None
        self.checked(self.cu.cuInit(0))
        device = self.checked(self.cu.cuDeviceGet(ordinal))
        major, minor = (self.checked(self.cu.cuDeviceGetAttribute(a, device)) for a in self._capability())
        digits = target.arch.removeprefix("sm_").rstrip("af")
        if int(digits[:-1]) != major or int(digits[-1]) > minor:
            raise BackendError(
                f"the plan is for {target.arch}, device {ordinal} is sm_{major}{minor}",
                hint="models are compiled for the first device: use GPUs of one kind",
            )
        self.context = self.checked(self.cu.cuDevicePrimaryCtxRetain(device))

    def _capability(self) -> tuple[Any, Any]:
        names = self.cu.CUdevice_attribute
        return (
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )

    def checked(self, result: tuple[Any, ...]) -> Any:
        """Return what a call of the driver returned, or raise `BackendError` with the name of its error."""
        try:
            return self._calls.checked(result)
        except DriverError as error:
            raise BackendError(f"CUDA: {error}") from error

    def within(self, action: Callable[[], Any]) -> Any:
        """Do something with the device's context current, whatever is current in this thread."""
        self.checked(self.cu.cuCtxPushCurrent(self.context))
        try:
            return action()
        finally:
            self.cu.cuCtxPopCurrent()

    def upload(self, address: int, source: Array) -> None:
        """Copy from the host."""
        if source.nbytes:
            self.within(lambda: self.checked(self.cu.cuMemcpyHtoD(address, source.ctypes.data, source.nbytes)))

    def settle(self) -> None:
        """Wait for the device."""
        self.within(lambda: self.checked(self.cu.cuCtxSynchronize()))

    def chain(self, plan: ChainPlan, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None]) -> Chain:
        """Load cubins, compiling those that are not given.

        Raises `BackendError` where one does not load.
        """
        codes: list[bytes | None] = list(binaries) if binaries else [None] * len(kernels)
        missing = [index for index, code in enumerate(codes) if code is None and kernels[index].dialect != DIALECT]
        for index, cubin in zip(missing, compile_kernels([kernels[i] for i in missing], self.target.arch), strict=True):
            codes[index] = cubin.code
        loaded = self.within(lambda: [self._load(k, code or b"") for k, code in zip(kernels, codes, strict=True)])
        return CudaChain(self, plan, kernels, loaded)

    def _load(self, kernel: KernelFunction, code: bytes) -> Any:
        if kernel.dialect == DIALECT:
            return Routine(kernel)
        try:
            module = self.checked(self.cu.cuModuleLoadData(code))
            function = self.checked(self.cu.cuModuleGetFunction(module, kernel.name.encode()))
            if kernel.shared_bytes + kernel.dynamic_shared > _DEFAULT_SHARED:
                limit = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.checked(self.cu.cuFuncSetAttribute(function, limit, kernel.dynamic_shared))
        except BackendError as error:
            raise BackendError(
                f"kernel {kernel.name} does not load on device {self.ordinal}: {error.message}",
                hint="compile the model for this machine",
            ) from error
        return function

    @property
    def foreign(self) -> CudaDevice:
        """The device as routines of libraries are bound to it.

        Raises `BackendError` where it is not the first one.
        """
        if self.ordinal != 0:
            raise BackendError(
                f"routines of libraries run on device 0, not on {self.ordinal}", hint="leave out option 'libraries'"
            )
        if self._foreign is None:
            self._foreign = CudaDevice(self.target)
        return self._foreign


def _calls(cu: Any) -> DriverCalls:
    try:
        return DriverCalls(cu)
    except ImportError as error:
        raise BackendError(
            f"running PyTorch's models on CUDA needs NVIDIA's bindings: {error}", hint="pip install cuda-bindings"
        ) from error


class _KernelNode:
    """A launch whose arguments can be set: the driver reads them from memory of ours when it is told of a change."""

    def __init__(self, chains: CudaChains, function: Any, kernel: KernelFunction, places: Sequence[BlockPlace]) -> None:
        self.places = tuple(places)
        self.values = (ctypes.c_uint64 * max(len(places), 1))()
        size, start = ctypes.sizeof(ctypes.c_uint64), ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * max(len(places), 1))(*(start + n * size for n in range(len(places))))
        self.arguments = ctypes.addressof(self.pointers)
        self.shape = (function, *kernel.grid, *kernel.block, kernel.dynamic_shared)
        self.handle: Any = None
        self.chains = chains
        self.params = self._params()

    def _params(self) -> Any:
        params = self.chains.cu.CUDA_KERNEL_NODE_PARAMS()
        names = ["func", "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes"]
        for name, value in zip(names, self.shape, strict=True):
            setattr(params, name, value)
        params.kernelParams, params.extra = self.arguments, 0
        return params

    def set(self, addresses: Sequence[int]) -> None:
        for number, place in enumerate(self.places):
            self.values[number] = addresses[place.block] + place.offset

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> None:
        self.set(addresses)
        self.handle = self.chains.checked(
            self.chains.cu.cuGraphAddKernelNode(graph, before or None, len(before), self.params)
        )

    def update(self, executable: Any, addresses: Sequence[int]) -> None:
        self.set(addresses)
        self.chains.checked(self.chains.cu.cuGraphExecKernelNodeSetParams(executable, self.handle, self.params))

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        self.set(addresses)
        function, *geometry = self.shape
        self.chains.checked(self.chains.cu.cuLaunchKernel(function, *geometry, stream, self.arguments, 0))


class _CopyNode:
    """A copy within the device."""

    def __init__(self, chains: CudaChains, copied: Copied) -> None:
        self.chains, self.copied = chains, copied
        self.places = (copied.source, copied.destination)
        self.handle: Any = None

    def _params(self, addresses: Sequence[int]) -> Any:
        cu = self.chains.cu
        params = cu.CUDA_MEMCPY3D()
        source, destination = (addresses[place.block] + place.offset for place in self.places)
        params.srcMemoryType = params.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        params.srcDevice, params.dstDevice = source, destination
        params.WidthInBytes, params.Height, params.Depth = self.copied.nbytes, 1, 1
        return params

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> None:
        params = self._params(addresses)
        self.handle = self.chains.checked(
            self.chains.cu.cuGraphAddMemcpyNode(graph, before or None, len(before), params, self.chains.context)
        )

    def update(self, executable: Any, addresses: Sequence[int]) -> None:
        params = self._params(addresses)
        self.chains.checked(
            self.chains.cu.cuGraphExecMemcpyNodeSetParams(executable, self.handle, params, self.chains.context)
        )

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        source, destination = (addresses[place.block] + place.offset for place in self.places)
        self.chains.checked(self.chains.cu.cuMemcpyDtoDAsync(destination, source, self.copied.nbytes, stream))


class _RoutineNode:
    """A routine of a library, as a graph within the graph; it is bound anew where its tensors moved."""

    def __init__(
        self, chains: CudaChains, routine: Routine, kernel: KernelFunction, places: Sequence[BlockPlace]
    ) -> None:
        self.chains, self.routine, self.kernel, self.places = chains, routine, kernel, tuple(places)
        self.handle: Any = None
        self.launched: Any = None

    def _graph(self, addresses: Sequence[int]) -> Any:
        """Record what the routine launches with its tensors at these places."""
        device, cu = self.chains.foreign, self.chains.cu
        pointers = [Pointer(Buffer(Foreign(addresses[p.block], None), 0), p.offset) for p in self.places]
        with device.current():
            self.launched = self.routine.bind(device, self.kernel, pointers)
            device.synchronize()
            stream = cu.CUstream(device.stream_handle)
            mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            self.chains.checked(cu.cuStreamBeginCapture(stream, mode))
            try:
                self.launched()
            finally:
                graph = self.chains.checked(cu.cuStreamEndCapture(stream))
        return graph

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> None:
        child = self._graph(addresses)
        cu, checked = self.chains.cu, self.chains.checked
        self.handle = checked(cu.cuGraphAddChildGraphNode(graph, before or None, len(before), child))
        checked(cu.cuGraphDestroy(child))  # the node has a copy

    def update(self, executable: Any, addresses: Sequence[int]) -> None:
        child = self._graph(addresses)
        cu, checked = self.chains.cu, self.chains.checked
        checked(cu.cuGraphExecChildGraphNodeSetParams(executable, self.handle, child))
        checked(cu.cuGraphDestroy(child))

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        raise BackendError(
            f"the plan calls {self.routine.library.name}, which cannot be recorded in a CUDA graph of another owner",
            hint="leave out option 'libraries'",
        )


_Node = _KernelNode | _CopyNode | _RoutineNode


class CudaChain(Chain):
    """A graph of kernels in order. Before it is launched, the nodes are changed that touch a block which moved."""

    def __init__(
        self, chains: CudaChains, plan: ChainPlan, kernels: Sequence[KernelFunction], loaded: Sequence[Any]
    ) -> None:
        self.chains, self.plan = chains, plan
        self._fixed: Sequence[int] = ()
        self._addresses: list[int] = []
        self._nodes: list[_Node] = [_CopyNode(chains, copied) for copied in plan.before]
        for number, turn in plan.order:
            call = plan.calls[number]
            kernel = kernels[call.kernel]
            if 0 not in kernel.grid:
                self._nodes.append(_node(chains, loaded[call.kernel], kernel, call.turns[turn]))
        self._nodes += [_CopyNode(chains, copied) for copied in plan.after]
        self._touching: dict[int, list[_Node]] = defaultdict(list)
        for node in self._nodes:
            for block in {place.block for place in node.places}:
                self._touching[block].append(node)
        self._executable: Any = None
        self._last: tuple[int, Any] | None = None

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Set what has moved, and launch the graph."""
        if not self._nodes:
            return
        cu, checked = self.chains.cu, self.chains.checked
        checked(cu.cuCtxPushCurrent(self.chains.context))
        try:
            if len(self._nodes) > LONGEST_RECORDING:
                self._launch_each((*fixed, *moving), stream)
                return
            if self._executable is None:
                self._record(fixed, moving)
            else:
                self._rebind(fixed, moving)
            checked(cu.cuGraphLaunch(self._executable, stream))
        finally:
            cu.cuCtxPopCurrent()

    def launch_apart(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch node by node, so that whoever records the stream gets each of them."""
        addresses = (*fixed, *moving)
        self.chains.within(lambda: [node.launch(addresses, stream) for node in self._nodes])

    def _record(self, fixed: Sequence[int], moving: Sequence[int]) -> None:
        cu, checked = self.chains.cu, self.chains.checked
        self._fixed, self._addresses = fixed, [*fixed, *moving]
        graph = checked(cu.cuGraphCreate(0))
        before: list[Any] = []
        for node in self._nodes:
            node.add(graph, before, self._addresses)
            before = [node.handle]
        self._executable = checked(cu.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, _destroy, self.chains, graph, self._executable).atexit = False

    def _rebind(self, fixed: Sequence[int], moving: Sequence[int]) -> None:
        first = self.plan.fixed
        gone = list(moved(self._addresses[first:], moving, first))
        if fixed is not self._fixed:
            gone += moved(self._addresses[:first], fixed)
            self._fixed = fixed
        if not gone:
            return
        for number, address in gone:
            self._addresses[number] = address
        for node in {id(n): n for number, _ in gone for n in self._touching[number]}.values():
            node.update(self._executable, self._addresses)

    def _launch_each(self, addresses: Sequence[int], stream: int) -> None:
        """Launch what is too long for a graph; on another stream, behind the last launch."""
        cu, checked = self.chains.cu, self.chains.checked
        if self._last is None:
            self._last = stream, checked(cu.cuEventCreate(2))  # without timing
        last, event = self._last
        if last != stream:
            checked(cu.cuStreamWaitEvent(stream, event, 0))
        for node in self._nodes:
            node.launch(addresses, stream)
        checked(cu.cuEventRecord(event, stream))
        self._last = stream, event


def _node(chains: CudaChains, loaded: Any, kernel: KernelFunction, places: Sequence[BlockPlace]) -> _Node:
    if isinstance(loaded, Routine):
        return _RoutineNode(chains, loaded, kernel, places)
    return _KernelNode(chains, loaded, kernel, places)


def _destroy(chains: CudaChains, graph: Any, executable: Any) -> None:
    """Give a graph back. What is running of it ends first; we may not wait for it, as somebody may be recording."""

    def give_back() -> None:
        chains.cu.cuGraphExecDestroy(executable)
        chains.cu.cuGraphDestroy(graph)

    chains.within(give_back)

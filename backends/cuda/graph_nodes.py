"""Nodes of a GPU's launch sequence: kernels, copies and library routines.

Each is added to a graph, updated in the instantiated graph where a block moved, or launched individually on a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from ...ir import BackendError, KernelFunction
from ..device import Buffer, Device, Launch, Pointer
from ..launch_sequence import BlockAddress, Copy
from ..library import Routine
from .arguments import parameter, parameters_of
from .handles import Foreign

#: Driver calls that an L2 policy takes; without them launches are only slower.
WINDOW_CALLS = ("cuGraphKernelNodeSetAttribute", "CUaccessPolicyWindow")


@frozen(eq=False)
class GraphDriver:
    """Bindings and the context in which graphs are recorded, for one architecture.

    `check` returns the result of a call. Routines of libraries are bound to `routine_device`.
    """

    cu: Any
    check: Callable[[tuple[Any, ...]], Any]
    context: Any
    arch: str
    routine_device: Callable[[], Device]

    def in_context(self, action: Callable[[], Any]) -> Any:
        """Run an action with the context current in this thread."""
        self.check(self.cu.cuCtxPushCurrent(self.context))
        try:
            return action()
        finally:
            self.cu.cuCtxPopCurrent()


class KernelNode:
    """Launch with updatable arguments; the driver copies them on each update."""

    def __init__(
        self,
        driver: GraphDriver,
        function: Any,
        kernel: KernelFunction,
        places: Sequence[BlockAddress],
        passing: tuple[int, int] | None = None,
    ) -> None:
        self.places, self.passing = tuple(places), passing
        self.maps = [argument.map for argument in kernel.arguments]
        self.parameters = parameters_of(kernel)
        self.shape = (function, *kernel.grid, *kernel.block, kernel.dynamic_shared)
        self.driver = driver
        self.params = self._params()

    def _params(self) -> Any:
        params = self.driver.cu.CUDA_KERNEL_NODE_PARAMS()
        names = ["func", "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes"]
        for name, value in zip(names, self.shape, strict=True):
            setattr(params, name, value)
        params.kernelParams, params.extra = self.parameters.address, 0
        return params

    def set(self, addresses: Sequence[int]) -> None:
        for number, place in enumerate(self.places):
            address = addresses[place.block] + place.offset
            self.parameters.set(number, parameter(self.maps[number], address, self.driver.cu))

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> Any:
        self.set(addresses)
        added = self.driver.check(self.driver.cu.cuGraphAddKernelNode(graph, before or None, len(before), self.params))
        if self.passing is not None:
            argument, nbytes = self.passing
            place = self.places[argument]
            set_evict_first(self.driver.cu, added, addresses[place.block] + place.offset, nbytes)
        return added

    def update(self, executable: Any, added: Any, addresses: Sequence[int]) -> None:
        self.set(addresses)
        self.driver.check(self.driver.cu.cuGraphExecKernelNodeSetParams(executable, added, self.params))

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        self.set(addresses)
        function, *geometry = self.shape
        self.driver.check(self.driver.cu.cuLaunchKernel(function, *geometry, stream, self.parameters.address, 0))


class CopyNode:
    """A copy within the device."""

    def __init__(self, driver: GraphDriver, copied: Copy) -> None:
        self.driver, self.copied = driver, copied
        self.places = (copied.source, copied.destination)

    def _params(self, addresses: Sequence[int]) -> Any:
        cu = self.driver.cu
        params = cu.CUDA_MEMCPY3D()
        source, destination = (addresses[place.block] + place.offset for place in self.places)
        params.srcMemoryType = params.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        params.srcDevice, params.dstDevice = source, destination
        params.WidthInBytes, params.Height, params.Depth = self.copied.nbytes, 1, 1
        return params

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> Any:
        params = self._params(addresses)
        return self.driver.check(
            self.driver.cu.cuGraphAddMemcpyNode(graph, before or None, len(before), params, self.driver.context)
        )

    def update(self, executable: Any, added: Any, addresses: Sequence[int]) -> None:
        params = self._params(addresses)
        self.driver.check(self.driver.cu.cuGraphExecMemcpyNodeSetParams(executable, added, params, self.driver.context))

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        source, destination = (addresses[place.block] + place.offset for place in self.places)
        self.driver.check(self.driver.cu.cuMemcpyDtoDAsync(destination, source, self.copied.nbytes, stream))


class RoutineNode:
    """Library routine as a child graph.

    It is bound again where tensors moved, unless it is `bound` for good.
    """

    def __init__(
        self,
        driver: GraphDriver,
        routine: Routine,
        kernel: KernelFunction,
        places: Sequence[BlockAddress],
        bound: Launch | None = None,
    ) -> None:
        self.driver, self.routine, self.kernel, self.places = driver, routine, kernel, tuple(places)
        self.bound, self.launched = bound, bound

    def _graph(self, addresses: Sequence[int]) -> Any:
        """Record the launches of the routine with its tensors at these addresses."""
        device, cu = self.driver.routine_device(), self.driver.cu
        pointers = [Pointer(Buffer(Foreign(addresses[p.block], None), 0), p.offset) for p in self.places]
        with device.current():
            self.launched = launched = self.bound or self.routine.bind(device, self.kernel, pointers)
            device.synchronize()
            stream = cu.CUstream(device.stream_handle)
            mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            self.driver.check(cu.cuStreamBeginCapture(stream, mode))
            try:
                launched()
            finally:
                graph = self.driver.check(cu.cuStreamEndCapture(stream))
        return graph

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> Any:
        child = self._graph(addresses)
        cu, checked = self.driver.cu, self.driver.check
        added = checked(cu.cuGraphAddChildGraphNode(graph, before or None, len(before), child))
        checked(cu.cuGraphDestroy(child))  # the node has a copy
        return added

    def update(self, executable: Any, added: Any, addresses: Sequence[int]) -> None:
        child = self._graph(addresses)
        cu, checked = self.driver.cu, self.driver.check
        checked(cu.cuGraphExecChildGraphNodeSetParams(executable, added, child))
        checked(cu.cuGraphDestroy(child))

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Raise `BackendError`: a routine runs only on its device's stream.

        So a caller cannot record it on another stream.
        """
        raise BackendError(
            f"the plan calls {self.routine.library.name}, which cannot be recorded in a CUDA graph of another owner",
            hint="leave out option 'libraries'",
        )


#: Node of a launch sequence.
SequenceNode: TypeAlias = KernelNode | CopyNode | RoutineNode


def make_node(
    driver: GraphDriver,
    loaded: Any,
    kernel: KernelFunction,
    places: Sequence[BlockAddress],
    passing: tuple[int, int] | None = None,
    bound: Launch | None = None,
) -> SequenceNode:
    """Return the node that calls a loaded kernel or a routine.

    `passing` are the argument and the bytes that are evicted first from the cache, if any; `bound` is the launch of a
    routine whose tensors never move.
    """
    if isinstance(loaded, Routine):
        return RoutineNode(driver, loaded, kernel, places, bound)
    return KernelNode(driver, getattr(loaded, "raw", loaded), kernel, places, passing)


def set_evict_first(cu: Any, node: Any, address: int, nbytes: int) -> None:
    """Let the L2 cache evict the bytes of a kernel node first.

    GPUs do from compute capability 8.0 on.
    """
    if most := max_window_bytes(cu):
        window, value = cu.CUaccessPolicyWindow(), cu.CUkernelNodeAttrValue()
        window.base_ptr, window.num_bytes, window.hitRatio = address, min(nbytes, most), 1.0
        window.hitProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
        window.missProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_NORMAL
        value.accessPolicyWindow = window
        cu.cuGraphKernelNodeSetAttribute(node, cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, value)


def max_window_bytes(cu: Any) -> int:
    """Return the largest window in bytes on the current device, or 0."""
    if not all(hasattr(cu, name) for name in WINDOW_CALLS):
        return 0
    failed, device = cu.cuCtxGetDevice()
    if int(failed):
        return 0
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE
    failed, most = cu.cuDeviceGetAttribute(attribute, device)
    return 0 if int(failed) else int(most)

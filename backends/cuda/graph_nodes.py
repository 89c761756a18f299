"""Nodes of a GPU's launch sequence: kernels, copies and library routines.

Each is added to a graph, updated in the instantiated graph where a block moved, or launched individually on a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from ...ir import WAITING_SUFFIX, BackendError, KernelFunction
from ..device import Buffer, Device, Launch, Pointer
from ..launch_sequence import BlockAddress, Copy
from ..library import Routine
from .arguments import PackedParameters
from .bindings import BindingsDriver, DeviceMemory, DriverError


class KernelNode:
    """Launch with updatable arguments; the driver copies them on each update."""

    def __init__(
        self,
        driver: BindingsDriver,
        function: Any,
        kernel: KernelFunction,
        places: Sequence[BlockAddress],
        passing: tuple[int, int] | None = None,
    ) -> None:
        self.places, self.passing = tuple(places), passing
        self.waits = kernel.name.endswith(WAITING_SUFFIX)
        self.parameters = PackedParameters(kernel, driver.cu)
        self.shape = (function, *kernel.grid, *kernel.block, kernel.dynamic_shared)
        self.driver = driver
        self.params = driver.cu.CUDA_KERNEL_NODE_PARAMS()
        names = ["func", "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes"]
        for name, value in zip(names, self.shape, strict=True):
            setattr(self.params, name, value)
        self.params.kernelParams, self.params.extra = self.parameters.address, 0

    def set(self, addresses: Sequence[int]) -> None:
        self.parameters.set(addresses[place.block] + place.offset for place in self.places)

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> Any:
        self.set(addresses)
        added = self.driver.cu.cuGraphAddKernelNode(graph, before or None, len(before), self.params)
        if self.passing is not None:
            argument, nbytes = self.passing
            place = self.places[argument]
            set_evict_first(self.driver.cu, added, addresses[place.block] + place.offset, nbytes)
        return added

    def update(self, executable: Any, added: Any, addresses: Sequence[int]) -> None:
        self.set(addresses)
        self.driver.cu.cuGraphExecKernelNodeSetParams(executable, added, self.params)

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        self.set(addresses)
        function, *geometry = self.shape
        self.driver.cu.cuLaunchKernel(function, *geometry, stream, self.parameters.address, 0)


class CopyNode:
    """A copy within the device."""

    def __init__(self, driver: BindingsDriver, copied: Copy) -> None:
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
        return self.driver.cu.cuGraphAddMemcpyNode(graph, before or None, len(before), params, self.driver.context)

    def update(self, executable: Any, added: Any, addresses: Sequence[int]) -> None:
        params = self._params(addresses)
        self.driver.cu.cuGraphExecMemcpyNodeSetParams(executable, added, params, self.driver.context)

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        source, destination = (addresses[place.block] + place.offset for place in self.places)
        self.driver.cu.cuMemcpyDtoDAsync(destination, source, self.copied.nbytes, stream)


class RoutineNode:
    """Library routine as a child graph, bound again where tensors move."""

    def __init__(
        self,
        driver: BindingsDriver,
        find_device: Callable[[], Device],
        routine: Routine,
        kernel: KernelFunction,
        places: Sequence[BlockAddress],
        bound: Launch | None = None,
    ) -> None:
        self.driver, self.routine, self.kernel, self.places = driver, routine, kernel, tuple(places)
        self.find_device, self.bound, self.launched = find_device, bound, bound  # `bound`: tensors never move

    def _graph(self, addresses: Sequence[int]) -> Any:
        """Record the launches of the routine with its tensors at these addresses."""
        device = self.find_device()
        pointers = [Pointer(Buffer(DeviceMemory(addresses[p.block]), 0), p.offset) for p in self.places]
        with device.current():
            self.launched = launched = self.bound or self.routine.bind(device, self.kernel, pointers)
            device.synchronize()
            return self.driver.capture(launched, self.driver.cu.CUstream(device.stream_handle))

    def add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> Any:
        child = self._graph(addresses)
        added = self.driver.cu.cuGraphAddChildGraphNode(graph, before or None, len(before), child)
        self.driver.cu.cuGraphDestroy(child)  # the node has a copy
        return added

    def update(self, executable: Any, added: Any, addresses: Sequence[int]) -> None:
        child = self._graph(addresses)
        self.driver.cu.cuGraphExecChildGraphNodeSetParams(executable, added, child)
        self.driver.cu.cuGraphDestroy(child)

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


def set_evict_first(cu: Any, node: Any, address: int, nbytes: int) -> None:
    """Let the L2 cache evict the bytes of a kernel node first.

    GPUs do from compute capability 8.0 on; without such a policy launches are only slower.
    """
    if not hasattr(cu, "CUaccessPolicyWindow"):
        return
    with suppress(DriverError):
        most = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE
        nbytes = min(nbytes, int(cu.cuDeviceGetAttribute(most, cu.cuCtxGetDevice())))
        window, value = cu.CUaccessPolicyWindow(), cu.CUkernelNodeAttrValue()
        window.base_ptr, window.num_bytes, window.hitRatio = address, nbytes, 1.0
        window.hitProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
        window.missProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_NORMAL
        value.accessPolicyWindow = window
        if nbytes:
            cu.cuGraphKernelNodeSetAttribute(
                node, cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, value
            )

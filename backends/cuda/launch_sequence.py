"""Launch sequences on a GPU: one CUDA graph, with updated arguments.

A graph may be launched on several streams: the driver begins one launch of it when the previous one has ended, so two
launches never use the memory of its kernels at the same time. All calls go through NVIDIA's bindings and the primary
context of the device, which PyTorch uses too.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ...ir import BackendError, KernelFunction, Target, install_command
from ..device import Array
from ..launch_sequence import LaunchSequence, SequenceLauncher, SequencePlan, moved_blocks
from ..library import DIALECT, Routine
from .device import CudaDevice, complete_binaries
from .graph_nodes import CopyNode, RoutineNode, SequenceNode, make_node
from .graphs import enable_programmatic_launch, extend_capture
from .handles import DriverCalls, DriverError

_DEFAULT_SHARED = 48 * 1024  # of a block, without an attribute of the kernel
#: Limit of recorded launches: a recording holds some hundred bytes for each of them, in the driver's memory.
MAX_RECORDED_NODES = 1 << 17
#: Modules of deleted sequences, by driver and device; they are unloaded when the device is idle.
_UNUSED_MODULES: defaultdict[tuple[Any, int], deque[Any]] = defaultdict(deque)


class CudaSequenceLauncher(SequenceLauncher):
    """Launcher of sequences on one GPU, by its number."""

    is_blocking = False

    def __init__(self, target: Target, ordinal: int, cu: Any = None) -> None:
        self._calls = _calls(cu)
        self.cu = self._calls.cu
        self.target, self.ordinal = target, ordinal
        self._foreign: CudaDevice | None = None
        self.check(self.cu.cuInit(0))
        device = self.check(self.cu.cuDeviceGet(ordinal))
        major, minor = (self.check(self.cu.cuDeviceGetAttribute(a, device)) for a in self._capability())
        digits = target.arch.removeprefix("sm_").rstrip("af")
        if int(digits[:-1]) != major or int(digits[-1]) > minor:
            raise BackendError(
                f"the plan is for {target.arch}, device {ordinal} is sm_{major}{minor}",
                hint="models are compiled for the first device: use GPUs of one kind",
            )
        self.context = self.check(self.cu.cuDevicePrimaryCtxRetain(device))

    def _capability(self) -> tuple[Any, Any]:
        names = self.cu.CUdevice_attribute
        return (
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )

    def check(self, result: tuple[Any, ...]) -> Any:
        """Return the result of a driver call.

        Raises `BackendError` with the name of its error.
        """
        try:
            return self._calls.check(result)
        except DriverError as error:
            raise BackendError(f"CUDA: {error}") from error

    def in_context(self, action: Callable[[], Any]) -> Any:
        """Run an action with the device's context current in this thread."""
        self.check(self.cu.cuCtxPushCurrent(self.context))
        try:
            return action()
        finally:
            self.cu.cuCtxPopCurrent()

    def upload(self, address: int, source: Array) -> None:
        """Copy from the host."""
        if source.nbytes:
            self.in_context(lambda: self.check(self.cu.cuMemcpyHtoD(address, source.ctypes.data, source.nbytes)))

    def settle(self) -> None:
        """Wait for the device, and unload modules of deleted sequences."""
        unused = _UNUSED_MODULES[self.cu, self.ordinal]
        gone = [unused.popleft() for _ in range(len(unused))]
        self.in_context(lambda: self.check(self.cu.cuCtxSynchronize()))
        self.in_context(lambda: [self.cu.cuModuleUnload(module) for module in gone])

    def load(
        self, plan: SequencePlan, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None]
    ) -> LaunchSequence:
        """Load cubins, compiling missing ones.

        Raises `BackendError` where one does not load.
        """
        codes = complete_binaries(kernels, binaries, self.target.arch)
        modules: list[Any] = []
        load = partial(self._load, modules)
        loaded = self.in_context(lambda: [load(k, code) for k, code in zip(kernels, codes, strict=True)])
        made = CudaLaunchSequence(self, plan, kernels, loaded)
        weakref.finalize(made, _UNUSED_MODULES[self.cu, self.ordinal].extend, modules).atexit = False
        return made

    def _load(self, modules: list[Any], kernel: KernelFunction, code: bytes) -> Any:
        if kernel.dialect == DIALECT:
            return Routine(kernel)
        try:
            module = self.check(self.cu.cuModuleLoadData(code))
            modules.append(module)
            function = self.check(self.cu.cuModuleGetFunction(module, kernel.name.encode()))
            if kernel.shared_bytes + kernel.dynamic_shared > _DEFAULT_SHARED:
                limit = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.check(self.cu.cuFuncSetAttribute(function, limit, kernel.dynamic_shared))
        except BackendError as error:
            raise BackendError(
                f"kernel {kernel.name} does not load on device {self.ordinal}: {error.message}",
                hint="compile the model for this machine",
            ) from error
        return function

    @property
    def foreign(self) -> CudaDevice:
        """Device to which routines of libraries are bound.

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
            f"running PyTorch's models on CUDA needs NVIDIA's bindings: {error}", hint=install_command("cuda")
        ) from error


class CudaLaunchSequence(LaunchSequence):
    """Graph of kernels in order, or each after its dependencies.

    Nodes that touch a moved block are updated.
    """

    def __init__(
        self, chains: CudaSequenceLauncher, plan: SequencePlan, kernels: Sequence[KernelFunction], loaded: Sequence[Any]
    ) -> None:
        self.chains, self.plan = chains, plan
        self._fixed: Sequence[int] = ()
        self._addresses: list[int] = []
        self._before, self._after = ([CopyNode(chains, each) for each in part] for part in (plan.before, plan.after))
        self._launched: list[SequenceNode | None] = []
        for number, turn in plan.order:
            call = plan.calls[number]
            kernel, code, places = kernels[call.kernel], loaded[call.kernel], call.iterations[turn]
            empty = 0 in kernel.grid
            self._launched.append(None if empty else make_node(chains, code, kernel, places, call.evict_first))
        self._nodes: list[SequenceNode] = [*self._before, *(n for n in self._launched if n is not None), *self._after]
        self._touching: dict[int, list[int]] = defaultdict(list)
        for number, node in enumerate(self._nodes):
            for block in {place.block for place in node.places}:
                self._touching[block].append(number)
        self._added: list[Any] = []
        self._executable: Any = None
        self._last: tuple[int, Any] | None = None

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Update moved addresses, and launch the graph."""
        if not self._nodes:
            return
        cu, checked = self.chains.cu, self.chains.check
        checked(cu.cuCtxPushCurrent(self.chains.context))
        try:
            if len(self._nodes) > MAX_RECORDED_NODES:
                self._launch_each((*fixed, *moving), stream)
                return
            if self._executable is None:
                self._record(fixed, moving)
            else:
                self._rebind(fixed, moving)
            checked(cu.cuGraphLaunch(self._executable, stream))
        finally:
            cu.cuCtxPopCurrent()

    def launch_captured(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Add the nodes with their edges to the graph of a stream."""
        self.chains.in_context(lambda: self._extend_capture((*fixed, *moving), stream))

    def _extend_capture(self, addresses: Sequence[int], stream: int) -> None:
        def add(graph: Any, before: list[Any]) -> list[Any]:
            return self._add(graph, before, addresses)[1]

        routines = any(isinstance(node, RoutineNode) for node in self._nodes)
        if routines or not extend_capture(add, stream, self.chains.cu, self.chains.check):
            for node in self._nodes:
                node.launch(addresses, stream)

    def _record(self, fixed: Sequence[int], moving: Sequence[int]) -> None:
        cu, checked = self.chains.cu, self.chains.check
        self._fixed, self._addresses = fixed, [*fixed, *moving]
        graph = checked(cu.cuGraphCreate(0))
        self._added, _ = self._add(graph, [], self._addresses)
        self._executable = checked(cu.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, _destroy, self.chains, graph, self._executable).atexit = False

    def _add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Add all nodes to a graph after `before`; return them and the last ones.

        Kernels of another owner, in `before`, may end before their predecessors do, so no node is placed before theirs.
        """
        added: list[Any] = []
        edges: list[tuple[Any, Any]] = []

        def add_in_row(nodes: Sequence[SequenceNode], front: list[Any]) -> list[Any]:
            for node in nodes:
                added.append(node.add(graph, front, addresses))
                edges.extend((each, added[-1]) for each in front if each not in before)
                front = added[-1:]
            return front

        copied = add_in_row(self._before, before)
        count = len(self._launched)
        waits = self.plan.waits or [(n - 1,) if n else () for n in range(count)]
        ends: list[list[Any]] = []
        for node, each in zip(self._launched, waits, strict=True):
            front = _distinct_nodes(ends[number] for number in each) or copied
            ends.append(front if node is None else add_in_row([node], front))
        waited = {number for each in waits for number in each}
        last = _distinct_nodes(ends[number] for number in range(count) if number not in waited) or copied
        last = add_in_row(self._after, last)
        enable_programmatic_launch(graph, self.chains.cu, self.chains.check, self.chains.target.arch, edges)
        return added, last

    def _rebind(self, fixed: Sequence[int], moving: Sequence[int]) -> None:
        first = self.plan.fixed
        gone = list(moved_blocks(self._addresses[first:], moving, first))
        if fixed is not self._fixed:
            gone += moved_blocks(self._addresses[:first], fixed)
            self._fixed = fixed
        if not gone:
            return
        for number, address in gone:
            self._addresses[number] = address
        for number in dict.fromkeys(n for block, _ in gone for n in self._touching[block]):
            self._nodes[number].update(self._executable, self._added[number], self._addresses)

    def _launch_each(self, addresses: Sequence[int], stream: int) -> None:
        """Launch a sequence that is too long for a graph; on another stream, after the last launch."""
        cu, checked = self.chains.cu, self.chains.check
        if self._last is None:
            self._last = stream, checked(cu.cuEventCreate(2))  # without timing
        last, event = self._last
        if last != stream:
            checked(cu.cuStreamWaitEvent(stream, event, 0))
        for node in self._nodes:
            node.launch(addresses, stream)
        checked(cu.cuEventRecord(event, stream))
        self._last = stream, event


def _distinct_nodes(nodes: Iterable[list[Any]]) -> list[Any]:
    """Return each of some nodes once."""
    return list(dict.fromkeys(chain.from_iterable(nodes)))


def _destroy(chains: CudaSequenceLauncher, graph: Any, executable: Any) -> None:
    """Destroy a graph.

    A running launch of it ends first; waiting for it is not allowed, as a stream may be recorded.
    """

    def give_back() -> None:
        chains.cu.cuGraphExecDestroy(executable)
        chains.cu.cuGraphDestroy(graph)

    chains.in_context(give_back)

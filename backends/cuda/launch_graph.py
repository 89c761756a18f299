"""Launch sequence as a CUDA graph, which `libcuts_run` records.

A graph may be launched on several streams: the driver begins one launch of it when the previous one has ended, so two
launches never use the memory of its kernels at the same time.

Kernels for sm_90 and up begin with a wait for the end of all earlier launches (`griddepcontrol.wait`). So an edge from
a kernel that is the only predecessor of such a kernel delays no launch: its blocks are placed as soon as the
predecessor's blocks have left, and only the code after the wait follows its end. Kernels do not trigger an earlier
launch of their successors (`griddepcontrol.launch_dependents`): its blocks would be placed unevenly beside running
ones, which makes ResNet-50 in f16 at batch 1 on an H200 slower by 30 percent. A token of a decoder of 1B takes 1.08 to
1.16 times as long with such a trigger first, one of 8B in int4 0.95 times. ptxas moves loads of unchanging data across
the wait, both ways: other code before it needs plain loads of data that earlier launches write.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from ctypes import addressof, byref, c_uint32, c_uint64, c_void_p, cast, sizeof
from typing import Any

from ...ir import BackendError, KernelFunction
from ..device import Buffer, Device, Launch, Pointer
from ..launch_sequence import BlockAddress, LaunchSequence, SequencePlan
from ..library import Routine
from ..native import OptionsStruct, native_library, pack_sequence, untyped_call
from .bindings import BindingsDriver, DeviceMemory


class CudaLaunchSequence(LaunchSequence):
    """Graph of kernels in order, or each after its dependencies.

    On a stream that another owner records, the nodes join the recording.
    """

    def __init__(
        self,
        driver: BindingsDriver,
        arch: str,
        plan: SequencePlan,
        kernels: Sequence[KernelFunction],
        loaded: Sequence[Any],
        find_device: Callable[[], Device],
        bound: Sequence[Launch] = (),
    ) -> None:
        """Routines of libraries are bound to a device, unless their launches are `bound` for good."""
        self.driver, self.plan, self._library = driver, plan, native_library()
        self._session, opened = c_void_p(), c_void_p()
        is_routine = [isinstance(each, Routine) for each in loaded]
        content = pack_sequence(plan, kernels, is_routine, arch)
        functions = [int(each.function) for each, other in zip(loaded, is_routine, strict=True) if not other]
        handles = (c_void_p * (len(functions) + 1))(*functions)
        path = driver.library and driver.library.encode()
        options = OptionsStruct(sizeof(OptionsStruct), driver.ordinal, path, functions=cast(handles, c_void_p))
        self._check(self._library.cuts_plan_open_memory(content, len(content), byref(options), byref(opened)))
        weakref.finalize(self, self._library.cuts_plan_close, opened).atexit = False
        self._check(self._library.cuts_session_create(opened, byref(self._session)))
        # It has no memory of its own, so that it ends without waiting: a stream may be recorded then.
        weakref.finalize(self, self._library.cuts_session_destroy, self._session).atexit = False
        count = len(plan.blocks)
        self._addresses: Any = (c_uint64 * count)()
        self._sizes = (c_uint64 * count)(*plan.blocks)
        self._run = untyped_call(self._library, "cuts_session_run_pointers")
        pointers = (c_void_p(addressof(each)) for each in (self._addresses, self._sizes))
        self._arguments = self._session, None, None, c_uint32(0), *pointers, c_uint32(count)
        self._fixed: Sequence[int] | None = None
        self._routines = [
            RoutineGraph(driver, find_device, loaded[call.kernel], kernels[call.kernel], call.iterations[turn])
            if is_routine[call.kernel]
            else None
            for call, turn in ((plan.calls[number], turn) for number, turn in plan.order)
        ]
        for routine, launch in zip(self._routines, bound, strict=False):
            if routine is not None:
                routine.bound = launch
        self._has_routines = any(is_routine)

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Update moved addresses, and launch the graph."""
        self._bind(fixed, moving, stream)
        if status := self._run(*self._arguments, c_void_p(stream)):
            self._check(status)

    def _bind(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        if fixed is not self._fixed:
            self._addresses[: len(fixed)] = fixed
        self._addresses[len(fixed) :] = moving
        if self._has_routines and (moving or fixed is not self._fixed):
            self._record_routines(stream)
        self._fixed = fixed

    def replay(self, addresses: Sequence[int], stream: int, keep: object) -> Launch:
        """Return the launch of everything over blocks that never move."""
        self._bind(addresses, (), stream)
        run, arguments = self._run, (*self._arguments, c_void_p(stream))

        def launch(owners: object = (self, keep)) -> None:
            if status := run(*arguments):
                self._check(status)

        return launch

    def _record_routines(self, stream: int) -> None:
        """Give the library the graphs of routines whose tensors have moved."""
        with self.driver.push_context():
            if int(self.driver.cu.cuStreamIsCapturing(stream)):
                names = {each.routine.library.name for each in self._routines if each}
                raise BackendError(
                    f"the plan calls {', '.join(names)}, which cannot be recorded in a CUDA graph of another owner",
                    hint="leave out option 'libraries'",
                )
            for number, each in enumerate(self._routines):
                if each is not None and (graph := each.record(self._addresses)) is not None:
                    self._check(self._library.cuts_session_set_graph(self._session, number, graph))

    def _check(self, status: int) -> None:
        """Raise `BackendError` for a status that is one."""
        if status:
            raise BackendError(self._library.cuts_last_error().decode())


class RoutineGraph:
    """Recorded call of a library, again where its tensors move.

    A `bound` launch has tensors that never do.
    """

    def __init__(
        self,
        driver: BindingsDriver,
        find_device: Callable[[], Device],
        routine: Routine,
        kernel: KernelFunction,
        places: Sequence[BlockAddress],
    ) -> None:
        self.driver, self.find_device = driver, find_device
        self.routine, self.kernel, self.places = routine, kernel, places
        self.bound: Launch | None = None
        self._last: tuple[tuple[int, ...], Launch, RecordedGraph] | None = None

    def record(self, blocks: Sequence[int]) -> int | None:
        """Return the graph over blocks at these addresses.

        None where it is the last one.
        """
        addresses = tuple(blocks[place.block] + place.offset for place in self.places)
        if self._last is not None and self._last[0] == addresses:
            return None
        device = self.find_device()
        pointers = [Pointer(Buffer(DeviceMemory(address), 0)) for address in addresses]
        with device.current():
            launch = self.bound or self.routine.bind(device, self.kernel, pointers)
            device.synchronize()
            graph = RecordedGraph(self.driver, launch, self.driver.cu.CUstream(device.stream_handle))
        self._last = addresses, launch, graph
        return int(graph.raw)


class RecordedGraph:
    """Graph of launches on a stream, destroyed with its last reference."""

    def __init__(self, driver: BindingsDriver, run: Launch, stream: Any) -> None:
        self.raw = driver.capture(run, stream)
        driver.release(self, "cuGraphDestroy", self.raw)

"""Sessions of plans over an arena, with inputs and outputs copied."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
from attrs import frozen

from ..backends import Array, BlockAddress, BoundSequence, Buffer, Device, Launch, Pointer, Timing, open_device
from ..ir import PlanError, quote, raise_all, strided_view
from .arrays import DeviceArray, check_names, check_type, checked_inputs, plain_array
from .fallback_kernels import use_fallback_kernels
from .output_memory import OutputMemory
from .placement import ConstantImages, place_in_arena, tensor_address
from .plan import Plan, extent_bytes
from .profiler_range import profiler_range
from .state import ArenaAccess, DeviceState, checked_state


@frozen
class RunTimes:
    """Seconds of one run by phase; `wall` is the total."""

    copy_in: float
    compute: float
    copy_out: float
    wall: float


class Session:
    """Plan opened on a device, ready to run, from any thread.

    Runs share the arena, so one waits for the other; concurrent runs need two sessions. Outputs belong to the caller:
    no later run overwrites them. The state of the plan is the session's own.
    """

    def __init__(self, plan: Plan, device: Device | None = None) -> None:
        if plan.target.dialect not in ("opencl", "cuda"):
            raise PlanError(
                f"plan {quote(plan.name)} is for target {quote(plan.target.name)}, which launches no kernels"
            )
        self.plan = plan = use_fallback_kernels(plan)
        self.device = device or open_device(plan.target)
        self._lock, self._range = RLock(), profiler_range(plan.name)
        self._outputs = OutputMemory(self.device)
        self._replay: Launch | None = None
        with self.device.current():
            loaded = self.device.build(plan.kernels, plan.binaries)
            self._arena = self.device.allocate(plan.arena)
            self._placed = placed = place_in_arena(plan)
            self._sequence = BoundSequence(self.device, placed.sequence, plan.kernels, loaded, [Pointer(self._arena)])
            placed.upload(ConstantImages.of_plan(plan), self._upload)
            self._state = DeviceState(
                plan, self.device, ArenaAccess(self._tensor_pointer, self.is_dense, self._read, self._write)
            )

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other threads out of the arena, and make the device this thread's."""
        with self._lock, self.device.current():
            yield

    def _tensor_pointer(self, tensor: str, turn: int = 0) -> Pointer:
        return self._sequence.pointer(tensor_address(self.plan, self._placed.places, tensor, turn))

    def _upload(self, place: BlockAddress, array: Array) -> None:
        self.device.upload(self._sequence.pointer(place), array)

    def is_dense(self, tensor: str) -> bool:
        """Return whether a tensor lies in memory in order, without gaps."""
        storage, type_ = self.plan.storages[tensor], self.plan.types[tensor]
        return all(a == b for a, b, n in zip(storage.strides, type_.strides, type_.shape, strict=True) if n != 1)

    def _write(self, arrays: Mapping[str, Array]) -> None:
        """Upload host arrays; strided ones go through a host image of their buffer, shared by all its parts."""
        images: dict[str, Array] = {}
        for tensor, array in arrays.items():
            if self.is_dense(tensor):
                self.device.upload(self._tensor_pointer(tensor), np.ascontiguousarray(array))
                continue
            buffer = self.plan.storages[tensor].buffer
            if buffer not in images:
                images[buffer] = np.empty(self.plan.buffers[buffer].nbytes, np.uint8)
                self.device.download(images[buffer], Pointer(self._arena, self.plan.buffers[buffer].offset))
            self._view(tensor, images[buffer])[...] = array
        for buffer, image in images.items():
            self.device.upload(Pointer(self._arena, self.plan.buffers[buffer].offset), image)

    def _view(self, tensor: str, image: Array, turn: int = 0) -> Array:
        """Return a tensor as a strided view of the bytes of its buffer."""
        storage, type_ = self.plan.storages[tensor], self.plan.types[tensor]
        elements = image[: image.nbytes // type_.dtype.size * type_.dtype.size].view(type_.dtype.numpy)[
            storage.start(turn) :
        ]
        strides = tuple(stride * type_.dtype.size for stride in storage.strides)
        return strided_view(elements, type_.shape, strides)

    def read(self, tensor: str) -> Array:
        """Download one tensor as it is now.

        Memory is shared over time, so it holds its value only until a later step reuses it.
        """
        with self._exclusive():
            return self._read(tensor)

    def _read(self, tensor: str, turn: int = 0) -> Array:
        type_, storage = self.plan.types[tensor], self.plan.storages[tensor]
        if self.is_dense(tensor):
            array = np.empty(type_.shape, type_.dtype.numpy)
            self.device.download(array, self._tensor_pointer(tensor, turn))
            return array
        image = np.empty(extent_bytes(type_, storage), np.uint8)
        self.device.download(image, Pointer(self._arena, self.plan.buffers[storage.buffer].offset))
        return np.ascontiguousarray(self._view(tensor, image, turn))

    def _feed(self, inputs: Mapping[str, object], there: Collection[str] = ()) -> None:
        """Bring the inputs into the arena, except resident ones: device arrays by a copy on the device, all others from
        the host, and state that is not given as the last run left it.
        """
        wanted = tuple(name for name in self.plan.inputs if name not in there)
        own = set(self.plan.interface.caller_inputs(wanted))
        given = inputs if isinstance(inputs, Mapping) else {}
        check_names(tuple(name for name in wanted if name in own or name in given), inputs)
        self._state.load({*there, *given})
        host: dict[str, object] = {}
        for name, value in inputs.items():
            adopted = self.device.adopt(plain_array(value))
            if adopted is None or not self.is_dense(name):
                host[name] = value
                continue
            pointer, interface = adopted
            check_type(name, np.dtype(interface["typestr"]), tuple(interface["shape"]), self.plan.types[name])
            self.device.copy(self._tensor_pointer(name), pointer, self.plan.types[name].nbytes)
        self._write(checked_inputs(self.plan.types, tuple(host), host))

    @property
    def state(self) -> dict[str, Array]:
        """The values of state that the next run begins with."""
        with self._exclusive():
            return self._state.read()

    def set_state(self, values: Mapping[str, object]) -> None:
        """Let the next run begin with other values of some state.

        Raises `UsageError` for names that are no state of the plan, and for other types.
        """
        checked = checked_state(self.plan, values)
        with self._exclusive():
            self._state.write(checked)

    def reset_state(self) -> None:
        """Let the next run begin with the initial values."""
        with self._exclusive():
            self._state.reset()

    def launch(self) -> None:
        """Launch every step, without waiting for the end."""
        with self._exclusive():
            self._state.evict()
            self._sequence.launch()

    def compute(self) -> Launch:
        """Return the cheapest launch of all steps.

        It is one recorded graph where the device can record it, else the steps.
        """
        with self._exclusive():
            self._state.evict_for_good()
            return self._find_replay()

    def _find_replay(self) -> Launch:
        if self._replay is None:
            self._replay = self._sequence.record()
        return self._replay

    def run(self, inputs: Mapping[str, object], *, on_device: bool = False) -> dict[str, Any]:
        """Run once and return the outputs by name.

        They are NumPy arrays, or `DeviceArray`s that stay on the device.
        """
        return self.run_timed(inputs, on_device=on_device)[0]

    def run_timed(self, inputs: Mapping[str, object], *, on_device: bool = False) -> tuple[dict[str, Any], RunTimes]:
        """Run once and return the outputs and the times."""
        interface = self.plan.interface
        if interface.state:
            check_names(interface.caller_inputs(self.plan.inputs), inputs)
        names = interface.caller_outputs(self.plan.outputs)
        with self._exclusive(), self._range:
            launch = self._find_replay()
            start = time.perf_counter()
            self._feed(inputs)
            fed = time.perf_counter()
            launch()
            self.device.synchronize()
            computed = time.perf_counter()
            self._check()
            self._state.store()
            outputs = self._device_copies(names) if on_device else {name: self._read(name) for name in names}
            end = time.perf_counter()
        return interface.results(outputs), RunTimes(fed - start, computed - fed, end - computed, end - start)

    def run_on(
        self,
        inputs: Mapping[str, object],
        copies: Sequence[tuple[Pointer, Pointer, int]],
        wanted: Sequence[str],
        there: Collection[str] = (),
    ) -> dict[str, Array]:
        """Run once on the content of the arena.

        Copy bytes within the device (`copies` are targets, sources and numbers of bytes, in order), bring in the
        inputs, except those that are `there` then, and return some outputs. State that is not given is read, and stays
        as it was.
        """
        with self._exclusive(), self._range:
            launch = self._find_replay()
            self._state.evict()
            for target, source, nbytes in copies:
                self.device.copy(target, source, nbytes)
            self._feed(inputs, there)
            launch()
            self.device.synchronize()
            self._check()
            return {name: self._read(name) for name in wanted}

    def _check(self) -> None:
        """Raise the errors that the plan's checks found."""
        found = [check.error(int(self._read(check.place)), int(self._read(check.found))) for check in self.plan.checks]
        raise_all([error for error in found if error is not None])

    def _device_copies(self, names: Sequence[str]) -> dict[str, DeviceArray]:
        """Return outputs as copies on the device, complete on return."""
        arrays = {name: self._outputs.lend(self._device_array(name)) for name in names}
        self.device.synchronize()
        return arrays

    def _device_array(self, tensor: str) -> DeviceArray:
        """Return a tensor copied with the gaps between its rows, so that its strides stay."""
        type_, storage = self.plan.types[tensor], self.plan.storages[tensor]
        nbytes = max(extent_bytes(type_, storage) - storage.offset * type_.dtype.size, 0)
        own = Pointer(self._outputs.take(nbytes))
        self.device.copy(own, self._tensor_pointer(tensor), nbytes)
        return DeviceArray(type_, own, self.device, storage.strides)

    def trace(self, inputs: Mapping[str, object]) -> Iterator[tuple[int, dict[str, Array]]]:
        """Run launch by launch and yield each step with its written tensors.

        Other threads wait for the end.
        """
        with self._exclusive():
            self._state.evict()
            self._feed(inputs)
            for (number, turn), launch in zip(self._placed.sequence.order, self._sequence.launches, strict=True):
                launch()
                step = self.plan.steps[number]
                arguments = self.plan.kernels[step.kernel].arguments
                written = dict.fromkeys(t for a, t in zip(arguments, step.tensors, strict=True) if a.written)
                yield number, {tensor: self._read(tensor, turn) for tensor in written}

    def time_compute(self, *, warmup: int = 3, repeats: int = 20) -> Timing:
        """Time all steps together on the device, without copies."""
        with self._exclusive():
            self._state.evict()
            return self.device.time(self._find_replay(), warmup=warmup, repeats=repeats)

    def time_steps(self, *, repeats: int = 10) -> tuple[Timing, ...]:
        """Time each step within a run.

        Those of a loop are timed at their first iteration.
        """
        with self._exclusive():
            return self.device.time_each(self.first_launches(), repeats=repeats)

    def first_launches(self) -> list[Launch]:
        """Return the launch of each step, of a loop's first iteration.

        Profiles use them, which check no result.
        """
        self._state.evict_for_good()
        launched = zip(self._placed.sequence.order, self._sequence.launches, strict=True)
        return [launch for (_, turn), launch in launched if turn == 0]

    @property
    def arena(self) -> Buffer:
        """Memory of all tensors."""
        return self._arena

"""Plans bound to inputs and outputs at places of the caller.

Only intermediates are in an arena of the plan's own. So one plan serves every layer, for any buffer of the layer's
weights, and nothing is copied in or out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends import Buffer, Device, Launch, Pointer
from ..ir import PlanError, TensorType
from ..runtime import Lifetime, Plan, align_bytes, extent_bytes, loop_carried_buffers, place_buffers
from .buffers import Arena


class BoundPlan:
    """Plan on a device, which `launch` runs on given places.

    Places that were used before are not bound again.
    """

    def __init__(self, plan: Plan, device: Device, arena: Arena, scratch: Buffer | None = None) -> None:
        self.plan, self.device = plan, device
        self.outside = (*plan.inputs, *plan.outputs)
        for name in self.outside:
            if plan.storages[name].buffer != name or plan.storages[name].offset:
                raise PlanError(f"plan {plan.name}: {name} has no buffer of its own")
        self._places, self.nbytes = place_buffers(*_buffers(plan))
        self._arena = (
            scratch
            if scratch is not None and scratch.nbytes >= self.nbytes
            else arena.allocate(self.nbytes, f"{plan.name}: inside")
        )
        self._fixed = self._constants(arena)
        self._loaded = device.build(plan.kernels, plan.binaries)
        self._tables = self._upload_tables(arena)
        self._bound: dict[tuple[tuple[int, int], ...], list[Launch]] = {}

    @property
    def arena(self) -> Buffer:
        """Memory of the intermediates.

        Another plan may share it when this one does not run.
        """
        return self._arena

    def _constants(self, arena: Arena) -> dict[str, Pointer]:
        constants = {n: a for n, a in self.plan.constants.items() if n == self.plan.storages[n].buffer}
        memory = arena.allocate(sum(align_bytes(a.nbytes) for a in constants.values()), f"{self.plan.name}: constants")
        found, start = {}, 0
        for name, array in constants.items():
            found[name] = Pointer(memory, start)
            self.device.upload(found[name], np.ascontiguousarray(array))
            start += align_bytes(array.nbytes)
        return found

    def _upload_tables(self, arena: Arena) -> list[dict[str, Pointer]]:
        found: list[dict[str, Pointer]] = []
        for kernel in self.plan.kernels:
            places = {}
            for name, values in kernel.tables.items():
                array = np.array(values, np.int32)
                places[name] = Pointer(arena.allocate(array.nbytes, f"{self.plan.name}: tables"))
                self.device.upload(places[name], array)
            found.append(places)
        return found

    def type(self, name: str) -> TensorType:
        """Return the type of an input or output."""
        return self.plan.types[name]

    def launch(self, places: Mapping[str, Pointer]) -> None:
        """Launch every step on these places, without waiting for the end."""
        key = tuple((id(places[name].buffer), places[name].offset) for name in self.outside)
        if key not in self._bound:
            self._bound[key] = [self._bind(number, turn, places) for number, turn in self.plan.launches()]
        for run in self._bound[key]:
            run()

    def _bind(self, number: int, turn: int, places: Mapping[str, Pointer]) -> Launch:
        step = self.plan.steps[number]
        kernel = self.plan.kernels[step.kernel]
        pointers = [
            self._tables[step.kernel][tensor] if argument.table else self._place(tensor, turn, places)
            for argument, tensor in zip(kernel.arguments, step.tensors, strict=True)
        ]
        return self.device.bind(self._loaded[step.kernel], kernel, pointers)

    def _place(self, tensor: str, turn: int, places: Mapping[str, Pointer]) -> Pointer:
        storage = self.plan.storages[tensor]
        known: Any = places.get(storage.buffer) or self._fixed.get(storage.buffer)
        start: Pointer = known if known is not None else Pointer(self._arena, self._places[storage.buffer].offset)
        return Pointer(start.buffer, start.offset + storage.start(turn) * self.plan.types[tensor].dtype.size)


def intermediate_bytes(plan: Plan) -> int:
    """Return the bytes of a plan's intermediates, as `BoundPlan` places them."""
    return place_buffers(*_buffers(plan))[1]


def _buffers(plan: Plan) -> tuple[dict[str, int], dict[str, Lifetime]]:
    sizes: dict[str, int] = {}
    lifetimes: dict[str, Lifetime] = {}
    outside = (*plan.inputs, *plan.outputs, *plan.constants)
    for number, step in enumerate(plan.steps):
        for argument, tensor in zip(plan.kernels[step.kernel].arguments, step.tensors, strict=True):
            if argument.table or (buffer := plan.storages[tensor].buffer) in outside:
                continue
            sizes[buffer] = max(sizes.get(buffer, 0), extent_bytes(plan.types[tensor], plan.storages[tensor]))
            lifetimes[buffer] = lifetimes.get(buffer, Lifetime(number, number)).extend(number)
    for buffer, loop in loop_carried_buffers(plan, plan.storages):
        if buffer in lifetimes:
            lifetimes[buffer] = lifetimes[buffer].extend(loop.first).extend(loop.last - 1)
    return sizes, lifetimes

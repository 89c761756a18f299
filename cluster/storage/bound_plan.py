"""Plans bound to inputs and outputs at places of the caller.

Only intermediates are in an arena of the plan's own. So one plan serves every layer, for any buffer of the layer's
weights, and nothing is copied in or out.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...backends import Array, BlockAddress, BoundSequence, Buffer, Device, Pointer
from ...ir import PlanError, TensorType
from ...runtime import CONSTANTS, SCRATCH, ConstantImages, PlacedPlan, Plan, place_over_blocks
from .buffers import Arena


class BoundPlan:
    """Plan on a device, which `launch` runs on given places.

    Places that were used before are not bound again.
    """

    def __init__(self, plan: Plan, device: Device, arena: Arena, scratch: Buffer | None = None) -> None:
        self.plan, self.device = plan, device
        self.outside = tuple(dict.fromkeys((*plan.inputs, *plan.outputs)))
        for name in self.outside:
            if plan.storages[name].buffer != name or plan.storages[name].offset or name in plan.constants:
                raise PlanError(f"plan {plan.name}: {name} has no buffer of its own")
        self._placed = _place_over_blocks(plan)
        constants, inside = self._placed.sizes[CONSTANTS], self._placed.sizes[SCRATCH]
        fits = scratch is not None and scratch.nbytes >= inside
        self._arena = scratch if scratch is not None and fits else arena.allocate(inside, f"{plan.name}: inside")
        self._constants = Pointer(arena.allocate(constants, f"{plan.name}: constants"))
        self._placed.upload(ConstantImages.of_plan(plan), self._upload)
        self._loaded = device.build(plan.kernels, plan.binaries)
        self._bound: dict[tuple[tuple[Buffer, int], ...], BoundSequence] = {}

    @property
    def arena(self) -> Buffer:
        """Memory of the intermediates.

        Another plan may share it when this one does not run.
        """
        return self._arena

    def _upload(self, place: BlockAddress, array: Array) -> None:
        self.device.upload(Pointer(self._constants.buffer, place.offset), array)

    def type(self, name: str) -> TensorType:
        """Return the type of an input or output."""
        return self.plan.types[name]

    def launch(self, places: Mapping[str, Pointer]) -> None:
        """Launch every step on these places, without waiting for the end."""
        key = tuple((places[name].buffer, places[name].offset) for name in self.outside)
        if key not in self._bound:
            blocks = [self._constants, Pointer(self._arena), *(places[name] for name in self.outside)]
            plan = self.plan
            self._bound[key] = BoundSequence(self.device, self._placed.sequence, plan.kernels, self._loaded, blocks)
        self._bound[key].launch()


def intermediate_bytes(plan: Plan) -> int:
    """Return the bytes of a plan's intermediates, as `BoundPlan` places them."""
    return _place_over_blocks(plan).sizes[SCRATCH]


def _place_over_blocks(plan: Plan) -> PlacedPlan:
    """Place a plan over blocks that its callers hold."""
    return place_over_blocks(plan, held=plan.inputs, bound_once=False)

"""Gradients of an embedding whose table is the head's matrix too.

Embedding and head have a copy of the table each, with equal values. Before the optimiser works, both gradients become
their sum, chunk by chunk, so that the copies stay equal. Of several stages the first and the last exchange chunks
(Shoeybi et al., Megatron-LM, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..backends import Buffer, Device, Pointer
from .engine import Engine
from .kernels import Kernels
from .plans import Transformer, Way
from .prediction import CHUNK_PARAMETERS
from .storage import Arena, BoundPlan, LayerStore, Move, Mover, Slots


class StagedRunner(Protocol):
    """Runner as the sum uses it.

    It has a stage's gradients, and the means to move, send and launch.
    """

    device: Device
    arena: Arena
    model: Transformer
    way: Way
    engine: Engine
    names: list[int]
    stage: int
    level: int
    sums: dict[int, Buffer]
    store: LayerStore
    mover: Mover

    def launch(self, bound: BoundPlan, places: dict[str, Pointer]) -> None:
        """Run a plan and wait for it."""

    def wait(self, moves: Sequence[Move]) -> None:
        """Wait until all moves are done."""


class TiedGradients:
    """Sum of the gradients of both copies of a table.

    It is nothing in models whose head has a matrix of its own. A buffer of `slots` has room for a chunk's values at
    each `stride`.
    """

    def __init__(
        self, runner: StagedRunner, kernels: Kernels, scratch: Buffer | None, slots: Slots, stride: int
    ) -> None:
        self.runner, self.slots, self.stride = runner, slots, stride
        self.layers = [layer for layer in (0, runner.model.layers + 1) if layer in runner.names]
        self.plans = {
            plan.types["y"].shape[0]: BoundPlan(plan, runner.device, runner.arena, scratch)
            for plan in (kernels.sums if self.layers else ())
        }

    def sum(self) -> None:
        """Replace the gradients of the tables on this stage by their sum."""
        words = self.runner.model.words if self.plans else 0
        for start in range(0, words, CHUNK_PARAMETERS):
            self._sum_chunk(start, min(CHUNK_PARAMETERS, words - start))

    def _sum_chunk(self, start: int, count: int) -> None:
        width, buffer, mover = self.runner.model.value_bytes, self.slots.take(), self.runner.mover
        nbytes, spare = count * width, (Pointer(buffer, number * self.stride) for number in range(3))
        result = next(spare)
        if self.runner.level:
            places = {layer: Pointer(self.runner.sums[layer], start * width) for layer in self.layers}
        else:
            places = {layer: next(spare) for layer in self.layers}
            self.runner.wait([mover.fetch(*self._range(each, start), nbytes, place) for each, place in places.items()])
        own, *others = places.values()
        if not others:
            others = [next(spare)]
            self._exchange(own, others[0], nbytes)
        self.runner.launch(self.plans[count], {"a": own, "b": others[0], "y": result})
        for layer, place in places.items():
            if self.runner.level:
                self.runner.device.copy(place, result, nbytes)
                self.runner.device.synchronize()
            else:
                mover.store(*self._range(layer, start), nbytes, result)
        mover.drain()
        self.slots.give(buffer)

    def _range(self, layer: int, start: int) -> tuple[Path, int]:
        made = self.runner.store.layout("gradients", layer)
        return self.runner.store.path("gradients", layer), made.start + start * made.dtype.size

    def _exchange(self, own: Pointer, other: Pointer, nbytes: int) -> None:
        """Exchange a chunk with the stage that has the other copy."""
        engine, last = self.runner.engine, self.runner.way.p - 1
        first = self.runner.stage == 0
        wait = engine.send(own, nbytes, last if first else 0, backward=first)
        engine.receive(other, nbytes, last if first else 0, backward=not first)
        wait()

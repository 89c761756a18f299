"""Optimiser step, in chunks from one generation of files to the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol, Self

import numpy as np
from attrs import frozen

from ..backends import Buffer, Device, Pointer
from ..ir import DType
from .kernels import Kernels
from .plans import Transformer
from .prediction import CHUNK_PARAMETERS
from .storage import Arena, BoundPlan, LayerStore, Move, Mover, Slots, state_kinds


class TrainedRunner(Protocol):
    """Runner as the optimiser uses it.

    It has a stage's weights and summed gradients, and the means to move and launch.
    """

    device: Device
    arena: Arena
    model: Transformer
    names: list[int]
    level: int
    generation: int | None
    weights: dict[int, Buffer]
    sums: dict[int, Buffer]
    sum_slots: Slots
    scalars: dict[str, Buffer]
    store: LayerStore
    mover: Mover

    def launch(self, bound: BoundPlan, places: dict[str, Pointer]) -> None:
        """Run a plan and wait for it."""

    def wait(self, moves: Sequence[Move]) -> None:
        """Wait until all moves are done."""


@frozen
class ChunkSlots:
    """Pool of buffers for all values of a chunk.

    As each value has one place in a buffer, plans are bound to few places.
    """

    slots: Slots
    offsets: Mapping[str, int]

    @classmethod
    def allocate(cls, arena: Arena, elements: int, widths: Mapping[str, int]) -> Self:
        """Return a pool for values of so many bytes an element."""
        ends = [elements * end for end in accumulate(widths.values(), initial=0)]
        return cls(Slots(arena, ends[-1], "optimiser"), dict(zip(widths, ends, strict=False)))

    def places(self, buffer: Buffer) -> dict[str, Pointer]:
        """Return the place of each value in a buffer."""
        return {name: Pointer(buffer, offset) for name, offset in self.offsets.items()}


class Updates:
    """Adam on the parameters of a stage, in chunks.

    While a chunk is updated, the next is fetched and the last one stored.
    """

    def __init__(self, runner: TrainedRunner, kernels: Kernels, scratch: Buffer | None) -> None:
        self.runner = runner
        #: Adam by the elements of a chunk.
        self.adam = {
            plan.types["w"].shape[0]: BoundPlan(plan, runner.device, runner.arena, scratch)
            for plan in kernels.adam
            if any(plan.types["w"].shape[0] in self._chunk_sizes(layer) for layer in runner.names)
        }
        state = state_kinds(runner.model)
        #: The kind of file of the parameters that Adam updates, of each value that it reads, and of its results.
        self.master = "master" if "master" in state else "weights"
        self.values = {"mean": "mean", "square": "square"} | ({"g": "gradients"} if runner.level == 0 else {})
        self.values |= {"w": self.master} if runner.level < 2 or self.master != "weights" else {}
        self.results = {"w.next": self.master} | {f"{kind}.next": kind for kind in ("mean", "square")}
        if self.master != "weights":
            self.results["value.next"] = "weights"
        self.given_out = next(name for name, kind in self.results.items() if kind == "weights")
        self.given, self.made = (
            ChunkSlots.allocate(
                runner.arena,
                max(self.adam),
                {name: (DType.F32 if kind in state else runner.model.dtype).size for name, kind in kinds.items()},
            )
            for kinds in (self.values, self.results)
        )

    def step(self, number: int, rate: float) -> None:
        """Update every parameter of this stage: read one generation, write the other."""
        self.runner.device.upload(Pointer(self.runner.scalars["rate"]), np.asarray([rate], np.float32))
        self.runner.device.upload(Pointer(self.runner.scalars["step"]), np.asarray([number + 1], np.float32))
        chunks = [
            (layer, start)
            for layer in self.runner.names
            for start in range(0, self.runner.store.elements(layer), CHUNK_PARAMETERS)
        ]
        coming = self._fetch_chunk(*chunks[0], number)
        leaving: list[tuple[list[Move], Buffer]] = []
        for position, (layer, start) in enumerate(chunks):
            moves, held = coming
            # The next transfers queue after those that are waited for: storage is not idle between chunks.
            if position + 1 < len(chunks):
                coming = self._fetch_chunk(*chunks[position + 1], number)
            self.runner.wait(moves)
            made = self.made.slots.take()
            count = self._count(layer, start)
            places = self.given.places(held) | self.made.places(made)
            width = self.runner.model.dtype.size
            if self.runner.level >= 1:
                places["g"] = Pointer(self.runner.sums[layer], width * start)
            if self.runner.level >= 2:
                weights = Pointer(self.runner.weights[layer], width * start)
                places |= {"w": weights} if self.master == "weights" else {}
            places |= {name: Pointer(self.runner.scalars[name]) for name in ("rate", "step")}
            self.runner.launch(self.adam[count], places)
            if self.runner.level >= 2:
                self.runner.device.copy(weights, places[self.given_out], width * count)
                self.runner.device.synchronize()
            self.given.slots.give(held)
            leaving.append((self.store_chunk(layer, start, count, number, made), made))
            while len(leaving) > 1:
                self._retire(*leaving.pop(0))
        for each in leaving:
            self._retire(*each)
        if self.runner.level >= 2:
            self.runner.generation = (number + 1) % 2
        for buffer in self.runner.sums.values():
            self.runner.sum_slots.give(buffer)
        self.runner.sums.clear()

    def _fetch_chunk(self, layer: int, start: int, number: int) -> tuple[list[Move], Buffer]:
        held, moves = self.given.slots.take(), []
        for name, place in self.given.places(held).items():
            kind = self.values[name]
            begin, nbytes = self._range(kind, layer, start, self._count(layer, start))
            moves.append(self.runner.mover.fetch(self.runner.store.path(kind, layer, number % 2), begin, nbytes, place))
        return moves, held

    def _count(self, layer: int, start: int) -> int:
        """Return the elements of a layer's chunk."""
        return min(CHUNK_PARAMETERS, self.runner.store.elements(layer) - start)

    def _chunk_sizes(self, layer: int) -> set[int]:
        return {self._count(layer, start) for start in range(0, self.runner.store.elements(layer), CHUNK_PARAMETERS)}

    def _range(self, kind: str, layer: int, start: int, count: int) -> tuple[int, int]:
        """Return where some elements begin in their file, and how many bytes they are."""
        made = self.runner.store.layout(kind, layer)
        return made.start + made.dtype.size * start, made.dtype.size * count

    def store_chunk(self, layer: int, start: int, count: int, number: int, made: Buffer) -> list[Move]:
        """Start to write an updated chunk to the next generation of files."""
        moves = []
        for name, place in self.made.places(made).items():
            kind = self.results[name]
            path = self.runner.store.path(kind, layer, (number + 1) % 2)
            key = (kind, layer, start)
            moves.append(self.runner.mover.store(path, *self._range(kind, layer, start, count), place, key))
            self.runner.mover.leaving.pop(key)
        return moves

    def _retire(self, moves: Sequence[Move], made: Buffer) -> None:
        self.runner.wait(moves)
        self.made.slots.give(made)

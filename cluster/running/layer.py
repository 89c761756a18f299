"""Kernels of one layer: a block's plans, or those of its halves.

Halves are used where several GPUs share the layer. Attention and MLP each end with a sum over the layer's GPUs,
backward as well as forward.
"""

from __future__ import annotations

from ...backends import Buffer, Pointer
from .traffic import Traffic


class LayerKernels(Traffic):
    """Process that computes layers."""

    def block_forward(self, layer: int, x: Pointer, y: Pointer, inner: Buffer | None) -> None:
        """Compute a layer.

        Values for its backward pass are saved in `inner`, where it is given.
        """
        given, (source, *middles) = self.places(layer), self._sources(x, inner)
        goals = [*middles, y]
        for half, goal in enumerate(goals):
            self._half_forward(half, given, source, goal, inner)
            source = goal
        self._free(middles, inner)

    def _half_forward(
        self, half: int, given: dict[str, Pointer], source: Pointer, goal: Pointer, inner: Buffer | None
    ) -> None:
        self.launch(self.forward[half], {**given, **self._saved_places(half, inner), "x": source, "y": goal})
        self.join(goal)

    def block_backward(
        self, layer: int, places: tuple[Pointer, Pointer, Pointer], sums: tuple[Buffer, Buffer], inner: Buffer | None
    ) -> None:
        """Compute a layer's gradients.

        They go from `x` and `dy` to `dx` (the places) and from one sum to the next; values that were not saved are
        recomputed.
        """
        (x, dy, dx), given = places, {**self.places(layer), **self.sum_places(layer, sums)}
        sources = self._sources(x, inner)
        if inner is None:
            for half, goal in enumerate(sources[1:]):
                self._half_forward(half, given, sources[half], goal, None)
        slope = dy
        for half in reversed(range(len(sources))):
            goal = Pointer(self.acts.take()) if half else dx
            self.launch(
                self.backward[half],
                {**given, **self._saved_places(half, inner), "x": sources[half], "dy": slope, "dx": goal},
            )
            self.join(goal)
            if slope is not dy:
                self.acts.give(slope.buffer)
            slope = goal
        self._free(sources[1:], inner)

    def sum_places(self, layer: int, sums: tuple[Buffer, Buffer]) -> dict[str, Pointer]:
        """Return the places of gradients before a pass and after it."""
        (before, after), offsets = sums, self.store.layout("weights", layer).offsets
        found = {f"{name}.sum": Pointer(before, offset) for name, offset in offsets.items()}
        return found | {f"{name}.next": Pointer(after, offset) for name, offset in offsets.items()}

    def _saved_places(self, half: int, inner: Buffer | None) -> dict[str, Pointer]:
        """Return the places of a half's saved values."""
        if inner is None:
            return {}
        return {name: Pointer(inner, offset) for name, offset in self.saved_offsets[half].items()}

    def _sources(self, x: Pointer, inner: Buffer | None) -> list[Pointer]:
        """Return the place that each half reads from: between halves a saved value, or temporary memory."""
        if inner is None:
            return [x, *(Pointer(self.acts.take()) for _ in self.forward[1:])]
        return [x, *(Pointer(inner, offsets["x"]) for offsets in self.saved_offsets[1:])]

    def _free(self, middles: list[Pointer], inner: Buffer | None) -> None:
        for each in middles if inner is None else ():
            self.acts.give(each.buffer)

"""Transfers while layers compute: weights, activations and gradients.

They go between storage and device memory, and to other stages. `Traffic` starts transfers and frees buffers; the
`Runner` decides when each is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...backends import Array, Buffer, Pointer
from ..prediction import LayerPass, adds_to_same
from ..storage import PIECE_BYTES, CountedBuffer, Move, Slots, round_to_pages
from .process import Process


class Traffic(Process):
    """Process with transfers."""

    def _begin(self) -> None:
        """Forget the stored and outgoing values of earlier steps."""
        self.stored: set[object] = set()
        self.leaving: list[tuple[tuple[str, int, int], CountedBuffer]] = []
        self.leaving_sums: list[tuple[tuple[str, int], Buffer]] = []

    def _reset(self) -> None:
        """Forget the values of the previous mini-batch."""
        self.inputs: dict[tuple[int, int], CountedBuffer] = {}
        self.grads: dict[tuple[int, int], CountedBuffer] = {}
        self.inner: dict[tuple[int, int], CountedBuffer] = {}
        self.sums.clear()
        self.sending: list[tuple[Callable[[], None], CountedBuffer]] = []
        self.outputs: dict[int, Array] = {}
        self.begun: dict[int, int] = {}  # bytes of weights in flight, of layers that have not computed yet
        self.arriving: dict[int, list[Move]] = {}
        self.lost = 0.0

    def _fetch(self, step: LayerPass, before: LayerPass | None) -> list[Move]:
        """Start to fetch a step's inputs besides weights; the target buffers are free while `before` computes."""
        moves: list[Move] = []
        key, pr = (step.layer, step.micro), self.way.policy == "PR"
        first = step.layer == 0
        if self.offload and not first and (step.backward or (pr and before is not None)) and key not in self.inputs:
            moves += self._fetch_held(("inputs", *key), self.inputs, key, self.acts, self.boundary)
        if not step.backward:
            return moves
        if self.offload and self.keeps:
            moves += self._fetch_held(("inner", *key), self.inner, key, self.saved_slots, self.saved_bytes)
        if self.offload and pr and key not in self.grads:
            moves += self._fetch_held(("grads", *key), self.grads, key, self.acts, self.boundary)
        if self.level == 0 and not pr and step.micro and not (before and adds_to_same(before, step)):
            self.wait_stored(("sum", step.layer))
            held = self.sum_slots.take()
            self.sums[step.layer] = held
            path, made = self.store.path("gradients", step.layer), self.store.layout("weights", step.layer)
            moves.append(self.mover.fetch(path, made.start, made.nbytes, Pointer(held)))
        return moves

    def _fetch_held(
        self,
        name: tuple[str, int, int],
        into: dict[Any, CountedBuffer],
        key: tuple[int, int],
        slots: Slots,
        nbytes: int,
    ) -> list[Move]:
        if (*name, "stored") not in self.stored:
            return []  # it arrives from another stage, or is still here
        self.wait_stored(name)
        held = CountedBuffer(slots, slots.take())
        into[key] = held
        return [
            self.mover.fetch(
                self.store.scratch(self.stage, name[0]), self._scratch_start(name, nbytes), nbytes, held.place
            )
        ]

    def _scratch_start(self, name: tuple[str, int, int], nbytes: int) -> int:
        _, layer, micro = name
        return (self.names.index(layer) * self.micros + micro) * round_to_pages(nbytes)

    def _bring_weights(self, layer: int, before: int | None, number: int, part: int, parts: int) -> None:
        """Start to fetch the first `part` of so many parts of a layer's weights, without those already started;
        resident weights of all layers.

        `before` is the layer that computes meanwhile.
        """
        generation = number % 2 if self.plan.training else 0
        if self.generation != generation:
            self.free_weights(None)
            self.generation = generation
        if layer not in self.begun:
            if layer in self.weights and (self.level >= 2 or layer == before):
                return
            if self.level < 2:
                self.free_weights(before)
            for each in self.names if self.level >= 2 else [layer]:
                self.weights[each] = self.weight_slots.take(self.resident_bytes(each, 2))
                self.begun[each] = 0
        for each in self.begun:
            self._bring_pieces(each, generation, part, parts)

    def _arrival_moves(self, layer: int) -> list[Move]:
        """Return the moves that a layer's weights wait for."""
        self.begun.pop(layer, None)
        return self.arriving.pop(layer, [])

    def _bring_pieces(self, layer: int, generation: int, part: int, parts: int) -> None:
        """Start to fetch the missing pieces of the first parts of a layer's weights, in whole pieces."""
        made = self.store.layout("weights", layer)
        begin, end = self.begun[layer], min(made.nbytes, -(-made.nbytes * part // (parts * PIECE_BYTES)) * PIECE_BYTES)
        if end > begin:
            path, place = self.store.path("weights", layer, generation), Pointer(self.weights[layer], begin)
            self.arriving.setdefault(layer, []).append(self.mover.fetch(path, made.start + begin, end - begin, place))
        self.begun[layer] = max(begin, end)

    def free_weights(self, before: int | None) -> None:
        """Free the memory of all layers' weights but those of one."""
        for old in [each for each in self.weights if each != before]:
            self.weight_slots.give(self.weights.pop(old))

    def move_weights(self, layer: int, place: Pointer | None = None, generation: int = 0) -> Move:
        """Start to fetch a layer's weights.

        They go to `place`, by default to the layer's buffer.
        """
        made = self.store.layout("weights", layer)
        path = self.store.path("weights", layer, generation)
        return self.mover.fetch(path, made.start, made.nbytes, place or Pointer(self.weights[layer]))

    def _keep(
        self,
        kind: str,
        into: dict[Any, CountedBuffer],
        key: tuple[int, int],
        held: CountedBuffer,
        nbytes: int,
        *,
        only_pr: bool = False,
    ) -> None:
        """Keep a value in memory, or move it to storage, as the plan requires."""
        if self.offload and (not only_pr or self.way.policy == "PR"):
            self._store(kind, key, held, nbytes)
        else:
            into[key] = held

    def _store(self, kind: str, key: tuple[int, int], held: CountedBuffer, nbytes: int) -> None:
        name = (kind, *key)
        self._settle()
        self.mover.store(
            self.store.scratch(self.stage, kind), self._scratch_start(name, nbytes), nbytes, held.place, name
        )
        self.stored.add((*name, "stored"))
        self.leaving.append((name, held))

    def _settle(self, limit: int = 1) -> None:
        """Wait until at most so many buffers are outgoing, and free the others."""
        while len(self.leaving) > limit:
            name, held = self.leaving.pop(0)
            self.wait_stored(name)
            held.release()

    def _settle_sums(self, limit: int = 0) -> None:
        while len(self.leaving_sums) > limit:
            name, buffer = self.leaving_sums.pop(0)
            self.wait_stored(name)
            self.sum_slots.give(buffer)

    def _send(self, held: CountedBuffer, stage: int, *, backward: bool) -> None:
        self.sending.append((self.engine.send(held.place, self.boundary, stage, backward=backward), held))
        while len(self.sending) > self.unsent:
            wait, old = self.sending.pop(0)
            wait()
            old.release()

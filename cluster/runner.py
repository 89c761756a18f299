"""Running a plan: the schedule's steps in order, with weights that come from storage while layers compute.

At any time three things happen at once, as in the rounds of `stages.py`: a step computes, what the next one needs comes
in, what the last one made leaves. All device memory comes from one arena with a cap. The kernels are plans of ours,
compiled once for all layers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define, field

from ..backends import Array, Buffer, Device, Pointer, Transfers, find_target, open_device, open_transfers
from ..ir import UsageError
from .batches import Batches, random_batches
from .bound import BoundPlan
from .buffers import Arena, Held, HostPool, Slots
from .disk import Disk
from .engine import Alone, Engine
from .kernels import Kernels, check_runnable, compile_kernels
from .layer_files import paged, reserve
from .mover import Move, Mover
from .plan_file import ClusterPlan
from .schedule import Step, order, placement
from .store import Store, open_store
from .updates import Updates
from .ways import RESIDENT

_ROOM = 64  # bytes of a scalar's buffer


@define
class Report:
    """What a run took: seconds of each step, bytes read and written by this process, seconds that kernels ran, and the
    losses.
    """

    seconds: list[float] = field(factory=list)
    losses: list[float] = field(factory=list)
    compute: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    memory: int = 0
    first_step: int = 0


class Runner:
    """One process of a run: a stage of a group, on one device."""

    def __init__(
        self,
        plan: ClusterPlan,
        folder: str | os.PathLike[str],
        target: str = "opencl",
        *,
        memory: float | None = None,
        engine: Engine | Callable[[Device], Engine] | None = None,
        kernels: Kernels | None = None,
        batches: Batches | None = None,
        seed: int = 0,
        direct: bool = True,
    ) -> None:
        check_runnable(plan)
        self.plan, self.model, self.way = plan, plan.model, plan.way
        self.device = open_device(find_target(target))
        self.engine: Engine = engine(self.device) if callable(engine) else engine or Alone()
        if self.engine.size != self.way.gpus:
            raise UsageError(
                f"the plan takes {self.way.gpus} processes, {self.engine.size} run", hint="start them with torchrun"
            )
        self.stage, self.group = self.engine.rank % self.way.p, self.engine.rank // self.way.p
        self.layers = placement(self.model, self.way)[self.stage]
        self.names = [each.layer for each in self.layers]
        self.micros = self.model.batch // (self.way.dp * self.way.micro)
        self.level = RESIDENT.index(self.way.resident)
        self.offload = self.way.activations.endswith("offload")
        self.batches = batches or random_batches(self.model, self.way.micro, seed)
        own = os.path.join(folder, f"group-{self.group}") if self.way.dp > 1 else folder
        self.store: Store = open_store(own, self.model, self.names, training=plan.training, seed=seed)
        self.engine.least(0)
        self.kernels = kernels or compile_kernels(plan, target)
        self.transfers: Transfers = open_transfers(self.device)
        self.disk = Disk(direct=direct, prepare=self.transfers.prepare)
        self.pool = HostPool(self.transfers)
        self.mover = Mover(self.disk, self.transfers, self.pool)
        self.arena = Arena(self.device, memory if memory is not None else plan.machine.memory)
        self._allocate()
        self._reserve()
        self.report = Report()
        self.done = self.engine.least(self.store.steps(self.stage)) if plan.training else 0
        self.report.first_step = self.done
        self.generation: int | None = None  # of the weights in memory

    # Memory.

    def _allocate(self) -> None:
        model, kernels = self.model, self.kernels
        boundary = 4 * self.way.micro * model.sequence * model.hidden
        self.boundary = boundary
        self.acts = Slots(self.arena, boundary, "activations between layers")
        self.weights: dict[int, Buffer] = {}
        nbytes = self.store.weights.nbytes
        self.weight_slots = Slots(self.arena, nbytes, "weights")
        plans = [p for p in (kernels.forward, kernels.backward, kernels.loss) if p is not None]
        bound: list[BoundPlan] = []
        scratch: Buffer | None = None
        for plan in sorted(plans, key=lambda p: -p.arena):
            made = BoundPlan(plan, self.device, self.arena, scratch)
            scratch = scratch or made.arena
            bound.append(made)
        by_plan = {id(made.plan): made for made in bound}
        self.forward = by_plan[id(kernels.forward)]
        if kernels.backward is None or kernels.loss is None or kernels.adam is None:
            return
        self.backward, self.loss = by_plan[id(kernels.backward)], by_plan[id(kernels.loss)]
        self.updates = Updates(self, kernels, scratch)
        self.sum_slots = Slots(self.arena, nbytes, "gradients")
        self.zeros = self.arena.allocate(nbytes, "gradients")
        types = kernels.forward.types
        self.saved_offsets, cursor = {}, 0
        for name in kernels.saved:
            self.saved_offsets[name] = cursor
            cursor += -(-types[name].nbytes // 256) * 256
        self.saved_bytes = cursor
        self.saved_slots = Slots(self.arena, max(cursor, 1), "values inside layers")
        self.scalars = {name: self.arena.allocate(_ROOM, "scalars") for name in ("rate", "step", "loss")}

    def _reserve(self) -> None:
        """Take the room on the disk that activations need, so that a full disk shows before anything is computed."""
        if not self.offload:
            return
        kinds = {"inputs": self.boundary}
        if self.plan.training:
            kinds |= {"inner": self.saved_bytes} if self.kernels.saved else {}
            kinds |= {"grads": self.boundary} if self.way.policy == "PR" else {}
        for kind, nbytes in kinds.items():
            reserve(self.store.scratch(self.stage, kind), len(self.names) * self.micros * paged(nbytes))

    def close(self) -> None:
        """Stop the threads and close all files."""
        self.mover.leaving.clear()
        self.disk.close()

    # One mini-batch's passes.

    def _reset(self) -> None:
        self.inputs: dict[tuple[int, int], Held] = {}
        self.grads: dict[tuple[int, int], Held] = {}
        self.inner: dict[tuple[int, int], Held] = {}
        self.sums: dict[int, Buffer] = {}
        self.sending: list[tuple[Callable[[], None], Held]] = []
        self.outputs: dict[int, Array] = {}
        self.lost = 0.0

    def passes(self, number: int) -> None:
        """Take all micro-batches of a mini-batch through this stage's layers, forward and in training backward."""
        self._reset()
        steps = list(order(self.layers, self.way, self.stage, self.micros, training=self.plan.training))
        coming = self._fetch(steps[0], None, number)
        for position, step in enumerate(steps):
            for move in coming:
                move.wait()
            following = steps[position + 1] if position + 1 < len(steps) else None
            # What the next step would read back at once stays in memory.
            self.turns = following == Step(True, step.layer, step.micro) and self.way.policy == "AR"
            coming = self._fetch(following, step, number) if following else []
            (self._backward if step.backward else self._forward)(step, number)
        for wait, held in self.sending:
            wait()
            held.release()
        self.sending.clear()

    def _fetch(self, step: Step, before: Step | None, number: int) -> list[Move]:
        """Begin to bring what a step needs from storage; the buffers that it goes to are free while `before`
        computes.
        """
        moves = self._fetch_weights(step.layer, None if before is None else before.layer, number)
        key, pr = (step.layer, step.micro), self.way.policy == "PR"
        first = step.layer == 0
        if self.offload and not first and (step.backward or (pr and before is not None)) and key not in self.inputs:
            moves += self._fetch_held(("inputs", *key), self.inputs, key, self.acts, self.boundary)
        if not step.backward:
            return moves
        if self.offload and self.kernels.saved:
            moves += self._fetch_held(("inner", *key), self.inner, key, self.saved_slots, self.saved_bytes)
        if self.offload and pr and key not in self.grads:
            moves += self._fetch_held(("grads", *key), self.grads, key, self.acts, self.boundary)
        if self.level == 0 and not pr and step.micro:
            self.mover.gone(("sum", step.layer))
            held = self.sum_slots.take()
            self.sums[step.layer] = held
            path, made = self.store.path("gradients", step.layer), self.store.weights
            moves.append(self.mover.fetch(path, made.start, made.nbytes, Pointer(held)))
        return moves

    def _fetch_held(
        self, name: tuple[str, int, int], into: dict[Any, Held], key: tuple[int, int], slots: Slots, nbytes: int
    ) -> list[Move]:
        if (*name, "stored") not in self.stored:
            return []  # it arrives from another stage, or is still here
        self.mover.gone(name)
        held = Held(slots, slots.take())
        into[key] = held
        return [
            self.mover.fetch(
                self.store.scratch(self.stage, name[0]), self._scratch_start(name, nbytes), nbytes, held.place
            )
        ]

    def _scratch_start(self, name: tuple[str, int, int], nbytes: int) -> int:
        _, layer, micro = name
        return (self.names.index(layer) * self.micros + micro) * paged(nbytes)

    def _fetch_weights(self, layer: int, before: int | None, number: int) -> list[Move]:
        generation = number % 2 if self.plan.training else 0
        if layer in self.weights and (self.level >= 2 or layer == before) and self.generation == generation:
            return []
        if self.generation != generation:
            for buffer in self.weights.values():
                self.weight_slots.give(buffer)
            self.weights.clear()
            self.generation = generation
        if self.level < 2:
            for old in [each for each in self.weights if each != before]:
                self.weight_slots.give(self.weights.pop(old))
        wanted = self.names if self.level >= 2 else [layer]
        moves = []
        for each in wanted:
            self.weights[each] = self.weight_slots.take()
            moves.append(self.move_weights(each, generation=generation))
        return moves

    def move_weights(self, layer: int, place: Pointer | None = None, generation: int = 0) -> Move:
        """Begin to bring a layer's weights to a place, by default to the buffer that it has."""
        made = self.store.weights
        path = self.store.path("weights", layer, generation)
        return self.mover.fetch(path, made.start, made.nbytes, place or Pointer(self.weights[layer]))

    def places(self, layer: int) -> dict[str, Pointer]:
        """Return where the parameters of a layer lie in device memory."""
        return {name: Pointer(self.weights[layer], offset) for name, offset in self.store.weights.offsets.items()}

    def launch(self, bound: BoundPlan, places: dict[str, Pointer]) -> None:
        """Run a plan and wait for it."""
        begin = time.perf_counter()
        bound.launch(places)
        self.device.synchronize()
        self.report.compute += time.perf_counter() - begin

    def _input(self, step: Step, number: int) -> Held:
        """Return what a layer reads: from memory, from the batch, from storage (fetched before) or from the stage
        before it.
        """
        key = (step.layer, step.micro)
        if key in self.inputs:
            return self.inputs[key]
        held = Held(self.acts, self.acts.take())
        if step.layer == 0:
            x, _ = self.batches(number, self.group, step.micro)
            self.transfers.upload(held.place, np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint8))
        else:
            self.engine.receive(held.place, self.boundary // 4, self._stage_of(step.layer - 1), backward=False)
        self.inputs[key] = held
        return held

    def _stage_of(self, layer: int) -> int:
        return layer % self.way.p if self.way.policy == "PR" else layer // (self.model.layers // self.way.p)

    def _forward(self, step: Step, number: int) -> None:
        layer, micro = step.layer, step.micro
        x, y = self._input(step, number), Held(self.acts, self.acts.take())
        places = {**self.places(layer), "x": x.place, "y": y.place}
        inner: Held | None = None
        if self.kernels.saved:
            inner = Held(self.saved_slots, self.saved_slots.take())
            places |= {name: Pointer(inner.buffer, offset) for name, offset in self.saved_offsets.items()}
        self.launch(self.forward, places)
        if inner is not None and self.turns:
            self.inner[layer, micro] = inner
        elif inner is not None:
            self._keep("inner", self.inner, (layer, micro), inner, self.saved_bytes)
        if not self.plan.training:
            self.inputs.pop((layer, micro)).release()
        elif self.offload and not self.turns:
            held = self.inputs.pop((layer, micro))
            if layer and (self.way.policy == "AR" or layer - 1 not in self.names):
                self._store("inputs", (layer, micro), held, self.boundary)
            else:
                held.release()  # this stage wrote it when it made it; the first layer's comes with the batch again
        self._hand_on(step, y, number)

    def _hand_on(self, step: Step, y: Held, number: int) -> None:
        """Give a result to the next layer: on this stage, on another, or to the loss."""
        following, key = step.layer + 1, (step.layer + 1, step.micro)
        if following == self.model.layers:
            self._end(step, y, number)
        elif following not in self.names:
            self._send(y, self._stage_of(following), backward=False)
        else:
            self.inputs[key] = y
            if self.offload and self.way.policy == "PR":
                self._store("inputs", key, self.inputs.pop(key), self.boundary)

    def _send(self, held: Held, stage: int, *, backward: bool) -> None:
        self.sending.append((self.engine.send(held.place, self.boundary // 4, stage, backward=backward), held))
        while len(self.sending) > self.micros:  # with PR, the other stage may take a layer's results only later
            wait, old = self.sending.pop(0)
            wait()
            old.release()

    def _end(self, step: Step, y: Held, number: int) -> None:
        if not self.plan.training:
            host = np.empty(self.boundary // 4, np.float32)
            self.transfers.download(host.view(np.uint8), y.place)
            self.outputs[step.micro] = host.reshape(self.way.micro, self.model.sequence, self.model.hidden)
            y.release()
            return
        _, target = self.batches(number, self.group, step.micro)
        goal, dy = Held(self.acts, self.acts.take()), Held(self.acts, self.acts.take())
        self.transfers.upload(goal.place, np.ascontiguousarray(target, np.float32).reshape(-1).view(np.uint8))
        loss = Pointer(self.scalars["loss"])
        self.launch(self.loss, {"y": y.place, "target": goal.place, "dy": dy.place, "loss": loss})
        value = np.empty(1, np.float32)
        self.device.download(value, loss)
        self.lost += float(value[0])
        y.release()
        goal.release()
        self._keep("grads", self.grads, (step.layer, step.micro), dy, self.boundary, only_pr=True)

    def _keep(
        self,
        kind: str,
        into: dict[Any, Held],
        key: tuple[int, int],
        held: Held,
        nbytes: int,
        *,
        only_pr: bool = False,
    ) -> None:
        """Keep a value in memory, or move it to storage where the plan says so."""
        if self.offload and (not only_pr or self.way.policy == "PR"):
            self._store(kind, key, held, nbytes)
        else:
            into[key] = held

    def _store(self, kind: str, key: tuple[int, int], held: Held, nbytes: int) -> None:
        name = (kind, *key)
        self._settle()
        self.mover.store(
            self.store.scratch(self.stage, kind), self._scratch_start(name, nbytes), nbytes, held.place, name
        )
        self.stored.add((*name, "stored"))
        self.leaving.append((name, held))

    def _settle(self, most: int = 1) -> None:
        """Wait until at most so many buffers are on their way out, and free the others."""
        while len(self.leaving) > most:
            name, held = self.leaving.pop(0)
            self.mover.gone(name)
            held.release()

    def _backward(self, step: Step, number: int) -> None:
        layer, micro = step.layer, step.micro
        key = (layer, micro)
        x, dx = self._input(step, number), Held(self.acts, self.acts.take())
        if key not in self.grads:
            held = Held(self.acts, self.acts.take())
            self.engine.receive(held.place, self.boundary // 4, self._stage_of(layer + 1), backward=True)
            self.grads[key] = held
        before = self.sums.pop(layer, self.zeros) if micro else self.zeros
        after = self.sum_slots.take()
        places = {**self.places(layer), "x": x.place, "dy": self.grads[key].place, "dx": dx.place}
        for name, offset in self.store.weights.offsets.items():
            places |= {f"{name}.sum": Pointer(before, offset), f"{name}.next": Pointer(after, offset)}
        if self.kernels.saved:
            places |= {name: Pointer(self.inner[key].buffer, offset) for name, offset in self.saved_offsets.items()}
        self.launch(self.backward, places)
        self.inputs.pop(key).release()
        self.grads.pop(key).release()
        if self.kernels.saved:
            self.inner.pop(key).release()
        if before is not self.zeros:
            self.sum_slots.give(before)
        self.sums[layer] = after
        self._finish_gradient(layer, micro)
        if layer == 0:
            dx.release()
        elif layer - 1 not in self.names:
            self._send(dx, self._stage_of(layer - 1), backward=True)
        else:
            self._keep("grads", self.grads, (layer - 1, micro), dx, self.boundary, only_pr=True)

    def _finish_gradient(self, layer: int, micro: int) -> None:
        last, pr = micro == self.micros - 1, self.way.policy == "PR"
        if last:
            self.engine.sum(Pointer(self.sums[layer]), self.store.weights.nbytes // 4)
        if self.level == 0 and (last or not pr):
            buffer, made = self.sums.pop(layer), self.store.weights
            name = ("sum", layer)
            self._settle_sums()
            self.mover.store(self.store.path("gradients", layer), made.start, made.nbytes, Pointer(buffer), name)
            self.leaving_sums.append((name, buffer))

    def _settle_sums(self, most: int = 0) -> None:
        while len(self.leaving_sums) > most:
            name, buffer = self.leaving_sums.pop(0)
            self.mover.gone(name)
            self.sum_slots.give(buffer)

    # What a user calls.

    def infer(self, number: int = 0) -> dict[int, Array]:
        """Take one mini-batch through the model; the last stage returns results by micro-batch, the others nothing."""
        with self._step():
            self.passes(number)
        return self.outputs

    def train(self, steps: int, rate: float = 1e-3) -> Report:
        """Train until `steps` steps are done in all, beginning after the last one that a folder's earlier runs
        finished.
        """
        while self.done < steps:
            with self._step():
                self.passes(self.done)
                self._settle(0)
                self._settle_sums()
                self.mover.drain()
                self.updates.step(self.done, rate)
                self.disk.sync()
                self.engine.least(0)  # nobody says that a step is finished before all are
                self.done += 1
                self.store.finish(self.stage, self.done)
            self.report.losses.append(self.engine.total(self.lost))
        return self.report

    def _step(self) -> _Timed:
        self.stored: set[object] = set()
        self.leaving: list[tuple[tuple[str, int, int], Held]] = []
        self.leaving_sums: list[tuple[tuple[str, int], Buffer]] = []
        return _Timed(self)


class _Timed:
    """Times a step, and counts what it moved."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def __enter__(self) -> None:
        self.begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        runner, report = self.runner, self.runner.report
        report.seconds.append(time.perf_counter() - self.begin)
        report.read_bytes, report.written_bytes = runner.disk.read_bytes, runner.disk.written_bytes
        report.memory = runner.arena.used

"""Process of a run: device, memory, files, and bound plans.

All device memory comes from one arena with a cap, in buffers that are handed out and given back by their kind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import define, field

from ...backends import Array, Buffer, Device, Pointer, Transfers, find_target, open_device, open_transfers
from ...ir import UsageError
from ..engine import Engine, SingleProcess
from ..kernels import Kernels, check_runnable, compile_kernels
from ..plans import RESIDENT, Batches, ClusterPlan, random_batches
from ..prediction import in_flight_results, placement
from ..storage import (
    Arena,
    BoundPlan,
    Disk,
    HostPool,
    LayerStore,
    MappedFiles,
    Move,
    Mover,
    Slots,
    intermediate_bytes,
    open_store,
    reserve,
    round_to_pages,
)
from ..tied_gradients import TiedGradients
from ..updates import Updates

_ROOM = 64  # bytes of a scalar's buffer


@define
class Report:
    """Times and traffic of a run.

    It has the seconds and losses of each step; of all steps, bytes read and written by this process, seconds of
    kernels, of sums over a layer's GPUs with the wait for these, of waiting for storage, of active storage, and of the
    optimiser.
    """

    seconds: list[float] = field(factory=list)
    losses: list[float] = field(factory=list)
    compute: float = 0.0
    exchange: float = 0.0
    waiting: float = 0.0
    storage: float = 0.0
    optimiser: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    memory: int = 0
    first_step: int = 0


class Process:
    """Process of a run: a stage of a group, on one device."""

    def __init__(
        self,
        plan: ClusterPlan,
        folder: str | os.PathLike[str],
        target: str = "auto",
        *,
        memory: float | None = None,
        engine: Engine | Callable[[Device], Engine] | None = None,
        kernels: Kernels | None = None,
        batches: Batches | None = None,
        seed: int = 0,
        direct: bool = True,
        weights: Callable[[int], Mapping[str, Array]] | None = None,
        host: tuple[str | os.PathLike[str], float] | None = None,
    ) -> None:
        check_runnable(plan)
        self.plan, self.model, self.way = plan, plan.model, plan.way
        self.device = open_device(find_target(target))
        self.engine: Engine = engine(self.device) if callable(engine) else engine or SingleProcess()
        if self.engine.size != self.way.gpus:
            raise UsageError(
                f"the plan takes {self.way.gpus} processes, {self.engine.size} run", hint="start them with torchrun"
            )
        chain, self.part = divmod(self.engine.rank, self.way.wp)
        self.group, self.stage = divmod(chain, self.way.p)
        stages = placement(self.model, self.way)
        self.layers = stages[self.stage]
        self.names = [each.layer for each in self.layers]
        self.kinds = {each.layer: each.kind for each in self.layers}
        self.stage_of = {each.layer: stage for stage, layers in enumerate(stages) for each in layers}
        #: Whether values inside layers are kept for the backward pass.
        self.keeps = plan.training and not self.way.activations.startswith("recompute")
        self.micros = self.model.batch // (self.way.dp * self.way.micro)
        #: Results that may be in flight to other stages.
        self.unsent = int(in_flight_results(self.micros, self.way.p, self.way.policy == "PR"))
        self.level = RESIDENT.index(self.way.resident)
        self.offload = self.way.activations.endswith("offload")
        self.batches = batches or random_batches(self.model, self.way.micro, seed)
        self.store: LayerStore = open_store(
            self._own_folder(folder), self.model, self.names,
            training=plan.training, seed=seed, part=self.part, parts=self.way.wp, weights=weights,
            host=(self._own_folder(host[0]), host[1]) if host else None,
        )  # fmt: skip
        self.engine.minimum(0)
        self.kernels = kernels or compile_kernels(plan, target)
        self.transfers: Transfers = open_transfers(self.device)
        self.disk = Disk(direct=direct, prepare=self.transfers.prepare)
        self.pool = HostPool(self.transfers)
        self.mover = Mover(self.disk, self.transfers, self.pool, MappedFiles(self.transfers))
        self.arena = Arena(self.device, memory if memory is not None else plan.machine.memory)
        self._allocate()
        self._reserve()
        for layer in self.names:  # files in host memory are pinned before the first step
            for path in self.store.paths(layer, training=plan.training):
                self.mover.mapped.find(path)
        self.report = Report()
        self.done = self.engine.minimum(self.store.steps(self.stage)) if plan.training else 0
        self.report.first_step = self.done
        self.generation: int | None = None  # of the weights in memory
        self.sums: dict[int, Buffer] = {}  # of gradients, by layer

    def _own_folder(self, folder: str | os.PathLike[str]) -> str:
        """Return the folder of this process's group and part."""
        own = os.path.join(folder, f"group-{self.group}") if self.way.dp > 1 else os.fspath(folder)
        return os.path.join(own, f"part-{self.part}") if self.way.wp > 1 else own

    def _allocate(self) -> None:
        model, kernels = self.model, self.kernels
        self.dtype = model.dtype
        self.elements = self.way.micro * model.sequence * model.hidden  # of an activation between layers
        self.boundary = self.dtype.size * self.elements
        self.acts = Slots(self.arena, self.boundary, "activations between layers")
        self.weights: dict[int, Buffer] = {}
        nbytes = max(self.store.layout("weights", layer).nbytes for layer in self.names)
        self.weight_slots = Slots(self.arena, nbytes, "weights")
        here = set(self.kinds.values())
        ends = [*(kernels.embedding if "embedding" in here else ()), *([kernels.head] if "head" in here else [])]
        plans = [*kernels.forward, *kernels.backward, *ends, kernels.loss]
        bound: list[BoundPlan] = []
        scratch: Buffer | None = None
        for plan in sorted((plan for plan in plans if plan), key=lambda p: -intermediate_bytes(p)):
            made = BoundPlan(plan, self.device, self.arena, scratch)
            scratch = scratch or made.arena
            bound.append(made)
        by_plan = {id(made.plan): made for made in bound}
        self.forward, self.backward = (
            [by_plan[id(each)] for each in plans] for plans in (kernels.forward, kernels.backward)
        )
        self.embedding = [by_plan[id(each)] for each in kernels.embedding if id(each) in by_plan]
        self.head = by_plan.get(id(kernels.head))
        self.scores: Buffer | None = None
        if self.head and not self.plan.training:
            self.scores = self.arena.allocate(4 * self.way.micro * model.vocabulary, "head: scores")
        self.fixed: dict[str, Pointer] = {}
        if self.way.wp > 1:
            self.fixed["share"] = Pointer(self.arena.allocate(_ROOM, "scalars"))
            self.device.upload(self.fixed["share"], np.asarray([self.part == 0]).astype(self.dtype.numpy))
        if not self.plan.training:
            return
        self.loss = by_plan.get(id(kernels.loss))
        self.updates = Updates(self, kernels, scratch)
        slots, stride = self.updates.given.slots, self.dtype.size * max(self.updates.adam)
        self.tied = TiedGradients(self, kernels, scratch, slots, stride)
        self.sum_slots = Slots(self.arena, nbytes, "gradients")
        self.zeros = self.arena.allocate(nbytes, "gradients")
        self._lay_out_saved()
        self.saved_slots = Slots(self.arena, max(self.saved_bytes, 1), "values inside layers")
        self.scalars = {name: self.arena.allocate(_ROOM, "scalars") for name in ("rate", "step", "loss")}

    def _lay_out_saved(self) -> None:
        """Place the values in a layer that its backward pass needs: each half's own, and the second half's input."""
        self.saved_offsets: list[dict[str, int]] = []
        self.saved_bytes = 0
        for half, (plan, names) in enumerate(zip(self.kernels.forward, self.kernels.saved, strict=True)):
            self.saved_offsets.append({})
            for name in ("x", *names) if half and self.keeps else names:
                self.saved_offsets[-1][name] = self.saved_bytes
                self.saved_bytes += -(-plan.types[name].nbytes // 256) * 256

    def _reserve(self) -> None:
        """Reserve disk space for activations, so that a full disk is found before anything is computed."""
        if not self.offload:
            return
        kinds = {"inputs": self.boundary}
        if self.plan.training:
            kinds |= {"inner": self.saved_bytes} if self.keeps else {}
            kinds |= {"grads": self.boundary} if self.way.policy == "PR" else {}
        for kind, nbytes in kinds.items():
            reserve(self.store.scratch(self.stage, kind), len(self.names) * self.micros * round_to_pages(nbytes))

    def close(self) -> None:
        """Stop the threads and close all files."""
        self.mover.leaving.clear()
        self.disk.close()
        self.mover.mapped.close()

    def resident_bytes(self, layer: int, level: int) -> int | None:
        """Return the bytes of a layer's resident values.

        They stay from a level of residency on; before it there are none.
        """
        return self.store.layout("weights", layer).nbytes if self.level >= level else None

    def places(self, layer: int) -> dict[str, Pointer]:
        """Return the device memory of a layer's parameters and of common inputs."""
        offsets = self.store.layout("weights", layer).offsets
        return {name: Pointer(self.weights[layer], offset) for name, offset in offsets.items()} | self.fixed

    def launch(self, bound: BoundPlan, places: dict[str, Pointer]) -> None:
        """Run a plan and wait for it."""
        begin = time.perf_counter()
        bound.launch(places)
        self.device.synchronize()
        self.report.compute += time.perf_counter() - begin

    def join(self, place: Pointer) -> None:
        """Sum an activation over the GPUs that share a layer."""
        begin = time.perf_counter()
        self.engine.join(place, self.elements, self.dtype)
        self.report.exchange += time.perf_counter() - begin

    def wait(self, moves: Sequence[Move]) -> None:
        """Wait until all moves are done."""
        begin = time.perf_counter()
        for move in moves:
            move.wait()
        self.report.waiting += time.perf_counter() - begin

    def wait_stored(self, key: object) -> None:
        """Wait for the outgoing move under a key."""
        begin = time.perf_counter()
        self.mover.wait_stored(key)
        self.report.waiting += time.perf_counter() - begin

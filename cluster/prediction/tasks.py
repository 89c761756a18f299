"""Tasks of a schedule for the streams of every stage, with dependencies.

A task belongs to a stage and to one of its streams, moves bytes or computes, and begins when the tasks it waits for are
done. Sizes of layers come from `sizes.py`; the number of moves comes from walking the schedule alone, so that closed
forms can be checked against it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from attrs import define, field, frozen

from ..plans import RESIDENT, Links, Machine, Sizes, Transformer, Way, Ways, columns, layer_kinds, links, sizes
from .schedule import LayerPass, PlacedLayer, order, placement

Stream = Literal["compute", "storage", "link"]


@define
class StreamTask:
    """Task of one stream, of `seconds` and `nbytes`, after others.

    `term` is the term of the model that it belongs to.
    """

    number: int
    stage: int
    stream: Stream
    term: str
    nbytes: float
    seconds: float
    after: tuple[int, ...]
    takes: float = 0.0  #: bytes of memory from the task's begin
    frees: float = 0.0  #: bytes of memory no longer needed at its end
    order: float = 0.0  #: among tasks of a stream that are ready, the least begins


@frozen(eq=False)
class WayCosts:
    """Sizes and links for one way.

    They are floats by the kind of layer.
    """

    kinds: dict[str, Sizes]
    link: Links
    machine: Machine
    way: Way
    micros: int
    boundary: float
    loads_state: bool

    @property
    def level(self) -> int:
        """The residency level as a number."""
        return RESIDENT.index(self.way.resident)


def costs(model: Transformer, machine: Machine, way: Way, *, training: bool = True) -> WayCosts:
    """Return the sizes of each kind of layer on one GPU."""
    row: Ways = columns([way])
    kinds = layer_kinds(model, training=training)
    found = {name: sizes(row, model, machine, kind, name) for name, kind in kinds.items()}
    micros = model.batch // (way.dp * way.micro)
    boundary = float(model.value_bytes * way.micro * model.hidden * model.sequence)
    return WayCosts(found, links(row, machine), machine, way, micros, boundary, model.precision == "single")


@define
class _Builder:
    """Builder of the tasks of all stages, walking each stage's steps once."""

    model: Transformer
    costs: WayCosts
    training: bool
    tasks: list[StreamTask] = field(factory=list)
    computed: dict[tuple[LayerPass, int], int] = field(factory=dict)  #: step -> the last task that its result waits for
    sent: dict[LayerPass, int] = field(
        factory=dict
    )  #: step -> the task that brings its result to the stage of the next layer
    written: dict[tuple[str, LayerPass], int] = field(factory=dict)

    def task(
        self, stage: int, stream: Stream, term: str, nbytes: float, seconds: float, after: list[int], order: float
    ) -> StreamTask:
        made = StreamTask(
            len(self.tasks), stage, stream, term, float(nbytes), float(seconds), tuple(after), order=order
        )
        self.tasks.append(made)
        return made

    def read(self, stage: int, term: str, nbytes: float, after: list[int], order: float) -> int:
        return self.task(
            stage, "storage", f"read {term}", nbytes, self._request(nbytes / self.costs.machine.read), after, order
        ).number

    def write(self, stage: int, term: str, nbytes: float, after: list[int], order: float) -> int:
        return self.task(
            stage, "storage", f"write {term}", nbytes, self._request(nbytes / self.costs.machine.write), after, order
        ).number

    def _request(self, seconds: float) -> float:
        return seconds + self.costs.machine.request


def tasks(model: Transformer, machine: Machine, way: Way, *, training: bool = True) -> list[StreamTask]:
    """Return every task of one mini-batch.

    Numbers are positions, and a task may wait for one of a higher number of another stage.
    """
    builder = _Builder(model, costs(model, machine, way, training=training), training)
    stages = placement(model, way)
    walks = [_Walk(builder, stage, layers, sum(len(s) for s in stages)) for stage, layers in enumerate(stages)]
    for walk in walks:
        walk.declare()
    for walk in walks:
        walk.connect()
    if training:
        for walk in walks:
            walk.optimise()
    return builder.tasks


class _Walk:
    """Walk of one stage: compute tasks with their sums and sends, then moves to and from memory and storage."""

    def __init__(self, builder: _Builder, stage: int, layers: list[PlacedLayer], count: int) -> None:
        self.b, self.stage, self.layers, self.count = builder, stage, layers, count
        self.way, self.costs, self.training = builder.costs.way, builder.costs, builder.training
        self.kinds = {each.layer: each.kind for each in layers}
        self.steps = list(order(layers, self.way, stage, self.costs.micros, training=self.training))
        self.offload = self.way.activations.endswith("offload")
        self.recompute = self.way.activations.startswith("recompute")
        self.compute: list[int] = []
        self.done: list[int] = []  #: step's position -> the task after which its result is there

    def size(self, layer: int) -> Sizes:
        return self.costs.kinds[self.kinds[layer]]

    def value(self, layer: int, name: str) -> float:
        return float(np.ravel(getattr(self.size(layer), name))[0])

    def declare(self) -> None:
        """Make the compute tasks, with their sums and sends.

        A sum over a layer's GPUs follows each; results are sent to the neighbours.
        """
        for position, step in enumerate(self.steps):
            way = "backward" if step.backward else "forward"
            before = [self.done[-1]] if self.done else []
            task = self.b.task(self.stage, "compute", "compute", 0.0, self.value(step.layer, way), before, position)
            self.compute.append(task.number)
            done, nbytes = task.number, self.value(step.layer, f"reduce_{way}_bytes")
            if nbytes:
                seconds = self.value(step.layer, f"reduce_{way}")
                done = self.b.task(self.stage, "link", "wp", nbytes, seconds, [done], position).number
            self.done.append(done)
            self.b.computed[step, 0] = done
            if self._sends(step):
                seconds = self.costs.boundary / float(self.costs.link.p[0])
                sent = self.b.task(self.stage, "link", "pipeline", self.costs.boundary, seconds, [done], position + 0.5)
                self.b.sent[step] = sent.number

    def _sends(self, step: LayerPass) -> bool:
        """Return whether a step's result leaves the stage, for a neighbouring layer of another stage."""
        neighbour = step.layer + (-1 if step.backward else 1)
        return 0 <= neighbour < self.count and neighbour not in self.kinds

    def _source(self, step: LayerPass) -> LayerPass | None:
        """Return the step whose result this one takes: that of the layer before it in its pass; the last layer turns
        forward to backward.
        """
        neighbour = step.layer + (1 if step.backward else -1)
        if 0 <= neighbour < self.count:
            return LayerPass(step.backward, neighbour, step.micro)
        return LayerPass(False, step.layer, step.micro) if step.backward else None

    def arrival(self, step: LayerPass) -> list[int]:
        """Return the tasks after which a step's input is in memory."""
        source = self._source(step)
        if source is None:
            return []
        return [self.b.sent[source] if source in self.b.sent else self.b.computed[source, 0]]

    def connect(self) -> None:
        """Make the tasks of moves, and let steps wait for them.

        They move weights, activations and gradients.
        """
        loads = self._weights()
        for position, step in enumerate(self.steps):
            needs = [*loads[position], *self._activations(position, step)]
            if not (self.offload and self.way.policy == "PR"):
                needs += self.arrival(step)
            if step.backward:
                needs += self._gradients(position, step)
            task = self.b.tasks[self.compute[position]]
            task.after = tuple(dict.fromkeys((*task.after, *needs)))

    def _freed(self, position: int) -> list[int]:
        """Return the task that frees the buffer of a step's fetches: the step before the last one."""
        return [self.done[position - 2]] if position >= 2 else []

    def _weights(self) -> list[list[int]]:
        """Fetch weights ahead; return for each step the fetches that it waits for."""
        found: list[list[int]] = [[] for _ in self.steps]
        if self.costs.level >= 2:
            return found
        last, spread = -1, self.costs.micros if self.way.policy == "PR" else 1
        current: list[int] = []
        for position, step in enumerate(self.steps):
            if step.layer != last:
                nbytes = self.value(step.layer, "weights")
                pieces = spread if position else 1
                current = [
                    self.b.read(
                        self.stage, "weights", nbytes / pieces, self._freed(position - piece), position - piece - 0.9
                    )
                    for piece in range(pieces)
                ]
                last = step.layer
            found[position] = current
        return found

    def _activations(self, position: int, step: LayerPass) -> list[int]:
        """Move the inputs and results of a step; return its dependencies."""
        if not self.offload:
            return []
        if self.way.policy == "AR" and self.training and step.layer == self.count - 1:
            return self.arrival(step)  # values of the last layer are read at once, so they stay
        inner = 0.0 if self.recompute or not self.training else self.value(step.layer, "inner")
        inputs, outputs, freed = (
            self.value(step.layer, "inputs"),
            self.value(step.layer, "outputs"),
            self._freed(position),
        )
        done, waits = self.done[position], []
        resident = self.way.policy == "PR"
        forward = LayerPass(False, step.layer, step.micro)
        if not step.backward:
            if inputs and (resident or self.training):
                self.b.written["inputs", forward] = self.b.write(
                    self.stage, "inputs", inputs, self.arrival(step), position - 0.3
                )
            if inputs and resident:
                waits.append(
                    self.b.read(
                        self.stage, "inputs", inputs, [*freed, self.b.written["inputs", forward]], position - 0.8
                    )
                )
            elif not resident:
                waits += self.arrival(step)
            if inner:
                self.b.written["inner", forward] = self.b.write(self.stage, "inner", inner, [done], position + 0.6)
            return waits
        for term, nbytes in (("inputs", inputs), ("inner", inner)):
            if nbytes:
                waits.append(
                    self.b.read(self.stage, term, nbytes, [*freed, self.b.written[term, forward]], position - 0.8)
                )
        if outputs and resident:
            written = self.b.write(self.stage, "gradient of outputs", outputs, self.arrival(step), position - 0.3)
            waits.append(self.b.read(self.stage, "gradient of outputs", outputs, [*freed, written], position - 0.8))
        elif resident:
            waits += self.arrival(step)
        return waits

    def _gradients(self, position: int, step: LayerPass) -> list[int]:
        """Sum gradients over groups when the last micro-batch has added to them, and spill them where they do
        not stay.
        """
        spilled, waits = self.costs.level == 0, []
        resident, n = self.way.policy == "PR", self.costs.micros
        nbytes, key = self.value(step.layer, "gradients"), LayerPass(True, step.layer, -1)
        if spilled and not resident and step.micro:
            waits.append(
                self.b.read(
                    self.stage,
                    "gradients",
                    nbytes,
                    [*self._freed(position), self.b.written["sum", key]],
                    position - 0.7,
                )
            )
        done = [self.done[position]]
        if step.micro == n - 1:
            done = self._sum_gradients(position, step, n if resident else 1)
        if spilled and (not resident or step.micro == n - 1):
            pieces = len(done)
            for piece, after in enumerate(done):
                self.b.written["sum", key] = self.b.write(
                    self.stage, "gradients", nbytes / pieces, [after], position + piece + 0.7
                )
        return waits

    def _sum_gradients(self, position: int, step: LayerPass, pieces: int) -> list[int]:
        """Sum a layer's gradients over groups, in pieces along the next layer's rounds; return the dependencies of
        their writes.
        """
        nbytes, seconds = self.value(step.layer, "gather_bytes"), self.value(step.layer, "gather")
        done = self.done[position]
        if not nbytes:
            return [done] * pieces
        late = (
            0.55 if pieces > 1 else 0.55 + len(self.steps)
        )  # no task waits for it, unlike for transfers to the next stage
        return [
            self.b.task(
                self.stage, "link", "dp", nbytes / pieces, seconds / pieces, [done], position + piece + late
            ).number
            for piece in range(pieces)
        ]

    def optimise(self) -> None:
        """Update layer by layer when all stages are done with their passes.

        Read values and gradients, write values and weights.
        """
        passes = [
            task.number for task in self.b.tasks if task.stage == self.stage and not task.term.startswith("optimiser")
        ]
        level, start = self.costs.level, len(self.steps) + self.costs.micros + 1.0
        writes: list[int] = []
        for place, each in enumerate(self.layers):
            state, weights = self.value(each.layer, "state"), self.value(each.layer, "weights")
            read = (level < 3) * state + (level < 2) * weights * self.costs.loads_state
            read += (level == 0) * self.value(each.layer, "gradients")
            tied = (level == 0) * self.value(each.layer, "tied")
            read, write = read + tied, (level < 3) * state + (level < 2) * weights + tied
            machine, after = self.costs.machine, passes + writes[-2:-1]
            if read:
                after = [
                    self.b.task(
                        self.stage, "storage", "optimiser read", read, read / machine.read, after, start + place
                    ).number
                ]
            if write:
                task = self.b.task(
                    self.stage, "storage", "optimiser write", write, write / machine.write, after, start + place + 1.5
                )
                writes.append(task.number)

"""Runner of a plan: steps in order, with weights streamed from storage.

Three things happen concurrently, as in the rounds of `cluster/prediction/stages.py`: a step computes, the inputs of the
next one arrive, the results of the last one leave (`traffic.py`). The kernels are plans, compiled once for all layers.
"""

from __future__ import annotations

import math
import time

import numpy as np

from ...backends import Array, Buffer, Pointer
from ..graphs import replicated_parameters
from ..prediction import LayerPass, adds_to_same, arrivals, order
from ..storage import CountedBuffer
from .ends import EndKernels
from .process import Report


class Runner(EndKernels):
    """Process of a run, step by step."""

    # One mini-batch's passes.

    def passes(self, number: int) -> None:
        """Pass all micro-batches of a mini-batch through this stage's layers.

        The passes are forward and in training backward.
        """
        self._reset()
        steps = list(order(self.layers, self.way, self.stage, self.micros, training=self.plan.training))
        weight_arrivals = arrivals(steps, self.micros if self.way.policy == "PR" else 1)
        self._bring_weights(steps[0].layer, None, number, 1, 1)
        coming = self._fetch(steps[0], None)
        for position, step in enumerate(steps):
            needed = [*coming, *self._arrival_moves(step.layer)]
            following = steps[position + 1] if position + 1 < len(steps) else None
            # Values that the next step would read back at once stay in memory.
            self.turns = following == LayerPass(True, step.layer, step.micro) and self.way.policy == "AR"
            self.adds = adds_to_same(step, following)
            # The step before is done, so its buffers are free: the next transfers queue after those of this step, and
            # storage is not idle from one layer to the next.
            coming = self._fetch(following, step) if following else []
            if near := weight_arrivals[position]:
                # Parts leave room for activations between them; where these stay in memory, all parts queue at once.
                part = near.part if self.offload else near.parts
                self._bring_weights(near.layer, step.layer, number, part, near.parts)
            self.wait(needed)
            (self._backward if step.backward else self._forward)(step, number)
        for wait, held in self.sending:
            wait()
            held.release()
        self.sending.clear()

    def _input(self, step: LayerPass, number: int) -> CountedBuffer:
        """Return the input of a layer: from memory, from the batch, from storage (fetched before) or from the stage
        before it.
        """
        key = (step.layer, step.micro)
        if key in self.inputs:
            return self.inputs[key]
        held = CountedBuffer(self.acts, self.acts.take())
        if step.layer == 0:
            x, _ = self.batches(number, self.group, step.micro)
            self._upload(held, x)
        else:
            self.engine.receive(held.place, self.boundary, self.stage_of[step.layer - 1], backward=False)
        self.inputs[key] = held
        return held

    def _upload(self, held: CountedBuffer, values: Array | None) -> None:
        """Bring a batch's values to the device: tokens, or numbers rounded to the model's type."""
        kind = np.int32 if self.model.vocabulary else self.dtype.numpy
        rounded = np.ascontiguousarray(np.asarray(values).astype(kind))
        self.transfers.upload(held.place, rounded.reshape(-1).view(np.uint8))

    def _forward(self, step: LayerPass, number: int) -> None:
        x = self._input(step, number)
        if self.kinds[step.layer] == "head":
            if not self.plan.training:
                self.outputs[step.micro] = self.next_token_scores(step.layer, x.place)
            self._keep_input(step)
            return
        y, key = CountedBuffer(self.acts, self.acts.take()), (step.layer, step.micro)
        keeps = self.keeps and self.kinds[step.layer] == "block"
        inner = CountedBuffer(self.saved_slots, self.saved_slots.take()) if keeps else None
        self.layer_forward(step.layer, x.place, y.place, inner.buffer if inner else None)
        if inner is not None and self.turns:
            self.inner[key] = inner
        elif inner is not None:
            self._keep("inner", self.inner, key, inner, self.saved_bytes)
        self._keep_input(step)
        self._hand_on(step, y, number)

    def _keep_input(self, step: LayerPass) -> None:
        """Keep a layer's input for its backward pass in memory or storage, or free it."""
        layer, micro = step.layer, step.micro
        if not self.plan.training:
            self.inputs.pop((layer, micro)).release()
        elif self.offload and not self.turns:
            held = self.inputs.pop((layer, micro))
            if layer and (self.way.policy == "AR" or layer - 1 not in self.names):
                self._store("inputs", (layer, micro), held, self.boundary)
            else:
                held.release()  # this stage has written it already; the first layer's comes with the batch again

    def _hand_on(self, step: LayerPass, y: CountedBuffer, number: int) -> None:
        """Pass a result to the next layer: on this stage, on another, or to the loss."""
        following, key = step.layer + 1, (step.layer + 1, step.micro)
        if following not in self.stage_of:
            self._end(step, y, number)
        elif following not in self.names:
            self._send(y, self.stage_of[following], backward=False)
        else:
            self.inputs[key] = y
            if self.offload and self.way.policy == "PR":
                self._store("inputs", key, self.inputs.pop(key), self.boundary)

    def _end(self, step: LayerPass, y: CountedBuffer, number: int) -> None:
        if not self.plan.training:
            host = np.empty(self.elements, self.dtype.numpy)
            self.transfers.download(host.view(np.uint8), y.place)
            shape = (self.way.micro, self.model.sequence, self.model.hidden)
            self.outputs[step.micro] = host.astype(np.float32).reshape(shape)
            y.release()
            return
        _, target = self.batches(number, self.group, step.micro)
        goal, dy = CountedBuffer(self.acts, self.acts.take()), CountedBuffer(self.acts, self.acts.take())
        self._upload(goal, target)
        assert self.loss is not None
        loss = Pointer(self.scalars["loss"])
        self.launch(self.loss, {"y": y.place, "target": goal.place, "dy": dy.place, "loss": loss})
        self._add_loss()
        y.release()
        goal.release()
        self._keep("grads", self.grads, (step.layer, step.micro), dy, self.boundary, only_pr=True)

    def _backward(self, step: LayerPass, number: int) -> None:
        layer, micro = step.layer, step.micro
        key, kind = (layer, micro), self.kinds[layer]
        x, dx = self._input(step, number), CountedBuffer(self.acts, self.acts.take())
        if key not in self.grads:
            held = CountedBuffer(self.acts, self.acts.take())
            if kind == "head":
                self._upload(held, self.batches(number, self.group, micro)[1])
            else:
                self.engine.receive(held.place, self.boundary, self.stage_of[layer + 1], backward=True)
            self.grads[key] = held
        before = self.sums.pop(layer, self.zeros) if micro else self.zeros
        after = self.sum_slots.take(self.resident_bytes(layer, 1))
        inner = self.inner[key].buffer if key in self.inner else None
        self.layer_backward(layer, (x.place, self.grads[key].place, dx.place), (before, after), inner)
        if kind == "head":
            self._add_loss()
        self.inputs.pop(key).release()
        self.grads.pop(key).release()
        if inner is not None:
            self.inner.pop(key).release()
        if before is not self.zeros:
            self.sum_slots.give(before)
        self.sums[layer] = after
        self._finish_gradient(layer, micro)
        if layer == 0:
            dx.release()
        elif layer - 1 not in self.names:
            self._send(dx, self.stage_of[layer - 1], backward=True)
        else:
            self._keep("grads", self.grads, (layer - 1, micro), dx, self.boundary, only_pr=True)

    def _add_loss(self) -> None:
        """Add this micro-batch's part of the loss."""
        value = np.empty(1, np.float32)
        self.device.download(value, Pointer(self.scalars["loss"]))
        self.lost += float(value[0]) * (self.part == 0)  # the GPUs of a layer all have it

    def _finish_gradient(self, layer: int, micro: int) -> None:
        last, pr = micro == self.micros - 1, self.way.policy == "PR"
        if last:
            self._sum_gradients(layer, self.sums[layer])
        if self.level == 0 and (last or not (pr or self.adds)):
            buffer, made = self.sums.pop(layer), self.store.layout("weights", layer)
            name = ("sum", layer)
            self._settle_sums()
            self.mover.store(self.store.path("gradients", layer), made.start, made.nbytes, Pointer(buffer), name)
            self.leaving_sums.append((name, buffer))

    def _sum_gradients(self, layer: int, buffer: Buffer) -> None:
        """Sum a layer's gradients over groups; those of replicated parameters over the layer's GPUs first."""
        made = self.store.layout("weights", layer)
        shares = self.way.wp > 1 and self.kinds[layer] == "block"  # other layers are whole on each GPU
        for name in replicated_parameters(self.model) if shares else ():
            self.engine.join(Pointer(buffer, made.offsets[name]), math.prod(made.shapes[name]), self.dtype)
        self.engine.sum(Pointer(buffer), self.store.elements(layer), self.dtype)

    # Entry points.

    def infer(self, number: int = 0) -> dict[int, Array]:
        """Pass one mini-batch through the model.

        The last stage returns results by micro-batch, the others nothing.
        """
        with self._step():
            self.passes(number)
        return self.outputs

    def train(self, steps: int, rate: float = 1e-3) -> Report:
        """Train until `steps` steps are done in all.

        Training begins after the last step that a folder's earlier runs finished.
        """
        while self.done < steps:
            with self._step():
                self.passes(self.done)
                self._settle(0)
                self._settle_sums()
                self.mover.drain()
                begin = time.perf_counter()
                self.tied.sum()
                self.updates.step(self.done, rate)
                self.disk.sync()
                self.report.optimiser += time.perf_counter() - begin
                self.engine.minimum(0)  # no process records a finished step before all have finished it
                self.done += 1
                self.store.finish(self.stage, self.done)
            self.report.losses.append(self.engine.total(self.lost))
        return self.report

    def _step(self) -> _StepTimer:
        self._begin()
        return _StepTimer(self)


class _StepTimer:
    """Timer of a step, which also counts its traffic."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def __enter__(self) -> None:
        disk = self.runner.disk
        self.busy, self.read, self.written = disk.busy, disk.read_bytes, disk.written_bytes
        self.begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        runner, report = self.runner, self.runner.report
        report.seconds.append(time.perf_counter() - self.begin)
        report.storage += runner.disk.busy - self.busy
        report.read_bytes += runner.disk.read_bytes - self.read
        report.written_bytes += runner.disk.written_bytes - self.written
        report.memory = runner.arena.used

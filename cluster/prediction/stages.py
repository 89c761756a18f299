"""Rounds of a stage: one micro-batch in one layer.

The schedule uses double buffering. While step `i` computes, storage reads the inputs of step `i + 1` and writes the
results of step `i - 1`; the round ends when all three are done. So a round lasts as long as its slowest part, and a
pass is a sum over its rounds. Layers of a kind have equal rounds, except where a layer's neighbour is of another kind.

PR holds a layer's weights while all `n` micro-batches pass, and fetches an `n`-th of the next layer's with each. AR
fetches the next layer's weights whole. Where a pass turns back, the last layer's weights are still there. The sum of a
layer's GPUs is waited for; transfers to the next stage, and the sum of gradients over groups, overlap with compute.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ..plans import Column, Machine, Sizes, Transformer, Ways, layer_kinds, links, sizes


@frozen(eq=False)
class StageTimes:
    """Seconds and bytes of one stage for a mini-batch.

    `forward` and `backward` are of one micro-batch (AR) or of all (PR). `fill` is the first layer's weights, before
    anything can compute, `last` the time that the last micro-batch (AR) or layer (PR) adds for the sum of gradients.
    `wait_forward` and `wait_backward` are the time of a micro-batch through the stage (AR) or through a block (PR): the
    part of a round that the next stage waits for. `send` is its transfer to the next stage. `first` is the saving of a
    stage that could fetch before its first micro-batch came, `wrap` the saving of the last micro-batch, as no weights
    are fetched for another one.
    """

    forward: Column
    backward: Column
    fill: Column
    last: Column
    wait_forward: Column
    wait_backward: Column
    round_forward: Column
    round_backward: Column
    send: Column
    first: Column
    wrap: Column
    compute: Column
    wp: Column
    dp: Column
    pipeline: Column
    read: Column
    write: Column
    optimiser_read: Column
    optimiser_write: Column
    wp_bytes: Column
    dp_bytes: Column
    pipeline_bytes: Column


@frozen(eq=False)
class _Part:
    """Layers of a kind with equal rounds: their number, the weights that arrive meanwhile, the gradients that leave."""

    count: Column
    size: Sizes
    fetched: Column
    left: Column
    gathered: Column
    moves: Column


#: Tokens of a sequence from which on no attention weights are left in memory.
MIN_FUSED_TOKENS = 64


class PipelineStage:
    """Stage of each way.

    `embedding` and `head` say whether it has these besides its blocks.
    """

    def __init__(self, ways: Ways, model: Transformer, machine: Machine, number: Column, *, training: bool) -> None:
        kinds = layer_kinds(model, training=training)
        self.ways, self.machine, self.training, self.number = ways, machine, training, number
        self.block = sizes(ways, model, machine, kinds["block"], "block")
        self.blocks = model.layers // ways.p
        has_ends = np.full(len(ways), model.vocabulary > 0)
        self.embedding, self.head = has_ends & (number == 0), has_ends & (number == ways.p - 1)
        self.ends = [
            sizes(ways, model, machine, kinds.get(name, kinds["block"]), name) for name in ("embedding", "head")
        ]
        self.n = np.maximum(1, model.batch // (ways.dp * ways.micro))  # `fit` rejects indivisible numbers
        self.links = links(ways, machine)
        self.loads_state = model.precision == "single"
        self.value = float(model.value_bytes)  # a float: sizes of huge models would overflow integers
        self.tokens = ways.micro * model.sequence
        tokens = self.value * self.tokens
        self.scores = tokens * model.heads * model.sequence / ways.wp
        #: Copies of scores in memory at once, forward: kernels of f32 leave no weights beside them, but for short rows,
        #: which are small.
        self.weighed = 1 if model.precision == "single" and model.sequence >= MIN_FUSED_TOKENS else 2
        #: Queries, keys and values; one of the values between a block's last two matrices, and how many of these.
        self.attended = tokens * (model.queries + 2 * model.keys) / ways.wp
        self.wide, self.wides = tokens * model.width / ways.wp, 3 if model.gated else 2
        #: Bytes of a block's parameters that every GPU of a layer holds whole.
        self.whole = model.value_bytes * model.replicated_parameters
        self.boundary = tokens * model.hidden
        #: Scores of all tokens in fp32, which the loss has.
        self.logits = 4.0 * ways.micro * model.vocabulary * (model.sequence if training else 1)

    def total(self, name: str) -> Column:
        """Return the sum of a size over the stage's layers."""
        first, last = self.ends
        found: Column = (
            self.embedding * getattr(first, name)
            + self.blocks * getattr(self.block, name)
            + self.head * getattr(last, name)
        )
        return found

    @property
    def layers(self) -> Column:
        """The number of layers of the stage."""
        found: Column = self.blocks + self.embedding + self.head
        return found

    def end(self, which: int, name: str) -> Column:
        """Return a size of the stage's first (0) or last (1) layer."""
        has = (self.embedding, self.head)[which]
        found: Column = np.where(has, getattr(self.ends[which], name), getattr(self.block, name))
        return found

    # Traffic of a round besides weights.

    @property
    def _turns(self) -> Column:
        """Return whether AR's backward pass begins on this stage; the values of its last layer are read at once, so
        they stay in memory.
        """
        found: Column = ~self.ways.pr & (self.number == self.ways.p - 1) & self.training
        return found

    def _acts(self, size: Sizes, *, backward: bool) -> tuple[Column, Column]:
        """Return the bytes of activations that a round reads and writes."""
        ways, inner = self.ways, np.where(self.ways.recompute, 0.0, size.inner) * self.training
        if backward:
            read = np.where(ways.pr, size.inputs + inner + size.outputs, size.inputs + inner)
            write = np.where(ways.pr, size.outputs, 0.0)
        else:
            read = np.where(ways.pr, size.inputs, 0.0)
            write = np.where(ways.pr, size.inputs + inner, (size.inputs + inner) * self.training)
        return read * ways.offload, write * ways.offload

    def _round(self, part: _Part, *, backward: bool) -> tuple[Column, Column]:
        """Return the seconds of a round, and of a round of the last micro-batch, in which gradients are summed."""
        ways, machine, size = self.ways, self.machine, part.size
        spread = np.where(ways.pr, self.n, 1)
        read, write = (part.moves * each for each in self._acts(size, backward=backward))
        read = read + np.where(ways.level < 2, part.fetched / spread, 0.0)
        if backward:
            spilled = (ways.level == 0) * size.gradients
            read = read + np.where(ways.pr, 0.0, spilled * (self.n - 1) / self.n)
            write = write + np.where(ways.pr, (ways.level == 0) * part.left / spread, spilled)
        storage = read / machine.read + write / machine.write
        waited = size.reduce_backward if backward else size.reduce_forward
        busy = (size.backward if backward else size.forward) + waited
        sent = self.boundary / self.links.p * (ways.p > 1) * ways.pr + waited
        summed = part.gathered / spread
        plain = np.maximum(np.maximum(busy, storage), sent + np.where(ways.pr, summed, 0.0))
        return plain, np.maximum(plain, sent + summed)

    def _forward_parts(self) -> list[_Part]:
        first, last, block = *self.ends, self.block
        none, one = np.zeros(len(self.ways)), np.ones(len(self.ways))
        wrap = np.where(self.ways.pr | self.training | (self.layers < 2), 0.0, self.end(0, "weights"))
        following = np.where(self.head, last.weights, wrap)
        return [
            _Part(self.embedding, first, block.weights, none, none, one),
            _Part(self.blocks - 1, block, block.weights, none, none, one),
            _Part(np.ones_like(self.blocks), block, following, none, none, self.head | ~self._turns),
            _Part(self.head, last, wrap, none, none, ~self._turns),
        ]

    def _backward_parts(self) -> list[_Part]:
        first, last, block = *self.ends, self.block
        none, one, several = np.zeros(len(self.ways)), np.ones(len(self.ways)), self.blocks > 1
        down = self.embedding * first.weights
        near = np.where(several, block.weights, down)
        ends = self.head * last.gradients, self.head * last.gather
        return [
            _Part(self.head, last, block.weights, none, self._gathered_seconds(last, none), ~self._turns),
            _Part(
                np.ones_like(self.blocks),
                block,
                near,
                ends[0],
                self._gathered_seconds(block, ends[1]),
                self.head | ~self._turns,
            ),
            _Part(
                np.maximum(self.blocks - 2, 0),
                block,
                block.weights,
                block.gradients,
                self._gathered_seconds(block, block.gather),
                one,
            ),
            _Part(several, block, down, block.gradients, self._gathered_seconds(block, block.gather), one),
            _Part(self.embedding, first, none, block.gradients, self._gathered_seconds(first, block.gather), one),
        ]

    def _gathered_seconds(self, own: Sizes, before: Column) -> Column:
        """Return the sum of gradients in a round: of the layer's own (AR, last micro-batch) or of the layer before
        (PR).
        """
        return np.where(self.ways.pr, before, own.gather)

    def passes(self) -> StageTimes:
        """Return the stage's passes."""
        spread = np.where(self.ways.pr, self.n, 1)
        forward = sum(
            (p.count * self._round(p, backward=False)[0] * spread for p in self._forward_parts()),
            np.zeros(len(self.ways)),
        )
        backward, last = np.zeros(len(self.ways)), np.zeros(len(self.ways))
        rounds = [self._round(self._forward_parts()[1], backward=False)[0], np.zeros(len(self.ways))]
        if self.training:
            for part in self._backward_parts():
                plain, summing = self._round(part, backward=True)
                backward = backward + part.count * plain * spread
                last = last + np.where(self.ways.pr, 0.0, part.count * (summing - plain))
            rounds[1] = self._round(self._backward_parts()[2], backward=True)[0]
            spilled = (self.ways.level == 0) * self.end(0, "gradients") / self.machine.write
            last = last + np.where(self.ways.pr, self.end(0, "gather") + spilled, 0.0)
        both_rounds: tuple[Column, Column] = (rounds[0], rounds[1])
        streamed = self.ways.level < 2
        fill = streamed * self.end(0, "weights") / self.machine.read
        read, write = self.traffic()
        waits = self._wait(backward=False), self._wait(backward=True) * self.training
        send = self.boundary / self.links.p * (self.ways.p > 1)
        busy = self._compute(), *self._exchange()
        return StageTimes(
            forward,
            backward,
            fill,
            last,
            *waits,
            *both_rounds,
            send,
            *self._savings(),
            *busy,
            read,
            write,
            *self.optimiser(),
            *self._sent_bytes(),
        )

    def _savings(self) -> tuple[Column, Column]:
        first, last, streamed = *self.ends, self.ways.level < 2
        if self.training:
            return np.zeros(len(self.ways)), np.zeros(len(self.ways))
        wrap = np.where(self.ways.pr | (self.layers < 2), 0.0, self.end(0, "weights")) * streamed / self.machine.read
        busy = [np.where(has, end.forward + end.reduce_forward, self.block.forward + self.block.reduce_forward)
                for has, end in ((self.embedding, first), (self.head, last))]  # fmt: skip
        ahead = np.where(self.layers > 1, self.block.weights, 0.0) * streamed / self.machine.read
        return np.maximum(ahead - busy[0], 0.0) * ~self.ways.pr, np.maximum(wrap - busy[1], 0.0)

    def shares(self, *, backward: bool) -> tuple[float, float]:
        """Return a block's storage seconds over its compute seconds.

        They are for the first way: weights and gradients, and activations.
        """
        block, machine, ways = self.block, self.machine, self.ways
        spread = np.where(ways.pr, self.n, 1)
        read, write = self._acts(block, backward=backward)
        spilled = (ways.level == 0) * block.gradients * backward
        weights = (ways.level < 2) * block.weights / spread + np.where(ways.pr, 0.0, spilled * (self.n - 1) / self.n)
        name = "backward" if backward else "forward"
        busy = np.maximum(getattr(block, name) + getattr(block, f"reduce_{name}"), 1e-30)
        fixed = weights / machine.read + spilled / np.where(ways.pr, self.n, 1) / machine.write
        return float((fixed / busy)[0]), float(((read / machine.read + write / machine.write) / busy)[0])

    def _wait(self, *, backward: bool) -> Column:
        """Return the time of one micro-batch alone."""
        block, machine = self.block, self.machine
        name = "backward" if backward else "forward"
        if_resident = getattr(block, name) + getattr(block, f"reduce_{name}")
        moved = block.outputs if backward else block.inputs
        if_resident = if_resident + self.ways.offload * moved * (1 / machine.read + 1 / machine.write)
        streamed = np.zeros(len(self.ways))
        for part in self._backward_parts() if backward else self._forward_parts():
            busy = getattr(part.size, name) + getattr(part.size, f"reduce_{name}")
            read = part.moves * self._acts(part.size, backward=True)[0] if backward else 0.0
            fetched = np.where(self.ways.level < 2, part.fetched, 0.0)
            streamed = streamed + part.count * np.maximum(busy, (read + fetched) / machine.read)
        found: Column = np.where(self.ways.pr, if_resident, streamed)
        return found

    def _compute(self) -> Column:
        found: Column = self.n * (self.total("forward") + self.training * self.total("backward"))
        return found

    def _exchange(self) -> tuple[Column, Column, Column]:
        wp = self.n * (self.total("reduce_forward") + self.training * self.total("reduce_backward"))
        return wp, self.training * self.total("gather"), self._sent_bytes()[2] / self.links.p

    def _sent_bytes(self) -> tuple[Column, Column, Column]:
        """Return the bytes sent to GPUs of the layer, to other groups, to the next and the previous stage."""
        wp = self.n * (self.total("reduce_forward_bytes") + self.training * self.total("reduce_backward_bytes"))
        dp = self.training * self.total("gather_bytes")
        several = self.ways.p > 1
        # PR distributes blocks round-robin, so every block sends its result; AR sends the stage's result. The head's
        # result is not sent, and neither is the gradient of the first layer's input.
        hops_out = np.where(self.ways.pr, self.blocks, 1)
        hops_back = np.where(self.ways.pr, self.blocks, 1)
        ends_out = (self.number == self.ways.p - 1).astype(int)
        ends_in = (self.number == 0).astype(int)
        pipeline = several * self.n * self.boundary * ((hops_out - ends_out) + self.training * (hops_back - ends_in))
        return wp, dp, pipeline

    def traffic(self) -> tuple[Column, Column]:
        """Return the bytes read and written in a mini-batch's passes."""
        read, write = self._weights_read(), np.zeros(len(self.ways))
        moved = self.n * self.ways.offload
        pr, stays, outputs = self.ways.pr, self._turns, self.total("outputs")
        inputs = self.total("inputs") - stays * self.end(1, "inputs")
        inner = np.where(self.ways.recompute, 0.0, self.total("inner") - stays * self.end(1, "inner")) * self.training
        read = read + moved * (inputs * pr + self.training * (inputs + inner + outputs * pr))
        write = write + moved * (np.where(pr, inputs, inputs * self.training) + inner + self.training * outputs * pr)
        if self.training:
            spilled = (self.ways.level == 0) * self.total("gradients")
            read = read + np.where(pr, 0.0, (self.n - 1) * spilled)
            write = write + np.where(pr, 1, self.n) * spilled
        return read, write

    def _weights_read(self) -> Column:
        """Return the bytes of weights that are read: a layer's for each step after a step of another layer."""
        total, first, last = self.total("weights"), self.end(0, "weights"), self.end(1, "weights")
        resident = self.total("weights") + self.training * (total - last)
        several = self.layers > 1
        if self.training:
            ahead = np.minimum(self.n, self.ways.p - self.number - 1)  # forward passes before the first backward pass
            repeats = np.where(ahead < self.n, ahead, self.n - 1) * several
            streamed = first + self.n * (2 * total - first - last) + repeats * (first + last)
        else:
            streamed = first + self.n * (total - first) + (self.n - 1) * first * several
        return np.where(self.ways.level < 2, np.where(self.ways.pr, resident, streamed), 0.0)

    def optimiser(self) -> tuple[Column, Column]:
        """Return the bytes that the optimiser reads and writes.

        They are its values, gradients and new weights where these are in storage, and gradients of tied layers before
        and after their sum.
        """
        if not self.training:
            return np.zeros(len(self.ways)), np.zeros(len(self.ways))
        level, state, weights = self.ways.level, self.total("state"), self.total("weights")
        tied = (level == 0) * (self.embedding * self.ends[0].tied + self.head * self.ends[1].tied)
        read = (level < 3) * state + (level == 0) * self.total("gradients") + (level < 2) * weights * self.loads_state
        return read + tied, (level < 3) * state + (level < 2) * weights + tied

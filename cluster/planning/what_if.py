"""Bandwidth, batch or cluster at which compute hides storage.

The answer is a closed form of a plan's rounds. In a round a GPU computes for `c` seconds while its storage moves bytes
for `s`. Both are known, so the bandwidth at which `s = c` is the present one times `s / c`. Of a round of AR, the
weights' part does not grow with the micro-batch and the rest does; so the micro-batch at which `s = c` is the weights'
part over the excess of compute over activations, for one sequence. A round of PR fetches an `n`-th of a layer's
weights, so there the mini-batch decides, and not the micro-batch.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import evolve, frozen

from ...ir import UsageError
from ..plans import MAX_GPUS, Machine, Transformer, Way, columns
from ..prediction import PipelineStage
from .planner import MAX_NODES, rank


@frozen
class Answer:
    """Changes that would hide storage under compute.

    `pressure` is storage's seconds over compute's in the worst round. `read` and `write` are the least bandwidths
    (bytes/s); `micro` the least micro-batch (AR) and `batch` the least mini-batch (PR), None where none would do or the
    question has no meaning; `gpus` the least number at which the best plan hides storage.
    """

    way: Way
    pressure: float
    read: float
    write: float
    micro: int | None
    batch: int | None
    gpus: int | None

    @property
    def hidden(self) -> bool:
        """Return whether compute hides storage as it is."""
        return self.pressure <= 1

    def lines(self, machine: Machine) -> list[str]:
        """Return the answer in sentences."""
        if self.pressure == 0:
            return ["nothing moves to or from storage while layers compute, so storage does not matter there"]
        ratio = f"storage takes {self.pressure:.3g} times as long as compute in the worst round"
        found = [f"storage is {'fast enough' if self.hidden else 'too slow'}: {ratio}"]
        now = f"now {machine.read / 1e9:.3g} and {machine.write / 1e9:.3g}"
        found.append(
            f"least bandwidth: read {self.read / 1e9:.3g} GB/s, write {self.write / 1e9:.3g} GB/s per GPU ({now})"
        )
        if self.way.policy == "AR":
            least = (
                f"{self.micro} sequences" if self.micro else "none would do: activations alone take longer than compute"
            )
            found.append(f"least micro-batch: {least} (now {self.way.micro})")
        else:
            least = (
                f"{self.batch} sequences" if self.batch else "none would do: activations alone take longer than compute"
            )
            found.append(f"least mini-batch: {least} (the micro-batch does not matter to this policy)")
        found.append(f"least GPUs: {self.gpus or f'none up to {MAX_NODES} nodes'}")
        return found


def what_if(model: Transformer, machine: Machine, way: Way, *, training: bool = True) -> Answer:
    """Answer for one way."""
    ratio = pressure(model, machine, way, training=training)
    fixed, growing = _parts(model, machine, way, training=training)
    micro = batch = None
    if all(share < 1 for share in growing):
        least = max((part / (1 - share) for part, share in zip(fixed, growing, strict=True)), default=0.0)
        n = model.batch // (way.dp * way.micro)
        if way.policy == "AR":
            micro = max(1, math.ceil(way.micro * least - 1e-9))
        else:
            batch = max(1, math.ceil(n * least - 1e-9)) * way.dp * way.micro
    gpus = _least_gpus(model, machine, training=training)
    return Answer(way, ratio, machine.read * ratio, machine.write * ratio, micro, batch, gpus)


def pressure(model: Transformer, machine: Machine, way: Way, *, training: bool = True) -> float:
    """Return storage's seconds over compute's in a block's worst round."""
    return max(sum(pair) for pair in zip(*_parts(model, machine, way, training=training), strict=True))


def _parts(model: Transformer, machine: Machine, way: Way, *, training: bool) -> tuple[list[float], list[float]]:
    """Return, for a block's rounds forward and backward, storage over compute: of weights and gradients, and of
    activations.
    """
    stage = PipelineStage(columns([way]), model, machine, np.array([0]), training=training)
    found = [stage.shares(backward=backward) for backward in ((False, True) if training else (False,))]
    return [weights for weights, _ in found], [activations for _, activations in found]


def _least_gpus(model: Transformer, machine: Machine, *, training: bool) -> int | None:
    nodes = 1
    while nodes <= MAX_NODES and nodes * machine.gpus <= MAX_GPUS:
        larger = evolve(machine, nodes=nodes)
        try:
            best = rank(model, larger, training=training, limit=1).ranked[0].way
            if pressure(model, larger, best, training=training) <= 1:
                return larger.count
        except UsageError:
            pass  # it does not fit yet
        nodes *= 2
    return None

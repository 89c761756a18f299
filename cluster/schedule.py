"""A plan's schedule: the order in which a stage takes its layers and micro-batches.

The simulator and the runner both follow it.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from .describe import Transformer
from .ways import Way


@frozen
class LayerPass:
    """A micro-batch passes a layer, forward or backward; `layer` counts all layers of the model, the embedding
    first.
    """

    backward: bool
    layer: int
    micro: int


@frozen
class Placed:
    """A layer and its kind, on the stage that has it."""

    layer: int
    kind: str


def placement(model: Transformer, way: Way) -> list[list[Placed]]:
    """Return the layers of every stage: neighbours for AR, every `p`-th block for PR, so that micro-batches go
    round.
    """
    shift = 1 if model.vocabulary else 0
    blocks = [Placed(shift + number, "block") for number in range(model.layers)]
    share = model.layers // way.p
    if way.policy == "PR":
        stages = [blocks[stage :: way.p] for stage in range(way.p)]
    else:
        stages = [blocks[stage * share : (stage + 1) * share] for stage in range(way.p)]
    if model.vocabulary:
        stages[0].insert(0, Placed(0, "embedding"))
        stages[-1].append(Placed(model.layers + 1, "head"))
    return stages


def order(layers: list[Placed], way: Way, stage: int, micros: int, *, training: bool) -> Iterator[LayerPass]:
    """Yield a stage's steps in order: PR by layers, AR by micro-batches, and with several stages "one forward, one
    backward".
    """
    ahead = [each.layer for each in layers]
    back = ahead[::-1] if training else []
    if way.policy == "PR":
        yield from (LayerPass(False, layer, micro) for layer in ahead for micro in range(micros))
        yield from (LayerPass(True, layer, micro) for layer in back for micro in range(micros))
        return
    first = min(micros, way.p - stage - 1) if training else micros
    for micro in range(first):
        yield from (LayerPass(False, layer, micro) for layer in ahead)
    for micro in range(micros - first if training else 0):
        yield from (LayerPass(False, layer, first + micro) for layer in ahead)
        yield from (LayerPass(True, layer, micro) for layer in back)
    for micro in range(micros - first, micros):
        yield from (LayerPass(True, layer, micro) for layer in back)

"""Schedule of a plan: the order of layers and micro-batches on stages.

The simulator and the runner both follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from ..plans import Transformer, Way


@frozen
class LayerPass:
    """Pass of a micro-batch through a layer, forward or backward.

    `layer` counts all layers of the model, the embedding first.
    """

    backward: bool
    layer: int
    micro: int


@frozen
class Arrival:
    """Layer whose weights arrive while a step computes.

    After it, `part` of so many parts are in flight.
    """

    layer: int
    part: int
    parts: int


@frozen
class PlacedLayer:
    """Layer and its kind, on the stage that has it."""

    layer: int
    kind: str


def placement(model: Transformer, way: Way) -> list[list[PlacedLayer]]:
    """Return the layers of every stage.

    They are neighbours for AR, every `p`-th block for PR, so that micro-batches go round.
    """
    shift = 1 if model.vocabulary else 0
    blocks = [PlacedLayer(shift + number, "block") for number in range(model.layers)]
    share = model.layers // way.p
    if way.policy == "PR":
        stages = [blocks[stage :: way.p] for stage in range(way.p)]
    else:
        stages = [blocks[stage * share : (stage + 1) * share] for stage in range(way.p)]
    if model.vocabulary:
        stages[0].insert(0, PlacedLayer(0, "embedding"))
        stages[-1].append(PlacedLayer(model.layers + 1, "head"))
    return stages


def order(layers: list[PlacedLayer], way: Way, stage: int, micros: int, *, training: bool) -> Iterator[LayerPass]:
    """Yield a stage's steps in order.

    PR goes by layers, AR by micro-batches, and with several stages "one forward, one backward".
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


def adds_to_same(step: LayerPass, following: LayerPass | None) -> bool:
    """Return whether the next step adds to the same gradients.

    These then need not leave memory: on a stage of one layer, where a pipeline drains.
    """
    return following is not None and step.backward and following.backward and step.layer == following.layer


def arrivals(steps: Sequence[LayerPass], spread: int) -> list[Arrival | None]:
    """Return the weights that arrive during each step.

    A part of the next layer's weights arrives with each of the last `spread` steps before it. PR spreads them
    over a layer's micro-batches, so that storage is always busy; AR passes a layer in one step.
    """
    found: list[Arrival | None] = []
    following: int | None = None
    left = 0
    for position in range(len(steps) - 1, -1, -1):
        if position + 1 < len(steps) and steps[position + 1].layer != steps[position].layer:
            following, left = steps[position + 1].layer, spread
        found.append(Arrival(following, left, spread) if following is not None and left > 0 else None)
        left -= 1
    return found[::-1]

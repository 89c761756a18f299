"""Sizes and times of one layer on one GPU, for many ways.

Closed forms and schedules are both made of these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import frozen

from .descriptions import Machine
from .transformer import Transformer
from .ways import Column, Ways


@frozen
class Layer:
    """Kind of layer, for one sequence and before distribution over GPUs.

    Numbers are elements, not bytes. `inner` are the intermediates that the backward pass needs: those that every GPU of
    a layer holds, and those that they share. `reduces` counts the sums over a layer's GPUs in the forward and in the
    backward pass. `passes` are the seconds of both passes in units of `flops`, without recomputation and with it.
    `tied` parameters have their gradients added to those of another layer before the optimiser works. A layer that is
    not `split` is whole on each of the GPUs that share other layers, which all compute it.
    """

    parameters: int
    flops: float
    inputs: int = 0
    outputs: int = 0
    whole: int = 0
    shared: int = 0
    reduces: tuple[int, int] = (0, 0)
    passes: tuple[float, float, float] = (1.0, 2.0, 3.0)
    tied: int = 0
    split: bool = True


def layer_kinds(model: Transformer, *, training: bool) -> Mapping[str, Layer]:
    """Return the kinds of layers of a model.

    They are blocks, and an embedding and a head where it has a vocabulary. The head computes the scores of each
    sequence's next token; in training those of all tokens, once, with the loss at the begin of the backward pass.
    """
    boundary, words = model.hidden * model.sequence, model.words
    inner = (3 if model.gated else 1) * model.width + model.width + 2 * model.queries + 2 * model.keys
    kinds = {
        "block": Layer(
            model.block_parameters, model.block_flops, boundary, boundary, 3 * boundary, inner * model.sequence, (2, 2)
        )
    }  # fmt: skip
    if model.vocabulary:
        tied = words * model.has_tied_head
        scored = 2.0 * words * (model.sequence if training else 1)
        kinds["embedding"] = Layer(model.embedding_parameters, 0.0, outputs=boundary, tied=tied, split=False)
        kinds["head"] = Layer(
            model.head_parameters,
            scored,
            inputs=boundary,
            passes=(0.0, 3.0, 3.0) if training else (1.0, 0.0, 0.0),
            tied=tied,
            split=False,
        )
    return kinds


@frozen(eq=False)
class Sizes:
    """Kind of layer on one GPU of each way.

    It has bytes, and seconds for one micro-batch.
    """

    weights: Column
    gradients: Column
    state: Column
    inputs: Column
    outputs: Column
    inner: Column
    forward: Column
    backward: Column
    reduce_forward: Column
    reduce_backward: Column
    reduce_forward_bytes: Column
    reduce_backward_bytes: Column
    gather: Column
    gather_bytes: Column
    tied: Column


@frozen(eq=False)
class Links:
    """Bytes a second of each kind of link.

    `wp` is between the GPUs of a layer, `dp` between groups with different data, `p` from a stage to the next.
    """

    wp: Column
    dp: Column
    p: Column


def links(ways: Ways, machine: Machine) -> Links:
    """Return the bandwidths of a placement of all GPUs.

    The placement keeps the GPUs of a layer nearest, then the data-parallel groups, then stages. A ring
    within a node runs at the speed of its links. Rings that leave the node share the node's link: as many as begin in
    it.
    """
    inside, node = machine.gpu_link, machine.node_link
    near = ways.wp * ways.dp
    wp = np.where(ways.wp <= machine.gpus, inside, min(inside, node))
    dp = np.where(near <= machine.gpus, inside, np.minimum(inside, node / np.minimum(ways.wp, machine.gpus)))
    p = np.where(near * ways.p <= machine.gpus, inside, np.minimum(inside, node / np.minimum(near, machine.gpus)))
    return Links(wp, dp, p)


def ring(members: Column) -> Column:
    """Return the traffic of a ring sum relative to its size."""
    found: Column = 2 * (members - 1) / members
    return found


def sizes(ways: Ways, model: Transformer, machine: Machine, layer: Layer, kind: str) -> Sizes:
    """Return the sizes of a kind of layer.

    Times come from measurements of the kind, else from the peak and the efficiency.
    """
    value, wp = float(model.value_bytes), ways.wp
    link, parts = links(ways, machine), ways.wp if layer.split else np.ones_like(ways.wp)
    weights = value * layer.parameters / parts
    unit = layer.flops * ways.micro / (parts * machine.peak * machine.efficiency)
    once, back, recomputing = layer.passes
    forward, backward = once * unit, unit * np.where(ways.recompute, recomputing, back)
    forward, backward = _measured_times(ways, model, machine, kind, forward, backward)
    boundary = value * ways.micro * model.hidden * model.sequence * ring(wp)
    first = layer.reduces[0] * boundary
    # Computing again stops before a layer's last sum, which gives its result.
    second = (layer.reduces[1] + ways.recompute * max(layer.reduces[0] - 1, 0)) * boundary
    gathered = ring(ways.dp) * weights
    return Sizes(
        weights=weights,
        gradients=weights,
        state=model.state_bytes * layer.parameters / parts,
        inputs=value * ways.micro * layer.inputs,
        outputs=value * ways.micro * layer.outputs,
        inner=value * ways.micro * (layer.whole + layer.shared / parts),
        forward=forward,
        backward=backward,
        reduce_forward=first / link.wp,
        reduce_backward=second / link.wp,
        reduce_forward_bytes=first,
        reduce_backward_bytes=second,
        gather=gathered / link.dp,
        gather_bytes=gathered,
        tied=value * layer.tied / parts,
    )


def _measured_times(
    ways: Ways, model: Transformer, machine: Machine, kind: str, forward: Column, backward: Column
) -> tuple[Column, Column]:
    forward, backward = forward * np.ones(len(ways)), backward * np.ones(len(ways))
    for each in (m for m in machine.measured if (m.model, m.kind) == (model.name, kind)):
        rows = (ways.micro == each.micro) & (ways.wp == each.wp)
        forward[rows] = each.forward
        backward[rows] = np.where(ways.recompute[rows], each.recomputing, each.backward)
    return forward, backward


def time_source(model: Transformer, machine: Machine, micro: int, wp: int) -> str:
    """Return the source of a layer's time."""
    asked = (model.name, micro, wp, "block")
    known = any((m.model, m.micro, m.wp, m.kind) == asked for m in machine.measured)
    return "measured" if known else f"peak FLOP/s x efficiency {machine.efficiency:g}"

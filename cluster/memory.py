"""What the memory of one GPU holds while a plan runs, kind by kind, as `running/` takes it: the names are those under
which its arena counts (`buffers.py`).

Buffers of layers and of activations are counted one by one, as the schedule takes them; they are exact but for a few
activations. What kernels need inside is known exactly only when they are compiled, so that it is an upper bound here.
`tests/cluster/test_memory.py` holds both to what the runner takes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .stages import PipelineStage
from .ways import Column

#: Parameters that the optimiser takes at a time.
CHUNK = 1 << 20
#: Bytes of partial sums that kernels add up across blocks: enough blocks for a GPU, each with a tile.
PARTIAL = 64e6
#: Bytes that a layer's file may have between its tensors, and bytes of scalars, tables and small constants.
FILLING, SMALL = 16 * 256, 1 << 15


def memory_parts(stage: PipelineStage) -> Mapping[str, Column]:
    """Return the bytes of each kind on a GPU of a stage, for each way."""
    training = stage.training
    nothing = np.zeros(len(stage.ways))
    return {
        "weights": _weights(stage),
        "gradients": _gradients(stage) if training else nothing,
        "activations between layers": _between(stage) * stage.boundary,
        "values inside layers": _saved(stage) * stage.block.inner if training else nothing,
        "optimiser": _optimiser(stage) if training else nothing,
        "inside kernels": inside_kernels(stage) + SMALL,
    }


def sent_ahead(micros: Column | int, stages: Column | int, resident: Column | bool) -> Column:
    """Return how many results a stage may have on their way to others: all of a layer where the other stage takes
    them only later (PR); with AR no more than are under way between both, forward and backward.
    """
    found: Column = np.where(stages > 1, np.where(resident, micros, np.minimum(micros, 2 * stages)), 0)
    return found


def under_way(stage: PipelineStage) -> Column:
    """Return how many micro-batches are between their forward and their backward pass."""
    found: Column = np.where(stage.ways.pr, stage.n, np.minimum(stage.n, stage.ways.p - stage.number))
    return found


def largest(stage: PipelineStage, name: str) -> Column:
    """Return a size of the stage's largest layer."""
    first, last = (
        np.where(has, getattr(end, name), 0.0)
        for has, end in zip((stage.embedding, stage.head), stage.ends, strict=True)
    )
    found: Column = np.maximum(np.maximum(first, last), getattr(stage.block, name))
    return found


def _layer(stage: PipelineStage) -> Column:
    """Return the bytes of a buffer for a layer's weights: what every GPU of a layer holds whole is in it whole."""
    found: Column = largest(stage, "weights") + stage.whole * (1 - 1 / stage.ways.wp) + FILLING
    return found


def _all_layers(stage: PipelineStage) -> Column:
    """Return the bytes of buffers for all layers of the stage."""
    rest = stage.whole * (1 - 1 / stage.ways.wp) + FILLING
    found: Column = stage.total("weights") + stage.layers * rest
    return found


def _weights(stage: PipelineStage) -> Column:
    """Two layers where weights stream, else all."""
    whole = _all_layers(stage)
    found: Column = np.where(stage.ways.level >= 2, whole, np.minimum(2 * _layer(stage), whole))
    return found


def _gradients(stage: PipelineStage) -> Column:
    """Zeros to begin with, the sum before and the sum after; where sums leave, one that does, and with AR one that
    comes, if the stage has several layers; where they stay, those of all layers and two more.
    """
    several = stage.layers > 1
    moving = np.where(stage.ways.pr, 3 + several, 4 + several) * _layer(stage)
    found: Column = np.where(stage.ways.level >= 1, _all_layers(stage) + 2 * _layer(stage), moving)
    return found


def _between(stage: PipelineStage) -> Column:
    """Count activations between layers: a layer's input, result and the gradients of both, between the halves of a
    layer that several GPUs share one or two more; what comes and goes with storage; what is kept; what is on its way.
    """
    ways, training = stage.ways, stage.training
    work = 4 + (ways.wp > 1) * (1 + training)
    moving = ways.offload * np.where(ways.pr, 3, 2)
    sent = sent_ahead(stage.n, ways.p, ways.pr)
    if not training:
        held = np.where(ways.pr & ~ways.offload, stage.n, 0)
        found: Column = work + moving + np.maximum(held, sent)
        return found
    held = under_way(stage) * stage.layers + np.where(ways.pr, stage.n, 0)
    found = work + moving + sent + np.where(ways.offload, 0, held)
    return found


def _saved(stage: PipelineStage) -> Column:
    """Count what the backward pass needs of the inside of layers; of what is moved one is used, one comes and one or
    two leave.
    """
    ways = stage.ways
    kept = np.where(ways.offload, 4, under_way(stage) * stage.layers)
    found: Column = np.where(ways.recompute, 0, kept)
    return found


def _optimiser(stage: PipelineStage) -> Column:
    """Of a piece of parameters what is read and what is written, for the piece at hand and for the next and the last
    one; with resident state that of all parameters besides, although the runner moves it too.

    Where there are but two pieces, what the second writes goes to where the first was read from, as far as that has
    room for it.
    """
    ways, value = stage.ways, stage.value
    state = stage.block.state / stage.block.weights * value  # bytes of a parameter
    read = state + (ways.level == 0) * value + ((ways.level < 2) & stage.loads_state) * value
    written = state + value
    elements = _layer(stage) / value
    pieces = stage.layers * np.ceil(elements / CHUNK)
    reused = np.where(ways.level >= (2 if stage.loads_state else 1), value, 0)
    last = np.where(pieces > 2, written, np.where(pieces > 1, reused, 0))
    moved = np.minimum(elements, CHUNK) * (np.minimum(2, pieces) * read + written + last)
    found: Column = moved + np.where(ways.level >= 3, stage.total("state"), 0.0)
    return found


def inside_kernels(stage: PipelineStage) -> Column:
    """Bound what a layer's kernels hold between each other, in its larger half: attention, whose scores are whole in
    memory, once or twice forward and four times backward, or what follows it; and partial sums, of as many parts as a
    GPU has room for whatever the model is.
    """
    recompute, wp = stage.ways.recompute, stage.ways.wp
    rows = 3 if stage.training or stage.weighed > 1 else 1  # what norms and attention give
    between = rows * stage.boundary + stage.attended + stage.boundary / wp
    if stage.training:
        attention, behind = 4 * stage.scores, np.where(recompute, 2, 1) * stage.wides * stage.wide
        behind = behind + np.where(recompute & (wp == 1), stage.scores, 0.0)
    else:
        attention, behind = stage.weighed * stage.scores, stage.wides * stage.wide
    found: Column = between + np.maximum(attention, behind) + np.minimum(PARTIAL, 4 * stage.block.inner)
    return found

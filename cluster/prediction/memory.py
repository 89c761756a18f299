"""Memory of one GPU during a run, by kind of `running/`.

The names are those of its arena (`buffers.py`). Buffers of layers and of activations are counted one by one, as the
schedule takes them; they are exact but for a few activations. The scratch memory of kernels is known exactly only after
compilation, so that it is an upper bound here. `tests/cluster/test_memory.py` compares both with the runner's use.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..plans import Column
from .stages import PipelineStage

#: Parameters that the optimiser takes at a time.
CHUNK_PARAMETERS = 1 << 22
#: Bytes of partial sums that kernels add up across blocks: enough blocks for a GPU, each with a tile.
PARTIAL_SUM_BYTES = 64e6
#: Copies in fp32 of the embedding's gradient while its rows are added up, and bytes of a token's places then.
SORTED_COPIES, TOKEN_BYTES = 3, 64
#: Bytes that a layer's file may have between its tensors, and bytes of scalars, tables and small constants.
PADDING_BYTES, SCALAR_BYTES = 16 * 256, 1 << 15


def memory_parts(stage: PipelineStage) -> Mapping[str, Column]:
    """Return the bytes of each kind on a stage's GPU, by way."""
    training = stage.training
    nothing = np.zeros(len(stage.ways))
    return {
        "weights": _weights(stage),
        "gradients": _gradients(stage) if training else nothing,
        "activations between layers": _activations_between(stage) * stage.boundary,
        "values inside layers": _saved_values(stage) * stage.block.inner if training else nothing,
        "optimiser": _optimiser(stage) if training else nothing,
        "inside kernels": kernel_scratch_bytes(stage) + SCALAR_BYTES,
    }


def in_flight_results(micros: Column | int, stages: Column | int, resident: Column | bool) -> Column:
    """Return the maximum of results in flight from a stage to others.

    They are all of a layer where the other stage takes them only later (PR); with AR no more than are in flight between
    both, forward and backward.
    """
    found: Column = np.where(stages > 1, np.where(resident, micros, np.minimum(micros, 2 * stages)), 0)
    return found


def in_flight_micro_batches(stage: PipelineStage) -> Column:
    """Return the micro-batches between their forward and their backward pass."""
    found: Column = np.where(stage.ways.pr, stage.n, np.minimum(stage.n, stage.ways.p - stage.number))
    return found


def largest_layer(stage: PipelineStage, name: str) -> Column:
    """Return a size of the stage's largest layer."""
    first, last = (
        np.where(has, getattr(end, name), 0.0)
        for has, end in zip((stage.embedding, stage.head), stage.ends, strict=True)
    )
    found: Column = np.maximum(np.maximum(first, last), getattr(stage.block, name))
    return found


def _layer(stage: PipelineStage) -> Column:
    """Return the bytes of a buffer for a layer's weights, replicated parameters in full."""
    found: Column = largest_layer(stage, "weights") + stage.whole * (1 - 1 / stage.ways.wp) + PADDING_BYTES
    return found


def _all_layers(stage: PipelineStage) -> Column:
    """Return the bytes of buffers for all layers of the stage."""
    rest = stage.whole * (1 - 1 / stage.ways.wp) + PADDING_BYTES
    found: Column = stage.total("weights") + stage.layers * rest
    return found


def _weights(stage: PipelineStage) -> Column:
    """Return the bytes of two layers where weights stream, else of all."""
    whole = _all_layers(stage)
    found: Column = np.where(stage.ways.level >= 2, whole, np.minimum(2 * _layer(stage), whole))
    return found


def _gradients(stage: PipelineStage) -> Column:
    """Return the bytes of gradients.

    With sums in storage: initial zeros, the sum before and the sum after, one that leaves, and with AR one that comes,
    if the stage has several layers; with resident sums those of all layers and two more, or three between both ends.
    """
    several, spare = stage.layers > 1, 2 + stage.embedding * stage.head
    moving = np.where(stage.ways.pr, 3 + several, 4 + several) * _layer(stage)
    found: Column = np.where(stage.ways.level >= 1, _all_layers(stage) + spare * _layer(stage), moving)
    return found


def _activations_between(stage: PipelineStage) -> Column:
    """Return the number of activations between layers.

    They are a layer's input, result and the gradients of both, between the halves of a layer that several GPUs share
    one or two more; those in transfer to and from storage; resident ones; and those in flight.
    """
    ways, training = stage.ways, stage.training
    work = 4 + (ways.wp > 1) * (1 + training)
    moving = ways.offload * np.where(ways.pr, 3, 2)
    sent = in_flight_results(stage.n, ways.p, ways.pr)
    if not training:
        held = np.where(ways.pr & ~ways.offload, stage.n, 0)
        found: Column = work + moving + np.maximum(held, sent)
        return found
    held = in_flight_micro_batches(stage) * stage.layers + np.where(ways.pr, stage.n, 0)
    found = work + moving + sent + np.where(ways.offload, 0, held)
    return found


def _saved_values(stage: PipelineStage) -> Column:
    """Return the number of saved values inside of layers; offloaded, one is used, one arrives and one or two leave."""
    ways = stage.ways
    kept = np.where(ways.offload, 4, in_flight_micro_batches(stage) * stage.layers)
    found: Column = np.where(ways.recompute, 0, kept)
    return found


def _optimiser(stage: PipelineStage) -> Column:
    """Return the bytes of the optimiser.

    They are the values read and written of two chunks, since the next arrives and the last leaves meanwhile; with
    resident state that of all parameters besides, although the runner moves it too.
    """
    ways, value = stage.ways, stage.value
    state = stage.block.state / stage.block.weights * value  # bytes of a parameter
    read = state + (ways.level == 0) * value + ((ways.level < 2) & stage.loads_state) * value
    written = state + value
    elements = _layer(stage) / value
    pieces = stage.layers * np.ceil(elements / CHUNK_PARAMETERS)
    moved = np.minimum(elements, CHUNK_PARAMETERS) * np.minimum(2, pieces) * (read + written)
    found: Column = moved + np.where(ways.level >= 3, stage.total("state"), 0.0)
    return found


def kernel_scratch_bytes(stage: PipelineStage) -> Column:
    """Return an upper bound of the kernels' scratch memory in a layer.

    It is that of the larger half: attention, whose scores are whole in memory, once or twice forward and four times
    backward, or the MLP; and partial sums, of at most as many parts as a GPU has room for.
    """
    recompute, wp = stage.ways.recompute, stage.ways.wp
    rows = 3 if stage.training or stage.weighed > 1 else 1  # results of norms and attention
    between = rows * stage.boundary + stage.attended + stage.boundary / wp
    if stage.training:
        attention, mlp = 4 * stage.scores, np.where(recompute, 2, 1) * stage.wides * stage.wide
        mlp = mlp + np.where(recompute & (wp == 1), stage.scores, 0.0)
    else:
        attention, mlp = stage.weighed * stage.scores, stage.wides * stage.wide
    block = between + np.maximum(attention, mlp) + np.minimum(PARTIAL_SUM_BYTES, 4 * stage.block.inner)
    found: Column = np.maximum(block, _end_bytes(stage) * (stage.embedding | stage.head))
    return found


def _end_bytes(stage: PipelineStage) -> Column:
    """Return an upper bound of the kernels' scratch memory in the embedding and the head.

    In training they are the scores in fp32, their gradient in the model's type and a norm's result, or the sorted
    gradients of the embedding's rows; in inference the scores of the next tokens.
    """
    if not stage.training:
        return stage.logits + 2 * stage.boundary
    scored = (1 + stage.value / 4) * stage.logits + 2 * stage.boundary + np.minimum(PARTIAL_SUM_BYTES, stage.logits)
    looked_up = (4 * SORTED_COPIES / stage.value) * stage.boundary + TOKEN_BYTES * stage.tokens
    found: Column = np.maximum(stage.head * scored, stage.embedding * looked_up)
    return found

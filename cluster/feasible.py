"""Whether a way fits: its numbers divide, a GPU's memory and its share of the storage hold what they have to."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from .describe import Machine, Transformer
from .stages import PipelineStage
from .ways import Column, Ways

#: Parameters that the optimiser takes at a time.
CHUNK = 1 << 20


@frozen(eq=False)
class Feasibility:
    """For each way: bytes of memory and of storage on the GPU that needs most, and whether numbers divide."""

    memory: Column
    storage: Column
    divides: Column
    fits_memory: Column
    fits_storage: Column

    @property
    def feasible(self) -> Column:
        """Whether a way can be taken."""
        found: Column = self.divides & self.fits_memory & self.fits_storage
        return found


def fit(ways: Ways, model: Transformer, machine: Machine, *, training: bool = True) -> Feasibility:
    """Check ways against a cluster. The first stage needs most memory, as most micro-batches are under way in it; the
    last may have a larger layer.
    """
    numbers = (np.zeros_like(ways.p), ways.p - 1)
    both = [PipelineStage(ways, model, machine, number, training=training) for number in numbers]
    memory = np.maximum.reduce([_memory(stage) for stage in both])
    storage = np.maximum.reduce([_storage(stage) for stage in both])
    divides = (model.batch % (ways.dp * ways.micro) == 0) & (model.layers % ways.p == 0) & (model.groups % ways.wp == 0)
    divides = divides & (
        ~(ways.pr & ways.offload) | (both[0].n >= 3)
    )  # what is written has to be there before it is read again
    room = np.full(len(ways), True) if machine.storage is None else storage <= machine.storage
    return Feasibility(memory, storage, divides, memory <= machine.memory, room)


def size(nbytes: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


def reasons(ways: Ways, fits: Feasibility, row: int, model: Transformer, machine: Machine) -> list[str]:
    """Say why a way can not be taken; nothing where it can."""
    dp, wp, p, micro = (int(c[row]) for c in (ways.dp, ways.wp, ways.p, ways.micro))
    found = []
    if model.batch % (dp * micro):
        found.append(f"a mini-batch of {model.batch} does not divide into {dp} groups of micro-batches of {micro}")
    if model.layers % p:
        found.append(f"{model.layers} layers do not divide into {p} stages")
    if model.groups % wp:
        found.append(f"{model.groups} heads do not divide among {wp} GPUs")
    if found:
        return found
    if ways.pr[row] and ways.offload[row] and model.batch // (dp * micro) < 3:
        found.append(f"moving activations needs 3 micro-batches in turn, there are {model.batch // (dp * micro)}")
    if not fits.fits_memory[row]:
        found.append(f"needs {size(fits.memory[row])} of memory, a GPU has {size(machine.memory)}")
    if not fits.fits_storage[row]:
        found.append(f"needs {size(fits.storage[row])} of storage, a GPU has {size(machine.storage or 0)}")
    return found


def _largest(stage: PipelineStage, name: str) -> Column:
    first, last = (
        np.where(has, getattr(end, name), 0.0)
        for has, end in zip((stage.embedding, stage.head), stage.ends, strict=True)
    )
    found: Column = np.maximum(np.maximum(first, last), getattr(stage.block, name))
    return found


def _under_way(stage: PipelineStage) -> Column:
    """Return how many micro-batches are between their forward and their backward pass."""
    found: Column = np.where(stage.ways.pr, stage.n, np.minimum(stage.n, stage.ways.p - stage.number))
    return found


def _memory(stage: PipelineStage) -> Column:
    """Add up what stays, two buffers of what streams, and what one layer works with."""
    ways, training = stage.ways, stage.training
    weights = np.where(
        ways.level >= 2, stage.total("weights"), np.minimum(2 * _largest(stage, "weights"), stage.total("weights"))
    )
    inner = np.where(ways.recompute, 0.0, stage.total("inner"))
    block_inner = stage.block.inner
    # A layer at work: its inputs, its results and their gradients, twice as the next comes in meanwhile, and all
    # inside. Attention's scores are whole in memory: twice in the forward pass, four times in the backward pass.
    work = 4 * stage.boundary + block_inner + stage.scores * (4 if training else 2)
    if not training:
        held = np.where(ways.pr & ~ways.offload, stage.n * stage.boundary, 0.0)
        return weights + work + held
    # Of gradients: zeros to begin with, the sum before and the sum after; where they are moved, one that leaves and one
    # that comes.
    buffers = np.where(ways.level >= 1, 2, np.where(ways.pr, 4, 5)) * _largest(stage, "gradients")
    gradients = np.where(ways.level >= 1, stage.total("gradients"), 0.0) + buffers
    chunk = np.minimum(_largest(stage, "weights"), CHUNK * stage.value)
    # The optimiser reads and writes its values, and two or three of a layer's: gradients, new weights, and old ones in
    # single precision.
    moved = 2 * stage.block.state / stage.block.weights + (3 if stage.loads_state else 2)
    state = np.where(ways.level >= 3, stage.total("state"), 2 * chunk * moved)
    saved = _under_way(stage) * (stage.total("inputs") + inner)
    passing = np.where(ways.pr, stage.n * stage.boundary, 0.0)  # gradients between two layers
    moving = 2 * (stage.block.inputs + np.where(ways.recompute, 0.0, block_inner))
    found: Column = weights + gradients + state + work + np.where(ways.offload, moving, saved + passing)
    return found


def _storage(stage: PipelineStage) -> Column:
    """Add up weights, the optimiser's values, gradients and activations on their way."""
    ways, training = stage.ways, stage.training
    kept = stage.total("weights") + training * (stage.total("state") + (ways.level == 0) * stage.total("gradients"))
    inner = np.where(ways.recompute, 0.0, stage.total("inner")) * training
    saved = np.where(ways.pr, stage.n, _under_way(stage) * training) * (stage.total("inputs") + inner)
    found: Column = kept + ways.offload * saved
    return found

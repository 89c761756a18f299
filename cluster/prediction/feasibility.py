"""Feasibility of ways: divisible numbers, sufficient memory and storage."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ..plans import Column, Machine, Transformer, Ways
from .memory import in_flight_micro_batches, memory_parts
from .stages import PipelineStage


@frozen(eq=False)
class Feasibility:
    """Bytes and checks of each way.

    `memory` and `storage` are bytes on the GPU that needs most, `divides` says whether the numbers divide.
    """

    memory: Column
    storage: Column
    divides: Column
    fits_memory: Column
    fits_storage: Column

    @property
    def feasible(self) -> Column:
        """Return whether a way is feasible."""
        found: Column = self.divides & self.fits_memory & self.fits_storage
        return found


def fit(ways: Ways, model: Transformer, machine: Machine, *, training: bool = True) -> Feasibility:
    """Check ways against a cluster.

    The first stage needs most memory, as it has most micro-batches in flight; the last may have a larger layer.
    """
    numbers = (np.zeros_like(ways.p), ways.p - 1)
    both = [PipelineStage(ways, model, machine, number, training=training) for number in numbers]
    memory = np.maximum.reduce([_memory(stage) for stage in both])
    storage = np.maximum.reduce([_storage(stage) for stage in both])
    divides = (model.batch % (ways.dp * ways.micro) == 0) & (model.layers % ways.p == 0) & (model.groups % ways.wp == 0)
    divides = divides & (model.width % ways.wp == 0)
    divides = divides & (
        ~(ways.pr & ways.offload) | (both[0].n >= 3)
    )  # a value must be written before it is read again
    room = np.full(len(ways), True) if machine.storage is None else storage <= machine.storage
    return Feasibility(memory, storage, divides, memory <= machine.memory, room)


def size(nbytes: float) -> str:
    """Return a number of bytes with a suitable unit."""
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


def infeasibility_reasons(ways: Ways, fits: Feasibility, row: int, model: Transformer, machine: Machine) -> list[str]:
    """Return the reasons why a way is infeasible."""
    dp, wp, p, micro = (int(c[row]) for c in (ways.dp, ways.wp, ways.p, ways.micro))
    found = []
    if model.batch % (dp * micro):
        found.append(f"a mini-batch of {model.batch} does not divide into {dp} groups of micro-batches of {micro}")
    if model.layers % p:
        found.append(f"{model.layers} layers do not divide into {p} stages")
    if model.groups % wp:
        found.append(f"{model.groups} heads do not divide among {wp} GPUs")
    if model.width % wp:
        found.append(f"{model.width} neurons do not divide among {wp} GPUs")
    if found:
        return found
    if ways.pr[row] and ways.offload[row] and model.batch // (dp * micro) < 3:
        found.append(f"moving activations needs 3 micro-batches in turn, there are {model.batch // (dp * micro)}")
    if not fits.fits_memory[row]:
        found.append(f"needs {size(fits.memory[row])} of memory, a GPU has {size(machine.memory)}")
    if not fits.fits_storage[row]:
        found.append(f"needs {size(fits.storage[row])} of storage, a GPU has {size(machine.storage or 0)}")
    return found


def _memory(stage: PipelineStage) -> Column:
    found: Column = sum(memory_parts(stage).values(), np.zeros(len(stage.ways)))
    return found


def _storage(stage: PipelineStage) -> Column:
    """Return the bytes of weights, the optimiser's values, gradients and offloaded activations."""
    ways, training = stage.ways, stage.training
    kept = stage.total("weights") + training * (stage.total("state") + (ways.level == 0) * stage.total("gradients"))
    inner = np.where(ways.recompute, 0.0, stage.total("inner")) * training
    saved = np.where(ways.pr, stage.n, in_flight_micro_batches(stage) * training) * (stage.total("inputs") + inner)
    found: Column = kept + ways.offload * saved
    return found

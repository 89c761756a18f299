"""Constants on their way before they are read: a launch asks the L2 cache for those of a launch behind it.

Weights of a network that runs on one sample are read once and are not in the cache. A kernel that computes leaves
memory idle, and so does the time between two launches; so each constant is asked for by the launch in front of the one
that reads it first. What was measured of a kernel stays what it was: it only has a parameter more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from ..backends.source import asking_ahead
from ..ir import CompiledGraph, KernelFunction, Step, Target

#: Bytes of the smallest constant that is asked for: others are there as soon.
LEAST = 1 << 15


def with_constants_ahead(compiled: CompiledGraph, target: Target) -> CompiledGraph:
    """Return a compilation whose launches ask for constants of those behind them, where kernels of the target can."""
    if not target.bulk_prefetch:
        return compiled
    kernels, steps = list(compiled.kernels), list(compiled.steps)
    made: dict[tuple[int, int], int] = {}
    for number, tensor in _asked(compiled).items():
        step, type_ = compiled.steps[number], compiled.graph.types[tensor]
        key = step.kernel, type_.nbytes
        if key not in made:
            kernel = asking_ahead(compiled.kernels[step.kernel], type_.dtype, type_.nbytes)
            if kernel is None:
                continue
            made[key] = len(kernels)
            kernels.append(kernel)
        steps[number] = Step(made[key], (*step.tensors, tensor))
    return _without_unused(evolve(compiled, kernels=tuple(kernels), steps=tuple(steps)))


def _asked(compiled: CompiledGraph) -> Mapping[int, str]:
    """Return the constant that a step asks for: the largest that the step behind it is the first to read.

    Steps of loops ask for nothing, as they would in each turn.
    """
    within = {step for loop in compiled.loops for step in range(loop.first, loop.last)}
    read: set[str] = set()
    found = {}
    for number, step in enumerate(compiled.steps):
        fresh = [t for t in _constants(compiled, step) if t not in read]
        read.update(fresh)
        if fresh and number and number - 1 not in within:
            found[number - 1] = max(fresh, key=lambda t: compiled.graph.types[t].nbytes)
    return found


def _constants(compiled: CompiledGraph, step: Step) -> Sequence[str]:
    """Return the large constants that a step reads and that lie by themselves."""
    arguments = compiled.kernels[step.kernel].arguments
    return [
        tensor
        for argument, tensor in zip(arguments, step.tensors, strict=True)
        if not argument.table
        and tensor in compiled.graph.constants
        and tensor not in compiled.storages
        and compiled.graph.types[tensor].nbytes >= LEAST
    ]


def _without_unused(compiled: CompiledGraph) -> CompiledGraph:
    """Drop kernels that no step launches any more."""
    used = sorted({step.kernel for step in compiled.steps})
    place = {kernel: number for number, kernel in enumerate(used)}
    kernels: tuple[KernelFunction, ...] = tuple(compiled.kernels[kernel] for kernel in used)
    return evolve(compiled, kernels=kernels, steps=tuple(Step(place[s.kernel], s.tensors) for s in compiled.steps))

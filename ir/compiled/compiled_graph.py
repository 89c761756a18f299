"""Compiled graph, the result of the passes.

The passes produce a `CompiledGraph`, the runtime turns it into a plan; both know only these classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

from ..graph import Graph, IndexCheck
from .launch import KernelFunction, Storage


@frozen
class Step:
    """Launch of kernel number `kernel`.

    Graph tensor `tensors[i]` is bound to its argument `i`. A table argument is bound to the table's own name,
    `KernelFunction.arguments[i].tensor`. Equal groups share a kernel.
    """

    kernel: int
    tensors: tuple[str, ...]


@frozen
class RepeatedSteps:
    """Range of steps, from `first` to before `last`, launched `count` times."""

    first: int
    last: int
    count: int


@frozen
class CompiledGraph:
    """Kernels and the order to launch them in, for one canonical graph.

    `storages` has the place of each tensor that a step touches (a tensor without an entry owns a dense buffer of its
    name). `groups` are report records, one per step in the same order: `nodes` (member names), `parameters`, `bound`,
    `level`, `why` and further entries of a report; values are JSON values. `complete` is False when the time
    budget ended the search early. The results of `checks` are among the graph's outputs; they are for the runtime, not
    for the caller. `loops` has the ranges of repeated steps; they are disjoint, in order.
    """

    graph: Graph
    kernels: tuple[KernelFunction, ...]
    steps: tuple[Step, ...]
    storages: Mapping[str, Storage] = field(factory=dict)
    groups: tuple[Mapping[str, object], ...] = ()
    complete: bool = True
    checks: tuple[IndexCheck, ...] = ()
    loops: tuple[RepeatedSteps, ...] = ()


def launches(steps: int, loops: Sequence[RepeatedSteps]) -> Iterator[tuple[int, int]]:
    """Yield each launch as (step number, iteration of its loop).

    The iteration is 0 outside of loops.
    """
    first = 0
    for loop in loops:
        yield from ((step, 0) for step in range(first, loop.first))
        yield from ((step, turn) for turn in range(loop.count) for step in range(loop.first, loop.last))
        first = loop.last
    yield from ((step, 0) for step in range(first, steps))

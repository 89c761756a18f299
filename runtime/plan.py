"""Plan: everything needed to run a compiled graph, frozen.

A plan names kernels and their launch order, places each tensor in one arena, and carries the constants. Loading one
from a stranger is like running their program: kernels are code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np
from attrs import field, frozen

from ..ir import (
    Array,
    DType,
    Graph,
    IndexCheck,
    Interface,
    KernelFunction,
    PlanError,
    PrecisionName,
    RepeatedSteps,
    Step,
    Storage,
    Target,
    TensorType,
    launches,
    quote,
)
from .memory import Lifetime, Placement, place_buffers

if TYPE_CHECKING:
    from ..ir import CompiledGraph


def cuts_version() -> str:
    """Return the version of this package."""
    return str(import_module(__package__.partition(".")[0]).__version__)


class StoredGraph(Protocol):
    """Graph in the files of a plan, which few runs need."""

    @property
    def has_interface(self) -> bool:
        """Return whether the graph has state, fixed results or updates."""

    def read(self) -> Graph:
        """Return the graph.

        Raises `PlanError` where it contradicts the plan.
        """


@frozen(slots=False)
class PlannedModel:
    """Compiled model: the graph as given, declarations and precision policy.

    `specs` has the texts of the declarations it needs besides the vocabulary. A stored graph is read at its first use.
    """

    _graph: Graph | StoredGraph
    specs: Mapping[str, str] = field(factory=dict)
    precision: PrecisionName = "fp32"

    @cached_property
    def graph(self) -> Graph:
        """The graph as given."""
        return self._graph if isinstance(self._graph, Graph) else self._graph.read()

    @cached_property
    def interface(self) -> Interface:
        """The state and the fixed results of the graph, found once."""
        is_plain = not isinstance(self._graph, Graph) and not self._graph.has_interface
        return Interface() if is_plain else self.graph.interface


@frozen
class Plan:
    """A compiled graph ready to run on `target`.

    `types` and `storages` have an entry for every tensor that a step, an input or an output touches; `buffers` places
    each storage's buffer in an arena of `arena` bytes. `constants` are uploaded once, before the first run.
    `binaries[k]` is the compiled form of kernel `k`, or None where it is built from its source when the plan is opened.
    The results of `checks` are kept to the end like outputs. `loops` has the ranges of repeated steps. The launches of
    a `branched` plan wait only for their dependencies where the device can record that, and its buffers are placed so
    that these are no more than needed.
    """

    name: str
    target: Target
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    storages: Mapping[str, Storage]
    buffers: Mapping[str, Placement]
    arena: int
    constants: Mapping[str, Array] = field(eq=False, repr=False)
    kernels: tuple[KernelFunction, ...]
    steps: tuple[Step, ...]
    groups: tuple[Mapping[str, object], ...] = ()
    binaries: tuple[bytes | None, ...] = field(default=(), repr=False)
    model: PlannedModel | None = field(default=None, eq=False, repr=False)
    cuts: str = field(factory=cuts_version)
    checks: tuple[IndexCheck, ...] = ()
    loops: tuple[RepeatedSteps, ...] = ()
    branched: bool = False

    @property
    def interface(self) -> Interface:
        """The state and the fixed results of the model."""
        return self.model.interface if self.model else Interface()

    @property
    def in_place(self) -> Mapping[str, str]:
        """The outputs that are written where an input lies, by input."""
        written = set(written_buffers(self))
        given = {self.storages[name]: name for name in self.inputs if self.storages[name].buffer in written}
        pairs = ((given.get(self.storages[name]), name) for name in self.outputs)
        return {old: new for old, new in pairs if old is not None}

    def launches(self) -> Iterator[tuple[int, int]]:
        """Yield each launch as (step number, iteration of its loop)."""
        return launches(len(self.steps), self.loops)

    def turns(self, step: int) -> int:
        """Return the number of launches of a step."""
        return next((loop.count for loop in self.loops if loop.first <= step < loop.last), 1)

    @property
    def launch_count(self) -> int:
        """The number of kernels that a run launches."""
        return sum(map(self.turns, range(len(self.steps))))

    @property
    def distinct_kernels(self) -> int:
        """The number of launched kernels, without fallback kernels."""
        return len({step.kernel for step in self.steps})

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers without sharing memory over time."""
        return sum(place.nbytes for place in self.buffers.values())


def make_plan(
    compiled: CompiledGraph,
    target: Target,
    model: PlannedModel | None = None,
    binaries: tuple[bytes | None, ...] = (),
    name: str = "",
) -> Plan:
    """Make a plan of a compiled graph: collect tensors, place buffers."""
    graph = compiled.graph
    touched = _run_tensors(compiled)
    storages = {t: compiled.storages.get(t) or Storage(t, 0, graph.types[t].strides) for t in touched}
    constants = {t: graph.constants[t] for t in touched if t in graph.constants}
    checked = {name for check in compiled.checks for name in (check.place, check.found)}
    placed, arena = place_buffers(*_demands(compiled, storages, constants))
    plan = Plan(
        name=name or graph.name,
        target=target,
        inputs=graph.inputs,
        outputs=tuple(name for name in graph.outputs if name not in checked),
        types={t: graph.types[t] for t in touched},
        storages=storages,
        buffers=placed,
        arena=arena,
        constants={t: np.ascontiguousarray(a).reshape(np.shape(a)) for t, a in constants.items()},
        kernels=compiled.kernels,
        steps=compiled.steps,
        groups=compiled.groups,
        binaries=binaries or (None,) * len(compiled.kernels),
        model=model,
        checks=compiled.checks,
        loops=compiled.loops,
    )
    check_plan(plan)
    return plan


def _demands(
    compiled: CompiledGraph, storages: Mapping[str, Storage], constants: Iterable[str]
) -> tuple[dict[str, int], dict[str, Lifetime]]:
    """Return the bytes and the lifetime of each buffer."""
    graph = compiled.graph
    lifetimes = lifetimes_of(compiled, graph.inputs, graph.outputs, constants, storages)
    sizes = dict.fromkeys(lifetimes, 0)
    for tensor in (*_run_tensors(compiled), *constants):
        key = storages[tensor].buffer
        sizes[key] = max(sizes[key], extent_bytes(graph.types[tensor], storages[tensor]))
    return sizes, lifetimes


def lifetimes_of(
    what: CompiledGraph | Plan,
    inputs: Iterable[str],
    outputs: Iterable[str],
    constants: Iterable[str],
    storages: Mapping[str, Storage],
) -> dict[str, Lifetime]:
    """Return the lifetime of each buffer."""
    lifetimes: dict[str, Lifetime] = {}
    ends = (-1, len(what.steps))

    def use(tensor: str, *steps: int) -> None:
        key = storages[tensor].buffer
        for step in steps:
            lifetimes[key] = lifetimes.get(key, Lifetime(step, step)).extend(step)

    for tensor in inputs:
        use(tensor, ends[0])
    for tensor in outputs:
        use(tensor, ends[1])
    for tensor in constants:
        use(tensor, *ends)
    for index, step in enumerate(what.steps):
        for tensor in step.tensors:
            use(tensor, index)
    for buffer, loop in loop_carried_buffers(what, storages):
        lifetimes[buffer] = lifetimes[buffer].extend(loop.first).extend(loop.last - 1)
    return lifetimes


def written_buffers(plan: Plan) -> Iterator[str]:
    """Yield the buffer of each written argument."""
    for step in plan.steps:
        for argument, tensor in zip(plan.kernels[step.kernel].arguments, step.tensors, strict=True):
            if argument.written:
                yield plan.storages[tensor].buffer


def loop_carried_buffers(
    what: CompiledGraph | Plan, storages: Mapping[str, Storage]
) -> Iterator[tuple[str, RepeatedSteps]]:
    """Yield the loop-carried buffers, with their loop.

    These are all but those that an iteration writes before it reads them, always at the same place.
    """
    for loop in what.loops:
        kept: dict[str, bool] = {}
        for step in what.steps[loop.first : loop.last]:
            arguments = what.kernels[step.kernel].arguments
            bound = [(a.written, storages[t]) for a, t in zip(arguments, step.tensors, strict=True)]
            for written, storage in sorted(bound, key=lambda pair: pair[0]):
                kept[storage.buffer] = kept.get(storage.buffer, not written) or storage.by != 0
        yield from ((buffer, loop) for buffer, keeps in kept.items() if keeps)


def _run_tensors(compiled: CompiledGraph) -> tuple[str, ...]:
    """Return the tensors of a run, in a stable order; constants count where only views of them are read."""
    names = dict.fromkeys((*compiled.graph.inputs, *compiled.graph.outputs))
    for step in compiled.steps:
        names |= dict.fromkeys(step.tensors)
    buffers = (compiled.storages[t].buffer for t in tuple(names) if t in compiled.storages)
    return tuple(names | dict.fromkeys(b for b in buffers if b in compiled.graph.constants))


def extent_bytes(type_: TensorType, storage: Storage) -> int:
    """Return the bytes from the buffer's start to the tensor's end."""
    if 0 in type_.shape:
        return 0
    last = storage.ends[1] + sum((n - 1) * stride for n, stride in zip(type_.shape, storage.strides, strict=True))
    return (last + 1) * type_.dtype.size


def check_plan(plan: Plan) -> None:
    """Check that no step can leave its memory.

    It protects against faulty plans of any origin.
    """
    for check in (_check_tensors, _check_buffers, _check_steps):
        check(plan)
    if plan.model is not None and isinstance(plan.model._graph, Graph):
        check_model(plan.name, plan.model.graph, plan.inputs, plan.outputs, plan.types)


def _check_tensors(plan: Plan) -> None:
    checked = [name for check in plan.checks for name in (check.place, check.found)]
    for tensor in (*plan.inputs, *plan.outputs, *plan.constants, *checked):
        if tensor not in plan.types:
            raise PlanError(f"plan {quote(plan.name)}: tensor {quote(tensor)} has no type")
    for tensor in checked:
        if plan.types[tensor] != (one := TensorType(DType.I64, ())):
            raise PlanError(
                f"plan {quote(plan.name)}: the result {quote(tensor)} of a check is {plan.types[tensor]}, expected "
                f"{one}"
            )
    for tensor, array in plan.constants.items():
        type_ = plan.types[tensor]
        if array.shape != type_.shape or array.dtype != type_.dtype.numpy:
            raise PlanError(
                f"plan {quote(plan.name)}: constant {quote(tensor)} is {array.dtype}{list(array.shape)}, expected "
                f"{type_}"
            )


def check_model(
    name: str, graph: Graph, inputs: tuple[str, ...], outputs: tuple[str, ...], types: Mapping[str, TensorType]
) -> None:
    """Check that a plan and its model have equal inputs and outputs.

    Raises `PlanError` where they have not.
    """
    for what, ours, theirs in (("inputs", inputs, graph.inputs), ("outputs", outputs, graph.outputs)):
        if ours != theirs:
            raise PlanError(f"plan {quote(name)}: its {what} are {list(ours)}, those of its model {list(theirs)}")
        for tensor in ours:
            if (wanted := graph.types.get(tensor)) not in (None, types[tensor]):
                raise PlanError(f"plan {quote(name)}: {quote(tensor)} is {types[tensor]}, in its model {wanted}")


def _check_buffers(plan: Plan) -> None:
    for tensor, type_ in plan.types.items():
        storage = plan.storages.get(tensor)
        place = plan.buffers.get(storage.buffer) if storage else None
        if storage is None or place is None or len(storage.strides) != len(type_.shape):
            raise PlanError(f"plan {quote(plan.name)}: tensor {quote(tensor)} has no place in the arena")
        if storage.ends[0] < 0 or min(storage.strides, default=0) < 0 or extent_bytes(type_, storage) > place.nbytes:
            raise PlanError(
                f"plan {quote(plan.name)}: tensor {quote(tensor)} reaches outside its buffer of {place.nbytes} bytes"
            )
    for place in plan.buffers.values():
        if place.offset < 0 or place.nbytes < 0 or place.offset + place.nbytes > plan.arena:
            raise PlanError(f"plan {quote(plan.name)}: a buffer lies outside the arena of {plan.arena} bytes")


def _check_steps(plan: Plan) -> None:
    if len(plan.kernels) != len(plan.binaries):
        raise PlanError(f"plan {quote(plan.name)}: {len(plan.kernels)} kernels, {len(plan.binaries)} binaries")
    _check_loops(plan)
    for number, step in enumerate(plan.steps):
        if not 0 <= step.kernel < len(plan.kernels):
            raise PlanError(
                f"plan {quote(plan.name)}: step {number} launches kernel {step.kernel} of {len(plan.kernels)}"
            )
        kernel = plan.kernels[step.kernel]
        if len(kernel.arguments) != len(step.tensors):
            raise PlanError(
                f"plan {quote(plan.name)}: step {number} binds {len(step.tensors)} tensors, expected "
                f"{len(kernel.arguments)}"
            )
        for argument, tensor in zip(kernel.arguments, step.tensors, strict=True):
            if tensor not in plan.types or plan.types[tensor].dtype != argument.dtype:
                raise PlanError(
                    f"plan {quote(plan.name)}: step {number} binds {quote(tensor)} where {argument.dtype} is expected"
                )


def _check_loops(plan: Plan) -> None:
    """Check that loops are disjoint and in order, and that tensors of their steps move at most their iterations."""
    end = 0
    for loop in plan.loops:
        if not end <= loop.first < loop.last <= len(plan.steps) or loop.count < 1:
            raise PlanError(
                f"plan {quote(plan.name)}: a loop of {loop.count} turns goes from step {loop.first} to {loop.last} of "
                f"{len(plan.steps)}"
            )
        end = loop.last
        for tensor in (t for step in plan.steps[loop.first : loop.last] for t in step.tensors):
            place = plan.storages.get(tensor)
            if place and place.by and (place.iterations < loop.count or place.period < 0):
                raise PlanError(
                    f"plan {quote(plan.name)}: tensor {quote(tensor)} moves for {place.iterations} turns, its loop has "
                    f"{loop.count}"
                )

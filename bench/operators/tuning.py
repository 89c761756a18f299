"""The `cuts` side of the benchmark: many cases tuned together.

Each is ready to run on any set of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import cast

import numpy as np
from attrs import evolve, field, frozen
from cuts.backends.device import Array, Buffer, Device, Launch, Pointer
from cuts.bench.operators.shapes import Case
from cuts.bench.operators.timing import in_order, sets_for
from cuts.ir.compiled import CompiledGraph, CompileOptions, KernelFunction, Step, Storage
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph, Node
from cuts.ir.machine import PRECISIONS, Target
from cuts.ir.segment import FusedGroup
from cuts.ir.types import TensorType
from cuts.ops import Registry
from cuts.ops.costs import program_costs
from cuts.passes.context import Emit
from cuts.passes.fusion import build_programs, shift_means
from cuts.passes.fusion.grouping.groups import with_math
from cuts.passes.fusion.normalise import Illegal, normalise
from cuts.passes.model.lower_bound import RESOURCES, longest
from cuts.passes.pipeline import compile_graph
from cuts.runtime.plan import extent_bytes
from cuts.search.session import TuningSession
from cuts.search.tasks.tuning_task import TuningTask, machine_of


def warm_lower_bound(terms: Mapping[str, float], target: Target, nbytes: float) -> float:
    """Return the bound, from its terms, with a warm L2 cache.

    `nbytes` of the data were just written, and may be in the cache.
    """
    resources = {name: terms.get(name, 0.0) for name in RESOURCES}
    if not nbytes:
        return target.launch_time + float(longest(resources, terms["first"]))
    # The first load, and with it the shortest chain of loads, may now hit the cache.
    resources["dram"] = max(0.0, terms["dram"] - min(nbytes, target.l2_bytes) / target.BW_global)
    resources["latency"] = terms["latency"] - (1.0 - target.bounds.cached_latency) * target.dram_latency
    return target.launch_time + float(longest(resources, target.bounds.cached_latency * terms["first"]))


@frozen
class Tuned:
    """Ordered kernels of one case, and their report."""

    case: Case
    graph: Graph
    kernels: tuple[KernelFunction, ...]
    steps: tuple[Step, ...]
    storages: Mapping[str, Storage]
    records: tuple[Mapping[str, object], ...]
    prefix: str
    target: Target

    @property
    def bound(self) -> float:
        """Sum of the kernels' lower bounds, in seconds.

        One kernel's results may be in the cache for the next.
        """
        made: set[str] = set()
        total = 0.0
        for record in self.records:
            terms, read = cast("Mapping[str, float]", record["terms"]), cast("Sequence[str]", record["inputs"])
            total += warm_lower_bound(terms, self.target, sum(self.type_of(t).nbytes for t in read if t in made))
            made.update(cast("Sequence[str]", record["outputs"]))
        return total

    def type_of(self, tensor: str) -> TensorType:
        """Return the type of a tensor, that of the case where unused.

        No kernel reads an input any more where its equal is read instead.
        """
        return self.graph.types.get(tensor) or self.case.type_of(tensor.removeprefix(self.prefix))

    def name(self, tensor: str) -> str:
        """Return the name of a case's tensor in the tuned graph."""
        return f"{self.prefix}{tensor}"


def union(cases: Sequence[Case], registry: Registry) -> Graph:
    """Return one graph of many independent cases, with numbered names.

    Names begin with the number of the case.
    """
    inputs: list[str] = []
    outputs: list[str] = []
    types: dict[str, TensorType] = {}
    nodes: list[Node] = []
    constants: dict[str, Array] = {}
    for number, case in enumerate(cases):
        graph, mark = case.graph(registry), prefix(number)
        inputs += [mark + t for t in graph.inputs if t not in case.weights]
        outputs += [mark + t for t in graph.outputs]
        types |= {mark + t: type_ for t, type_ in graph.types.items()}
        constants |= {mark + t: array for t, array in graph.constants.items()}
        constants |= {mark + t: case.values(t) for t in case.weights}
        for node in graph.nodes:
            operands = tuple(None if t is None else mark + t for t in node.inputs)
            nodes.append(
                evolve(node, name=mark + node.name, inputs=operands, outputs=tuple(mark + t for t in node.outputs))
            )
    return Graph("cases", tuple(inputs), tuple(outputs), types, tuple(nodes), constants)


def prefix(number: int) -> str:
    """Return the prefix of a case's names."""
    return f"c{number}."


def tune(cases: Sequence[Case], target: Target, emit: Emit, session: TuningSession | None) -> list[Tuned]:
    """Compile cases of the same options together, each with its own launches.

    Workers and device are busy all the time; without a session the model chooses.
    """
    registry, options = vocabulary_of(cases), options_of(cases[0])
    run = compile_graph if session is None else session.compile
    compiled = run(union(cases, registry), registry, target, options, emit)
    return [_tuned_case(compiled, case, prefix(number), target) for number, case in enumerate(cases)]


def options_of(case: Case) -> CompileOptions:
    """Return how a case is compiled."""
    policy = PRECISIONS[case.precision]
    # Tensors of a half type are stored so already: the rest of the policy is the multiplication of f32.
    precision = policy.name if policy.math else "fp32"
    return CompileOptions(
        mode="mixed", precision=precision, horizontal_fusion="connected", deterministic=case.deterministic
    )


def vocabulary_of(cases: Sequence[Case]) -> Registry:
    """Return the vocabulary with the cases' own declarations."""
    declared = {source.name: source for case in cases for source in case.sources}
    return Registry.builtin().extend(*declared.values())


def _tuned_case(compiled: CompiledGraph, case: Case, mark: str, target: Target) -> Tuned:
    chosen = []
    for step, record in zip(compiled.steps, compiled.groups, strict=True):
        # A constant may be shared with another case; a workspace between two kernels of a case has a name of its own.
        if any(t.startswith(mark) and t not in compiled.graph.constants for t in step.tensors):
            chosen.append((step, record))
    steps, records = tuple(s for s, _ in chosen), tuple(r for _, r in chosen)
    kernels = tuple(compiled.kernels[s.kernel] for s in steps)
    return Tuned(case, compiled.graph, kernels, steps, compiled.storages, records, mark, target)


@frozen(eq=False)
class TunedBuffers:
    """One set of the tensors of a case on the device."""

    tuned: Tuned
    device: Device
    buffers: dict[str, Buffer] = field(factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all of them."""
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def place(self, tensor: str) -> Pointer:
        """Return a graph tensor's place, with its buffer allocated on first use."""
        type_ = self.tuned.type_of(tensor)
        storage = self.tuned.storages.get(tensor) or Storage(tensor, 0, type_.strides)
        if storage.buffer not in self.buffers:
            self.buffers[storage.buffer] = self.device.allocate(
                self._extent(storage.buffer, extent_bytes(type_, storage))
            )
        return Pointer(self.buffers[storage.buffer], storage.offset * type_.dtype.size)

    def _extent(self, buffer: str, least: int) -> int:
        shared = [(self.tuned.graph.types[t], s) for t, s in self.tuned.storages.items() if s.buffer == buffer]
        return max([least, *(extent_bytes(type_, storage) for type_, storage in shared)])

    def copy(self, other: TunedBuffers) -> None:
        """Take over the contents of another set."""
        for name, buffer in other.buffers.items():
            self.buffers[name] = self.device.allocate(buffer.nbytes)
            self.device.copy(Pointer(self.buffers[name]), Pointer(buffer), buffer.nbytes)


def fill(tuned: Tuned, device: Device) -> TunedBuffers:
    """Return a first set of tensors with random numbers and constants.

    Constants have the kernels' form.
    """
    memory = TunedBuffers(tuned, device)
    for name in tuned.case.inputs:
        device.upload(memory.place(tuned.name(name)), np.ascontiguousarray(tuned.case.values(name)))
    known = set(map(tuned.name, tuned.case.inputs))
    for tensor in dict.fromkeys(tensor for step in tuned.steps for tensor in step.tensors):
        buffer = tuned.storages[tensor].buffer if tensor in tuned.storages else tensor
        for constant in (tensor, buffer):  # a view's buffer may be a constant
            if constant in tuned.graph.constants and constant not in known:
                device.upload(memory.place(constant), np.ascontiguousarray(tuned.graph.constants[constant]))
                known.add(constant)
        memory.place(tensor)
    return memory


def cold_sets(first: TunedBuffers, cache: int) -> list[TunedBuffers]:
    """Return equal sets of tensors that keep a cache cold."""
    sets = [first]
    for _ in range(sets_for(first.nbytes, cache) - 1):
        sets.append(TunedBuffers(first.tuned, first.device))
        sets[-1].copy(first)
    return sets


def bind(tuned: Tuned, device: Device, sets: Sequence[TunedBuffers]) -> list[Launch]:
    """Return a launch of the case's kernels for each tensor set."""
    loaded = device.build(tuned.kernels)

    def launches(memory: TunedBuffers) -> Iterator[Launch]:
        for number, (kernel, step) in enumerate(zip(tuned.kernels, tuned.steps, strict=True)):
            yield device.bind(loaded[number], kernel, [memory.place(t) for t in step.tensors])

    return [in_order(tuple(launches(memory))) for memory in sets]


def group_of(case: Case) -> FusedGroup | None:
    """Return a case of one operation as a group, or nothing.

    It has the user's layout and the precision's math mode; it is nothing where the case is no single group.
    """
    programs = shift_means(build_programs(case.graph(registry := vocabulary_of([case])), registry))
    group = normalise([s for u in programs.units for s in u.statements], programs.types, ["y"], programs.tables)
    return None if isinstance(group, Illegal) else with_math(group, PRECISIONS[case.precision].math)


def task_of(case: Case, target: Target) -> TuningTask:
    """Return the tuning task of a case that is one kernel."""
    group = group_of(case)
    assert group is not None, f"{case.key} is no single kernel"
    return TuningTask(group, {}, target, machine_of(target), f"{case.kind} {case.name}")


def least_work(case: Case) -> tuple[float, float]:
    """Return operations, and the bytes where every element moves once."""
    registry = vocabulary_of([case])
    graph = case.graph(registry)
    costs = [
        program_costs(registry[n.op].instantiate([graph.types[t] for t in n.operands], n.attributes).program)
        for n in graph.nodes
    ]
    moved = sum(graph.types[t].nbytes for t in (*graph.inputs, *graph.outputs))
    if len(costs) == 1:
        moved = costs[0].bytes_read + costs[0].bytes_written
    return sum(c.flops for c in costs), moved


def tune_separately(cases: Sequence[Case], tuned: Callable[[Sequence[Case]], Sequence[Tuned]]) -> Sequence[Tuned | str]:
    """Return cases with their kernels, or the reason of a failure.

    Where one fails, its neighbours are tuned without it.

    Any failure then is one row's, be it an error of ours or a fault of the compiler, but for a lost device.
    """
    if not cases:
        return []
    try:
        return tuned(cases)
    except Exception as error:
        if is_device_lost(error):
            raise
        if len(cases) == 1:
            return [first_line(error)]
        half = len(cases) // 2
        return [*tune_separately(cases[:half], tuned), *tune_separately(cases[half:], tuned)]


def is_device_lost(error: Exception) -> bool:
    """Return whether every later row would fail with an error, too."""
    return isinstance(error, CutsError) and bool(error.hint) and "context is lost" in str(error.hint)


def first_line(error: Exception) -> str:
    """Return a row's text of an error."""
    text = error.message if isinstance(error, CutsError) else str(error)
    return next(iter(text.splitlines()), type(error).__name__)


def parts(cases: Sequence[Case], limit: int, mixed: bool = False) -> Iterator[list[Case]]:
    """Yield runs of at most `limit` cases of one class and batch.

    They alternate between all classes where they are `mixed`.
    """
    runs: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        runs.setdefault((case.kind, case.batch), []).append(case)
    turns = [each for turn in zip_longest(*runs.values()) for each in turn if each is not None]
    for run in [turns] if mixed else runs.values():
        yield from (run[start : start + limit] for start in range(0, len(run), limit))

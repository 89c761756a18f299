"""Hypothesis strategies for kernels.

Random fused groups and random legal points of their spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen
from cuts.ir.compiled import Budget, CompiledGraph, CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.machine import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.traversal import expr_variables, reads
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.assemble import assemble_kernels
from cuts.passes.context import CompileContext, Emit
from cuts.passes.costs.cost_model import KernelsQuery, MeasuredTimes, Questions
from cuts.passes.costs.executor import LocalExecutor, Member, Workload
from cuts.passes.fusion.grouping.partitioner import GroupEvaluator
from cuts.passes.fusion.legality import Policy, shared_level
from cuts.passes.fusion.normalise import Illegal, normalise
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.geometry import schedule_of
from cuts.passes.pipeline import run_stages
from cuts.passes.schedule.selection.choose import Candidate, choose
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import ScheduleTemplate, Space, make_space
from hypothesis import assume
from hypothesis import strategies as st

EXTENTS = st.sampled_from((1, 2, 3, 5, 7, 8, 13, 16, 17, 24))
SMALL_EXTENTS = st.sampled_from((1, 2, 3, 4, 7, 9))
UNARY = ("relu", "sigmoid", "tanh", "exp", "abs", "neg", "hard_swish", "erf", "sign")
BINARY = ("add", "sub", "mul", "max", "min")


@frozen
class Builder:
    """Graph under construction: nodes in order, with types inferred from the declarations."""

    registry: Registry
    types: dict[str, TensorType]
    nodes: list[Node]
    inputs: list[str]

    def input(self, *shape: int, dtype: DType = DType.F32) -> str:
        """Add a graph input."""
        name = f"in {len(self.inputs)}"
        self.inputs.append(name)
        self.types[name] = TensorType(dtype, tuple(shape))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result and return the result's name."""
        result = f"v{len(self.nodes)}"
        made = self.registry[op].instantiate([self.types[i] for i in inputs], attributes)
        self.types[result] = made.output_types[0]
        self.nodes.append(Node(f"node {len(self.nodes)}", op, tuple(inputs), (result,), attributes))
        return result

    def programs(self) -> Programs:
        """Return the graph's programs; its output is the last value."""
        graph = Graph("case", tuple(self.inputs), (self.nodes[-1].outputs[0],), dict(self.types), tuple(self.nodes))
        return build_programs(graph, self.registry)


def builder() -> Builder:
    """Return an empty builder over the built-in vocabulary."""
    return Builder(Registry.builtin(), {}, [], [])


@st.composite
def convolutions(draw: st.DrawFn, make: Builder, source: str, depthwise: bool = False) -> str:
    """Add a convolution with random attributes that fits its source."""
    _, channels, height, width = make.types[source].shape
    groups = channels if depthwise else draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    filters = groups * draw(st.sampled_from((1, 2, 3) if groups > 1 else (1, 3, 8, 17)))
    kernel = [draw(st.integers(1, min(3, size))) for size in (height, width)]
    dilations = [
        draw(st.integers(1, 2)) if (size - 1) >= 2 * (k - 1) else 1
        for size, k in zip((height, width), kernel, strict=True)
    ]
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    weight = make.input(filters, channels // groups, *kernel)
    operands = [source, weight] + ([make.input(filters)] if draw(st.booleans()) else [])
    strides = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    return make.node("conv", *operands, strides=strides, pads=tuple(pads), dilations=tuple(dilations), groups=groups)


@st.composite
def tails(draw: st.DrawFn, make: Builder, value: str) -> str:
    """Append up to three pointwise nodes to a value.

    They are activations, broadcast operands, or a value used twice.
    """
    for _ in range(draw(st.integers(0, 3))):
        shape = make.types[value].shape
        kind = draw(st.sampled_from(("unary", "same", "broadcast", "twice")))
        if kind == "unary":
            value = make.node(draw(st.sampled_from(UNARY)), value)
        elif kind == "twice":
            value = make.node("mul", value, make.node("sigmoid", value))
        else:
            other = [d if kind == "same" or draw(st.booleans()) else 1 for d in shape]
            value = make.node(draw(st.sampled_from(BINARY)), value, make.input(*other))
    return value


@st.composite
def chains(draw: st.DrawFn) -> FusedGroup:
    """Draw a register-level group: an anchor of some kind between pointwise nodes."""
    make = builder()
    kind = draw(st.sampled_from(("pointwise", "conv", "depthwise", "matmul", "gemm", "pool", "row", "reduce", "gap")))
    if kind in ("conv", "depthwise", "pool", "gap"):
        source = make.input(draw(SMALL_EXTENTS), draw(EXTENTS), draw(EXTENTS), draw(EXTENTS))
        before = draw(st.sampled_from(("", "", "relu", "add")))
        if before:
            source = make.node(before, source, *([make.input(*make.types[source].shape)] if before == "add" else []))
        value = _draw_window(draw, make, source, kind)
    elif kind == "pointwise":
        value = make.node("relu", make.input(*(draw(EXTENTS) for _ in range(draw(st.integers(1, 4))))))
    else:
        value = _matrices(draw, make, kind)
    value = draw(tails(make, value))
    return unite(make.programs(), value)


def _draw_window(draw: st.DrawFn, make: Builder, source: str, kind: str) -> str:
    if kind in ("conv", "depthwise"):
        return draw(convolutions(make, source, kind == "depthwise"))
    if kind == "gap":
        return make.node("global_average_pool", source)
    height, width = make.types[source].shape[2:]
    kernel = (min(height, draw(st.integers(1, 3))), min(width, draw(st.integers(1, 3))))
    pads = tuple(min(k - 1, draw(st.integers(0, 1))) for k in kernel * 2)
    strides = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    return make.node(
        draw(st.sampled_from(("max_pool", "average_pool"))), source, kernel_shape=kernel, strides=strides, pads=pads
    )


def _matrices(draw: st.DrawFn, make: Builder, kind: str) -> str:
    m, n, k = (draw(st.sampled_from((1, 2, 5, 16, 19, 37, 64))) for _ in range(3))
    if kind == "matmul":
        batch = [draw(SMALL_EXTENTS) for _ in range(draw(st.integers(0, 2)))]
        return make.node("matmul", make.input(*batch, m, k), make.input(*batch, k, n))
    if kind == "gemm":
        transposed = draw(st.booleans())
        weight = make.input(n, k) if transposed else make.input(k, n)
        return make.node("gemm", make.input(m, k), weight, make.input(n), trans_b=transposed)
    source = make.input(*(draw(EXTENTS) for _ in range(draw(st.integers(1, 2)))), n)
    if kind == "reduce":
        op = draw(st.sampled_from(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")))
        return make.node(op, source, axes=(-1,), keepdims=True)
    op = draw(st.sampled_from(("softmax", "log_softmax", "layer_norm")))
    return make.node(op, source, make.input(n), make.input(n)) if op == "layer_norm" else make.node(op, source)


def unite(programs: Programs, value: str) -> FusedGroup:
    """Return all units as one segment; the strategies only draw legal ones."""
    statements = [s for u in programs.units for s in u.statements]
    group = normalise(statements, programs.types, [value], programs.tables)
    assert not isinstance(group, Illegal), group.reason
    return group


@st.composite
def pairs(draw: st.DrawFn) -> FusedGroup:
    """Draw a shared-memory-level group.

    Two convolutions, dense or depthwise, with pointwise nodes between and after them, or two rows.
    """
    make = builder()
    if draw(st.integers(0, 3)):
        source = make.input(
            draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 3, 6))), draw(SMALL_EXTENTS), draw(SMALL_EXTENTS)
        )
        if not draw(st.integers(0, 3)):  # the same tensor is read at two places
            source = make.node("concat", source, source, axis=draw(st.sampled_from((1, 3))))
        first = draw(convolutions(make, source, draw(st.booleans())))
        first = make.node("relu", first) if draw(st.booleans()) else first
        half = len(make.nodes)
        last = draw(tails(make, draw(convolutions(make, first, False))))
    else:
        first, half, last = draw(_rows(make))
    group = halves(make, first, half, last)
    assume(not isinstance(group, Illegal))  # a 1x1 convolution of one channel reduces nothing, for example
    assert isinstance(group, FusedGroup)
    return group


@st.composite
def _rows(draw: st.DrawFn, make: Builder) -> tuple[str, int, str]:
    """Add a product or reduction, to a scalar at times, and then a reduction of it whose rows are broadcast again."""
    m, k, n = (draw(st.sampled_from((1, 2, 5, 16, 33))) for _ in range(3))
    if draw(st.booleans()):
        first = make.node("matmul", make.input(m, k), make.input(k, n))
    else:
        axes = draw(st.sampled_from(((0,), (0, 1))))
        first = make.node("reduce_min", make.input(k, n), axes=axes, keepdims=False)
    half = len(make.nodes)
    wide = make.node("add", first, make.input(m, n))
    return first, half, make.node("mul", make.node("reduce_max", wide, axes=(1,), keepdims=True), make.input(m, n))


def halves(make: Builder, first: str, half: int, last: str) -> FusedGroup | Illegal:
    """Return the first `half` nodes and the others as two segments.

    They share the value `first`.
    """
    programs = make.programs()
    names = {n.name for n in make.nodes[:half]}
    before = [s for u in programs.units if u.node in names for s in u.statements]
    after = [s for u in programs.units if u.node not in names for s in u.statements]
    return shared_level(before, after, programs.types, ((first,), (last,)), programs.tables, Policy())


@st.composite
def points(draw: st.DrawFn, group: FusedGroup, target: Target) -> Schedule | None:
    """Draw a legal point of a group's space, or None.

    Draws a structure, then one of its legal points among a random handful.
    """
    space = make_space(group, target)
    structure = draw(st.sampled_from(space.templates))
    return legal_point(space, structure, draw(st.integers(0, 2**32 - 1)))


def legal_point(space: Space, structure: ScheduleTemplate, seed: int) -> Schedule | None:
    """Return a legal point of a structure among 256 random ones."""
    return next(iter(legal_points(space, structure, seed, 1)), None)


def legal_points(space: Space, structure: ScheduleTemplate, seed: int, count: int) -> list[Schedule]:
    """Return at most `count` legal points of a structure.

    They are among 256 random ones.
    """
    numbers = np.random.default_rng(seed).integers(0, structure.size, size=256)
    columns = columns_at(structure, numbers)
    legal = np.flatnonzero(evaluate(space, structure, columns, 0, numbers).legal)
    chosen = (
        {name: int(np.broadcast_to(values, numbers.shape)[n]) for name, values in columns.items()}
        for n in legal[:count]
    )
    return [schedule_of(space.group, structure, values, space.target.warp_size) for values in chosen]


def accumulation(group: FusedGroup) -> tuple[int, int]:
    """Return a group's longest accumulation and number of sequential operations.

    Its tolerance depends on them.
    """
    length = depth = 1
    for segment in group.segments:
        for reduction in segment.reductions:
            terms = int(np.prod([v.extent for v in reduction.reduce]))
            length += terms
        depth += sum(len(reads(e)) + len(expr_variables(e)) for e in segment.expressions)
    return length, depth


def arrays(group: FusedGroup, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs of a group."""
    generator = np.random.default_rng(seed)
    return {
        t: generator.standard_normal(group.tensors[t].shape).astype(group.tensors[t].dtype.numpy) for t in group.inputs
    }


@define(eq=False)
class KnownTimes(MeasuredTimes):
    """Measured times of all groups, or of none."""

    known: bool = True

    def has(self, group: FusedGroup) -> bool:
        """Return the same for every group."""
        return self.known

    def note(self, group: FusedGroup, seconds: float) -> None:
        """Forget it."""


class Unhurried(LocalExecutor):
    """Base of cost models that measure nothing and build everything on demand."""

    times: KnownTimes

    def compile(
        self, graph: Graph, registry: Registry, target: Target, options: CompileOptions, emit: Emit
    ) -> CompiledGraph:
        """Compile a graph, without shared launches."""
        context = self.context(registry, target, evolve(options, horizontal_fusion=False), emit)
        kernels = run_stages(graph, context)
        return CompiledGraph(graph, (), ()) if kernels is None else assemble_kernels(kernels, context)

    def context(self, registry: Registry, target: Target, options: CompileOptions, emit: Emit) -> CompileContext:
        """Return the context of a compilation."""
        return CompileContext(registry, target, options, emit, self, self, Budget())  # type: ignore[arg-type]

    def measure(self, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None) -> bool:
        """Measure nothing."""
        return False

    def compare_launches(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Doubt it."""
        return [False] * len(launches)


@frozen
class ByModel(Unhurried):
    """Cost model that takes the analytic estimates for measurements.

    A pipeline then runs the steps that need measured times.
    """

    target: Target
    times: KnownTimes = field(factory=lambda: KnownTimes(True), eq=False, repr=False)

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return the model."""
        return modelled

    def schedule(self, kernels: Mapping[Hashable, Workload], share: float = 1.0) -> Mapping[Hashable, Candidate]:
        """Return the model's first choices."""
        return {key: choose(work.form, self.target)[0] for key, work in kernels.items()}

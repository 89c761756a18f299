"""The pipeline, from a graph to kernels, on one screen.

    graph passes   a canonical graph: identities gone, constants folded, batch norm inside convolutions, common subexpressions shared
    algorithms     nodes replaced by cheaper ways to compute them (Winograd), by what their groups cost
    programs       each node's declaration as statements, cut into units
    views          where tensors live; data movement that costs no kernel
    partition      units to groups in normal form (legality, Algorithm 1)
    pack           constants stored as the groups' threads want to read them
    split          groups with few results and long reductions, each as two kernels where that is faster
    schedule       per distinct kernel: enumeration, pruning, the chosen point of the parameter space
    lower          per distinct kernel: block-level phases (fetch, compute, epilogue)
    extract        per distinct kernel: what one thread does
    emit           per distinct kernel: source text

Views come before the partition because a movement that is a view needs no group; schedules come after it because they
are per kernel, and equal groups share one. Each pass can be printed and stopped after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import TypeAlias, TypeVar

from attrs import define, field

from ..ir import (
    CompiledGraph,
    CompileOptions,
    CutsError,
    Graph,
    Kernel,
    KernelFunction,
    PassError,
    Target,
    UsageError,
    print_graph,
    print_ir,
)
from ..ops import Registry
from ..ops.language import Instances
from .assemble import assemble, distinct, facts, kernel_key
from .choose_algorithms import ChooseAlgorithms
from .evaluators import Limited, Modelled
from .fusion import (
    Evaluator,
    Group,
    Partitioner,
    Policy,
    Remembered,
    Splitting,
    Views,
    Workshop,
    build_programs,
    find_views,
    pack_constants,
    partition,
    split_groups,
)
from .graph import Canonicalise, Pass, canonical_passes, run_passes
from .listing import show_candidate, show_partition, show_programs, show_views
from .lowering import extract, lower
from .schedule import Candidate, choose
from .verify import verify_dfg, verify_groups, verify_kernel, verify_programs, verify_schedule
from .workload import Selector, Workload

#: Prints an extracted kernel in a dialect, with facts for reports.
Emit: TypeAlias = Callable[[Kernel, str, Mapping[str, object]], KernelFunction]
S = TypeVar("S")
T = TypeVar("T")

STAGES = ("algorithms", "programs", "views", "partition", "split", "pack", "schedule", "lower", "extract", "emit")


def graph_passes(registry: Registry) -> tuple[Pass, ...]:
    """Return the graph passes in order: one round of each, to be looked at one by one, then all of them to a fixed
    point.
    """
    instances = Instances(registry)
    return (*canonical_passes(instances), Canonicalise(instances))


def compile_graph(
    graph: Graph,
    registry: Registry,
    target: Target,
    options: CompileOptions,
    emit: Emit,
    selector: Selector | None = None,
) -> CompiledGraph:
    """Compile a graph for a target; `emit` is the printer that a backend provides. A stopped compilation has no
    kernels.

    With a `selector` measured times decide about the partition and the schedules, else the model does.
    """
    return _Pipeline(registry, target, options, emit, selector).run(graph)


class _Stop(Exception):
    """Raised behind the pass that `--stop-after` names."""


@define
class _Pipeline:
    """One compilation; `graph` is the graph as the passes so far have left it."""

    registry: Registry
    target: Target
    options: CompileOptions
    emit: Emit
    selector: Selector | None = None
    start: float = field(factory=monotonic)

    def run(self, graph: Graph) -> CompiledGraph:
        passes = graph_passes(self.registry)
        self._check_names([p.name for p in passes])
        latest = [graph]

        def keep(name: str, changed: Graph) -> None:
            latest.append(changed)
            self._after(name, changed, print_graph)

        try:
            graph = run_passes(
                graph, passes, keep, Instances(self.registry).infer if self.options.checks_seams else None
            )
            limited = Limited(Modelled(self.target), self._deadline(0.5), monotonic)
            evaluator = self._evaluator(Remembered(limited))
            graph, algorithms = self._algorithms(graph, evaluator)
            latest.append(self._after("algorithms", graph, print_graph))
            programs = self._after("programs", build_programs(graph, self.registry), show_programs)
            self._hold("programs", verify_programs, programs)
            views = self._after("views", find_views(programs), show_views)
            groups: Sequence[Group] = self._after("partition", self._partition(views, evaluator), show_partition)
            self._hold("partition", verify_groups, groups, views)
            groups, views = self._after(
                "split", self._split(groups, views, evaluator), lambda made: show_partition(made[0])
            )
            groups, views, graph = self._after(
                "pack", pack_constants(groups, views, graph), lambda made: show_partition(made[0])
            )
            self._hold("pack", verify_groups, groups, views)
            unique = distinct(groups, views)
            chosen = self._after("schedule", self._schedule(unique, groups, views), self._show(show_candidate))
            lowered = self._each(
                unique, lambda key, g: lower(g.form, chosen[key].schedule, g.storages(views), self.target)
            )
            for key, kernel in lowered.items():
                self._hold("schedule", verify_schedule, unique[key].form, chosen[key].schedule, self.target)
                self._hold("lower", verify_kernel, kernel)
            self._after("lower", lowered, self._show(print_ir))
            extracted = self._after(
                "extract", self._each(lowered, lambda _, kernel: extract(kernel)), self._show(print_ir)
            )
            for kernel in extracted.values():
                self._hold("extract", verify_dfg, kernel)
            made = self._each(extracted, lambda key, kernel: self.emit(kernel, self.target.dialect, facts(chosen[key])))
            self._after("emit", made, self._show(lambda kernel: kernel.source))
        except _Stop:
            return CompiledGraph(latest[-1], (), ())
        complete = not limited.expired and (self.selector is None or self.selector.complete)
        return assemble(graph, groups, views, chosen, made, complete, algorithms)

    def _algorithms(self, graph: Graph, evaluator: Evaluator) -> tuple[Graph, Mapping[str, str]]:
        """Return the graph with the cheapest algorithm of each node, and which nodes belong to one.

        While measuring changes what the algorithms cost, they are compared again. Without measurements every node keeps
        its own declaration: an alternative rounds more and takes more kernels, which only a time can justify.
        """
        if self.selector is None:
            return graph, {}
        instances = Instances(self.registry)
        step = ChooseAlgorithms(instances, evaluator, self.target, self.options.mode, self.selector.plan)
        chosen = step.run(graph)
        while self.selector is not None and step.choices and self.selector.learn():
            chosen = step.run(graph)
        return graph if chosen is graph else Canonicalise(instances).run(chosen), step.used

    def _partition(self, views: Views, evaluator: Evaluator) -> list[Group]:
        """Return the groups; as long as measuring changes what groups cost, the partition is found again."""
        workshop = Workshop(views, Policy(shared_bytes=self.target.MAX_shared))
        groups = partition(Partitioner(workshop, evaluator), self.options.mode)
        while self.selector is not None and self.options.mode == "mixed" and self.selector.learn():
            groups = partition(Partitioner(workshop, evaluator), "mixed")
        return groups

    def _evaluator(self, modelled: Evaluator) -> Evaluator:
        """Return what groups cost: by the model, or by measurement where there is a selector, split where that is
        faster.

        Without a measurement no group is split: two launches are certain, what they gain is within the error of the
        model.
        """
        return (
            modelled if self.selector is None else Splitting(self.selector.evaluator(modelled), modelled, self.target)
        )

    @staticmethod
    def _split(groups: Sequence[Group], views: Views, evaluator: Evaluator) -> tuple[Sequence[Group], Views]:
        return split_groups(groups, views, evaluator) if isinstance(evaluator, Splitting) else (groups, views)

    def _schedule(
        self, unique: Mapping[Hashable, Group], groups: Sequence[Group], views: Views
    ) -> Mapping[Hashable, Candidate]:
        """Return the point of each distinct kernel: the fastest by measurement, or the best by the model."""
        if self.selector is None:
            return self._each(unique, lambda _, group: self._choose(group))
        uses = Counter(kernel_key(g, views) for g in groups)
        units = {u.name: u.node for u in views.programs.units}
        return self.selector.choose(
            {
                key: Workload(g.form, g.storages(views), tuple(dict.fromkeys(units[u] for u in g.units)), uses[key])
                for key, g in unique.items()
            }
        )

    def _choose(self, group: Group) -> Candidate:
        """Return the best point by the model."""
        try:
            return choose(group.form, self.target)[0]
        except PassError as error:
            raise PassError(f"nodes {', '.join(group.units)}: {error.message}", hint=error.hint) from error

    def _deadline(self, share: float) -> float:
        """Return when a share of the budget is used up; what neither partitions nor measures takes a fixed time per
        kernel.
        """
        return inf if self.options.budget is None else self.start + self.options.budget * share

    @staticmethod
    def _each(values: Mapping[Hashable, S], step: Callable[[Hashable, S], T]) -> dict[Hashable, T]:
        """Apply a step to each distinct kernel."""
        return {key: step(key, value) for key, value in values.items()}

    @staticmethod
    def _show(one: Callable[[T], str]) -> Callable[[Mapping[Hashable, T]], str]:
        return lambda made: "\n".join(f"# kernel {n}\n{one(value)}" for n, value in enumerate(made.values()))

    def _after(self, name: str, value: T, show: Callable[[T], str]) -> T:
        self.options.after(name, lambda: show(value))
        if self.options.stops_after(name):
            raise _Stop
        return value

    def _hold(self, name: str, verify: Callable[..., None], *made: object) -> None:
        """Hold what a stage made to the invariants of its level, where the options ask for that."""
        if not self.options.checks_seams:
            return
        try:
            verify(*made)
        except CutsError as error:
            raise PassError(f"stage '{name}' broke what it made: {error.message}", error.span, error.hint) from error

    def _check_names(self, graph_passes: Sequence[str]) -> None:
        known = (*graph_passes, *STAGES)
        wanted = [n for n in (*self.options.print_after, self.options.stop_after) if n and n != "all"]
        unknown = [n for n in wanted if n not in known]
        if unknown:
            raise UsageError(f"unknown pass '{unknown[0]}'", hint=f"passes in order: {', '.join(known)}")

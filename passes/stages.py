"""Stages of the pipeline and the work of each.

A stage reads the results of earlier ones in a `Compilation`, stores its own result there and returns it. `pipeline.py`
has them in order.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

from attrs import evolve, frozen

from ..ir import (
    PARTITION_SHARE,
    SCHEDULES_SHARE,
    CutsError,
    FusedGroup,
    Graph,
    HorizontalKernel,
    Kernel,
    KernelFunction,
    PassError,
    Target,
    convert_error,
    naming_faults,
    print_graph,
    quote,
)
from .assemble import distinct_groups, kernel_key, launch_facts, loop_iterations
from .compilation import BaselinePlan, Compilation
from .decisions import Decisions, ForeignDecisionsError, Replay
from .fusion import (
    Group,
    GroupBuilder,
    Policy,
    Programs,
    Views,
    combine_partitions,
    find_views,
    form_key,
    partition,
    with_parts,
)
from .graph import Pass, Rematerialise, run_passes
from .instructions import select_instructions
from .layout import choose_layouts, pack_constants
from .listing import show_programs
from .lowering import extract, lower
from .rewrites import Rewrite, rewrite_statements, set_programs, write_programs
from .schedule import Candidate, choose
from .split import Division, split_groups
from .stage_verifiers import verify_statements, verify_types
from .tuner_interface import Member, Selector, Workload

T = TypeVar("T")
_LOG = logging.getLogger("cuts.passes")
S = TypeVar("S")


@frozen
class Stage(Generic[T]):
    """Step of the pipeline.

    `run` does the work and returns its result, `show` prints that, `verify` raises a `CutsError` where the compilation
    is now invalid. `summary` describes the transformation, and `files` contain it; the table of stages in
    `docs/architecture.md` is made of them.
    """

    name: str
    run: Callable[[Compilation], T]
    show: Callable[[T], str]
    verify: Callable[[Compilation], object]
    summary: str
    files: tuple[str, ...]

    def perform(self, work: Compilation) -> None:
        """Run the stage; verify and show its result where options ask."""
        if work.selector is not None:
            work.selector.overdue()  # workers go on meanwhile
        with work.budget.stage(self.name), naming_faults(f"stage '{self.name}'"):
            made = self.run(work)
        if work.options.verifies_stages:
            self._verify(work)
        work.options.after(self.name, lambda: self.show(made))

    def _verify(self, work: Compilation) -> None:
        try:
            self.verify(work)
        except CutsError as error:
            raise convert_error(error, PassError, f"stage '{self.name}' broke what it made: ") from error


def graph_stage(step: Pass) -> Stage[Graph]:
    """Return a graph pass as a stage, summarised by its class's docstring."""

    def run(work: Compilation) -> Graph:
        work.graph = run_passes(work.graph, [step])
        return work.graph

    summary = f"graph -> graph: {(type(step).__doc__ or '').partition('.')[0].partition(';')[0].strip()}"
    file = "/".join(type(step).__module__.split(".")[-2:]) + ".py"
    return Stage(step.name, run, print_graph, verify_types, summary, (file,))


def rewrite_stage(rewrite: Rewrite) -> Stage[Programs]:
    """Return a rewrite of statements as a stage."""

    def run(work: Compilation) -> Programs:
        return rewrite_statements(work, rewrite)

    summary = f"statements -> statements: {rewrite.summary}"
    return Stage(rewrite.name, run, show_programs, verify_statements, summary, (rewrite.file,))


def map_kernels(
    values: Mapping[Hashable, S], step: Callable[[Hashable, S], T], work: Compilation | None = None
) -> dict[Hashable, T]:
    """Apply a step to each distinct kernel.

    Within a compilation, a fault names the nodes that the kernel computes.
    """
    found: dict[Hashable, T] = {}
    for key, value in values.items():
        with naming_faults(_place(work, (key,))) if work is not None else nullcontext():
            found[key] = step(key, value)
    return found


def _place(work: Compilation, keys: Sequence[Hashable]) -> str:
    """Return the units that a launch computes, as the place of a fault."""
    return f"units {', '.join(quote(unit) for key in keys for unit in work.unique[key].units)}"


def show_each(one: Callable[[Any], str]) -> Callable[[Mapping[Hashable, Any]], str]:
    """Return a printer of the results for each distinct kernel."""
    return lambda made: "\n".join(f"# kernel {n}\n{one(value)}" for n, value in enumerate(made.values()))


# ---- the work of each stage


def fit_memory(work: Compilation) -> Graph:
    """Set the graph with values rematerialised until it fits the memory."""
    if (room := work.memory_limit) is not None:
        known = {value for node in work.graph.nodes for value in node.outputs}
        step = Rematerialise(work.instances, round(room))
        work.graph = step.run(work.graph)
        work.rematerialised = {value for node in work.graph.nodes for value in node.outputs} - known
        _LOG.info(
            "cuts: %d values are computed again: values take about %.4g MB at once in place of %.4g MB, and %.4g MB "
            "more are read and written, in %.3g ms at the least",
            len(step.again), step.peaks[1] / 2**20, step.peaks[0] / 2**20, step.moved / 2**20,
            step.moved / work.target.BW_global * 1e3,
        )  # fmt: skip
    return work.graph


def baseline_partition(work: Compilation) -> list[Group]:
    """Return the best groups by the cost model, without measurements.

    Other processes build their kernels meanwhile.
    """

    def find() -> list[Group]:
        reported = set[Group]()

        def likely(groups: Sequence[Group]) -> None:
            build_ahead(
                work, [group for group in groups if group not in reported and work.modelled.is_measured(group.form)]
            )
            reported.update(groups)

        partitioner = evolve(work.partitioner(_group_builder(work), work.model_costs), likely=likely)
        return partition(partitioner, work.options.mode)

    with work.modelled.without_budget():
        return work.stage_result("partition", find)


def build_ahead(work: Compilation, groups: Sequence[Group]) -> None:
    """Build the kernels of groups in other processes, ahead of use."""
    if work.selector is not None and work.budget.is_limited and groups and not work.selector.overdue():
        kernels, views = split_groups(groups, work.views, work.model_costs.division)
        work.selector.build_ahead(list(workloads_of(kernels, distinct_groups(kernels, views), views).values()))


def order_dims(work: Compilation) -> Programs:
    """Set statements over tensors whose dims are stored in the kernels' order."""
    threads = work.recorded is None or work.recorded.ordered
    return set_programs(
        work,
        work.stage_result("layouts", lambda: choose_layouts(work.programs, work.target, work.math, threads=threads)),
    )


def pack(work: Compilation) -> Programs:
    """Set constants in the layout in which units read them."""
    return set_programs(work, work.stage_result("pack", lambda: pack_constants(work.programs, work.target, work.math)))


def place_tensors(work: Compilation) -> Views:
    """Set the storage of tensors."""
    work.views = work.stage_result("views", lambda: find_views(work.programs))
    work.placed = (work.graph, work.views)
    return work.views


def place_programs(work: Compilation) -> None:
    """Run the stages from a graph to the storage of its tensors."""
    for step in (write_programs, order_dims, pack, place_tensors):
        step(work)


def _group_builder(work: Compilation) -> GroupBuilder:
    """Return the builder of groups of the current statements."""
    if work.builder is None or work.builder.views is not work.views:
        target = work.target
        policy = Policy(shared_bytes=target.MAX_shared, math=work.math, chains=target.lockstep)
        work.builder = GroupBuilder(work.views, policy, work.forms)
    return work.builder


def form_groups(work: Compilation) -> Sequence[Group]:
    """Set the fusion groups: the best modelled, replaced by measured faster ones.

    While measuring changes the costs of groups, the partition is repeated.
    """
    builder, mode, selector = _group_builder(work), work.options.mode, work.selector
    if work.recorded is not None:
        work.replay = _replay(work, work.recorded, builder)
        if work.is_replayed:
            work.formed = work.groups = [*work.replay.groups.values()]
            return work.groups
    found: Sequence[Group] = baseline_partition(work)
    work.groups = found
    if (
        selector is not None
        and work.baseline is not None
        and work.replaced != work.baseline.replaced
        and selector.overdue()
    ):
        builder, work.groups = _take_back(work, work.baseline)
        found = work.groups
    if selector is not None and not work.budget.is_limited:  # every group that it evaluates is measured
        found = partition(work.partitioner(builder), mode)
    while selector is not None and mode == "mixed" and selector.learn(*_questions(work, found)):
        partitioner = work.partitioner(builder)
        found = partition(partitioner, mode)
        if work.budget.overdue():  # it was not brought to its end
            break
        work.groups = combine_partitions(partitioner, work.groups, found, work.is_faster)
    work.formed = work.groups
    return work.groups


def _replay(work: Compilation, record: Decisions, builder: GroupBuilder) -> Replay:
    """Return the groups of a decision record that can be replayed, in a graph that can run."""
    kept = record.replay(builder)
    partitioner = evolve(work.partitioner(builder), fixed_groups=tuple(kept.groups.values()))
    if partitioner.topological_order(partitioner.singletons()) is None:
        raise ForeignDecisionsError("groups wait for each other in a circle")
    return kept


def _take_back(work: Compilation, first: BaselinePlan) -> tuple[GroupBuilder, Sequence[Group]]:
    """Set the baseline plan: without time for a complete partition, unfused kernels lose more than algorithms save."""
    work.graph, work.algorithms, work.replaced = first.graph, first.algorithms, first.replaced
    place_programs(work)
    return _group_builder(work), baseline_partition(work)


def _questions(work: Compilation, groups: Sequence[Group]) -> tuple[list[list[FusedGroup]], float]:
    """Return the groups to measure and the share until which, none where it has passed."""
    late = work.budget.over(PARTITION_SHARE)
    return [] if late else deciding_kernels(work, groups), PARTITION_SHARE


def deciding_kernels(work: Compilation, groups: Sequence[Group]) -> list[list[FusedGroup]]:
    """Return the kernels that a partition depends on, for measurement.

    They are the kernels of the groups, their other divisions, and the kernels of their parts.
    """
    held = () if work.replay is None else work.replay.groups.values()
    groups, split = [group for group in groups if group not in held], work.evaluator
    forms = [group.form for group in groups]
    parts = with_parts(groups, _group_builder(work))[len(forms) :]
    for form in (*forms, *parts):
        split.cost(form)  # only queried groups are measured
    kernels = [kernel for form in forms for kernel in split.kernels(form)]
    return [
        kernels,
        [k for form in forms for k in split.contenders(form)],
        [k for p in parts for k in split.kernels(p)],
    ]


def split_long_reductions(work: Compilation) -> Sequence[Group]:
    """Set groups with split reductions where that is faster, and distinct kernels."""
    known = {} if work.recorded is None or work.replay is None else work.recorded.divisions(work.replay)
    division = work.evaluator.division if not work.options.plain else lambda form: Division()
    work.groups, work.views = split_groups(
        work.groups, work.views, lambda form: known[form_key(form)] if form_key(form) in known else division(form)
    )
    work.unique = distinct_groups(work.groups, work.views)
    return work.groups


def choose_schedules(work: Compilation, share: float = SCHEDULES_SHARE) -> Mapping[Hashable, Candidate]:
    """Set the schedule of each distinct kernel.

    It is the fastest by measurement, within a share of the budget, or the best by the cost model.
    """
    work.chosen = (
        _modelled_candidates(work) if work.selector is None else _measured_candidates(work, work.selector, share)
    )
    return work.chosen


def _modelled_candidates(work: Compilation) -> Mapping[Hashable, Candidate]:
    """Return the candidates that the model puts first."""
    groups = work.unique.values()
    planned = work.planning.choose([group.form for group in groups], work.target)
    return {
        key: _best(group, work.target) if found is None else found
        for (key, group), found in zip(work.unique.items(), planned, strict=True)
    }


def _best(group: Group, target: Target) -> Candidate:
    try:
        return choose(group.form, target)[0]
    except PassError as error:
        raise convert_error(error, PassError, f"nodes {', '.join(group.units)}: ") from error


def _measured_candidates(work: Compilation, selector: Selector, share: float) -> Mapping[Hashable, Candidate]:
    """Return the fastest candidates; kernels that add to memory, which a second run changes, are not measured."""
    chosen = selector.choose(workloads_of(work.groups, work.unique, work.views), share)
    return {key: chosen[key] if key in chosen else _best(g, work.target) for key, g in work.unique.items()}


def workloads_of(
    groups: Sequence[Group], unique: Mapping[Hashable, Group], views: Views
) -> Mapping[Hashable, Workload]:
    """Return the distinct measurable kernels of groups, with their launch counts."""
    repeats, uses = loop_iterations(views), Counter[Hashable]()
    for group in groups:
        uses[kernel_key(group, views)] += repeats[group.repeat]
    units = {u.name: u.node for u in views.programs.every_unit}
    nodes = {key: tuple(dict.fromkeys(units[u] for u in group.units)) for key, group in unique.items()}
    repeatable = {key: g for key, g in unique.items() if not g.form.adds_to_memory}
    return map_kernels(repeatable, lambda key, g: Workload(g.form, g.storages(views), nodes[key], uses[key]))


def lower_blocks(work: Compilation) -> Mapping[Hashable, Kernel]:
    """Set the block-level kernels of each distinct kernel without a function."""
    work.made, work.made_together = _built_functions(work)
    launches = dict.fromkeys(_keys(launch, work) for launch in work.launches)
    made = {(key,) for key in work.made} | work.made_together.keys()
    needed = {key for keys in launches if keys not in made for key in keys}
    rest = {key: group for key, group in work.unique.items() if key in needed}
    work.blocks = map_kernels(
        rest, lambda key, g: lower(g.form, work.chosen[key].schedule, g.storages(work.views), work.target), work
    )
    return work.blocks


def _keys(launch: Sequence[Group], work: Compilation) -> tuple[Hashable, ...]:
    return tuple(kernel_key(group, work.views) for group in launch)


def _built_functions(work: Compilation) -> tuple[Mapping[Hashable, KernelFunction], Mapping[Hashable, KernelFunction]]:
    """Return kernels that others have built or build now, of single groups and of shared launches.

    None where the options show or verify stages.
    """
    if work.selector is None or work.options.verifies_stages or work.options.shows:
        return {}, {}
    launches = {_keys(launch, work): launch for launch in work.launches}
    alone = {keys[0]: work.chosen[keys[0]].schedule for keys in launches if len(keys) == 1}
    together: dict[Hashable, list[Member]] = {
        keys: [(g.form, g.storages(work.views), work.chosen[key]) for g, key in zip(launch, keys, strict=True)]
        for keys, launch in launches.items()
        if len(keys) > 1
    }
    return work.selector.make(alone, together)


def extract_threads(work: Compilation) -> Mapping[Hashable, Kernel]:
    """Set the thread-level kernel of each distinct kernel."""
    work.threads = map_kernels(work.blocks, lambda _, kernel: extract(kernel), work)
    return work.threads


def select_kernels(work: Compilation) -> Mapping[Hashable, Kernel]:
    """Set the thread-level kernels over the instructions of the target's dialect."""
    work.threads = map_kernels(work.threads, lambda _, kernel: select_instructions(kernel, work.target.dialect), work)
    return work.threads


def emit_sources(work: Compilation) -> Mapping[tuple[Hashable, ...], KernelFunction]:
    """Set the source of each distinct launch, those of one kernel first."""
    wanted = dict.fromkeys(_keys(launch, work) for launch in work.launches)
    alone = [(key,) for key in work.unique if (key,) in wanted]
    together = [keys for keys in wanted if len(keys) > 1]
    work.functions = {keys: _source(work, keys) for keys in (*alone, *together)}
    return work.functions


def _source(work: Compilation, keys: tuple[Hashable, ...]) -> KernelFunction:
    facts = launch_facts([work.chosen[key] for key in keys], work.target)
    made = work.made.get(keys[0]) if len(keys) == 1 else work.made_together.get(keys)
    if made is not None:
        return evolve(made, info=dict(facts))
    kernels = tuple(work.threads[key] for key in keys)
    kernel = kernels[0] if len(kernels) == 1 else HorizontalKernel(kernels)
    with naming_faults(_place(work, keys)):
        return work.emit(kernel, work.target.dialect, facts)

"""Assembly: kernels, launch order, and the records that reports show."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import evolve

from ..ir import CompiledGraph, RepeatedSteps, Step, Target, member_name, print_ir
from .context import CompileContext
from .costs import shared_launch_bound, shared_launch_seconds
from .fusion import Group, Unit, Views, graph_layout, loop_iterations
from .inspection import fusion_report, parameters
from .results import LaunchKernels, kernel_key
from .schedule import Candidate


def candidate_facts(candidate: Candidate) -> dict[str, object]:
    """Return a candidate schedule's entries in its kernel's record."""
    terms = {
        name.removeprefix("time_"): value for name, value in candidate.features.items() if name.startswith("time_")
    }
    found = {
        "parameters": parameters(candidate.schedule),
        "schedule": print_ir(candidate.schedule),
        "bound": candidate.bound,
        "limit": candidate.limit,
        "estimate": candidate.score,
        "terms": terms,
    }
    return {**found, **candidate.measured}


def launch_facts(candidates: Sequence[Candidate], target: Target) -> dict[str, object]:
    """Return the entries of the candidate schedules in a launch's record.

    They are those of the member with the largest lower bound, with the bound and the estimate of the whole launch.
    """
    longest = max(candidates, key=lambda candidate: candidate.bound)
    if len(candidates) == 1:
        return candidate_facts(longest)
    own = {name: value for name, value in candidate_facts(longest).items() if name not in longest.measured}
    bound, limit = shared_launch_bound(candidates, target)
    return {**own, "bound": bound, "limit": limit, "estimate": shared_launch_seconds(candidates, target)}


def assemble_kernels(result: LaunchKernels, context: CompileContext) -> CompiledGraph:
    """Bind the tensors of each launch's groups to its kernel's arguments.

    Launches come in execution order; equal launches share a kernel. Each has a record for reports.
    """
    launched, chosen, functions = result.launches.launches, result.launches.scheduled.chosen, result.functions
    partition = result.launches.scheduled.partition
    statements, views = partition.layouts.statements, partition.views
    graph, algorithms = statements.programs.graph, statements.source.algorithms
    report, target = fusion_report(partition, context), context.target
    complete = not context.modelled.expired and context.costs.times.complete()
    kernels = {key: n for n, key in enumerate(functions)}
    units = {unit.name: unit for unit in views.programs.every_unit}
    steps: list[Step] = []
    records: list[Mapping[str, object]] = []
    facts: dict[Sequence[Hashable], Mapping[str, object]] = {}
    for groups in launched:
        keys = tuple(kernel_key(group, views) for group in groups)
        bound = _tensors(groups)
        steps.append(Step(kernels[keys], tuple(bound[a.tensor] for a in functions[keys].arguments)))
        if keys not in facts:
            facts[keys] = launch_facts([chosen[key] for key in keys], target)
        records.append(_record(groups, units, views, facts[keys], algorithms))
        records[-1] = {**records[-1], **(report.get(groups[0].units, {}) if len(groups) == 1 else {})}
    touched = {t for step in steps for t in step.tensors} | set(graph.outputs)
    storages = {t: s for t, s in views.storages.items() if t in touched}
    # Also of tensors between the kernels of one node.
    types = {t: type_ for t, type_ in views.programs.types.items() if t in touched}
    for tensor, type_ in types.items():
        order = views.programs.orders.get(tensor, tuple(range(len(type_.shape))) if type_.pitch else None)
        if order is not None:
            types[tensor], storages[tensor] = graph_layout(type_, views.storage(tensor), order)
    graph = evolve(graph, types={**graph.types, **types})
    loops = tuple(_loops([groups[0] for groups in launched], views))
    return CompiledGraph(
        graph, tuple(functions.values()), tuple(steps), storages, tuple(records), complete, loops=loops
    )


def _loops(groups: Sequence[Group], views: Views) -> Iterator[RepeatedSteps]:
    """Yield the loops, whose groups are adjacent."""
    count, first = loop_iterations(views), 0
    for repeat, run in groupby(groups, key=lambda group: group.repeat):
        last = first + len(list(run))
        if repeat is not None:
            yield RepeatedSteps(first, last, count[repeat])
        first = last


def _tensors(groups: Sequence[Group]) -> Mapping[str, str]:
    """Map the tensor names of a launch's kernel to tensors of the graph."""
    if len(groups) == 1:
        return groups[0].tensors
    return {member_name(n, name): tensor for n, group in enumerate(groups) for name, tensor in group.tensors.items()}


def _record(
    groups: Sequence[Group],
    units: Mapping[str, Unit],
    views: Views,
    common: Mapping[str, object],
    algorithms: Mapping[str, str],
) -> Mapping[str, object]:
    members = [u for group in groups for u in group.units]
    nodes = tuple(dict.fromkeys(units[u].node for u in members))
    repeat = groups[0].repeat
    return {
        "nodes": list(nodes),
        "ops": [units[u].op for u in members],
        "algorithms": sorted({algorithms[n] for n in nodes if n in algorithms}),
        "level": groups[0].level if len(groups) == 1 else "side by side",
        **({"turns": loop_iterations(views)[repeat]} if repeat else {}),
        **({"members": len(groups)} if len(groups) > 1 else {}),
        "form": "\n".join(group.text for group in groups),
        "inputs": list(dict.fromkeys(t for group in groups for t in group.inputs)),
        "outputs": [t for group in groups for t in group.outputs],
        "why": f"the model expects {common['limit']} to limit it",
        **common,
    }

"""The last step: kernels, the order to launch them in, and the records that reports show."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import evolve

from ..ir import CompiledGraph, Graph, KernelFunction, Step, Turns, print_ir
from .fusion import Group, Views, form_key, natural
from .listing import parameters
from .schedule import Candidate


def kernel_key(group: Group, views: Views) -> Hashable:
    """Return what decides a group's kernel: its normal form, and how the tensors it touches are laid out in memory."""
    return form_key(group.form), tuple(group.storages(views).items())


def distinct(groups: Sequence[Group], views: Views) -> dict[Hashable, Group]:
    """Return the first group of each distinct kernel."""
    found: dict[Hashable, Group] = {}
    for group in groups:
        found.setdefault(kernel_key(group, views), group)
    return found


def facts(candidate: Candidate) -> dict[str, object]:
    """Return what a kernel's record says of its chosen point."""
    terms = {
        name.removeprefix("time_"): value for name, value in candidate.features.items() if name.startswith("time_")
    }
    found = {
        "parameters": parameters(candidate.schedule),
        "bound": candidate.bound,
        "limit": candidate.limit,
        "estimate": candidate.score,
        "terms": terms,
    }
    return {**found, **candidate.measured}


def assemble(
    graph: Graph,
    groups: Sequence[Group],
    views: Views,
    chosen: Mapping[Hashable, Candidate],
    made: Mapping[Hashable, KernelFunction],
    complete: bool,
    algorithms: Mapping[str, str],
) -> CompiledGraph:
    """Bind each group's tensors to its kernel's arguments; groups come in execution order, equal ones share a kernel.

    `algorithms` says of nodes that took another one's place which algorithm they belong to.
    """
    kernels = {key: n for n, key in enumerate(made)}
    steps: list[Step] = []
    records: list[Mapping[str, object]] = []
    for group in groups:
        key = kernel_key(group, views)
        arguments = made[key].arguments
        steps.append(Step(kernels[key], tuple(a.tensor if a.table else group.tensors[a.tensor] for a in arguments)))
        records.append(_record(group, views, chosen[key], algorithms))
    touched = {t for step in steps for t in step.tensors} | set(graph.outputs)
    storages = {t: s for t, s in views.storages.items() if t in touched}
    # Also of tensors between the kernels of one node.
    types = {t: type_ for t, type_ in views.programs.types.items() if t in touched}
    for tensor in touched & views.programs.orders.keys():
        order = views.programs.orders[tensor]
        types[tensor], storages[tensor] = natural(types[tensor], views.storage(tensor), order)
    graph = evolve(graph, types={**graph.types, **types})
    loops = tuple(_loops(groups, views))
    return CompiledGraph(graph, tuple(made.values()), tuple(steps), storages, tuple(records), complete, loops=loops)


def turns(views: Views) -> dict[str | None, int]:
    """Return how often the groups of each loop are launched; those of none once."""
    repeats = {u.name: u.repeat for u in views.programs.units if u.repeat is not None}
    return {None: 1, **{name: repeat.step.extent for name, repeat in repeats.items()}}


def _loops(groups: Sequence[Group], views: Views) -> Iterator[Turns]:
    """Yield the loops, whose groups are neighbours."""
    count, first = turns(views), 0
    for repeat, run in groupby(groups, key=lambda group: group.repeat):
        last = first + len(list(run))
        if repeat is not None:
            yield Turns(first, last, count[repeat])
        first = last


def _record(group: Group, views: Views, candidate: Candidate, algorithms: Mapping[str, str]) -> Mapping[str, object]:
    units = {u.name: u for u in views.programs.every_unit}
    nodes = tuple(dict.fromkeys(units[u].node for u in group.units))
    return {
        "nodes": list(nodes),
        "ops": [units[u].op for u in group.units],
        "algorithms": sorted({algorithms[n] for n in nodes if n in algorithms}),
        "level": group.level,
        **({"turns": turns(views)[group.repeat]} if group.repeat else {}),
        "form": print_ir(group.named),
        "inputs": list(group.inputs),
        "outputs": list(group.outputs),
        "why": f"the model expects {candidate.limit} to limit it",
        **facts(candidate),
    }

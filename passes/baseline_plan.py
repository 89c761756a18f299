"""Algorithms of nodes, and the baseline plan by the cost model.

A compilation that measures begins with the plan of one that does not, within its time. A later plan replaces it only
where that is faster, so a budget is never worse than none. While workers partition the alternatives of long
declarations into kernels, this process makes the plan without any, which is the result where the other is late; both
plans share the normal forms of their groups and the costs of these.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from typing import TypeAlias

from attrs import evolve

from ..ir import ALGORITHMS_SHARE, PARTITION_SHARE, CutsError, FusedGroup, Graph
from .choose_algorithms import MIN_MODELLED_SECONDS, ChooseAlgorithms
from .compilation import BaselinePlan, Compilation
from .decisions import Decisions, ForeignDecisionsError
from .fingerprints import node_fingerprints
from .fusion import Order, form_key
from .graph import Canonicalise
from .layout import orders_dims
from .rewrites import write_programs
from .split import Splitting
from .stages import baseline_partition, build_ahead, deciding_kernels, order_dims, place_programs
from .tuner_interface import Questions, Selector

#: Normal forms of groups by key.
Forms: TypeAlias = Mapping[Hashable, FusedGroup]
#: Share of the time of a plan that a second plan of the graph takes, and the number of kernels whose planning takes as
#: long as that of a replaced node. (Fitted to Inception-v3, ResNet-50 and GoogLeNet.)
REPLAN_SHARE, KERNELS_PER_REPLACEMENT = 0.5, 4
#: Remaining seconds above which workers partition the alternatives of short declarations too before the baseline plan,
#: which then comes a second later; and above which they continue with the kernels of the coming plan.
MIN_SPECULATIVE_SECONDS = 10.0


def choose_algorithms(work: Compilation) -> Graph:
    """Set the graph with the cheapest algorithm of each node.

    They are compared again while measurements change their costs. Without measurements, or where the budget leaves no
    time for them, an algorithm has to save more than the error of the model, and a small declaration stays, as its time
    is not known well enough. The model of a host processor is less exact: there every node keeps its own declaration
    unless a measurement decides otherwise, as an alternative rounds more and takes more kernels.
    """
    selector, graph = work.selector, work.graph
    if selector is None and (work.options.plain or not work.target.lockstep or work.budget.overdue()):
        return graph
    step = _step(work, selector)
    if work.recorded is not None:
        chosen = _replay_algorithms(step, graph, work, work.recorded)
    elif selector is None or not work.budget.is_limited:
        chosen = _compare_algorithms(step, graph, work)
    else:
        return _in_time(step, graph, work, selector)
    return _leave(work, graph, BaselinePlan(_canonical(work, graph, chosen), dict(step.used), dict(step.replaced)))


def _step(work: Compilation, selector: Selector | None) -> ChooseAlgorithms:
    """Return the comparison of the algorithms of nodes."""
    small = MIN_MODELLED_SECONDS if work.target.lockstep else inf
    return ChooseAlgorithms(
        work.instances,
        work.evaluator,
        work.target,
        work.options.mode,
        work.planning.cut if selector is None else selector.plan,
        None if selector is None else selector.plan_ahead,
        work.math,
        lambda form: selector is not None and all(map(selector.is_measured, work.evaluator.kernels(form))),
        small if selector is None else 0.0,
        small,
        _orders(work),
        prefetch=work.async_cost.prefetch if work.async_cost is not None else lambda groups: None,
        asks=selector is not None,
    )


def _in_time(step: ChooseAlgorithms, graph: Graph, work: Compilation, selector: Selector) -> Graph:
    """Set the graph of the best plan within the time.

    It has no algorithms, those that are certain by the model, or those that are best by measurement.
    """
    unmeasured = evolve(step, least=step.small, asks=False)
    unmeasured.begin(graph)
    if work.budget.remaining(ALGORITHMS_SHARE) > MIN_SPECULATIVE_SECONDS:
        step.begin(graph)
    best, forms, seconds, others = _plan_graph(work, BaselinePlan(graph, {}, {}))
    kernels = len(forms)
    with selector.reserving_budget(kernels, 0.0):
        chosen = graph if selector.overdue() else unmeasured.run(graph)
    if not work.budget.over(ALGORITHMS_SHARE):
        step.begin(graph)
    if chosen is not graph:
        different = len({(step.keys[node], algorithm) for node, algorithm in step.replaced.items()})
        needed = replan_seconds(seconds, kernels, different)
        changed = None if _late(selector, kernels, needed) else _canonical(work, graph, chosen)
        if changed is not None and not _late(selector, kernels, needed):
            with selector.reserving_budget(kernels, 0.0):
                asked = BaselinePlan(changed, dict(step.used), dict(step.replaced))
                found, forms, seconds, others = _plan_graph(work, asked)
                kernels = len(forms)
                best = best if selector.overdue() else found
    work.baseline = best if work.options.memory is None else None
    if not work.budget.over(ALGORITHMS_SHARE):
        with selector.reserving_budget(kernels, seconds):
            chosen = _compare_algorithms(step, graph, work, others, forms)
        if work.budget.remaining(PARTITION_SHARE) > MIN_SPECULATIVE_SECONDS:
            selector.search_ahead(_kernels(step, forms, work.evaluator))
        if step.replaced != best.replaced:
            best = BaselinePlan(_canonical(work, graph, chosen), dict(step.used), dict(step.replaced))
    return _leave(work, graph, best)


def _late(selector: Selector, kernels: int, seconds: float) -> bool:
    """Return whether the time does not suffice for a plan of `kernels` kernels that takes `seconds`."""
    with selector.reserving_budget(kernels, seconds):
        return selector.overdue()


def replan_seconds(seconds: float, kernels: int, replaced: int) -> float:
    """Return the estimated seconds to replan a graph with replaced nodes.

    It is a share of the first plan's time, as the normal forms and the costs of all other groups are known, and the
    time of some kernels for each replaced node.
    """
    return (REPLAN_SHARE + KERNELS_PER_REPLACEMENT * replaced / max(1, kernels)) * seconds


def _plan_graph(work: Compilation, asked: BaselinePlan) -> tuple[BaselinePlan, Forms, float, Questions]:
    """Plan a graph by the cost model, and build its kernels in workers.

    Returns the plan, its forms, the seconds that it took, and the kernels that it depends on.
    """
    before, start, selector = work.graph, work.budget.elapsed, work.selector
    work.graph = asked.graph
    place_programs(work)
    groups = baseline_partition(work)
    if work.async_cost is not None:
        work.async_cost.prefetch([group.form for group in groups])
    seconds = work.budget.elapsed - start
    build_ahead(work, groups)
    weighed = selector is not None and work.options.mode == "mixed" and not work.budget.over(ALGORITHMS_SHARE)
    others = deciding_kernels(work, groups) if weighed else []
    work.graph = before
    return asked, {form_key(group.form): group.form for group in groups}, seconds, others


def _leave(work: Compilation, graph: Graph, found: BaselinePlan) -> Graph:
    work.algorithms, work.considered, work.replaced = found.algorithms, graph, found.replaced
    work.graph = found.graph
    return work.graph


def _canonical(work: Compilation, graph: Graph, chosen: Graph) -> Graph:
    return graph if chosen is graph else Canonicalise(work.instances).run(chosen)


def _compare_algorithms(
    step: ChooseAlgorithms, graph: Graph, work: Compilation, others: Questions = (), forms: Forms | None = None
) -> Graph:
    """Return a graph with the algorithms that are best by known and newly measured times.

    The kernels that the plan depends on are measured along with those of algorithms, in one search after them: most are
    the same for all algorithms, and two searches would leave workers idle twice. With the `forms` of an earlier plan,
    workers that wait for the last kernels continue with the kernels of the current plan.
    """

    def by_now() -> list[FusedGroup]:
        step.run(graph)
        return _kernels(step, forms or {}, work.evaluator)

    chosen, selector = step.run(graph), work.selector
    while selector and step.choices:
        questions = [*_kernel_questions(step.questions, work.evaluator), *others]
        if not selector.learn(questions, ALGORITHMS_SHARE, None if forms is None else by_now):
            break
        chosen = step.run(graph)
    return chosen


def _kernels(step: ChooseAlgorithms, forms: Forms, split: Splitting) -> list[FusedGroup]:
    """Return the kernels of the coming plan: those of chosen algorithms, and those of the earlier plan without replaced
    ones.
    """
    chosen, others = step.kernel_forms
    kept = {key: form for key, form in forms.items() if key not in others}
    return [kernel for form in (chosen | kept).values() for kernel in split.kernels(form)]


def _kernel_questions(questions: Questions, split: Splitting) -> list[list[FusedGroup]]:
    """Return questions about groups as questions about their kernels, followed by those about their other divisions."""
    found = [[kernel for form in question for kernel in split.kernels(form)] for question in questions]
    return [*found, *([k for form in question for k in split.contenders(form)] for question in questions)]


def _orders(work: Compilation) -> Mapping[str, Order]:
    """Return the order of the dims of values where every node keeps its own declaration."""
    if work.recorded is not None or not orders_dims(work.graph.types.values(), work.target, work.math):
        return {}
    graph = work.graph
    write_programs(work)
    found = order_dims(work).orders
    work.graph = graph
    return found


def _replay_algorithms(step: ChooseAlgorithms, graph: Graph, work: Compilation, record: Decisions) -> Graph:
    """Return a graph with the recorded algorithms; nodes without a record get their own."""
    now = record.match_nodes(node_fingerprints(graph, work.instances))
    known = {now[place]: algorithm for place, algorithm in record.algorithms if place in now}
    rest = {graph.nodes[n].name for n in {*range(len(graph.nodes))}.difference(now.values())}
    result = _compare_algorithms(evolve(step, only=rest), graph, work) if rest else graph
    for place, algorithm in known.items():
        if algorithm not in step.instances.of_node(graph.nodes[place], graph).algorithms:
            raise ForeignDecisionsError(f"node {place} has no algorithm '{algorithm}'")
        try:
            result = step.replace(result, graph.nodes[place], algorithm)
        except CutsError as error:
            raise ForeignDecisionsError(f"node {place} cannot have algorithm '{algorithm}': {error}") from error
        step.replaced[graph.nodes[place].name] = algorithm
    return result

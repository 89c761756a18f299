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

from ...ir import ALGORITHMS_SHARE, PARTITION_SHARE, CutsError, FusedGroup, Graph
from ..context import CompileContext
from ..costs import Questions, Workload
from ..decisions import Decisions, ForeignDecisionsError
from ..fingerprints import node_fingerprints
from ..fusion import Order, form_key
from ..graph import Canonicalise
from ..layout import orders_dims
from ..place_tensors import order_dims, place_programs
from ..results import Algorithms
from ..rewrites import rewrite_all
from ..split import Splitting
from .choose_algorithms import ChooseAlgorithms
from .form_groups import baseline_partition, build_ahead, deciding_kernels

#: Normal forms of groups by key.
Forms: TypeAlias = Mapping[Hashable, FusedGroup]
#: Share of the time of a plan that a second plan of the graph takes, and the number of kernels whose planning takes as
#: long as that of a replaced node. (Fitted to Inception-v3, ResNet-50 and GoogLeNet.)
REPLAN_SHARE, KERNELS_PER_REPLACEMENT = 0.5, 4
#: Remaining seconds above which workers partition the alternatives of short declarations too before the baseline plan,
#: which then comes a second later; and above which they continue with the kernels of the coming plan.
MIN_SPECULATIVE_SECONDS = 10.0


def plan_algorithms(graph: Graph, context: CompileContext) -> Algorithms:
    """Return the graph with the cheapest algorithm of each node.

    They are compared again while measurements change their costs. Without measurements, or where the budget leaves no
    time for them, an algorithm has to save more than the error of the model, and a small declaration stays, as its time
    is not known well enough. The model of a host processor is less exact: there every node keeps its own declaration
    unless a measurement decides otherwise, as an alternative rounds more and takes more kernels.
    """
    plain, measures = Algorithms(graph, graph), context.costs.times.expected
    if not measures and (context.options.plain or not context.target.lockstep or context.budget.overdue()):
        return plain
    if not measures and not any(context.instances.of_node(node, graph).algorithms for node in graph.nodes):
        return plain
    step = _step(plain, context)
    if context.target.invariant:
        return _plan(plain, step.with_shortest_sums(graph), step, context)
    if context.record is not None:
        return _plan(plain, _replay_algorithms(step, graph, context, context.record), step, context)
    if measures and context.budget.is_limited:
        return _best_in_time(step, plain, context)
    return _plan(plain, _compare_algorithms(step, graph, context), step, context)


def _step(plain: Algorithms, context: CompileContext) -> ChooseAlgorithms:
    """Return the comparison of the algorithms of nodes."""
    times, small = context.costs.times, context.target.bounds.least_modelled if context.target.lockstep else inf
    return ChooseAlgorithms(
        context.instances,
        context.evaluator,
        context.target,
        context.options.mode,
        context.executor.submit,
        context.math,
        lambda form: all(map(times.has, context.evaluator.kernels(form))) if times.expected else False,
        0.0 if times.expected else small,
        small,
        _orders(plain, context),
        prefetch=context.async_cost.prefetch if context.async_cost is not None else lambda groups: None,
        asks=times.expected,
    )


def _plan(plain: Algorithms, chosen: Graph, step: ChooseAlgorithms, context: CompileContext) -> Algorithms:
    """Return the plan of a graph with the algorithms of a step."""
    if chosen is plain.graph:
        return plain
    graph = Canonicalise(context.instances).run(chosen)
    return Algorithms(graph, plain.graph, dict(step.used), dict(step.replaced))


def _best_in_time(step: ChooseAlgorithms, plain: Algorithms, context: CompileContext) -> Algorithms:
    """Return the best plan within the time.

    It has no algorithms, those that are certain by the model, or those that are best by measurement.
    """
    graph, budget, executor = plain.graph, context.budget, context.executor
    unmeasured = evolve(step, least=step.small, asks=False)
    unmeasured.begin(graph)
    if budget.remaining(ALGORITHMS_SHARE) > MIN_SPECULATIVE_SECONDS:
        step.begin(graph)
    best = plain
    forms, seconds, others = _plan_kernels(plain, context)
    kernels = len(forms)
    with executor.reserving_budget(kernels, 0.0):
        chosen = graph if context.overdue() else unmeasured.run(graph)
    if not budget.over(ALGORITHMS_SHARE):
        step.begin(graph)
    if chosen is not graph:
        different = len({(step.keys[node], algorithm) for node, algorithm in step.replaced.items()})
        needed = replan_seconds(seconds, kernels, different)
        changed = None if _late(context, kernels, needed) else _plan(plain, chosen, step, context)
        if changed is not None and not _late(context, kernels, needed):
            with executor.reserving_budget(kernels, 0.0):
                forms, seconds, others = _plan_kernels(changed, context)
                kernels = len(forms)
                best = best if context.overdue() else changed
    if budget.over(ALGORITHMS_SHARE):
        return best
    with executor.reserving_budget(kernels, seconds):
        chosen = _compare_algorithms(step, graph, context, others, forms)
    if budget.remaining(PARTITION_SHARE) > MIN_SPECULATIVE_SECONDS:
        planned = _kernels(step, forms, context.evaluator)
        executor.prepare(lambda: [Workload(form, {}, ("a kernel of the plan",)) for form in planned], further=True)
    if step.replaced == best.replaced:
        return best
    return evolve(_plan(plain, chosen, step, context), baseline=best if context.options.memory is None else None)


def _late(context: CompileContext, kernels: int, seconds: float) -> bool:
    """Return whether the time does not suffice for a plan of `kernels` kernels that takes `seconds`."""
    with context.executor.reserving_budget(kernels, seconds):
        return context.overdue()


def replan_seconds(seconds: float, kernels: int, replaced: int) -> float:
    """Return the estimated seconds to replan a graph with replaced nodes.

    It is a share of the first plan's time, as the normal forms and the costs of all other groups are known, and the
    time of some kernels for each replaced node.
    """
    return (REPLAN_SHARE + KERNELS_PER_REPLACEMENT * replaced / max(1, kernels)) * seconds


def _plan_kernels(plan: Algorithms, context: CompileContext) -> tuple[Forms, float, Questions]:
    """Plan a graph by the cost model, and build its kernels in workers.

    Returns the forms of the plan, the seconds that it took, and the kernels that it depends on.
    """
    start = context.budget.elapsed
    layouts = place_programs(plan, context)
    groups = baseline_partition(layouts, context)
    if context.async_cost is not None:
        context.async_cost.prefetch([group.form for group in groups])
    seconds = context.budget.elapsed - start
    build_ahead(layouts, context, groups)
    weighed = context.options.mode == "mixed" and not context.budget.over(ALGORITHMS_SHARE)
    others = deciding_kernels(layouts, context, groups) if weighed else []
    return {form_key(group.form): group.form for group in groups}, seconds, others


def _compare_algorithms(
    step: ChooseAlgorithms, graph: Graph, context: CompileContext, others: Questions = (), forms: Forms | None = None
) -> Graph:
    """Return a graph with the algorithms that are best by known and newly measured times.

    The kernels that the plan depends on are measured along with those of algorithms, in one search after them: most are
    the same for all algorithms, and two searches would leave workers idle twice. With the `forms` of an earlier plan,
    workers that wait for the last kernels continue with the kernels of the current plan.
    """

    def kernels_so_far() -> list[FusedGroup]:
        step.run(graph)
        return _kernels(step, forms or {}, context.evaluator)

    def questions() -> Questions:
        return [*_kernel_questions(step.questions, context.evaluator), *others]

    plan, chosen = None if forms is None else kernels_so_far, step.run(graph)
    while step.choices and context.costs.measure(questions, ALGORITHMS_SHARE, plan):
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


def _orders(plain: Algorithms, context: CompileContext) -> Mapping[str, Order]:
    """Return the order of the dims of values where every node keeps its own declaration."""
    if context.record is not None or not orders_dims(plain.graph.types.values(), context.target, context.math):
        return {}
    return order_dims(rewrite_all(plain, context), context).programs.orders


def _replay_algorithms(step: ChooseAlgorithms, graph: Graph, context: CompileContext, record: Decisions) -> Graph:
    """Return a graph with the recorded algorithms; nodes without a record get their own."""
    now = record.match_nodes(node_fingerprints(graph, context.instances))
    known = {now[place]: algorithm for place, algorithm in record.algorithms if place in now}
    rest = {graph.nodes[n].name for n in {*range(len(graph.nodes))}.difference(now.values())}
    result = _compare_algorithms(evolve(step, only=rest), graph, context) if rest else graph
    for place, algorithm in known.items():
        if algorithm not in step.instances.of_node(graph.nodes[place], graph).algorithms:
            raise ForeignDecisionsError(f"node {place} has no algorithm '{algorithm}'")
        try:
            result = step.replace(result, graph.nodes[place], algorithm)
        except CutsError as error:
            raise ForeignDecisionsError(f"node {place} cannot have algorithm '{algorithm}': {error}") from error
        step.replaced[graph.nodes[place].name] = algorithm
    return result

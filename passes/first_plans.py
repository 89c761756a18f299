"""Which algorithms take the places of nodes, and the plans that the model makes first where time is limited.

A compilation that measures begins with the plan that one which does not would end with, as far as there is time for it:
whatever is found later takes its place only where it is faster. So a budget is never worse than none. While workers
cut the alternatives of long declarations into kernels, this process makes the plan without any, which is the answer
where the other comes too late; both plans share what their groups are in normal form, and what these cost.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from typing import TypeAlias

from attrs import evolve

from ..ir import ALGORITHMS_SHARE, PARTITION_SHARE, CutsError, FusedGroup, Graph
from .choose_algorithms import SMALL, ChooseAlgorithms
from .compilation import Compilation, FirstPlan
from .decisions import Decisions, ForeignDecisionsError
from .fusion import Order, form_key
from .graph import Canonicalise
from .layout import orders_dims
from .rewrites import write_programs
from .split import Splitting
from .stages import deciding, make_ready, order_dims, partition_alone, place_programs
from .structure import node_marks
from .workload import Questions, Selector

#: What groups compute, each once.
Forms: TypeAlias = Mapping[Hashable, FusedGroup]
#: Part of what it takes to plan a graph that it takes to plan it again, and the kernels that stand for what takes the
#: place of a node then. (In seconds of a simulated host: Inception-v3 3.4 for 62 kernels, 2.3 with two nodes replaced;
#: ResNet-50 at batch 64 2.3 for 40, 3 with nine; GoogLeNet at batch 16 3.5 for 77, 4 with ten.)
KNOWN, STEPS = 0.5, 4
#: Seconds left for algorithms from which on workers cut the alternatives of short declarations too before they have
#: done anything for the first plan, which then comes a second later; and for groups, from which on workers go on with
#: the kernels that the plan will have while it is made.
AMPLE = 10.0


def choose_algorithms(work: Compilation) -> Graph:
    """Leave the graph with the cheapest algorithm of each node, and which nodes belong to one.

    While measuring changes what the algorithms cost, they are compared again. Without measurements, or where the budget
    left no time for them, an algorithm has to save more than the model may err, and what a small declaration takes is
    not known well enough for that. A processor of the host is not modelled that well at all: there every node keeps its
    own declaration unless a clock says otherwise, as an alternative rounds more and takes more kernels.
    """
    selector, graph = work.selector, work.graph
    if selector is None and (work.options.plain or not work.target.lockstep or work.budget.overdue()):
        return graph
    step = _step(work, selector)
    if work.told is not None:
        chosen = _told_algorithms(step, graph, work, work.told)
    elif selector is None or not work.budget.limited:
        chosen = _compared(step, graph, work)
    else:
        return _in_time(step, graph, work, selector)
    return _leave(work, graph, FirstPlan(_canonical(work, graph, chosen), dict(step.used), dict(step.replaced)))


def _step(work: Compilation, selector: Selector | None) -> ChooseAlgorithms:
    """Return what compares the algorithms of nodes."""
    small = SMALL if work.target.lockstep else inf
    return ChooseAlgorithms(
        work.instances,
        work.evaluator,
        work.target,
        work.options.mode,
        work.planning.cut if selector is None else selector.plan,
        None if selector is None else selector.plan_ahead,
        work.math,
        lambda form: selector is not None and all(map(selector.knows, work.evaluator.kernels(form))),
        small if selector is None else 0.0,
        small,
        _orders(work),
        foresee=work.foreseeing.foresee if work.foreseeing is not None else lambda groups: None,
        asks=selector is not None,
    )


def _in_time(step: ChooseAlgorithms, graph: Graph, work: Compilation, selector: Selector) -> Graph:
    """Leave the graph that there is a plan of, or time for one: without algorithms, with those that the model is sure
    of, or with those that were measured to be best.
    """
    unmeasured = evolve(step, least=step.small, asks=False)
    unmeasured.begin(graph)
    if work.budget.left(ALGORITHMS_SHARE) > AMPLE:
        step.begin(graph)
    best, forms, seconds, others = _planned(work, FirstPlan(graph, {}, {}))
    kernels = len(forms)
    with selector.foreseen(kernels, 0.0):
        chosen = graph if selector.overdue() else unmeasured.run(graph)
    if not work.budget.over(ALGORITHMS_SHARE):
        step.begin(graph)
    if chosen is not graph:
        different = len({(step.keys[node], algorithm) for node, algorithm in step.replaced.items()})
        needed = again(seconds, kernels, different)
        changed = None if _late(selector, kernels, needed) else _canonical(work, graph, chosen)
        if changed is not None and not _late(selector, kernels, needed):
            with selector.foreseen(kernels, 0.0):
                asked = FirstPlan(changed, dict(step.used), dict(step.replaced))
                found, forms, seconds, others = _planned(work, asked)
                kernels = len(forms)
                best = best if selector.overdue() else found
    work.first = best if work.options.memory is None else None
    if not work.budget.over(ALGORITHMS_SHARE):
        with selector.foreseen(kernels, seconds):
            chosen = _compared(step, graph, work, others, forms)
        if work.budget.left(PARTITION_SHARE) > AMPLE:
            selector.go_on(_kernels(step, forms, work.evaluator))
        if step.replaced != best.replaced:
            best = FirstPlan(_canonical(work, graph, chosen), dict(step.used), dict(step.replaced))
    return _leave(work, graph, best)


def _late(selector: Selector, kernels: int, seconds: float) -> bool:
    """Whether it is too late for a plan of so many kernels that takes so many seconds."""
    with selector.foreseen(kernels, seconds):
        return selector.overdue()


def again(seconds: float, kernels: int, replaced: int) -> float:
    """Return about the seconds that it takes to plan a graph of which some different nodes were replaced: part of what
    it took without, as what groups are in normal form and cost is known of all others, and for those in the place of
    each node as long as it took for some kernels.
    """
    return (KNOWN + STEPS * replaced / max(1, kernels)) * seconds


def _planned(work: Compilation, asked: FirstPlan) -> tuple[FirstPlan, Forms, float, Questions]:
    """Have the model make its plan of a graph, and workers make its kernels ready; return it, what its groups compute,
    the seconds that it took, and what its groups rest on.
    """
    before, start, selector = work.graph, work.budget.elapsed, work.selector
    work.graph = asked.graph
    place_programs(work)
    groups = partition_alone(work)
    if work.foreseeing is not None:
        work.foreseeing.foresee([group.form for group in groups])
    seconds = work.budget.elapsed - start
    make_ready(work, groups)
    weighed = selector is not None and work.options.mode == "mixed" and not work.budget.over(ALGORITHMS_SHARE)
    others = deciding(work, groups) if weighed else []
    work.graph = before
    return asked, {form_key(group.form): group.form for group in groups}, seconds, others


def _leave(work: Compilation, graph: Graph, found: FirstPlan) -> Graph:
    work.algorithms, work.considered, work.replaced = found.algorithms, graph, found.replaced
    work.graph = found.graph
    return work.graph


def _canonical(work: Compilation, graph: Graph, chosen: Graph) -> Graph:
    return graph if chosen is graph else Canonicalise(work.instances).run(chosen)


def _compared(
    step: ChooseAlgorithms, graph: Graph, work: Compilation, others: Questions = (), forms: Forms | None = None
) -> Graph:
    """Return a graph with the algorithms that are best by what is known, or can be measured in time. What the groups of
    the plan so far rest on is measured beside, behind all that algorithms depend on: most of it is the same whatever
    they are, and two searches would leave workers without work twice. Where there are the `forms` of a plan before,
    workers that wait for the last kernels go on with those that the plan has by then.
    """

    def by_now() -> list[FusedGroup]:
        step.run(graph)
        return _kernels(step, forms or {}, work.evaluator)

    chosen, selector = step.run(graph), work.selector
    while selector and step.choices:
        questions = [*_asked(step.questions, work.evaluator), *others]
        if not selector.learn(questions, ALGORITHMS_SHARE, None if forms is None else by_now):
            break
        chosen = step.run(graph)
    return chosen


def _kernels(step: ChooseAlgorithms, forms: Forms, split: Splitting) -> list[FusedGroup]:
    """Return the kernels of the plan with the chosen algorithms, as far as that is known before it is made: those of
    the algorithms, and of a plan before, but for what belongs to others.
    """
    chosen, others = step.taken
    kept = {key: form for key, form in forms.items() if key not in others}
    return [kernel for form in (chosen | kept).values() for kernel in split.kernels(form)]


def _asked(questions: Questions, split: Splitting) -> list[list[FusedGroup]]:
    """Return questions about groups as those about the kernels that compute them, and behind them what else these may
    be divided into.
    """
    found = [[kernel for form in question for kernel in split.kernels(form)] for question in questions]
    return [*found, *([k for form in question for k in split.contenders(form)] for question in questions)]


def _orders(work: Compilation) -> Mapping[str, Order]:
    """Return how the dims of values lie where every node keeps its own declaration."""
    if work.told is not None or not orders_dims(work.graph.types.values(), work.target, work.math):
        return {}
    graph = work.graph
    write_programs(work)
    found = order_dims(work).orders
    work.graph = graph
    return found


def _told_algorithms(step: ChooseAlgorithms, graph: Graph, work: Compilation, told: Decisions) -> Graph:
    """Return a graph with the algorithms that are known to be best; nodes that nothing is known of get their own."""
    now = told.nodes_now(node_marks(graph, work.instances))
    known = {now[place]: algorithm for place, algorithm in told.algorithms if place in now}
    rest = {graph.nodes[n].name for n in {*range(len(graph.nodes))}.difference(now.values())}
    result = _compared(evolve(step, only=rest), graph, work) if rest else graph
    for place, algorithm in known.items():
        if algorithm not in step.instances.of_node(graph.nodes[place], graph).algorithms:
            raise ForeignDecisionsError(f"node {place} has no algorithm '{algorithm}'")
        try:
            result = step.replace(result, graph.nodes[place], algorithm)
        except CutsError as error:
            raise ForeignDecisionsError(f"node {place} cannot have algorithm '{algorithm}': {error}") from error
        step.replaced[graph.nodes[place].name] = algorithm
    return result

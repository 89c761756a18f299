"""Cached decisions: reuses decision records of earlier searches and packs.

A final record is replayed; a search result ships only where it is not slower.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import TypeAlias

from attrs import evolve

from ..ir import (
    PRECISIONS,
    Attribute,
    CompiledGraph,
    CompileOptions,
    DType,
    Graph,
    NumericsError,
    Target,
    print_ir,
    quote,
)
from ..ops import Instance
from ..passes import ForeignDecisionsError, node_fingerprints
from ..passes.graph import Canonicalise, LowerPrecision
from ..search import DecisionRecord, MeasuredSelector, Question, decisions_text, known_answer, machine_of, question_of
from ..store import cache_root
from .loading import Spec
from .plan_selection import (
    MAX_SUM_RATIO,
    CandidatePlan,
    PlanCheck,
    PlanTimer,
    accept_plan,
    faster_candidate,
    time_nothing,
)

#: Source of a choice that was measured with the present code of its kernel, and the largest share of a cached plan's
#: kernels that may have changed: beyond it the decisions are hints. (Packs of an earlier version kept 32 to 60 % of a
#: plan's kernels; two such plans were 4 and 9 % slower than those of a new search.)
MEASURED_SOURCE, MAX_CHANGED_SHARE = "database", 0.25
#: Smallest ratio of the budget to the build time of a cached plan at which a search goes first, to improve that plan.
MIN_BUDGET_RATIO = 8
#: Largest numbers of candidate schedules per group in a repeated decision, and the remaining budget that one needs, as
#: a share of the used one: most kernels are cached by then, and the passes take as long as before.
REFINED_GROUP_SCHEDULES, MIN_REMAINING_SHARE = (12, 40), 0.5
#: Runs the passes with given options.
Run: TypeAlias = Callable[[CompileOptions], CompiledGraph]

#: Canonical forms of live graphs by identity: a compilation needs each several times.
_CANONICAL: dict[int, tuple[weakref.ref[Graph], Spec, Graph]] = {}


def compile_measured(
    graph: Graph,
    spec: Spec,
    options: CompileOptions,
    selector: MeasuredSelector,
    run: Run,
    time_plans: PlanTimer = time_nothing,
    is_right: PlanCheck = accept_plan,
) -> CompiledGraph:
    """Compile a graph by measured times.

    `run` runs the passes. Final cached decisions are replayed without a search.

    A search result is compared with the cached plan and with the unfused plan, where these may be faster; `time_plans`
    times them. The fastest plan that `is_right` accepts is returned, with the selector in the state of that plan, and
    cached. Its kernels are audited on request, which does not change it.

    Raises `NumericsError` where no plan is right.
    """
    found = (
        run(options) if prints_passes(options) else _fastest(graph, spec, options, selector, run, time_plans, is_right)
    )
    selector.audit_kernels()
    return found


def _fastest(
    graph: Graph,
    spec: Spec,
    options: CompileOptions,
    selector: MeasuredSelector,
    run: Run,
    wholes: PlanTimer,
    is_right: PlanCheck,
) -> CompiledGraph:
    """Return the fastest valid plan of a graph, cached or from a search."""
    database = selector.tuner.resources.database
    if selector.further or not database.may_know(graph.name):
        selector.tuner.begin()  # workers take seconds to start
    question = decision_key(graph, spec, selector.target, options)
    exact = database.answer(question.key)
    known = exact or question.nearest(database.answers())
    if known is not None and (selector.tuner.frozen or (known.finished and not selector.further)):
        answers = (known, database.offered_answer(question.key))
        known, found = _first_replayable(answers, selector, lambda: run(options))
        if found is not None and not selector.tuner.frozen and not is_right(_candidate(found, question, selector)):
            database.drop_answer(question.key)
            found = exact = None
        if found is not None:
            selector.answer = known
            if not selector.tuner.frozen:
                selector.answer = _answer_now(known, exact, question, selector)
                if selector.answer != exact:
                    database.keep_answer(selector.answer)
            return found
    before, known = None, exact
    if known is not None and not selector.budget.has(MIN_BUDGET_RATIO * selector.rebuild_seconds(len(known.problems))):
        before = _cached_plan(known, question, selector, lambda: run(options))
    selector.has_rival_plan = known is not None and before is None
    found = run(options)
    if selector.tuner.frozen or selector.new_decisions is None:
        return found
    best = _candidate(found, question, selector)
    contenders = [best]
    if before is not None:
        contenders.append(before)
        best, known = faster_candidate(best, before, wholes, selector.settings.tie), None
    others = (
        _challengers(best, known, question, options, selector, run),
        _refined_plans(best, question, options, selector, run),
    )
    for rival in chain(*others):
        contenders.append(rival)
        best = faster_candidate(best, rival, wholes, selector.settings.tie)
    contenders.sort(key=lambda rival: rival is not best)
    best = _first_right(contenders, is_right, lambda: _unfused_plan(question, options, selector, run))
    selector.findings, selector.answer = best.findings, best.record
    database.keep_answer(best.record)
    _keep_choices(selector)
    return best.compiled


def _keep_choices(selector: MeasuredSelector) -> None:
    """Save the schedules of the shipped plan as the result: a slower candidate plan may have kernels that are faster
    alone.
    """
    database = selector.tuner.resources.database
    for problem, choice in zip(selector.problems, selector.choices, strict=True):
        winner, text = database.winner(problem), print_ir(choice.candidate.schedule)
        if winner is None or choice.seconds is None or winner.schedule == text:
            continue
        trial = next((trial for trial in database.measurements(problem) if trial.ok and trial.schedule == text), None)
        if trial is not None:
            shipped = evolve(winner, schedule=text, seconds=choice.seconds, spread=choice.spread, source=trial.source)
            database.finish(problem, shipped)


def _first_right(
    contenders: Sequence[CandidatePlan], is_right: PlanCheck, unfused: Callable[[], CandidatePlan]
) -> CandidatePlan:
    """Return the first valid candidate; where none is, the unfused plan.

    Raises `NumericsError` where that is wrong too.
    """
    for rival in contenders:
        if is_right(rival):
            return rival
    if is_right(last := unfused()):
        return last
    raise NumericsError(
        f"no plan of {quote(last.record.label)} computes what its operations compute one by one",
        hint="each was named in a warning, with the command whose output to report; 'cuts compile --mode no-fusion "
        "--verify' may have a right one meanwhile",
    )


def _unfused_plan(question: Question, options: CompileOptions, selector: MeasuredSelector, run: Run) -> CandidatePlan:
    return _candidate(run(evolve(options, mode="no-fusion")), question, selector)


def _cached_plan(
    known: DecisionRecord, question: Question, selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> CandidatePlan | None:
    """Return the cached plan, made without a measurement while workers start: the fallback where time is short. None
    where this version forms other groups.
    """
    with selector.without_measurements():
        found = _replay(known, selector, run)
        return None if found is None else _as_record(known, _candidate(found, question, selector), selector)


def _challengers(
    fresh: CandidatePlan,
    known: DecisionRecord | None,
    question: Question,
    options: CompileOptions,
    selector: MeasuredSelector,
    run: Run,
) -> Iterator[CandidatePlan]:
    """Yield plans that may be faster than the search result: the cached one and the unfused one. A cached plan that
    could not be timed end to end for want of time must be faster kernel by kernel.
    """
    separate, budget = selector.unfused_seconds, selector.budget
    close = known is not None and (known.seconds < MAX_SUM_RATIO * fresh.seconds or fresh.is_modelled)
    room = budget.has(selector.rebuild_seconds(len(fresh.compiled.kernels)))
    if known is not None and close and (room or known.seconds < fresh.seconds or fresh.is_modelled):
        before = _replay(known, selector, lambda: run(options))
        if before is not None:
            yield _as_record(known, _candidate(before, question, selector), selector)
    if options.mode == "mixed" and separate < MAX_SUM_RATIO * fresh.seconds and not budget.over() and room:
        yield _unfused_plan(question, options, selector, run)


def _refined_plans(
    fresh: CandidatePlan, question: Question, options: CompileOptions, selector: MeasuredSelector, run: Run
) -> Iterator[CandidatePlan]:
    """Yield plans of repeated decisions, with longer and longer searches for each group, as long as the budget has
    time and the decisions change: a short search estimates a group to some per cent.
    """
    decided = {fresh.record.decisions}
    budget, target, planned = selector.budget, selector.target, selector.planned
    able = options.mode == "mixed" and selector.evaluate and budget.is_limited and not target.on_host
    for points in REFINED_GROUP_SCHEDULES:
        if not able or not selector.complete or budget.remaining() < max(MIN_REMAINING_SHARE * budget.elapsed, planned):
            return
        with selector.refining_partition(points):
            rival = _candidate(run(options), question, selector)
        if rival.record.decisions in decided:
            return
        decided.add(rival.record.decisions)
        yield evolve(rival, record=evolve(rival.record, finished=not rival.is_modelled))


def _candidate(compiled: CompiledGraph, question: Question, selector: MeasuredSelector) -> CandidatePlan:
    return CandidatePlan(compiled, selector.findings, _answer(question, selector))


def _as_record(known: DecisionRecord, rival: CandidatePlan, selector: MeasuredSelector) -> CandidatePlan:
    """Return a cached plan as its decision record, updated where some of it does not hold."""
    if _all_holds(known, selector):
        return evolve(rival, record=_timed_now(known, selector))
    return evolve(rival, record=evolve(rival.record, finished=rival.record.finished and not rival.is_modelled))


def _answer_now(
    known: DecisionRecord | None, exact: DecisionRecord | None, question: Question, selector: MeasuredSelector
) -> DecisionRecord:
    """Return the record to save for a cached plan. Where it was of this very graph and all of it holds, only its
    kernel times change.
    """
    if known is not None and known is exact and _all_holds(known, selector):
        return _timed_now(known, selector)
    return _answer(question, selector)


def _timed_now(known: DecisionRecord, selector: MeasuredSelector) -> DecisionRecord:
    """Return a cached record that still holds with kernel times of the present code; unchanged where some kernels were
    never timed.
    """
    if any(choice.seconds is None for choice in selector.choices):
        return known
    return evolve(known, seconds=selector.seconds)


def _all_holds(known: DecisionRecord, selector: MeasuredSelector) -> bool:
    """Return whether a replay of cached decisions decided nothing else."""
    return selector.new_decisions == known.read()


def has_cached_decisions(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> bool:
    """Return whether a compilation can replay cached decisions without a search.

    It can for a GPU, where results are cached.
    """
    if not target.lockstep or target.on_host or prints_passes(options) or options.debug or cache_root() is None:
        return False
    return known_answer(decision_key(graph, spec, target, options), target) is not None


def prints_passes(options: CompileOptions) -> bool:
    """Return whether the passes run for their printed output."""
    return bool(options.print_after or options.dump or options.stop_after)


def decision_key(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> Question:
    """Return the key of a graph's decision record, made before a search."""
    canonical = canonical_form(graph, spec)
    policy = PRECISIONS[options.precision]
    nodes = node_fingerprints(LowerPrecision(spec.instances, policy).run(canonical), spec.instances)
    return question_of(canonical, spec.texts, options, machine_of(target), nodes)


def canonical_form(graph: Graph, spec: Spec) -> Graph:
    """Return the exporter-independent form of a model.

    It is canonical, and has all attributes, defaults included.
    """
    key = id(graph)
    kept = _CANONICAL.get(key)
    if kept is not None and kept[0]() is graph and kept[1] is spec:
        return kept[2]
    instances = spec.instances
    canonical = Canonicalise(instances).run(graph)
    nodes = (evolve(node, attributes=_attribute_values(instances.of_node(node, canonical))) for node in canonical.nodes)
    canonical = evolve(canonical, nodes=tuple(nodes))
    _CANONICAL[key] = weakref.ref(graph, lambda _: _CANONICAL.pop(key, None)), spec, canonical
    return canonical


def _attribute_values(instance: Instance) -> dict[str, Attribute]:
    """Return a node's attributes, defaults included; absent ones are left out, an element type is its name."""
    return {
        name: value.value if isinstance(value, DType) else value
        for name, value in instance.attributes.items()
        if value is not None
    }


def _first_replayable(
    answers: Sequence[DecisionRecord | None], selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> tuple[DecisionRecord | None, CompiledGraph | None]:
    """Return the first record that can be replayed, with its compilation. Where no search is allowed, the first with
    changed kernels is the fallback.
    """
    frozen, given = selector.tuner.frozen, [answer for answer in answers if answer is not None]
    for answer in given if len(given) > 1 or not frozen else ():
        if (found := _replay_final(answer, selector, run)) is not None:
            return answer, found
    for answer in given if frozen else ():
        if (found := _replay(answer, selector, run)) is not None:
            return answer, found
    return None, None


def _replay_final(
    known: DecisionRecord, selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> CompiledGraph | None:
    """Replay the decisions of a finished search; None where this version forms other groups, or has changed so many of
    the kernels that the decisions no longer apply.
    """
    frozen = selector.tuner.frozen
    with nullcontext() if frozen else selector.without_measurements():
        found = _replay(known, selector, run)
    if found is None:
        return None
    missing = [p for p, c in zip(selector.problems, selector.choices, strict=True) if c.origin != MEASURED_SOURCE]
    otherwise = sum(bool(selector.tuner.resources.database.hints(problem)) for problem in missing)
    if otherwise > MAX_CHANGED_SHARE * (len(selector.problems) - len(missing) + otherwise):
        return None
    return found if frozen or not missing else _replay(known, selector, run)


def _replay(
    known: DecisionRecord, selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> CompiledGraph | None:
    """Replay a decision record; None where this version forms other groups."""
    selector.decisions = known.read()
    try:
        return None if selector.decisions is None else run()
    except ForeignDecisionsError:
        return None
    finally:
        selector.decisions = None


def _answer(question: Question, selector: MeasuredSelector) -> DecisionRecord:
    assert selector.new_decisions is not None, "something was decided"
    keys = tuple(dict.fromkeys(problem.key for problem in selector.problems))
    decisions = decisions_text(selector.new_decisions)
    facts = (question.key, question.description, question.label)
    return DecisionRecord(*facts, decisions, keys, selector.seconds, selector.complete)

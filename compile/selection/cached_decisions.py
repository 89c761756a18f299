"""Cached decisions: reuses decision records of earlier searches and packs.

A final record is replayed; a search result ships only where it is not slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from attrs import evolve, frozen

from ...ir import (
    PRECISIONS,
    Attribute,
    CompiledGraph,
    CompileOptions,
    DType,
    Graph,
    NumericsError,
    ObjectCache,
    Target,
    print_ir,
    quote,
)
from ...ops import Instance
from ...passes import ForeignDecisionsError, node_fingerprints
from ...passes.graph import Canonicalise, LowerPrecision
from ...search import (
    DecisionRecord,
    Findings,
    Question,
    RunMode,
    TuningSession,
    decisions_text,
    known_answer,
    machine_of,
    question_of,
)
from ..loading import Spec
from .plan_cache import may_replay
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
#: Runs the passes with given options and a function that compiles a graph.
Run: TypeAlias = Callable[[CompileOptions, Callable[..., CompiledGraph]], CompiledGraph]

#: Usual mode of a compilation.
SEARCH = RunMode()
#: Canonical forms of live graphs: a compilation needs each several times.
_CANONICAL: ObjectCache[tuple[Spec, Graph]] = ObjectCache()


def compile_measured(
    graph: Graph,
    spec: Spec,
    options: CompileOptions,
    session: TuningSession,
    run: Run,
    time_plans: PlanTimer = time_nothing,
    is_right: PlanCheck = accept_plan,
) -> CandidatePlan:
    """Compile a graph by measured times.

    `run` runs the passes. Final cached decisions are replayed without a search.

    A search result is compared with the cached plan and with the unfused plan, where these may be faster; `time_plans`
    times them. The fastest plan that `is_right` accepts is returned and cached.

    Raises `NumericsError` where no plan is right.
    """
    database = session.database
    if options.shows:
        made = session.begin()
        return CandidatePlan(run(options, made.compile), made.findings)
    if session.further or not database.may_know(graph.name):
        session.tuner.begin()  # workers take seconds to start
    question = decision_key(graph, spec, session.target, options)
    compilations = _Compilations(session, question, options, run)
    exact = database.answer(question.key)
    known = exact or question.nearest(database.answers())
    if known is not None and (session.tuner.frozen or (known.finished and not session.further)):
        found = _replay_known(known, exact, compilations)
        if found is not None and (session.tuner.frozen or is_right(found)):
            if found.record != exact and not session.tuner.frozen:
                database.keep_answer(found.decisions)
            return found
        if found is not None:
            database.drop_answer(question.key)
            exact = None
    return _search(exact, compilations, time_plans, is_right)


@frozen(eq=False)
class _Compilations:
    """Compilations of one graph: `run` runs its passes; `question` is its key in the database."""

    session: TuningSession
    question: Question
    options: CompileOptions
    run: Run

    def compile(self, mode: RunMode = SEARCH, fused: bool = True) -> CandidatePlan:
        """Return the plan of a compilation."""
        made = self.session.begin(mode)
        options = self.options if fused else evolve(self.options, mode="no-fusion")
        compiled = self.run(options, made.compile)
        return self.with_record(CandidatePlan(compiled, made.findings), made.findings.complete)

    def replay(self, known: DecisionRecord, mode: RunMode = SEARCH) -> CandidatePlan | None:
        """Return the plan of a record, None where groups differ today."""
        decisions = known.read()
        try:
            return None if decisions is None else self.compile(evolve(mode, decisions=decisions))
        except ForeignDecisionsError:
            return None

    def replay_as_known(self, known: DecisionRecord, mode: RunMode = SEARCH) -> CandidatePlan | None:
        """Return a cached plan, its record updated where some has changed."""
        found = self.replay(known, mode)
        if found is None:
            return None
        if _is_same_replay(known, found.findings):
            return evolve(found, record=_timed_now(known, found.findings))
        return evolve(
            found, record=evolve(found.decisions, finished=found.decisions.finished and not found.is_modelled)
        )

    def with_record(self, plan: CandidatePlan, finished: bool) -> CandidatePlan:
        """Return a plan with its decision record, if anything was decided."""
        made, question = plan.findings.made, self.question
        if made is None:
            return plan
        keys = tuple(dict.fromkeys(problem.key for problem in plan.findings.problems))
        facts = (question.key, question.description, question.label)
        record = DecisionRecord(*facts, decisions_text(made), keys, plan.findings.seconds, finished)
        return evolve(plan, record=record)


# ---- a search


def _search(
    known: DecisionRecord | None, compilations: _Compilations, time_plans: PlanTimer, is_right: PlanCheck
) -> CandidatePlan:
    """Return the fastest valid plan of a search, compared with a `known` one of the same graph."""
    session, before = compilations.session, None
    if known is not None and not session.budget.has(MIN_BUDGET_RATIO * session.rebuild_seconds(len(known.problems))):
        # made while workers start, it is the fallback where time is short
        before = compilations.replay_as_known(known, RunMode(known_only=True))
    mode = RunMode(has_rival=known is not None and before is None)
    best = compilations.compile(mode)
    if session.tuner.frozen or best.record is None:
        return evolve(best, record=None)
    contenders = [best]
    if before is not None:
        contenders.append(before)
        best, known = faster_candidate(best, before, time_plans, session.settings.tie), None
    for rival in chain(_challengers(best, known, compilations, mode), _refined_plans(best, compilations)):
        contenders.append(rival)
        best = faster_candidate(best, rival, time_plans, session.settings.tie)
    contenders.sort(key=lambda rival: rival is not best)
    best = _first_valid(contenders, is_right, lambda: compilations.compile(mode, fused=False))
    session.database.keep_answer(best.decisions)
    _keep_choices(session, best.findings)
    return best


def _keep_choices(session: TuningSession, findings: Findings) -> None:
    """Save the schedules of the shipped plan as the result: a slower candidate plan may have kernels that are faster
    alone.
    """
    database = session.database
    for problem, choice in findings.pairs:
        winner, text = database.winner(problem), print_ir(choice.candidate.schedule)
        if winner is None or choice.seconds is None or winner.schedule == text:
            continue
        trial = next((trial for trial in database.measurements(problem) if trial.ok and trial.schedule == text), None)
        if trial is not None:
            shipped = evolve(winner, schedule=text, seconds=choice.seconds, spread=choice.spread, source=trial.source)
            database.finish(problem, shipped)


def _first_valid(
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
        f"no plan of {quote(last.decisions.label)} computes what its operations compute one by one",
        hint="each was named in a warning, with the command whose output to report; 'cuts compile --mode no-fusion "
        "--verify' may have a right one meanwhile",
    )


def _challengers(
    fresh: CandidatePlan, known: DecisionRecord | None, compilations: _Compilations, mode: RunMode
) -> Iterator[CandidatePlan]:
    """Yield plans that may be faster than the search result: the cached one and the unfused one. A cached plan that
    could not be timed end to end for want of time must be faster kernel by kernel.
    """
    session, unfused = compilations.session, fresh.findings.unfused_seconds
    close = known is not None and (known.seconds < MAX_SUM_RATIO * fresh.seconds or fresh.is_modelled)
    room = session.has_time_to_rebuild(len(fresh.compiled.kernels))
    if known is not None and close and (room or known.seconds < fresh.seconds or fresh.is_modelled):
        before = compilations.replay_as_known(known, mode)
        if before is not None:
            yield before
    mixed = compilations.options.mode == "mixed"
    if mixed and unfused < MAX_SUM_RATIO * fresh.seconds and not session.budget.over() and room:
        yield compilations.compile(mode, fused=False)


def _refined_plans(fresh: CandidatePlan, compilations: _Compilations) -> Iterator[CandidatePlan]:
    """Yield plans of repeated decisions, with longer and longer searches for each group, as long as the budget has
    time and the decisions change: a short search estimates a group to some per cent.
    """
    session, decided = compilations.session, {fresh.decisions.decisions}
    budget, planned = session.budget, session.budget.elapsed - session.tuner.statistics.searching
    able = compilations.options.mode == "mixed" and session.evaluate and budget.is_limited
    for points in REFINED_GROUP_SCHEDULES:
        room = budget.remaining() >= max(MIN_REMAINING_SHARE * budget.elapsed, planned)
        if not able or session.target.on_host or not session.tuner.complete or not room:
            return
        rival = compilations.compile(RunMode(refined_points=points))
        if rival.decisions.decisions in decided:
            return
        decided.add(rival.decisions.decisions)
        yield evolve(rival, record=evolve(rival.decisions, finished=not rival.is_modelled))


# ---- a replay


def _replay_known(
    known: DecisionRecord, exact: DecisionRecord | None, compilations: _Compilations
) -> CandidatePlan | None:
    """Return the plan of final decisions, with the record to save; None where they cannot be replayed.

    Where the record was of this very graph and all of it holds, only its kernel times change.
    """
    session = compilations.session
    answers = known, session.database.offered_answer(compilations.question.key)
    answer, found = _first_replayable(answers, compilations)
    if found is None or answer is None:
        return None
    if session.tuner.frozen:
        return evolve(found, record=answer)
    if answer is exact and _is_same_replay(answer, found.findings):
        return evolve(found, record=_timed_now(answer, found.findings))
    return compilations.with_record(found, session.tuner.complete)


def _timed_now(known: DecisionRecord, findings: Findings) -> DecisionRecord:
    """Return a cached record that still holds with kernel times of the present code; unchanged where some kernels were
    never timed.
    """
    return known if findings.is_modelled else evolve(known, seconds=findings.seconds)


def _is_same_replay(known: DecisionRecord, findings: Findings) -> bool:
    """Return whether a replay of cached decisions decided nothing else."""
    return findings.made == known.read()


def _first_replayable(
    answers: Sequence[DecisionRecord | None], compilations: _Compilations
) -> tuple[DecisionRecord | None, CandidatePlan | None]:
    """Return the first record that can be replayed, with its compilation. Where no search is allowed, the first with
    changed kernels is the fallback.
    """
    frozen, given = compilations.session.tuner.frozen, [answer for answer in answers if answer is not None]
    for answer in given if len(given) > 1 or not frozen else ():
        if (found := _replay_final(answer, compilations)) is not None:
            return answer, found
    for answer in given if frozen else ():
        if (found := compilations.replay(answer)) is not None:
            return answer, found
    return None, None


def _replay_final(known: DecisionRecord, compilations: _Compilations) -> CandidatePlan | None:
    """Replay the decisions of a finished search; None where this version forms other groups, or has changed so many of
    the kernels that the decisions no longer apply.
    """
    session = compilations.session
    frozen = session.tuner.frozen
    found = compilations.replay(known, RunMode(known_only=not frozen))
    if found is None:
        return None
    missing = [problem for problem, choice in found.findings.pairs if choice.origin != MEASURED_SOURCE]
    otherwise = sum(bool(session.database.hints(problem)) for problem in missing)
    if otherwise > MAX_CHANGED_SHARE * (len(found.findings.problems) - len(missing) + otherwise):
        return None
    return found if frozen or not missing else compilations.replay(known)


# ---- keys


def has_cached_decisions(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> bool:
    """Return whether a compilation can replay cached decisions without a search."""
    if not may_replay(target, options):
        return False
    return known_answer(decision_key(graph, spec, target, options), target) is not None


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
    kept = _CANONICAL.get(graph)
    if kept is not None and kept[0] is spec:
        return kept[1]
    instances = spec.instances
    canonical = Canonicalise(instances).run(graph)
    nodes = (evolve(node, attributes=_attribute_values(instances.of_node(node, canonical))) for node in canonical.nodes)
    canonical = evolve(canonical, nodes=tuple(nodes))
    _CANONICAL[graph] = spec, canonical
    return canonical


def _attribute_values(instance: Instance) -> dict[str, Attribute]:
    """Return a node's attributes, defaults included; absent ones are left out, an element type is its name."""
    return {
        name: value.value if isinstance(value, DType) else value
        for name, value in instance.attributes.items()
        if value is not None
    }

"""What earlier searches, and packs, decided about a graph: taken over where it is final, never given up for worse."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import TypeAlias

from attrs import evolve

from ..backends import cache_root
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
from ..passes import ForeignDecisionsError, node_marks
from ..passes.graph import Canonicalise, LowerPrecision
from ..search import DecidedGraph, MeasuredSelector, Question, decisions_text, known_answer, machine_of, question_of
from .contest import NEAR, Right, Rival, Wholes, better, by_sums, trusted
from .loading import Spec

#: Where a choice comes from that was measured as its kernel is made today, and the part of a known plan's kernels that
#: may be made otherwise: what was decided by the times of others is a hint. (Of an earlier version's pack 32 to 60 % of
#: a plan's kernels held; two plans of it took 4 and 9 % longer than those of searches that knew nothing.)
HELD, OTHERWISE = "database", 0.25
#: How many times as long as a known plan takes to be made a budget has to be, so that a search goes first, which may
#: make that plan better.
AMPLE = 8
#: Most points of each group by which a plan is decided again, and what must be left of the budget for it, of what is
#: used up: most kernels are known by then. The passes take as long as before.
LONGER, PART = (12, 40), 0.5
#: Runs the passes as options say.
Run: TypeAlias = Callable[[CompileOptions], CompiledGraph]

#: Canonical forms of graphs that are still there, by identity: a compilation asks several times.
_CANONICAL: dict[int, tuple[weakref.ref[Graph], Spec, Graph]] = {}


def compile_measured(
    graph: Graph,
    spec: Spec,
    options: CompileOptions,
    selector: MeasuredSelector,
    run: Run,
    wholes: Wholes = by_sums,
    is_right: Right = trusted,
) -> CompiledGraph:
    """Compile a graph by measured times; `run` does. What is known of it and final is taken over without a search.

    What a search finds is held against what was known, and against the plan that fuses nothing, where these may be
    faster; `wholes` times them. The fastest that `is_right` is returned, with the selector as it was then, and kept;
    its kernels are audited where that is asked for, which changes nothing of it.

    Raises `NumericsError` where none is.
    """
    found = run(options) if watched(options) else _fastest(graph, spec, options, selector, run, wholes, is_right)
    selector.look_closer()
    return found


def _fastest(
    graph: Graph,
    spec: Spec,
    options: CompileOptions,
    selector: MeasuredSelector,
    run: Run,
    wholes: Wholes,
    is_right: Right,
) -> CompiledGraph:
    """Return the fastest plan of a graph that is right: what is known of it, or what a search finds."""
    database = selector.tuner.resources.database
    if selector.further or not database.may_know(graph.name):
        selector.tuner.begin()  # workers take seconds to start
    question = question_about(graph, spec, selector.target, options)
    exact = database.answer(question.key)
    known = exact or question.nearest(database.answers())
    if known is not None and (selector.tuner.frozen or (known.finished and not selector.further)):
        answers = (known, database.offered_answer(question.key))
        known, found = _first_that_holds(answers, selector, lambda: run(options))
        if found is not None and not selector.tuner.frozen and not is_right(_rival(found, question, selector)):
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
    if known is not None and not selector.budget.has(AMPLE * selector.again(len(known.problems))):
        before = _before(known, question, selector, lambda: run(options))
    selector.rivalled = known is not None and before is None
    found = run(options)
    if selector.tuner.frozen or selector.made is None:
        return found
    best = _rival(found, question, selector)
    contenders = [best]
    if before is not None:
        contenders.append(before)
        best, known = better(best, before, wholes, selector.settings.tie), None
    others = (_rivals(best, known, question, options, selector, run), _again(best, question, options, selector, run))
    for rival in chain(*others):
        contenders.append(rival)
        best = better(best, rival, wholes, selector.settings.tie)
    contenders.sort(key=lambda rival: rival is not best)
    best = _first_right(contenders, is_right, lambda: _unfused(question, options, selector, run))
    selector.findings, selector.answer = best.findings, best.decided
    database.keep_answer(best.decided)
    _keep_choices(selector)
    return best.compiled


def _keep_choices(selector: MeasuredSelector) -> None:
    """Let the schedules of the plan that ships be what is found again: a rival that lost as a whole may have kernels
    that are faster by themselves.
    """
    database = selector.tuner.resources.database
    for problem, choice in zip(selector.problems, selector.choices, strict=True):
        winner, text = database.winner(problem), print_ir(choice.candidate.schedule)
        if winner is None or choice.seconds is None or winner.schedule == text:
            continue
        trial = next((trial for trial in database.trials(problem) if trial.ok and trial.schedule == text), None)
        if trial is not None:
            shipped = evolve(winner, schedule=text, seconds=choice.seconds, spread=choice.spread, source=trial.source)
            database.finish(problem, shipped)


def _first_right(contenders: Sequence[Rival], is_right: Right, unfused: Callable[[], Rival]) -> Rival:
    """Return the first contender that is right; where none is, the plan that fuses nothing.

    Raises `NumericsError` where that is wrong too.
    """
    for rival in contenders:
        if is_right(rival):
            return rival
    if is_right(last := unfused()):
        return last
    raise NumericsError(
        f"no plan of {quote(last.decided.label)} computes what its operations compute one by one",
        hint="each was named in a warning, with the command whose output to report; 'cuts compile --mode no-fusion "
        "--verify' may have a right one meanwhile",
    )


def _unfused(question: Question, options: CompileOptions, selector: MeasuredSelector, run: Run) -> Rival:
    return _rival(run(evolve(options, mode="no-fusion")), question, selector)


def _before(
    known: DecidedGraph, question: Question, selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> Rival | None:
    """Return the plan that is known, made while workers start and without a measurement: where time is short it is the
    answer that there is in any case. Nothing where this version forms other groups.
    """
    with selector.unmeasured():
        found = _told(known, selector, run)
        return None if found is None else _as_known(known, _rival(found, question, selector), selector)


def _rivals(
    fresh: Rival,
    known: DecidedGraph | None,
    question: Question,
    options: CompileOptions,
    selector: MeasuredSelector,
    run: Run,
) -> Iterator[Rival]:
    """Yield what may be faster than what a search found: what was known before, and what nothing is fused in. What was
    known, and not timed beside the other for want of time, must be faster kernel by kernel.
    """
    apart, budget = selector.apart, selector.budget
    close = known is not None and (known.seconds < NEAR * fresh.seconds or fresh.guessed)
    room = budget.has(selector.again(len(fresh.compiled.kernels)))
    if known is not None and close and (room or known.seconds < fresh.seconds or fresh.guessed):
        before = _told(known, selector, lambda: run(options))
        if before is not None:
            yield _as_known(known, _rival(before, question, selector), selector)
    if options.mode == "mixed" and apart < NEAR * fresh.seconds and not budget.over() and room:
        yield _unfused(question, options, selector, run)


def _again(
    fresh: Rival, question: Question, options: CompileOptions, selector: MeasuredSelector, run: Run
) -> Iterator[Rival]:
    """Yield what is decided where groups are compared by longer and longer searches, as long as the budget has time and
    they decide otherwise: a short search says of a group what it takes to some per cent.
    """
    decided = {fresh.decided.decisions}
    budget, target, planned = selector.budget, selector.target, selector.planned
    able = options.mode == "mixed" and selector.evaluate and budget.limited and not target.on_host
    for points in LONGER:
        if not able or not selector.complete or budget.left() < max(PART * budget.elapsed, planned):
            return
        with selector.deciding_again(points):
            rival = _rival(run(options), question, selector)
        if rival.decided.decisions in decided:
            return
        decided.add(rival.decided.decisions)
        yield evolve(rival, decided=evolve(rival.decided, finished=not rival.guessed))


def _rival(compiled: CompiledGraph, question: Question, selector: MeasuredSelector) -> Rival:
    return Rival(compiled, selector.findings, _answer(question, selector))


def _as_known(known: DecidedGraph, rival: Rival, selector: MeasuredSelector) -> Rival:
    """Return a plan as what is known of it; where some of that does not hold any more, as what it is now."""
    if _all_holds(known, selector):
        return evolve(rival, decided=_timed_now(known, selector))
    return evolve(rival, decided=evolve(rival.decided, finished=rival.decided.finished and not rival.guessed))


def _answer_now(
    known: DecidedGraph | None, exact: DecidedGraph | None, question: Question, selector: MeasuredSelector
) -> DecidedGraph:
    """Return what there is to keep of a plan that was known: where it was of this very graph, and all of it holds, only
    what its kernels take may be news.
    """
    if known is not None and known is exact and _all_holds(known, selector):
        return _timed_now(known, selector)
    return _answer(question, selector)


def _timed_now(known: DecidedGraph, selector: MeasuredSelector) -> DecidedGraph:
    """Return what is known of a graph, which still holds, with what its kernels take as they are made today; where some
    of these were never timed, as it is.
    """
    if any(choice.seconds is None for choice in selector.choices):
        return known
    return evolve(known, seconds=selector.seconds)


def _all_holds(known: DecidedGraph, selector: MeasuredSelector) -> bool:
    """Whether a compilation that was told what is known decided nothing else."""
    return selector.made == known.read()


def is_known(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> bool:
    """Whether a compilation without a search can take over what a search decided: for a GPU, where results are kept."""
    if not target.lockstep or target.on_host or watched(options) or options.debug or cache_root() is None:
        return False
    return known_answer(question_about(graph, spec, target, options), target) is not None


def watched(options: CompileOptions) -> bool:
    """Whether the passes are wanted for what they print."""
    return bool(options.print_after or options.dump or options.stop_after)


def question_about(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> Question:
    """Return what is asked about a graph before anything is searched."""
    canonical = canonical_form(graph, spec)
    policy = PRECISIONS[options.precision]
    nodes = node_marks(LowerPrecision(spec.instances, policy).run(canonical), spec.instances)
    return question_of(canonical, spec.texts, options, machine_of(target), nodes)


def canonical_form(graph: Graph, spec: Spec) -> Graph:
    """Return what a model is whichever exporter wrote it: canonical, with the attributes that nodes leave out."""
    key = id(graph)
    kept = _CANONICAL.get(key)
    if kept is not None and kept[0]() is graph and kept[1] is spec:
        return kept[2]
    instances = spec.instances
    canonical = Canonicalise(instances).run(graph)
    nodes = (evolve(node, attributes=_said(instances.of_node(node, canonical))) for node in canonical.nodes)
    canonical = evolve(canonical, nodes=tuple(nodes))
    _CANONICAL[key] = weakref.ref(graph, lambda _: _CANONICAL.pop(key, None)), spec, canonical
    return canonical


def _said(instance: Instance) -> dict[str, Attribute]:
    """Return what a node's attributes are, said or not; what is not there is left out, an element type is its name."""
    return {
        name: value.value if isinstance(value, DType) else value
        for name, value in instance.attributes.items()
        if value is not None
    }


def _first_that_holds(
    answers: Sequence[DecidedGraph | None], selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> tuple[DecidedGraph | None, CompiledGraph | None]:
    """Return the first answer that can be taken over, with what is then compiled. Where nothing may be searched, the
    first will do even if its kernels are made otherwise, should there be no better one.
    """
    frozen, given = selector.tuner.frozen, [answer for answer in answers if answer is not None]
    for answer in given if len(given) > 1 or not frozen else ():
        if (found := _taken_over(answer, selector, run)) is not None:
            return answer, found
    for answer in given if frozen else ():
        if (found := _told(answer, selector, run)) is not None:
            return answer, found
    return None, None


def _taken_over(
    known: DecidedGraph, selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> CompiledGraph | None:
    """Compile as a search to the end decided; nothing where this version forms other groups, or makes so many of the
    kernels otherwise that what it would decide is another matter.
    """
    frozen = selector.tuner.frozen
    with nullcontext() if frozen else selector.unmeasured():
        found = _told(known, selector, run)
    if found is None:
        return None
    missing = [p for p, c in zip(selector.problems, selector.choices, strict=True) if c.origin != HELD]
    otherwise = sum(bool(selector.tuner.resources.database.hints(problem)) for problem in missing)
    if otherwise > OTHERWISE * (len(selector.problems) - len(missing) + otherwise):
        return None
    return found if frozen or not missing else _told(known, selector, run)


def _told(known: DecidedGraph, selector: MeasuredSelector, run: Callable[[], CompiledGraph]) -> CompiledGraph | None:
    """Compile as was decided before; nothing where this version forms other groups."""
    selector.decisions = known.read()
    try:
        return None if selector.decisions is None else run()
    except ForeignDecisionsError:
        return None
    finally:
        selector.decisions = None


def _answer(question: Question, selector: MeasuredSelector) -> DecidedGraph:
    assert selector.made is not None, "something was decided"
    keys = tuple(dict.fromkeys(problem.key for problem in selector.problems))
    decisions = decisions_text(selector.made)
    facts = (question.key, question.description, question.label)
    return DecidedGraph(*facts, decisions, keys, selector.seconds, selector.complete)

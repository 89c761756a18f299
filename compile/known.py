"""What earlier searches, and packs, decided about a graph: taken over where it is final, never given up for worse."""

from __future__ import annotations

from collections.abc import Callable

from ..backends import cache_root
from ..ir import CompiledGraph, CompileOptions, Graph, Target
from ..passes import ForeignDecisionsError
from ..search import DecidedGraph, MeasuredSelector, Question, decisions_text, known_answer, machine_of, question_of
from .loading import Spec

#: How much faster what is known must be than what was found to be taken over: times of two sessions differ by that.
GAIN = 0.99


def compile_measured(
    graph: Graph, spec: Spec, options: CompileOptions, selector: MeasuredSelector, run: Callable[[], CompiledGraph]
) -> CompiledGraph:
    """Compile a graph by measured times; `run` does. What is known of it and final is taken over without a search; what
    a search decides is kept, and where it is slower than what was known, that is taken over after all.
    """
    if selector.audit or watched(options):
        return run()
    database = selector.tuner.resources.database
    question = _question(graph, spec, selector.target, options, selector.settings.libraries)
    known = database.answer(question.key)
    if known is not None and (selector.tuner.frozen or (known.finished and not selector.further)):
        found = _told(known, selector, run)
        if found is not None:
            return found
    found = run()
    if selector.tuner.frozen or selector.made is None:
        return found
    fresh = _answer(question, selector)
    if known is not None and known.seconds < GAIN * fresh.seconds and not selector.budget.overdue():
        before = _told(known, selector, run)
        if before is not None and selector.seconds < GAIN * fresh.seconds:
            return before
        found = found if before is None else run()  # what it rests on is known by now
    database.keep_answer(fresh)
    return found


def is_known(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> bool:
    """Whether a compilation without a search can take over what a search decided: for a GPU, where results are kept."""
    if not target.lockstep or target.on_host or watched(options) or options.debug or cache_root() is None:
        return False
    return known_answer(_question(graph, spec, target, options, False), target) is not None


def watched(options: CompileOptions) -> bool:
    """Whether the passes are wanted for what they print."""
    return bool(options.print_after or options.dump or options.stop_after)


def _question(graph: Graph, spec: Spec, target: Target, options: CompileOptions, libraries: bool) -> Question:
    return question_of(graph, spec.texts, options, machine_of(target), libraries)


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

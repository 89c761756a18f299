"""Compilation driver: runs passes, search and code printers on a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import evolve

from ..ir import (
    CompiledGraph,
    CompileOptions,
    Graph,
    Interface,
    ObjectCache,
    PlanError,
    Target,
    UsageError,
    check_precision,
    quote,
)
from ..ops import Registry, warn_of_empty_results
from ..passes import Emit, compile_graph
from ..passes.graph import Checked, check_indices, memoised_passes
from ..search import (
    ROUTINES,
    Findings,
    PlanningWorkers,
    SearchOutcome,
    Settings,
    TuningSession,
    reduced_garbage_collection,
    tuning_session,
    with_libraries,
)
from .loading import Spec
from .plan import CompiledPlan, plan_of
from .selection import (
    CandidatePlan,
    CandidatePlans,
    PlanCache,
    PlanValidator,
    compile_measured,
    has_cached_decisions,
    select_launch_form,
    select_library_calls,
    time_nothing,
)

#: Runs the passes on a graph.
RunPasses: TypeAlias = Callable[[Graph, Registry, Target, CompileOptions, Emit], CompiledGraph]


def compile_unmeasured(
    graph: Graph, registry: Registry, target: Target, options: CompileOptions, emit: Emit
) -> CompiledGraph:
    """Run the passes on a graph by the analytic cost model."""
    with PlanningWorkers(len(graph.nodes), target=target) as workers:
        return compile_graph(graph, registry, target, options, emit, workers)


def compile_model(
    graph: Graph, spec: Spec, target: Target, options: CompileOptions, run: RunPasses = compile_unmeasured
) -> CompiledGraph:
    """Run the passes on a graph, without making a plan.

    Raises `UsageError` where passes of the target `reference`, which runs none, are to be printed or stopped after, or
    where kernels cannot follow the precision policy.
    """
    check_precision(options.precision, target)
    warn_of_empty_results(graph, spec.registry)
    if target.dialect == "reference":
        if options.stop_after or options.print_after:
            raise UsageError("target 'reference' runs no passes, so there is none to print or to stop after")
        return CompiledGraph(graph, (), ())
    from ..backends.source import emit

    if graph.interface.state or graph.interface.fixed:  # passes see a pure function
        graph = evolve(graph, interface=Interface(updates=graph.interface.replaced))
    checked = check_indices(graph, spec.registry) if options.debug else Checked(graph, spec.registry)
    return evolve(run(checked.graph, checked.registry, target, options, emit), checks=checked.checks)


@reduced_garbage_collection()
@memoised_passes()
def build_graph(
    graph: Graph, spec: Spec, target: Target, options: CompileOptions, run: RunPasses = compile_unmeasured
) -> CompiledPlan:
    """Compile a graph to a plan without measurements.

    A cached decision record of such a machine is replayed where there is one.
    """
    check_precision(options.precision, target)
    options = evolve(options, begun=options.begin())
    if has_cached_decisions(graph, spec, target, options):
        found = _from_known(graph, spec, target, options)
        if found is not None:
            return found
    compiled = compile_model(graph, spec, target, options, run)
    with options.begin().stage("kernels"):
        return check_memory(plan_of(compiled, graph, spec, target, options.precision), options.memory)


@reduced_garbage_collection()
@memoised_passes()
def tune_graph(
    graph: Graph, spec: Spec, target: Target, options: CompileOptions, session: TuningSession
) -> CompiledPlan:
    """Compile a graph to a plan by measured times.

    The cached plan of a finished search is reused unless the session searches further.
    """
    check_precision(options.precision, target)
    cache = PlanCache.of(graph, spec, target, options, session)
    found = cache.find() if cache and not session.further else None
    if found is not None:
        session.outcome = evolve(session.outcome, cached=True)
        return found

    def spare() -> bool:
        return not session.budget.is_limited or session.has_time_to_rebuild(len(graph.nodes))

    agreement = PlanValidator(graph, spec, lambda: unfused_plan(graph, spec, target, options), spare)

    calling: ObjectCache[CompiledGraph] = ObjectCache()

    def call_libraries(made: CandidatePlan, last: bool = False) -> CompiledGraph:
        with session.budget.stage(ROUTINES):
            mixed = options.mode == "mixed"
            return with_libraries(made.compiled, made.findings, session, last) if mixed else made.compiled

    def select_plan(compiled: CompiledGraph, replaced: CompiledGraph) -> CompiledPlan:
        forms = (compiled,) if replaced is compiled else (replaced, compiled)
        with session.budget.stage("kernels"):
            made = [plan_of(form, graph, spec, target, options.precision) for form in forms]
            best = made[0] if len(made) == 1 else select_library_calls(made, session, agreement)
            return check_memory(best, options.memory)

    def plan(made: CandidatePlan) -> CompiledPlan:
        return select_plan(made.compiled, calling.find(made.compiled, lambda: call_libraries(made)))

    plans = CandidatePlans(session, plan, agreement)
    best = compile_measured(
        graph,
        spec,
        options,
        session,
        lambda asked, run: compile_model(graph, spec, target, asked, run),
        time_nothing if target.on_host else plans.time_plans,
        plans.is_right,
    )
    audits = session.audits(best.findings)
    whole = plans.of(best)
    replaced = call_libraries(best, last=True)
    if (earlier := calling.get(best.compiled)) is None or replaced.kernels != earlier.kernels:
        whole = select_plan(best.compiled, replaced)
    note = agreement.note(whole)
    notes = (note + _kernels_text(best.findings),) if note else ()
    session.outcome = SearchOutcome(best.findings, audits=audits, uncompared=(*session.outcome.uncompared, *notes))
    made = select_launch_form(whole, best.record, session, agreement, options.memory)
    if cache and made.complete and not best.findings.has_unmeasured:
        cache.save(made)
    return made


def _kernels_text(findings: Findings) -> str:
    """Return a text with the number of kernels of an uncompared plan that were never run and checked."""
    unseen, every = sum(choice.seconds is None for choice in findings.choices), len(findings.choices)
    return f"; {unseen} of its {every} kernels were never run" if unseen else ""


def unfused_plan(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> CompiledPlan:
    """Return the unfused plan: one operation per kernel.

    Nothing in it is measured, divided or launched concurrently.
    """
    alone = CompileOptions("no-fusion", precision=options.precision, plain=True)
    return plan_of(compile_model(graph, spec, target, alone), graph, spec, target, options.precision)


def _from_known(graph: Graph, spec: Spec, target: Target, options: CompileOptions) -> CompiledPlan | None:
    """Return the plan by earlier results, without a measurement; None where some do not hold. It calls no library, as
    no times were requested.
    """
    settings = Settings(libraries=False)
    with tuning_session(target, budget=options.begin(), frozen=True, guesses=True, settings=settings) as session:
        try:
            return tune_graph(graph, spec, target, options, session)
        except UsageError:
            return None


def check_memory(plan: CompiledPlan, memory: int | None) -> CompiledPlan:
    """Return a plan that fits into a device memory limit in bytes.

    Raises `PlanError` where it takes more.
    """
    if memory is not None and plan.plan.arena > memory:
        raise PlanError(
            f"plan {quote(plan.name)}: expected an arena of at most {memory} bytes, found {plan.plan.arena}: kernels "
            f"hold more between them than values take",
            hint="ask for a little more, or less, so that more is computed again",
        )
    return plan

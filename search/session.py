"""Tuning session: compilations that share a tuner and its results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from attrs import define, evolve, field, frozen

from ..ir import Budget, CompiledGraph, CompileOptions, Graph, Target
from ..ops import Registry
from ..passes import (
    CompileContext,
    Decisions,
    Emit,
    assemble_kernels,
    record_decisions,
    run_stages,
    unfused_seconds,
)
from .analysis import Audit, audit_choices
from .database import Database
from .findings import Findings, SearchOutcome
from .group_costs import GroupCosts, KnownCosts
from .measured_model import MeasuredModel
from .plan_executor import PlanExecutor, rebuild_seconds
from .settings import QUICK_SEARCH, Settings
from .speculation import SpeculativeBuild
from .tasks import machine_of
from .tuner import Tuner


@frozen
class RunMode:
    """Kind of a compilation.

    It replays `decisions`, if any. With `known_only` it measures nothing: known times and the cost model decide. With
    `refined_points` it compares groups anew by searches of so many candidates, in the rest of the budget. `has_rival`
    says that another candidate plan of the graph follows.
    """

    decisions: Decisions | None = None
    known_only: bool = False
    refined_points: int = 0
    has_rival: bool = False


#: Usual mode of a compilation.
SEARCH = RunMode()


@define(eq=False)
class MeasuredRun:
    """One compilation by measured times or recorded decisions, and its findings."""

    session: TuningSession
    mode: RunMode
    findings: Findings = field(factory=Findings, init=False)

    def compile(
        self, graph: Graph, registry: Registry, target: Target, options: CompileOptions, emit: Emit
    ) -> CompiledGraph:
        """Compile a graph.

        Raises `ForeignDecisionsError` where recorded decisions cannot be replayed.
        """
        session, mode, executor = self.session, self.mode, self.session.tuner.executor
        with ExitStack() as after:
            if mode.known_only or mode.refined_points:  # its early end leaves the searches before complete
                after.enter_context(executor.ending_early(mode.known_only))
            if mode.refined_points:
                after.enter_context(executor.budget.restart_shares())
            shares = options.horizontal_fusion if session.evaluate and not mode.known_only else False
            options = evolve(options, horizontal_fusion=shares)
            model = session.model(mode)
            context = CompileContext(
                registry, target, options, emit, model.executor, model, session.budget, mode.decisions
            )
            kernels = run_stages(graph, context)
            if kernels is None:
                return CompiledGraph(graph, (), ())
            made, unfused = record_decisions(kernels.launches, context), unfused_seconds(kernels.launches, context)
            compiled = assemble_kernels(kernels, context)
            tasks, choices = tuple(model.problems), tuple(model.choices)
            self.findings = Findings(tasks, choices, made, unfused, model.times.scale, session.tuner.complete)
            return compiled


@define(eq=False)
class TuningSession:
    """Compilations by measured times on a target.

    `evaluate` enables measured partition search. `audit` further candidates of every shipped kernel are timed, to see
    whether pruning discarded the winner. A session continues the search `further` where there are final decisions.
    All compilations share `known` costs and speculative builds `ahead`. `outcome` is set at the end, for reports.
    """

    target: Target
    tuner: Tuner
    settings: Settings = field(factory=Settings)
    evaluate: bool = field(default=True, kw_only=True)
    audit: int = field(default=0, kw_only=True)
    further: bool = field(default=False, kw_only=True)
    outcome: SearchOutcome = field(factory=SearchOutcome, init=False)
    machine: Mapping[str, str] = field(init=False)
    known: KnownCosts = field(init=False)
    ahead: SpeculativeBuild = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.machine = machine_of(self.target)
        self.known = KnownCosts.of(self.tuner, self.target)
        self.ahead = SpeculativeBuild(self.tuner.executor, self.settings)

    @property
    def budget(self) -> Budget:
        """Time limit of the session."""
        return self.tuner.executor.budget

    @property
    def database(self) -> Database:
        """Database of the session."""
        return self.tuner.executor.database

    @property
    def findings(self) -> Findings:
        """Findings of the plan that ships."""
        return self.outcome.findings

    def begin(self, mode: RunMode = SEARCH) -> MeasuredRun:
        """Return a compilation, to be run."""
        return MeasuredRun(self, mode)

    def compile(
        self, graph: Graph, registry: Registry, target: Target, options: CompileOptions, emit: Emit
    ) -> CompiledGraph:
        """Compile a graph once, without a comparison of plans."""
        run = self.begin()
        compiled = run.compile(graph, registry, target, options, emit)
        self.outcome = evolve(self.outcome, findings=run.findings)
        return compiled

    def model(self, mode: RunMode = SEARCH) -> MeasuredModel:
        """Return the cost model of a compilation, with its executor.

        Groups of a refined partition are measured anew.
        """
        tuner, settings, points = self.tuner, self.settings, mode.refined_points
        times = evolve(self.known.times, seconds={}) if points else self.known.times
        costs = GroupCosts(self.target, tuner, self.known, times)
        builds_ahead = self.budget.is_limited and self.evaluate
        rival = mode.has_rival or points > 0
        executor = PlanExecutor(self.target, tuner, costs, self.ahead, self.machine, builds_ahead, rival)
        quick = evolve(QUICK_SEARCH, batch=settings.batch, most=points, patience=settings.patience)
        return MeasuredModel(
            tuner, settings, costs, executor, self.evaluate, mode.known_only, mode.decisions is not None,
            quick if points else QUICK_SEARCH,
        )  # fmt: skip

    def has_time_to_rebuild(self, kernels: int) -> bool:
        """Return whether time remains to rebuild and compare a plan."""
        return self.budget.has(self.rebuild_seconds(kernels))

    def rebuild_seconds(self, kernels: int) -> float:
        """Return the estimated seconds to rebuild a known plan and compare it."""
        return rebuild_seconds(self.tuner, self.target, kernels)

    def audits(self, findings: Findings) -> tuple[Audit, ...]:
        """Return audits of shipped kernels, if requested and the search was complete."""
        if not (self.audit and self.tuner.complete):
            return ()
        return tuple(audit_choices(self.tuner, findings.problems, findings.choices, self.audit, self.settings))

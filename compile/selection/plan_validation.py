"""Plan validation: compares results of plans that may ship.

Each kernel is checked when it is measured; a plan can still be wrong: groups that share a workspace, buffers that
overlap, launches out of order. Plans that are timed end to end therefore run on the same random inputs, and all their
results are compared, within the rounding error of both. Where they differ, an unfused plan (*plain* plan: one operation
per kernel, nothing divided or launched concurrently) decides. A plan without a competitor is compared with the float64
reference where that takes milliseconds, else with the plain plan where the budget has time to make it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

from attrs import define, evolve, field

from ...backends import Array
from ...ir import BackendError, CutsError, CutsWarning, Graph, quote
from ...numerics import (
    Comparison,
    Outputs,
    compare_samples,
    failed_comparisons,
    informative_outputs,
    input_scales,
    permute_inputs,
    perturb_arrays,
    perturbation_effects,
    replace_overflow,
)
from ...ops import program_costs
from ...runtime import Session
from ..loading import Spec
from ..plan import CompiledPlan
from .plan_cache import save_wrong_plan

_LOG = logging.getLogger("cuts.compile")
#: Most operations of a graph for a comparison with the float64 reference: a tenth of a second.
MAX_REFERENCE_OPERATIONS = 30_000_000
#: Most operations for the float64 reference as arbiter where a plan differs from the unfused plan: half a minute.
MAX_ARBITER_OPERATIONS = 10_000_000_000
#: Runs of the plain plan on perturbed inputs, where plans differ by more than rounding explains.
PERTURBED_RUNS = 2
#: Seconds of a comparison of two plans for each byte, and for each tensor, of their inputs and results: numbers are
#: drawn, copied to the device twice for each plan, and copied back (on a busy host: 9.5 s for 663 MB in 262 tensors,
#: 6.8 s for 167 MB in 1,940).
SECONDS_PER_BYTE, SECONDS_PER_TENSOR = 1.3e-8, 2.5e-3
#: Errors that only prevent a comparison: no device, or no memory for the results.
UNAVAILABLE_ERRORS = (CutsError, MemoryError)


@define(eq=False)
class PlanValidator:
    """Validator of the plans of a graph.

    `make_plain` makes the plain plan on first need; `has_time` returns whether the budget has time for that where
    nothing is
    suspected.
    """

    graph: Graph
    spec: Spec
    make_plain: Callable[[], CompiledPlan]
    has_time: Callable[[], bool]
    _verdicts: dict[CompiledPlan, bool] = field(factory=dict, init=False)
    _plain: CompiledPlan | None = field(default=None, init=False)
    _scales: dict[str, float] | None = field(default=None, init=False)
    _agreed: set[CompiledPlan] = field(factory=set, init=False)
    _notes: dict[CompiledPlan, str] = field(factory=dict, init=False)

    def check_plans(self, plans: Sequence[CompiledPlan]) -> list[bool]:
        """Return for each plan whether it may ship.

        All may where they agree, else those that agree with the plain plan. Where that cannot be made, none is
        rejected, and a note says so.
        """
        known = [self._verdicts.get(plan) for plan in plans]
        if False in known:
            return [verdict is not False for verdict in known]
        try:
            wrong = self._differing(plans)
        except UNAVAILABLE_ERRORS as error:
            _LOG.info("cuts: plans of %s were not compared: %s", quote(self.graph.name), _why(error))
            return [True for _ in plans]
        if not wrong:
            self._agreed.update(plans)
            return [True for _ in plans]
        try:
            return [self._judge(plan) for plan in plans]
        except UNAVAILABLE_ERRORS as error:
            text = f"plans of {quote(self.graph.name)} differ, and nothing tells which is right: {wrong[0].text}"
            text = f"{text}; {_why(error)}"
            warnings.warn(text, CutsWarning, stacklevel=2)
            return [True for _ in plans]

    def _differing(self, plans: Sequence[CompiledPlan]) -> list[Comparison]:
        """Return where plans differ by more than rounding explains, given the effect of perturbed inputs on each."""
        inputs, outputs = self._outputs(plans)
        (plan, first), *rest = zip(plans, outputs, strict=True)
        wrong = [r for other, found in rest for r in _compare_plans(other, found, plan, first) if not r.ok]
        if not wrong:
            return []
        lost = [_perturbation_effects(each, inputs, found) for each, found in zip(plans, outputs, strict=True)]
        return failed_comparisons(wrong, {name: min(each[name] for each in lost) for name in first})

    def is_right(self, plan: CompiledPlan) -> bool:
        """Return whether a plan without a competitor may ship.

        It may unless it was found to be wrong. It is not checked where its device is missing, or where the budget has
        no time for another plan.
        """
        verdict = self._verdicts.get(plan)
        if verdict is not None:
            return verdict
        try:
            if self._work <= MAX_REFERENCE_OPERATIONS or self.has_time():
                _ = plan.session  # without a device there is no need for another plan
                return self._judge(plan)
            reason = "no time was left to make one; 'cuts verify PLAN' compares it with the reference"
        except UNAVAILABLE_ERRORS as error:
            reason = _why(error)
        with_others = " (it agreed with another plan of the search)" if plan in self._agreed else ""
        note = f"the plan of {quote(plan.name)} was not compared with operations one by one{with_others}: {reason}"
        self._notes[plan] = note
        _LOG.info("cuts: %s", note)
        return True

    def note(self, plan: CompiledPlan) -> str:
        """Return why a shipped plan was not compared, as a sentence.

        The text is empty where it was.
        """
        return self._notes.get(plan, "")

    @cached_property
    def seconds(self) -> float:
        """Return the estimated seconds of a comparison of two plans that agree."""
        ends = (*self.graph.inputs, *self.graph.outputs)
        return SECONDS_PER_BYTE * sum(self.graph.types[value].nbytes for value in ends) + SECONDS_PER_TENSOR * len(ends)

    @cached_property
    def _work(self) -> int:
        """Return the estimated operations of the reference for the graph; each element of a result is one."""
        instances, types = self.spec.instances, self.graph.types
        programs = (instances.of_node(node, self.graph).program for node in self.graph.nodes)
        moved = sum(types[value].size for node in self.graph.nodes for value in node.outputs)
        return moved + sum(program_costs(program).flops for program in programs)

    def _judge(self, plan: CompiledPlan) -> bool:
        """Return whether a plan agrees with the unfused plan, or with the reference, which comes first where it is
        fast; log a disagreement.
        """
        verdict = self._verdicts.get(plan)
        if verdict is not None:
            return verdict
        quick = self._work <= MAX_REFERENCE_OPERATIONS
        wrong = () if quick and self._as_reference(plan) else self._differences(plan)
        if wrong and not quick and self._work <= MAX_ARBITER_OPERATIONS and self._as_reference(plan):
            text = f"of {quote(plan.name)} operations one by one differ from the reference: {wrong[0].text}"
            warnings.warn(f"{text}; a plan that does not is kept: please report that", CutsWarning, stacklevel=2)
            wrong = ()
        self._verdicts[plan] = not wrong
        if wrong:
            warnings.warn(_notice(plan, wrong, save_wrong_plan(plan)), CutsWarning, stacklevel=2)
        return not wrong

    def _as_reference(self, plan: CompiledPlan) -> bool:
        """Return whether a plan agrees with the reference; false where the host has no memory for it."""
        inputs, _ = self._outputs([plan])
        try:
            plan.require_room(reference=True)
        except BackendError:
            return False
        try:
            return all(result.ok for result in plan.verify(inputs))
        except MemoryError:
            return False

    def _differences(self, plan: CompiledPlan) -> tuple[Comparison, ...]:
        """Return where a plan differs from the plain one by more than rounding explains. The condition of the function
        counts: the change of the plain plan's results under equally perturbed inputs.
        """
        plain = self._plain = self._plain or self.make_plain()
        inputs, (found, right) = self._outputs([plan, plain])
        meant = {name: replace_overflow(right[name], found[name]) for name in right}
        wrong = [result for result in _compare_plans(plan, found, plain, meant) if not result.ok]
        if not wrong:
            return ()
        return tuple(failed_comparisons(wrong, _perturbation_effects(plain, inputs, right, constants=True)))

    def _outputs(self, plans: Sequence[CompiledPlan]) -> tuple[dict[str, Array], list[Outputs]]:
        """Return inputs, and the results of plans on them: the first draw with informative results."""
        if self._scales is None:
            self._scales = input_scales(self.graph, self.spec.instances)
        types = {name: self.graph.types[name] for name in self.graph.inputs}
        return informative_outputs(types, self._scales, [partial(_run_plan, plan.session) for plan in plans])


def _run_plan(session: Session, inputs: Mapping[str, Array]) -> Outputs:
    """Return a plan's results on inputs. A run on permuted inputs goes first, so that an unwritten element is not
    right by accident.
    """
    session.run_on(permute_inputs(inputs), (), ())
    return session.run_on(inputs, (), session.plan.outputs)


def _compare_plans(plan: CompiledPlan, found: Outputs, other: CompiledPlan, right: Outputs) -> tuple[Comparison, ...]:
    """Compare the results of two plans, within the rounding error of both."""
    own, its = plan.tolerances(), other.tolerances()
    return compare_samples(found, right, {name: own[name] + its[name] for name in plan.plan.outputs})


def _perturbation_effects(
    plan: CompiledPlan, inputs: Mapping[str, Array], right: Outputs, constants: bool = False
) -> dict[str, float]:
    """Return the change of outputs when inputs (with `constants`, constants too) change by their rounding error."""
    by, fixed = max(plan.tolerances().values(), default=0.0), plan.plan.constants

    def run(seed: int, given: Mapping[str, Array]) -> Outputs:
        moved = constants and fixed
        session = Session(evolve(plan.plan, constants=perturb_arrays(fixed, by, seed))) if moved else plan.session
        return session.run_on(given, (), session.plan.outputs)

    return perturbation_effects([partial(run, seed) for seed in range(PERTURBED_RUNS)], inputs, right, by)


def _why(error: BaseException) -> str:
    return f"there is no memory for it: {error}".rstrip(": ") if isinstance(error, MemoryError) else str(error)


def _notice(plan: CompiledPlan, wrong: Sequence[Comparison], folder: Path | None) -> str:
    worst = max(wrong, key=lambda result: result.error)
    several = f" ({len(wrong)} of {len(plan.plan.outputs)} outputs are wrong)" if len(wrong) > 1 else ""
    kept = "there is no cache to keep it in" if folder is None else f"'cuts verify --steps {folder}' says where it errs"
    return (
        f"a plan of {quote(plan.name)} with {plan.plan.launch_count} launches is dropped: it does not compute what the "
        f"operations compute one by one: {worst.text}{several}; {kept}: please report that"
    )

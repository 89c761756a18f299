"""Fallback kernels for missing libraries.

A plan keeps the generated kernels that library routines replaced.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from attrs import evolve

from ..backends.library import DIALECT, missing_library
from ..ir import FALLBACK_KEY, CutsWarning, KernelFunction, PlanError, Step, quote
from .plan import Plan


def use_fallback_kernels(plan: Plan) -> Plan:
    """Return a plan that calls no library missing on this host.

    Routines of missing libraries are replaced by their fallback kernels, with a warning. A routine without one stays,
    and loading it reports the missing library.
    """
    missing = {n: missing_library(k) for n, k in enumerate(plan.kernels) if k.dialect == DIALECT}
    taken = {number: other for number, other in _fallbacks(plan).items() if missing[number]}
    if not taken:
        return plan
    for reason in dict.fromkeys(missing[number] for number in taken):
        text = f"plan {quote(plan.name)} runs generated kernels instead of routines: {reason}"
        warnings.warn(text, CutsWarning, stacklevel=2)
    return _replace_routines(plan, taken)


def without_routines(plan: Plan) -> Plan:
    """Return a plan with the fallback kernel of each library routine.

    Raises `PlanError` for a routine without one.
    """
    taken = _fallbacks(plan)
    for number, kernel in enumerate(plan.kernels):
        if kernel.dialect == DIALECT and number not in taken:
            library = kernel.info.get("library", "a library")
            raise PlanError(
                f"plan {quote(plan.name)}: kernel {number} is the routine {kernel.name} of {library}, which cannot be "
                f"called without Python",
                hint="compile the model with libraries=False, or with --no-libraries",
            )
    return _replace_routines(plan, taken) if taken else plan


def _fallbacks(plan: Plan) -> dict[int, int]:
    """Return the number of the fallback kernel of each routine that has one."""
    numbers = {kernel.name: number for number, kernel in enumerate(plan.kernels)}
    routines = {n: kernel for n, kernel in enumerate(plan.kernels) if kernel.dialect == DIALECT}
    others = {n: numbers.get(str(kernel.info.get(FALLBACK_KEY, ""))) for n, kernel in routines.items()}
    return {number: other for number, other in others.items() if other is not None}


def _replace_routines(plan: Plan, taken: Mapping[int, int]) -> Plan:
    """Return a plan with the kernels `taken` in place of routines, by number."""
    kept = [number for number in range(len(plan.kernels)) if number not in taken]
    places = {number: place for place, number in enumerate(kept)}
    kernels = plan.kernels
    return evolve(
        plan,
        kernels=tuple(kernels[number] for number in kept),
        binaries=tuple(plan.binaries[number] for number in kept),
        steps=tuple(
            _bind_fallback(step, kernels[step.kernel], kernels[other], places[other])
            if (other := taken.get(step.kernel)) is not None
            else evolve(step, kernel=places[step.kernel])
            for step in plan.steps
        ),
    )


def _bind_fallback(step: Step, routine: KernelFunction, generated: KernelFunction, place: int) -> Step:
    """Bind the tensors of a routine's step to the arguments of the equivalent kernel with number `place`."""
    bound = {a.tensor: t for a, t in zip(routine.arguments, step.tensors, strict=True)}
    return Step(place, tuple(bound[a.tensor] for a in generated.arguments))

"""Fallback kernels for missing libraries.

A plan keeps the generated kernels that library routines replaced.
"""

from __future__ import annotations

import warnings

from attrs import evolve

from ..backends.library import DIALECT, missing_library
from ..ir import FALLBACK_KEY, CutsWarning, KernelFunction, Step, quote
from .plan import Plan


def use_fallback_kernels(plan: Plan) -> Plan:
    """Return a plan that calls no library missing on this host.

    Routines of missing libraries are replaced by their fallback kernels, with a warning. A routine without one stays,
    and loading it reports the missing library.
    """
    numbers = {kernel.name: number for number, kernel in enumerate(plan.kernels)}
    missing = {n: missing_library(k) for n, k in enumerate(plan.kernels) if k.dialect == DIALECT}
    others = {
        n: numbers.get(str(plan.kernels[n].info.get(FALLBACK_KEY, ""))) for n, reason in missing.items() if reason
    }
    taken = {number: other for number, other in others.items() if other is not None}
    if not taken:
        return plan
    for reason in dict.fromkeys(missing[number] for number in taken):
        text = f"plan {quote(plan.name)} runs generated kernels instead of routines: {reason}"
        warnings.warn(text, CutsWarning, stacklevel=2)
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

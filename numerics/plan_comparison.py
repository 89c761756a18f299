"""Comparison of the results of plans, which round in different ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from attrs import evolve

from ..ir import Array, TensorType
from .comparison import Comparison, compare
from .sampling import MIN_SAMPLED_ELEMENTS, are_informative, sample_elements, sampling_step
from .validation_inputs import DISTRIBUTIONS, draw_inputs, perturb_arrays

#: Outputs of a run, by name, and the run of a plan on inputs.
Outputs: TypeAlias = Mapping[str, Array]
Run: TypeAlias = Callable[[Mapping[str, Array]], Outputs]


def informative_outputs(
    types: Mapping[str, TensorType], scales: Mapping[str, float], runs: Sequence[Run]
) -> tuple[dict[str, Array], list[Outputs]]:
    """Return inputs, and the informative outputs of each run on them.

    The first distribution that makes all runs informative is taken, else the one that makes most.
    """
    best, most = None, -1
    for distribution in DISTRIBUTIONS:
        inputs = draw_inputs(types, scales, distribution)
        found = [run(inputs) for run in runs]
        informative = sum(map(are_informative, found))
        if informative > most:
            best, most = (inputs, found), informative
        if informative == len(runs):
            break
    assert best is not None, "there is a distribution"
    return best


def compare_samples(found: Outputs, right: Outputs, allowed: Mapping[str, float]) -> tuple[Comparison, ...]:
    """Compare all outputs, of large ones a sample."""
    step = sampling_step(found)
    return tuple(_comparison(name, found[name], right[name], step, allowed[name]) for name in right)


def _comparison(name: str, found: Array, right: Array, step: int, allowed: float) -> Comparison:
    if step == 1 or found.size <= MIN_SAMPLED_ELEMENTS:
        return compare(name, found, right, allowed)
    result = compare(name, sample_elements(found, step), sample_elements(right, step), allowed)
    return evolve(result, worst=f"{result.worst} of every {step}th element in order")


def replace_overflow(right: Array, found: Array) -> Array:
    """Return expected values, or found ones where only these are finite.

    An unfused plan stores every value in its type, and a half type may overflow there; other plans need not.
    """
    if right.dtype.kind in "biu" or np.isfinite(right).all():
        return right
    return np.where(~np.isfinite(right) & np.isfinite(found), found, right)


def perturbation_effects(
    runs: Sequence[Run], inputs: Mapping[str, Array], right: Outputs, by: float
) -> dict[str, float]:
    """Return the largest change of each output under perturbed inputs.

    Inputs change by the rounding error `by`, in one draw for each run.
    """
    lost = dict.fromkeys(right, 0.0)
    for seed, run in enumerate(runs, len(runs)):
        away = run(perturb_arrays(inputs, by, seed))
        there = {name: replace_overflow(away[name], right[name]) for name in right}
        here = {name: replace_overflow(right[name], away[name]) for name in right}
        for result in compare_samples(there, here, dict.fromkeys(right, 0.0)):
            lost[result.tensor] = max(lost[result.tensor], result.error)
    return lost


def failed_comparisons(wrong: Sequence[Comparison], lost: Mapping[str, float]) -> list[Comparison]:
    """Return comparisons that fail within twice a perturbation's effect too."""
    allowed = (evolve(result, tolerance=max(result.tolerance, 2 * lost[result.tensor])) for result in wrong)
    return [result for result in allowed if not result.ok]

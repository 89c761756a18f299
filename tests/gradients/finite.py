"""Gradients by central differences in float64, against derived ones.

The derived ones are printed, read back and evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cuts.ir.source import Source
from cuts.ops import Instance, Registry
from cuts.ops.gradient.adjoint import Adjoint, adjoint
from cuts.ops.gradient.declare import declare
from cuts.ops.reference import evaluate
from cuts.tests.operations import Use

STEP = 1e-6


def derive(instance: Instance, keep: bool = False) -> Adjoint:
    """Return gradients of float operands, given those of float results."""
    program = instance.program
    results = [n for n in instance.outputs if program.tensors[n].dtype.is_float]
    return adjoint(program, [n for n in instance.inputs if n and program.tensors[n].dtype.is_float], results)


def read_back(found: Adjoint) -> Instance:
    """Print the derived program as a declaration, read it and instantiate it."""
    text = declare("gradient", "gradient", found.program)
    operands = [found.program.tensors[name] for name in found.program.inputs]
    return Registry().extend(Source("gradient.cuts", text))["gradient"].instantiate(operands)


def check(use: Use) -> None:
    """Compare derived gradients of a use with central differences.

    Operands without a gradient must not change the results.
    """
    instance, values = use.instance, use.values()
    outputs = evaluate(instance.program, values)
    rng = np.random.default_rng(1)
    seeds = {n: rng.standard_normal(outputs[n].shape) for n in instance.outputs if outputs[n].dtype.kind == "f"}
    gradients = derived_gradients(instance, values, outputs, seeds)
    for operand, kept in derived_gradients(instance, values, outputs, seeds, keep=True).items():
        np.testing.assert_allclose(kept, gradients[operand], rtol=1e-9, atol=1e-12, err_msg=f"{use.op}: {operand}")
    for operand, value in values.items():
        if value.dtype.kind == "f":
            expected = differences(lambda v: evaluate(instance.program, v), values, operand, seeds)
            found = gradients.get(operand, 0 * expected)
            np.testing.assert_allclose(
                found, expected, rtol=1e-5, atol=1e-6, err_msg=f"{use.op}: gradient of {operand}"
            )


Values = Mapping[str, Any]


def derived_gradients(
    instance: Instance, values: Values, outputs: Values, seeds: Values, *, keep: bool = False
) -> dict[str, Any]:
    """Return gradients by operand from the printed and parsed declaration.

    With `keep` it covers only gradients that read inner values.
    """
    if keep and not any(s.step for s in instance.program.statements):
        return {}
    found = derive(instance, keep)
    if not found.operand_gradients or (keep and found.forward is None):
        return {}
    if found.forward is not None:
        outputs = {**outputs, **evaluate(found.forward, values)}
    again = read_back(found)
    operands = [
        seeds[found.result_gradients[n]] if n in found.result_gradients else values.get(n, outputs.get(n))
        for n in found.program.inputs
    ]
    gradients = evaluate(again.program, dict(zip(again.inputs, operands, strict=True)))
    return {
        operand: gradients[name] for operand, name in zip(found.operand_gradients.values(), again.outputs, strict=True)
    }


def differences(run: Callable[[Values], Values], values: Values, operand: str, seeds: Values) -> Any:
    """Return the gradient of `sum(result * seed)` by central differences."""
    result = np.zeros_like(values[operand])
    for place in np.ndindex(result.shape):
        sides: list[float] = []
        for step in (STEP, -STEP):
            moved = values[operand].copy()
            moved[place] += step
            outputs = run({**values, operand: moved})
            sides.append(sum(float((outputs[n] * seed).sum()) for n, seed in seeds.items()))
        result[place] = (sides[0] - sides[1]) / (2 * STEP)
    return result

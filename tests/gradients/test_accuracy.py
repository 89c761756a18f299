"""Gradients in single precision against doubles.

No form of a derivative cancels, overflows or underflows on the way.

The reference computes a gradient twice from the same operands, in f32 and in f64; operands and stored results are
numbers of f32. In further runs every function of a library of mathematics is off by its last digits, as those of
devices are: a tanh far out need not be 1. The tolerance is that of a backward stable algorithm: each rounding of the
formula moves the result by an epsilon of it, and by the change that an operand causes that is off by an epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from cuts.ir import Call, Expr, Program, Source
from cuts.ops import Instance
from cuts.ops.gradient import Gradients
from cuts.ops.reference import evaluate
from cuts.tests.operations import REGISTRY, SCALAR, Use, uses

from .precise import evaluate_precisely

#: Tiny, small, middling, large and extreme numbers.
MAGNITUDES = (1e-30, 1e-20, 1e-8, 1e-4, 0.1, 0.5, 0.999, 1, 1.001, 2.5, 5, 8.5, 10, 20, 60, 100, 1e4, 1e10, 1e18)
SIGNED_MAGNITUDES = np.array([*(-m for m in reversed(MAGNITUDES)), 0, *MAGNITUDES]).astype(np.float32).astype(float)
#: Values of an operand, by how many operands there are.
PLACES = {1: SIGNED_MAGNITUDES, 2: SIGNED_MAGNITUDES[[0, 2, 6, 8, 11, 15, 18, 19, 20, 22, 23, 26, 27, 31, 33, 36, 38]]}
#: Functions that devices compute with an error of so many epsilons; sums, products and quotients are rounded rightly.
_NAMES = (
    "exp expm1 log log1p rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc pow atan2 hypot "
    "logaddexp"
)
LIBRARY = frozenset(_NAMES.split())
LIBRARY_ERROR = 2
EPSILON, TINY, MAX_FLOAT = (float(getattr(np.finfo(np.float32), name)) for name in ("eps", "tiny", "max"))
PAIRS = (len(PLACES[2]),) * 2

#: Functions within others: a result that is not stored has the derivative that is found from its operand.
COMPOSED_DECLARATIONS = """
op scaled_tanh : unary "tanh between other numbers" { y = 30 * tanh(0.1 * x) }
op scaled_expm1 : unary "exponential of a half, less 1" { y = 2 * expm1(0.5 * x) }
op log_sigmoid : unary "logarithm of the logistic function" { y = min(x, 0) - log1p(exp(min(x, -x))) }
op length : unary "hypotenuse of 1 and x" { y = sqrt(1 + x * x) }
op log_length : unary "logarithm of a squared length" { y = log(1 + x * x) }
op gaussian : unary "bell curve" { y = exp(-x * x) }
op scaled_asinh : unary "inverse hyperbolic sine of a double" { y = 0.5 * asinh(2 * x) }
op scaled_atan : unary "inverse tangent of a double" { y = 0.5 * atan(2 * x) }
op scaled_erf : unary "error function of a half" { y = 3 * erf(0.5 * x) }
op log_sum : binary "logarithm of a sum of exponentials" { type T: float  y = logaddexp(a, b) }
"""
VOCABULARY = REGISTRY.extend(Source("composed.cuts", COMPOSED_DECLARATIONS))
OWN = [item for item in VOCABULARY if item not in REGISTRY]

OF_ONE = [
    *(uses(op, SIGNED_MAGNITUDES.shape) for op in OWN if op != "log_sum"),
    *(Use(use.op, uses(use.op, SIGNED_MAGNITUDES.shape).types) for use in SCALAR),
    uses("gelu", SIGNED_MAGNITUDES.shape, approximate="tanh"),
    uses("swish", SIGNED_MAGNITUDES.shape, alpha=1.702),
    uses("celu", SIGNED_MAGNITUDES.shape, alpha=0.3),
]
OF_TWO = [
    *(uses(op, PAIRS, PAIRS) for op in ("add", "sub", "mul", "div", "atan2", "hypot", "copysign", "prelu", "log_sum")),
    uses("pow", PAIRS, PAIRS, low=0),
    *(uses(op, PAIRS, PAIRS, reduction="none") for op in ("mse_loss", "l1_loss", "bce_loss", "bce_with_logits")),
]

Values = Mapping[str, Any]


Evaluate = Callable[[Program, Values], Values]


def instance_of(use: Use) -> Instance:
    return VOCABULARY[use.op].instantiate(use.types, use.attributes)


def gradient(use: Use, given: Values, evaluated: Evaluate) -> tuple[dict[str, Any], int]:
    """Return a use's gradients by operand, and their formulas' roundings."""
    gradients, instance = Gradients(VOCABULARY), instance_of(use)
    results = zip(instance.outputs, instance.output_types, strict=True)
    types = dict(zip(instance.inputs, use.types, strict=False)) | dict(results)
    values, found, roundings = dict(given), {}, 0
    for step in gradients.steps(instance, [n for n in instance.inputs if n], list(instance.outputs)):
        operands = [types[n if n in types else n.removeprefix("d")] for n in step.inputs if n is not None]
        made = gradients.registry[step.op].instantiate(operands, step.attributes)
        renamed = {f: values[n] for f, n in zip(made.inputs, step.inputs, strict=True) if f and n}
        computed = evaluated(made.program, renamed)
        named = dict(zip(step.outputs, (computed[n] for n in made.outputs), strict=True))
        values, found = values | named, found | named
        roundings += sum(len(_calls(s.body)) for s in made.program.statements)
    return found, roundings


def _calls(expr: Expr) -> set[Expr]:
    """Return the distinct calls of functions in an expression."""
    return {expr}.union(*map(_calls, expr.args)) if isinstance(expr, Call) else set()


def _in_single(error: float) -> Evaluate:
    """Return the evaluation in f32 whose library is off by so many epsilons."""

    def move_values(fn: str, values: Any) -> Any:
        return (values * (1 + error * EPSILON)).astype(np.float32) if fn in LIBRARY else values

    return lambda program, given: evaluate(program, given, np.float32, perturb=move_values if error else None)


def check(use: Use) -> None:
    """Compare single-precision gradients of a use with multiple-precision ones.

    Only numbers of f32 are compared.
    """
    instance = instance_of(use)
    names = [n for n in instance.inputs if n]
    places = PLACES[len(names)] if use.low < 0 else np.abs(PLACES[len(names)])
    grids = np.meshgrid(*(places for _ in names), indexing="ij")
    given: dict[str, Any] = dict(zip(names, grids, strict=True))
    with np.errstate(all="ignore"):
        stored = {n: a.astype(np.float32).astype(float) for n, a in evaluate(instance.program, given).items()}
    given |= stored | {f"d{n}": np.ones_like(a) for n, a in stored.items()}
    exact, roundings = gradient(use, given, evaluate_precisely)
    near = [gradient(use, given | {n: given[n] * (1 + EPSILON)}, evaluate_precisely)[0] for n in names]
    for error in (0, -LIBRARY_ERROR, LIBRARY_ERROR):
        single, _ = gradient(use, given, _in_single(error))
        for name, place in ((n, p) for n, a in exact.items() for p in np.ndindex(a.shape)):
            truth, found = exact[name][place], float(single[name][place])
            if not abs(truth) <= MAX_FLOAT or not all(np.isfinite(stored[n][place]) for n in stored):
                continue
            shifts = [abs(move_values[name][place] - truth) for move_values in near]
            scale = EPSILON * abs(truth) + sum(s for s in shifts if s <= MAX_FLOAT) + TINY
            at = {n: float(given[n][place]) for n in (*names, *stored)}
            assert abs(found - truth) <= roundings * (1 + abs(error)) * scale, (
                f"{use.op}: {name} at {at}, library off by {error}: expected {float(truth)}, found {found}"
            )


@pytest.mark.parametrize("use", [*OF_ONE, *OF_TWO], ids=lambda use: f"{use.op}{dict(use.attributes) or ''}")
def test_a_gradient_in_single_precision_is_accurate(use: Use) -> None:
    check(use)

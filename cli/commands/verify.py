"""`cuts verify`: compares a plan's results with the float64 reference."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from ...backends import Array
from ...ir import NumericsError, UsageError, quote
from ..models import open_plan, weight_costs
from ..options import add_json, add_model_options, add_seed
from ..output import AnyPlan, compare_plan, console, first_wrong, own_onnx, require_right_plan


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts verify`."""
    parser.add_argument("plan", metavar="PLAN", help="a plan's folder, or a model, compiled first")
    parser.add_argument(
        "--onnx",
        metavar="MODEL.onnx",
        help="compare with ONNX Runtime on this model as well (an .onnx file given as PLAN is)",
    )
    parser.add_argument("--steps", action="store_true", help="compare what every kernel writes, not only the outputs")
    add_model_options(parser)
    add_seed(parser)
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Compare a plan's outputs with the float64 reference and ONNX Runtime.

    ONNX Runtime is used where its model is given.
    """
    plan, inputs = open_plan(arguments)
    checks = [compare_plan(plan, inputs, None)]
    model = arguments.onnx or (None if arguments.weights else own_onnx(arguments.plan, plan))
    if model:
        checks.append(compare_plan(plan, inputs, model))
    for results, oracle in checks:
        if not arguments.json:
            console.output_console().print(console.comparison_table(results, oracle))
    costs = weight_costs(arguments, plan, inputs)
    if arguments.json:
        found = {"plan": arguments.plan, "checks": [console.comparison_values(*check) for check in checks]}
        console.print_json(found | console.weight_values(arguments.weights, costs))
    elif costs:
        console.output_console().print(console.weight_table(arguments.weights, costs))
    for part, given in plan.part_inputs(inputs):
        for text in part.saturated_values(given):
            console.note(text)
    for results, oracle in checks:
        require_right_plan(plan, inputs, results, oracle)
    if arguments.steps:
        _verify_steps(plan, inputs)
    return 0


def _verify_steps(plan: AnyPlan, inputs: Mapping[str, Array]) -> None:
    """Compare every tensor that a kernel writes;
    an output can be right where the model hardly depends on a wrong one.
    """
    if plan.target.dialect == "reference":
        raise UsageError("target 'reference' launches no kernels, so there are no steps to compare")
    if culprit := first_wrong(plan, inputs):
        raise NumericsError(f"plan {quote(plan.name)}: {culprit}")
    steps = sum(len(part.plan.steps) for part in plan.parts)
    console.note(f"{console.count(steps, 'step')} computed what the float64 reference did")

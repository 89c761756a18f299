"""`cuts run`, `cuts verify` and `cuts explain`: what can be done with a plan."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping

import numpy as np

from . import console
from .backends.device import Array, Timing
from .cli_common import compare_plan, plan_values, read_inputs, require_right_plan, write_arrays
from .driver import CompiledPlan, load
from .ir.errors import NumericsError, UsageError
from .ir.verify_graph import quote
from .runtime.plan_document import plain
from .runtime.verify import first_wrong_step


def run_command(arguments: Namespace) -> int:
    """Run a plan once for its outputs, then as often as asked for its times."""
    plan = load(arguments.plan)
    inputs = read_inputs(plan, arguments)
    outputs = plan.run(inputs)
    if arguments.output:
        write_arrays(arguments.output, outputs)
    measured = _measure(plan, inputs, arguments.warmup, arguments.iters) if arguments.iters else {}
    if arguments.json:
        figures = {name: {"dtype": str(a.dtype), "shape": a.shape, **_figures(a)} for name, a in outputs.items()}
        times = {name: console.percentiles(timing) for name, timing in measured.items()}
        console.print_json(
            {"plan": arguments.plan, "target": plan.target.name, "seed": arguments.seed, "outputs": figures, "seconds": times}
        )
        return 0
    screen = console.out()
    rows = [[name, f"{a.dtype}{list(a.shape)}", *_figures(a).values()] for name, a in outputs.items()]
    screen.print(console.table("outputs", ["output", "type", "min", "mean", "max"], rows))
    if measured:
        columns = ["what", "min", "median", "p90", "p95", "p99"]
        rows = [[name, *map(console.seconds, console.percentiles(timing).values())] for name, timing in measured.items()]
        screen.print(console.table(f"{arguments.iters} runs on {plan.target.name}", columns, rows))
    return 0


def _figures(array: Array) -> dict[str, float]:
    values = array.astype(np.float64)
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())} if array.size else {}


def _measure(plan: CompiledPlan, inputs: Mapping[str, Array], warmup: int, iters: int) -> dict[str, Timing]:
    """Time whole runs, split into copies, compute and the wall clock."""
    if plan.target.dialect == "reference":
        samples = []
        for _ in range(iters):
            start = time.perf_counter()
            plan.run(inputs)
            samples.append(time.perf_counter() - start)
        return {"wall": Timing(tuple(samples))}
    for _ in range(warmup):
        plan.run(inputs)
    splits = [plan.session.run_split(inputs)[1] for _ in range(iters)]
    return {name.replace("_", " "): Timing(tuple(getattr(s, name) for s in splits)) for name in ("wall", "copy_in", "compute", "copy_out")}


def verify_command(arguments: Namespace) -> int:
    """Compare a plan's outputs with the float64 reference, and with ONNX Runtime where its model is given."""
    plan = load(arguments.plan)
    inputs = read_inputs(plan, arguments)
    checks = [compare_plan(plan, inputs, None)]
    if arguments.onnx:
        checks.append(compare_plan(plan, inputs, arguments.onnx))
    for results, oracle in checks:
        if not arguments.json:
            console.out().print(console.comparison_table(results, oracle))
    if arguments.json:
        console.print_json({"plan": arguments.plan, "checks": [console.comparison_values(*check) for check in checks]})
    for results, oracle in checks:
        require_right_plan(plan, inputs, results, oracle)
    if arguments.steps:
        _verify_steps(plan, inputs)
    return 0


def _verify_steps(plan: CompiledPlan, inputs: Mapping[str, Array]) -> None:
    """Compare every tensor that a kernel writes; an output can be right where the model hardly depends on a wrong one."""
    if plan.target.dialect == "reference":
        raise UsageError("target 'reference' launches no kernels, so there are no steps to compare")
    if culprit := first_wrong_step(plan.session, inputs, plan.reference_values(inputs), plan.tolerances()):
        raise NumericsError(f"plan {quote(plan.plan.name)}: {culprit}")
    console.note(f"{console.count(len(plan.plan.steps), 'step')} computed what the float64 reference did")


def explain_command(arguments: Namespace) -> int:
    """Show all groups of a plan, or one with its kernel's source."""
    plan = load(arguments.plan)
    if arguments.group is None:
        if arguments.json:
            console.print_json(plan_values(plan))
            return 0
        console.out().print(console.group_table(plan.plan))
        console.out().print(console.totals(plan.plan), markup=False)
        return 0
    number = _find_group(plan, arguments.group)
    step = plan.plan.steps[number]
    kernel = plan.plan.kernels[step.kernel]
    group = dict(plan.plan.groups[number]) if number < len(plan.plan.groups) else {}
    details = {
        "group": number,
        **group,
        "kernel": kernel.name,
        "grid": kernel.grid,
        "block": kernel.block,
        "tensors": step.tensors,
        "info": kernel.info,
    }
    if arguments.json:
        console.print_json(details | {"source": kernel.source})
        return 0
    for key, value in plain(details).items():
        print(console.detail(key, value))
    print(f"\n{kernel.source}")
    return 0


def _find_group(plan: CompiledPlan, wanted: str) -> int:
    if wanted.isdigit() and int(wanted) < len(plan.plan.steps):
        return int(wanted)
    for number, group in enumerate(plan.plan.groups):
        members = group.get("nodes", ())
        if isinstance(members, (list, tuple)) and wanted in members:
            return number
    raise UsageError(f"the plan has no group {quote(wanted)}", hint=f"expected a number below {len(plan.plan.steps)} or the name of a node")

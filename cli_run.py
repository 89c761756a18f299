"""`cuts run`, `cuts verify` and `cuts explain`: what can be done with a plan."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping

import numpy as np

from . import console
from .backends.device import Array, Timing
from .cli_common import AnyPlan, compare_plan, first_wrong, note_uncompiled, plan_values, require_right_plan, write_arrays
from .cli_models import is_model, open_plan
from .driver import CompiledPlan, load
from .ir.errors import NumericsError, UsageError
from .ir.verify_graph import quote
from .runtime.onnx_oracle import has_onnxruntime
from .runtime.plan_document import plain
from .split import SplitPlan


def run_command(arguments: Namespace) -> int:
    """Run a plan once for its outputs, then as often as asked for its times."""
    plan, inputs = open_plan(arguments)
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


def _measure(plan: AnyPlan, inputs: Mapping[str, Array], warmup: int, iters: int) -> dict[str, Timing]:
    """Time whole runs, split into copies, compute and the wall clock where one plan does all."""
    if plan.target.dialect == "reference" or isinstance(plan, SplitPlan):
        samples = []
        for number in range(warmup + iters):
            start = time.perf_counter()
            plan.run(inputs)
            samples += [time.perf_counter() - start] if number >= warmup else []
        return {"wall": Timing(tuple(samples))}
    for _ in range(warmup):
        plan.run(inputs)
    splits = [plan.session.run_split(inputs)[1] for _ in range(iters)]
    return {name.replace("_", " "): Timing(tuple(getattr(s, name) for s in splits)) for name in ("wall", "copy_in", "compute", "copy_out")}


def verify_command(arguments: Namespace) -> int:
    """Compare a plan's outputs with the float64 reference, and with ONNX Runtime where its model is given."""
    plan, inputs = open_plan(arguments)
    checks = [compare_plan(plan, inputs, None)]
    model = arguments.onnx or _own_onnx(arguments.plan, plan)
    if model:
        checks.append(compare_plan(plan, inputs, model))
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


def _own_onnx(path: str, plan: AnyPlan) -> str | None:
    """Return the ONNX file that a plan was compiled from just now, if ONNX Runtime is here and knows its operations."""
    usable = is_model(path) and path.lower().endswith(".onnx") and has_onnxruntime() and not isinstance(plan, SplitPlan)
    return path if usable else None


def _verify_steps(plan: AnyPlan, inputs: Mapping[str, Array]) -> None:
    """Compare every tensor that a kernel writes; an output can be right where the model hardly depends on a wrong one."""
    if plan.target.dialect == "reference":
        raise UsageError("target 'reference' launches no kernels, so there are no steps to compare")
    if culprit := first_wrong(plan, inputs):
        raise NumericsError(f"plan {quote(plan.name)}: {culprit}")
    steps = sum(len(part.plan.steps) for part in plan.parts)
    console.note(f"{console.count(steps, 'step')} computed what the float64 reference did")


def explain_command(arguments: Namespace) -> int:
    """Show all groups of a plan, or one with its kernel's source."""
    plan = load(arguments.plan)
    if arguments.group is None:
        if arguments.json:
            console.print_json(plan_values(plan))
            return 0
        for part in plan.parts:
            console.out().print(console.group_table(part.plan))
            console.out().print(console.totals(part.plan), markup=False)
        note_uncompiled(plan)
        return 0
    owner, number = _find_group(plan, arguments.group)
    step = owner.plan.steps[number]
    kernel = owner.plan.kernels[step.kernel]
    group = dict(owner.plan.groups[number]) if number < len(owner.plan.groups) else {}
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


def _find_group(plan: AnyPlan, wanted: str) -> tuple[CompiledPlan, int]:
    """Return a group by its number, counted through all parts, or by the name of a node in it, and the plan it is in."""
    places = [(part, number) for part in plan.parts for number in range(len(part.plan.steps))]
    if wanted.isdigit() and int(wanted) < len(places):
        return places[int(wanted)]
    for part, number in places:
        members = part.plan.groups[number].get("nodes", ()) if number < len(part.plan.groups) else ()
        if isinstance(members, (list, tuple)) and wanted in members:
            return part, number
    raise UsageError(f"the plan has no group {quote(wanted)}", hint=f"expected a number below {len(places)} or the name of a node")

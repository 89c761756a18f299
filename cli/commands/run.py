"""`cuts run`: the outputs of a plan, and its times."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import numpy as np

from ...backends import Array, Timing
from ...backends.native import is_packed
from ...compile import CompiledPlan
from ...runtime.native import PackedPlan
from ..models import MODEL_OPTIONS, open_plan
from ..options import add_json, add_model_options, add_seed, count, refuse
from ..output import AnyPlan, console, is_staged, read_inputs, write_arrays
from ..throughput import measure_throughput


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts run`."""
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help="a plan's folder or packed file, which contains code, so run only plans you trust; or a model, which is "
        "compiled first",
    )
    parser.add_argument("--output", metavar="Y.npz", help="write the outputs")
    parser.add_argument("--warmup", type=count, metavar="N", help="runs before those that are timed (default 2)")
    parser.add_argument(
        "--iters", type=count, default=0, metavar="N", help="timed runs; prints percentiles (default none)"
    )
    parser.add_argument(
        "--sessions",
        type=count,
        metavar="N",
        help="measure the throughput of N sessions, each with a thread, memory and a stream of its own",
    )
    add_model_options(parser)
    add_seed(parser)
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Run a plan once for its outputs, then repeatedly for its times."""
    if not arguments.iters:
        refuse(arguments, ["warmup", "sessions"], "it is for runs that are timed (--iters)")
    warmup = 2 if arguments.warmup is None else arguments.warmup
    plan, inputs = _open(arguments)
    results = plan.run(inputs)
    outputs = {name: value for name, value in results.items() if isinstance(value, np.ndarray)}
    others = {name: value for name, value in results.items() if name not in outputs}
    state = getattr(plan, "state", {})
    if arguments.output:
        write_arrays(arguments.output, outputs)
    measured = _measure(plan, inputs, warmup, arguments.iters) if arguments.iters else {}
    sessions = arguments.sessions or 0
    rate = measure_throughput(plan, inputs, sessions, warmup, arguments.iters) if sessions else None
    if arguments.json:
        kept, figures = (
            {name: {"dtype": str(a.dtype), "shape": a.shape, **_figures(a)} for name, a in arrays.items()}
            for arrays in (state, outputs)
        )
        times = {name: console.percentiles(timing) for name, timing in measured.items()}
        console.print_json(
            {
                "plan": arguments.plan,
                "target": plan.target.name,
                "seed": arguments.seed,
                "outputs": figures,
                "others": others,
                "uncompiled_time": plan.foreign_time if is_staged(plan) else 0.0,
                "state": kept,
                "seconds": times,
                "runs_per_second": rate,
            }
        )
        return 0
    screen = console.output_console()
    screen.print(console.table("outputs", ["output", "type", "min", "mean", "max"], _rows(outputs)))
    for name, value in others.items():
        screen.print(f"{name}: {value!r}", markup=False)
    if state:
        screen.print(console.table("state after this run", ["state", "type", "min", "mean", "max"], _rows(state)))
    if measured:
        columns = ["what", "min", "median", "p90", "p95", "p99"]
        rows = [
            [name, *map(console.seconds, console.percentiles(timing).values())] for name, timing in measured.items()
        ]
        screen.print(console.table(f"{arguments.iters} runs on {plan.target.name}", columns, rows))
    if rate is not None:
        screen.print(f"{console.count(sessions, 'session')}: {rate:,.1f} runs per second", markup=False)
    if is_staged(plan) and plan.foreign_time is not None:
        screen.print(f"uncompiled operations take {plan.foreign_time:.0%} of the time", markup=False)
    return 0


def _open(arguments: Namespace) -> tuple[AnyPlan | PackedPlan, Mapping[str, Array]]:
    """Return a plan with its inputs."""
    if not is_packed(arguments.plan):
        return open_plan(arguments)
    refuse(arguments, MODEL_OPTIONS, f"{arguments.plan} is a plan, and is compiled")
    plan = PackedPlan(arguments.plan)
    return plan, read_inputs(plan, arguments)


def _rows(arrays: Mapping[str, Array]) -> list[list[object]]:
    return [[name, f"{a.dtype}{list(a.shape)}", *(_figures(a) or _EMPTY).values()] for name, a in arrays.items()]


#: Table cells of an output without elements.
_EMPTY = dict.fromkeys(("min", "mean", "max"), "-")


def _figures(array: Array) -> dict[str, float]:
    values = array.astype(np.float64)
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())} if array.size else {}


def _measure(plan: AnyPlan | PackedPlan, inputs: Mapping[str, Array], warmup: int, iters: int) -> dict[str, Timing]:
    """Time whole runs, split into copies, compute and the wall clock where one plan does all."""
    if plan.target.dialect == "reference" or not isinstance(plan, CompiledPlan):
        samples = []
        for number in range(warmup + iters):
            start = time.perf_counter()
            plan.run(inputs)
            samples += [time.perf_counter() - start] if number >= warmup else []
        return {"wall": Timing(tuple(samples))}
    for _ in range(warmup):
        plan.run(inputs)
    runs = [plan.session.run_timed(inputs)[1] for _ in range(iters)]
    return {
        name.replace("_", " "): Timing(tuple(getattr(s, name) for s in runs))
        for name in ("wall", "copy_in", "compute", "copy_out")
    }

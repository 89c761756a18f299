"""Whole models against ONNX Runtime: what they take to compile and to run, and by how much their outputs differ; also
to train.

Run it with `python bench/models.py --target opencl` (or `cuda`) `[--only densenet121]`. The models are those of
`tests/models.py`. Caches are off, so building kernels takes what it does at first; seconds are those of the processor.
Rows go to `bench/results/models.json`, where a row takes the place of an older one of the same model and target;
`--markdown` prints the tables of `docs/models.md`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from cuts.backends.devices import find_target, open_device
from cuts.bench.records import RESULTS, Row, circumstances, exit_code, merged, read_rows, write_rows
from cuts.compile.build import build
from cuts.compile.plan import CompiledPlan
from cuts.frontends.onnx.load import load_onnx_for
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph
from cuts.ir.precision import PRECISIONS, PrecisionName
from cuts.ir.rounding import tolerance
from cuts.ir.types import DType
from cuts.passes.graph.attach_loss import with_loss
from cuts.tests.models import REAL, Real, by_onnx_runtime, difference
from cuts.training.optimisers import SGD
from cuts.training.training import grad

#: The relative error at which a row counts as wrong.
WRONG = 1e-3
REPEATS = 10
TITLES = {"models": "One run", "training": "One training step"}
_COLUMNS = ("model", "nodes", "launches", "kernels", "import s", "compile s", "first run s", "run ms", "relative error")


@frozen
class ModelRun:
    """What is compiled and run: a graph, its inputs, how a plan is made of it, and what outputs should be."""

    graph: Graph
    inputs: Mapping[str, Any]
    build: Callable[[], CompiledPlan]
    expected: Callable[[], Mapping[str, Any]]


def inference(model: Real, target: str, budget: float = 0.0, precision: PrecisionName = "fp32") -> ModelRun:
    """Return the work of running a model, as ONNX Runtime does."""
    path, feeds = model.fetch(), model.draw()
    graph, _ = load_onnx_for(path, feeds)
    inputs = {tensor: feeds[tensor] for tensor in graph.inputs}
    make = partial(build, graph, target=target, tune=budget > 0, budget=budget or None, precision=precision)
    return ModelRun(graph, inputs, make, lambda: dict(zip(graph.outputs, by_onnx_runtime(path, feeds), strict=True)))


def training(model: Real, target: str) -> ModelRun:
    """Return the work of one training step: the mean squared error of the first output, all weights,
    SGD with momentum.
    """
    feeds = model.draw()
    graph, _ = load_onnx_for(model.fetch(), feeds)
    step = grad(
        with_loss(graph, "mse_loss", prediction=graph.outputs[0]), loss="loss", optimiser=SGD(rate=0.01, momentum=0.9)
    )
    target_type = step.graph.types["target"]
    wanted = np.random.default_rng(0).standard_normal(target_type.shape).astype(target_type.dtype.numpy)
    inputs = {**feeds, **step.initial, "target": wanted}
    inputs = {tensor: inputs[tensor] for tensor in step.graph.inputs}
    # Velocities are left out: where a gradient is exactly zero (the bias of attention's keys), there is nothing to be
    # relative to.
    moved = ["loss", *(step.carried[parameter] for parameter in step.gradients)]
    return ModelRun(
        step.graph,
        inputs,
        partial(step.build, target),
        lambda: {name: value for name, value in step.reference(inputs).items() if name in moved},
    )


def measure(row: Row, prepare: Callable[[], ModelRun]) -> Row:
    """Add to a row what it takes to compile and to run some work,
    and by how much the outputs differ from what they should be.
    """
    seconds = [_busy()]
    work = prepare()
    seconds.append(_busy())
    plan = work.build()
    seconds.append(_busy())
    found = plan.run(work.inputs)
    seconds.append(_busy())
    taken = [round(after - before, 3) for before, after in pairwise(seconds)]
    expected = work.expected()
    error = difference([found[tensor] for tensor in expected], list(expected.values()))
    row |= dict(zip(("import_s", "compile_s", "first_s"), taken, strict=True))
    row |= {"nodes": len(work.graph.nodes), "steps": len(plan.plan.steps), "kernels": len(plan.kernels), "error": error}
    return row | {"run_ms": _milliseconds(plan, work.inputs)} | circumstances(_device(plan))


def _busy() -> float:
    """Return the seconds that the processor was busy for this process and its children,
    which other load does not change.
    """
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def _milliseconds(plan: CompiledPlan, given: Mapping[str, Any]) -> float | None:
    """Return the time of one run without copies between host and device; the reference has none worth reporting."""
    if plan.target.dialect == "reference":
        return None
    plan.session.run(given)
    return round(plan.session.time_compute(repeats=REPEATS).median * 1e3, 4)


def _device(plan: CompiledPlan) -> str:
    return "none" if plan.target.dialect == "reference" else plan.session.device.name.partition(" (")[0]


def allowed(row: Mapping[str, Any]) -> float:
    """Return the error at which a row counts as wrong: in a half type each node may round what it yields."""
    stored = PRECISIONS[row.get("precision", "fp32")].stored
    return WRONG if stored is DType.F32 else tolerance(DType.F32, 1, row["nodes"], stored)


def row_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    if "failure" in row:
        return f"{row['name']:<16}failed: {row['failure']}"
    verdict = "ok" if row["error"] <= allowed(row) else "WRONG"
    times = f"compile {row['compile_s']} s, first run {row['first_s']} s, then {row['run_ms']} ms"
    return f"{row['name']:<16}{row['kernels']:>4} kernels, {times}, error {row['error']:.1e} {verdict}"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table per suite and target for the documentation."""
    lines: list[str] = []
    tables = dict.fromkeys((row["suite"], row["class"]) for row in rows)
    for suite, target in tables:
        right = [row for row in rows if (row["suite"], row["class"]) == (suite, target) and "failure" not in row]
        right.sort(key=lambda row: list(REAL).index(row["name"]))
        if not right:
            continue
        lines += [
            f"{TITLES[suite]}, `{target}`, {right[0]['gpu']}:",
            "",
            f"| {' | '.join(_COLUMNS)} |",
            "|---" * len(_COLUMNS) + "|",
        ]
        for row in right:
            figures = (
                row["nodes"],
                row["steps"],
                row["kernels"],
                row["import_s"],
                row["compile_s"],
                row["first_s"],
                row["run_ms"],
            )
            lines.append(
                f"| {row['name']} | {' | '.join('' if f is None else f'{f:.4g}' for f in figures)} | "
                f"{row['error']:.1e} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--only", action="append", choices=tuple(REAL), help="a model; may be repeated")
    parser.add_argument(
        "--budget",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="tune each model for this long (0: the model of the machine chooses)",
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="compile and run a training step of each, compared with the float64 reference",
    )
    parser.add_argument(
        "--precision", choices=tuple(PRECISIONS), default="fp32", help="the precision policy of inference"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "models.json", help="the file of rows")
    parser.add_argument(
        "--markdown", action="store_true", help="only print the tables of the file for the documentation"
    )
    return parser.parse_args(argv)


def main() -> int:
    """Measure the chosen models; 1 where one failed or computed something else."""
    options = arguments()
    os.environ["CUTS_NO_CACHE"] = "1"
    if options.markdown:
        print(markdown(read_rows(options.out)))
        return 0
    machine = find_target(options.target)
    if machine.dialect != "reference":
        open_device(machine)  # without one, no row would be better than the row of an earlier run
    wrong = 0
    for name in options.only or REAL:
        row: Row = {
            "suite": "training" if options.train else "models",
            "class": options.target,
            "name": name,
            "batch": 1,
            "precision": options.precision,
        }
        model = REAL[name]
        prepare = (
            partial(training, model, options.target)
            if options.train
            else partial(inference, model, options.target, options.budget, options.precision)
        )
        try:
            row = measure(row, prepare)
        except (CutsError, pytest.skip.Exception) as error:
            row |= {"failure": str(error).splitlines()[0]} | circumstances("unknown")
        wrong += "failure" in row or row["error"] > allowed(row)
        print(row_line(row), flush=True)
        write_rows(options.out, merged(read_rows(options.out), row))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(exit_code(main))

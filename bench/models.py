"""Whole models against ONNX Runtime: what they take to compile and to run, and by how much their outputs differ.

Run it with `python bench/models.py --target opencl` (or `cuda`) `[--only densenet121]`. The models are those of `tests/models.py`. Caches
are off, so the times of building kernels are those of a first run. Rows go to `bench/results/models.json`, where a row takes the place of
an older one of the same model and target; `--markdown` prints the tables of `docs/models.md`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["CUTS_NO_CACHE"] = "1"

import pytest
from cuts.bench.records import RESULTS, Row, circumstances, merged, read_rows, write_rows
from cuts.driver import CompiledPlan, build
from cuts.frontends.onnx import load_onnx_for
from cuts.ir.errors import CutsError
from cuts.tests.models import REAL, Real, by_onnx_runtime, difference

#: The relative error at which a row counts as wrong.
WRONG = 1e-3
REPEATS = 10
_COLUMNS = ("model", "nodes", "launches", "kernels", "import s", "compile s", "first run s", "run ms", "relative error")


def measure(name: str, model: Real, target: str, budget: float) -> Row:
    """Compile a model, run it, and compare it with ONNX Runtime."""
    row: Row = {"suite": "models", "class": target, "name": name, "batch": 1, "precision": "fp32"}
    path, feeds = model.fetch(), model.draw()
    seconds = [time.perf_counter()]
    graph, _ = load_onnx_for(path, feeds)
    seconds.append(time.perf_counter())
    plan = build(graph, target=target, tune=budget > 0, budget=budget or None)
    seconds.append(time.perf_counter())
    given = {tensor: feeds[tensor] for tensor in graph.inputs}
    found = plan.run(given)
    seconds.append(time.perf_counter())
    taken = [round(after - before, 3) for before, after in pairwise(seconds)]
    row |= dict(zip(("import_s", "compile_s", "first_s"), taken, strict=True))
    error = difference([found[tensor] for tensor in graph.outputs], by_onnx_runtime(path, feeds))
    row |= {"nodes": len(graph.nodes), "steps": len(plan.plan.steps), "kernels": len(plan.kernels), "error": error, "tuning_s": budget}
    return row | {"run_ms": _milliseconds(plan, given)} | circumstances(_device(plan))


def _milliseconds(plan: CompiledPlan, given: Mapping[str, Any]) -> float | None:
    """Return the time of one run without copies between host and device; the reference has none worth reporting."""
    if plan.target.dialect == "reference":
        return None
    plan.session.run(given)
    return round(plan.session.time_compute(repeats=REPEATS).median * 1e3, 4)


def _device(plan: CompiledPlan) -> str:
    return "none" if plan.target.dialect == "reference" else plan.session.device.name.partition(" (")[0]


def failed(name: str, target: str, reason: str) -> Row:
    """Return the row of a model that gave no result."""
    row = {"suite": "models", "class": target, "name": name, "batch": 1, "precision": "fp32", "failure": reason}
    return row | circumstances("unknown")


def row_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    if "failure" in row:
        return f"{row['name']:<16}failed: {row['failure']}"
    verdict = "ok" if row["error"] <= WRONG else "WRONG"
    times = f"compile {row['compile_s']} s, first run {row['first_s']} s, then {row['run_ms']} ms"
    return f"{row['name']:<16}{row['kernels']:>4} kernels, {times}, error {row['error']:.1e} {verdict}"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table per target for the documentation."""
    lines: list[str] = []
    for target in dict.fromkeys(row["class"] for row in rows):
        right = [row for row in rows if row["class"] == target and "failure" not in row]
        right.sort(key=lambda row: list(REAL).index(row["name"]))
        if not right:
            continue
        lines += [f"`{target}`, {right[0]['gpu']}:", "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
        for row in right:
            figures = (row["nodes"], row["steps"], row["kernels"], row["import_s"], row["compile_s"], row["first_s"], row["run_ms"])
            lines.append(f"| {row['name']} | {' | '.join('' if f is None else f'{f:.4g}' for f in figures)} | {row['error']:.1e} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--only", action="append", choices=tuple(REAL), help="a model; may be repeated")
    parser.add_argument(
        "--budget", type=float, default=0.0, metavar="SECONDS", help="tune each model for this long (0: the model of the machine chooses)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "models.json", help="the file of rows")
    parser.add_argument("--markdown", action="store_true", help="only print the tables of the file for the documentation")
    return parser.parse_args(argv)


def main() -> int:
    """Measure the chosen models; 1 where one failed or computed something else."""
    options = arguments()
    if options.markdown:
        print(markdown(read_rows(options.out)))
        return 0
    wrong = 0
    for name in options.only or REAL:
        try:
            row = measure(name, REAL[name], options.target, options.budget)
        except (CutsError, pytest.skip.Exception) as error:
            row = failed(name, options.target, str(error).splitlines()[0])
        wrong += "failure" in row or row["error"] > WRONG
        print(row_line(row), flush=True)
        write_rows(options.out, merged(read_rows(options.out), row))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

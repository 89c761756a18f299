"""Routines of libraries in plans, from the search to a machine that lacks them.

    python -m cuts.bench.library_calls [--budget 30] [--target cuda] [--out FILE]

tunes a product and two convolutions that nothing is fused with, where nothing is known, with libraries; opens the plan
as if none were installed; then compiles with what is known: again, frozen, and without libraries. A row has the seconds
of a compilation, those in which routines were looked for, the time of the whole plan, which library computes what, and
the plan's launches, form and kernels.
It needs a GPU of NVIDIA's, and `pip install 'cuts[libraries]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from unittest.mock import patch

import cuts
import numpy as np
from cuts.backends import cache_key
from cuts.backends.library import RoutineError, installed_libraries
from cuts.backends.library import routine as vendor
from cuts.compile import CompiledPlan
from cuts.compile.plan_cache import clear_plans
from cuts.ir import Budget, CompileOptions, CutsError, DType, Graph, Node, TensorType
from cuts.runtime import Session

Row = dict[str, Any]
#: The operands of a product, and of convolutions with the attributes of each.
PRODUCT = ((1500, 900), (900, 700))
CONVOLUTIONS = {
    "strided": ((16, 96, 35, 35), (96, 96, 3, 3), {"strides": (2, 2)}),
    "pointwise": ((16, 320, 7, 7), (1280, 320, 1, 1), {}),
}


def asked() -> Graph:
    """Return the graph: operations that nothing connects, with constant filters."""
    draw = np.random.default_rng(0)
    rows, depth, columns = *PRODUCT[0], PRODUCT[1][1]
    types = {"a": TensorType(DType.F32, PRODUCT[0]), "b": TensorType(DType.F32, PRODUCT[1])}
    types |= {"product": TensorType(DType.F32, (rows, columns))}
    nodes, constants = [Node("product", "matmul", ("a", "b"), ("product",))], {}
    for name, (image, weights, attributes) in CONVOLUTIONS.items():
        stride = attributes.get("strides", (1,))[0]
        size = (image[2] - weights[2]) // stride + 1
        types |= {f"x_{name}": TensorType(DType.F32, image), f"w_{name}": TensorType(DType.F32, weights)}
        types |= {name: TensorType(DType.F32, (image[0], weights[0], size, size))}
        constants[f"w_{name}"] = (draw.standard_normal(weights) / depth).astype(np.float32)
        nodes.append(Node(name, "conv", (f"x_{name}", f"w_{name}"), (name,), attributes))
    inputs = ("a", "b", *(f"x_{name}" for name in CONVOLUTIONS))
    return Graph("library_calls", inputs, ("product", *CONVOLUTIONS), types, tuple(nodes), constants)


def calls(plan: CompiledPlan) -> Mapping[str, str]:
    """Return why a library computes what it does, by what that is."""
    return {str(group["nodes"]): str(group["why"]) for group in plan.plan.groups if "library" in group}


def row_of(name: str, budget: float, build: Callable[..., CompiledPlan]) -> tuple[Row, CompiledPlan]:
    """Return what a compilation gives, the kept plan of an earlier one left aside."""
    clear_plans()
    start, clock = perf_counter(), Budget.of(budget)
    plan = build(options=CompileOptions(budget=budget, begun=clock))
    row: Row = {"what": name, "seconds": round(perf_counter() - start, 2)}
    row |= {"libraries s": round(clock.spent.get("libraries", 0.0), 2), "complete": plan.complete}
    row |= {"us": round(1e6 * plan.session.time_compute(warmup=3, repeats=30).median, 1), "calls": calls(plan)}
    row |= {"launches": plan.plan.launch_count, "branched": plan.plan.branched}
    row |= {"kernels": [cache_key([kernel.source])[:8] for kernel in plan.kernels]}
    return row, plan


def without_libraries(plan: CompiledPlan) -> Row:
    """Return what the plan does where no library is installed, and whether its results are the same."""
    inputs = plan.random_inputs()
    wanted = plan.run(inputs)

    def missing(name: str) -> vendor.Library:
        raise RoutineError(f"{name} cannot be used: left out by this benchmark")

    with patch.object(vendor, "require_library", missing), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        session = Session(plan.plan)
    got = session.run(inputs)
    error = max(float(np.abs(got[name] - wanted[name]).max() / np.abs(wanted[name]).max()) for name in wanted)
    timed = round(1e6 * session.time_compute(warmup=3, repeats=30).median, 1)
    return {"what": "missing", "us": timed, "error": error, "said": [str(each.message) for each in said]}


def measured(budget: float, target: str) -> list[Row]:
    """Return all rows, in a folder of their own for what is kept."""
    graph, rows, kept = asked(), [], os.environ.get("CUTS_CACHE_DIR")
    with TemporaryDirectory() as folder:
        os.environ["CUTS_CACHE_DIR"] = folder
        try:
            ways: dict[str, dict[str, Any]] = {
                "with": {"tune": True}, "again": {"tune": True}, "frozen": {"frozen": True},
                "without": {"tune": True, "libraries": False},
            }  # fmt: skip
            for name, way in ways.items():
                try:
                    row, plan = row_of(name, budget, partial(cuts.build, graph, target, **way))
                    rows.append(row)
                    rows += [without_libraries(plan)] if name == "with" else []
                except CutsError as error:
                    rows.append({"what": name, "failed": str(error)})
            return rows
        finally:
            os.environ.pop("CUTS_CACHE_DIR") if kept is None else os.environ.update(CUTS_CACHE_DIR=kept)


def main() -> int:
    """Print a line for each way; 1 where those that know what libraries take call others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=30.0, metavar="S", help="seconds of a search (default 30)")
    parser.add_argument("--target", default="cuda", help="where it runs; libraries are called on a CUDA GPU only")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows as JSON")
    given = parser.parse_args()
    print("installed:", ", ".join(installed_libraries()) or "nothing")
    rows = measured(given.budget, given.target)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    called = {row["what"]: row.get("calls") for row in rows}
    return 0 if called["with"] == called["again"] == called["frozen"] and called["with"] is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""What it takes to compare plans by what they compute, as a search does before one may ship.

    python -m cuts.bench.agreement [--target cuda] [--out FILE] [MODEL:BATCH | MODEL:training ...]

Of each workload the plan that the model makes is held against the one in which nothing is fused (`pair`: both run, and
their outputs are compared; the first time sessions are opened too, `again` they are open), then against operations one
by one (`alone`), whose plan takes `plain` seconds to be made. A training step has all weights as inputs, and is one of
gradient descent. It needs PyTorch and torchvision, which make the models.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from cuts.backends import find_target
from cuts.bench.networks.ledger import parse_workload
from cuts.bench.networks.models import ModelWorkload
from cuts.bench.networks.systems import Case
from cuts.compile import Spec, compile_model, load_model, load_spec, plan_of
from cuts.compile.agreement import Agreement
from cuts.compile.driver import plain_plan
from cuts.ir import CompileOptions, Graph, Mode, Target
from cuts.passes.graph import with_loss
from cuts.training import SGD, grad

T = TypeVar("T")


def graph_of(workload: ModelWorkload) -> tuple[Graph, Spec]:
    """Return the graph of a model, or of a step that trains it, and its vocabulary."""
    made = workload.model.make(workload.batch, False)
    spec = load_spec([])
    graph = load_model(Case(workload, made, import_module("torch"), 0.0).program, spec, None, ())
    if workload.task == "inference":
        return graph, spec
    loss = with_loss(graph, "mse_loss", prediction=graph.outputs[0])
    step = grad(loss, loss="loss", optimiser=SGD(rate=0.01, momentum=0.9))
    return step.graph, step.spec


def row_of(workload: ModelWorkload, target: Target) -> dict[str, Any]:
    """Return what it takes to compare plans of a workload."""
    graph, spec = graph_of(workload)
    options = CompileOptions()
    row: dict[str, Any] = {"workload": workload.label, "nodes": len(graph.nodes)}

    def planned(mode: Mode) -> Any:
        return plan_of(compile_model(graph, spec, target, CompileOptions(mode)), graph, spec, target)

    made, row["plan s"] = timed(lambda: planned("mixed"))
    other, _ = timed(lambda: planned("no-fusion"))
    plain, row["plain s"] = timed(lambda: plain_plan(graph, spec, target, options))
    plans = [made, other, plain]
    row["launches"] = " / ".join(str(plan.plan.launch_count) for plan in plans)
    judge = Agreement(graph, spec, lambda: plain, lambda: True)
    same, row["pair s"] = timed(lambda: judge.trusted([made, other]))
    _, row["again s"] = timed(lambda: judge.trusted([made, other]))
    right, row["alone s"] = timed(lambda: judge.is_right(made))
    row["run ms"] = round(1e3 * made.session.time_compute(warmup=2, repeats=5).median, 3)
    return {**row, "agree": all(same) and right}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what some work makes, and the seconds that it takes."""
    start = perf_counter()
    found = work()
    return found, round(perf_counter() - start, 3)


def main() -> int:
    """Print a line for each workload, and write all as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ["resnet-50:1", "bert-base:1", "resnet-50:training"]
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", default=usual, help=f"default: {' '.join(usual)}")
    parser.add_argument("--target", default="cuda", help="where plans run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows as JSON")
    given = parser.parse_args()
    found = []
    for text in given.workloads:
        found.append(row_of(parse_workload(text), find_target(given.target)))
        print("  ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0 if all(row["agree"] for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())

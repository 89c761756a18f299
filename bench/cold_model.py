"""Where the seconds of a budget go when a whole model, or a step of its training, is searched for cold, on a machine
that is not here: simulated cores and a simulated GPU (`simulated_host.py`), everything this process does in between.

    python bench/cold_model.py inception-v3:training=150
    python bench/cold_model.py resnet-50:1 --budget 60 --cores 32

The model is read first, which counts, as it does for users. What follows the last measurement is the table's last part.
A plan is not timed as a whole, and no library is called, as there is no device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import torch
from cuts.backends.devices import find_target
from cuts.bench.cold_search import SimulatedSearch, remembered
from cuts.bench.networks.ledger import parse_workload
from cuts.bench.networks.models import ModelWorkload
from cuts.bench.networks.own_steps import training_graph
from cuts.bench.networks.systems import Case
from cuts.bench.records import Row, exit_code
from cuts.bench.simulated_host import Clock, JobMemory, ProcessWatch
from cuts.bench.timelines import described, lines
from cuts.compile.contest import by_sums
from cuts.compile.driver import compile_model
from cuts.compile.known import compile_measured
from cuts.compile.loading import Spec, load_model, load_spec
from cuts.compile.plan import plan_of
from cuts.ir.budget import Budget, cores
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.search.course import HERE
from cuts.search.memory import seldom_collected
from cuts.search.selector import MeasuredSelector
from cuts.search.settings import Settings
from cuts.search.summary import summary_values


def graph_of(workload: ModelWorkload) -> tuple[Graph, Spec]:
    """Return what a workload computes, and its declarations."""
    made = workload.model.make(workload.batch, False)
    if workload.task == "training":
        training = training_graph(made)
        return training.graph, training.spec
    spec = load_spec([])
    return load_model(Case(workload, made, torch, 0.0).program, spec), spec


def processors(count: int) -> None:
    """Have this process find so many processors, none of which a quota takes away."""
    os.sched_getaffinity = lambda pid: set(range(count))
    cores.__defaults__ = (Path(os.devnull),)


@seldom_collected()
def simulated(workload: ModelWorkload, options: argparse.Namespace) -> Row:
    """Return what a search takes, and of what that consists."""
    target, memory, watch = find_target(options.target), JobMemory(options.memory), ProcessWatch()
    remembered(memory)
    clock = Clock(watch, options.factor)
    options.budget = workload.budget or options.budget
    search = SimulatedSearch(watch, clock, memory, options)
    with watch.running(clock):
        begun = Budget.of(options.budget, clock)
        graph, spec = graph_of(workload)
        imported = clock()
        tuner = search.tuner(options.cores, 1)
        tuner.resources.budget.begun = begun.begun
        selector = MeasuredSelector(target, tuner, Settings(libraries=False))
        asked = CompileOptions(budget=options.budget, begun=selector.budget, verify=False)
        compiled = compile_measured(
            graph, spec, asked, selector, lambda each: compile_model(graph, spec, target, each, selector), by_sums
        )
        with selector.budget.stage("kernels"):
            plan_of(compiled, graph, spec, target)
        seconds = clock()
    tasks = [task for each in tuner.resources.statistics.searches for task in each.tasks]
    timeline = described(0.0, HERE, selector.budget.stages, tasks)
    print("\n".join(lines(timeline, {})), file=sys.stderr)
    measured = sum(choice.seconds is not None for choice in selector.choices)
    statistics = summary_values(selector)
    return {
        "model": workload.label, "budget": options.budget, "seconds": round(seconds, 1), "import": round(imported, 1),
        "kept back": round(selector.budget.kept_back, 1), "groups": len(compiled.groups),
        "kernels": len(compiled.kernels), "chosen": len(selector.choices), "measured": measured,
        "ms": round(1e3 * selector.seconds, 3),
        **{name: statistics[name] for name in ("compiled", "timed")}, **search.facts(),
    }  # fmt: skip


def main() -> None:
    """Simulate one search and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=parse_workload, metavar="MODEL:BATCH")
    parser.add_argument("--target", default="cuda:h200")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--factor", type=float, default=1.6, help="by what the process that asks is slower there")
    parser.add_argument("--slower", type=float, default=2.65, help="by what workers are, all of them at work")
    parser.add_argument("--memory", type=Path, default=Path(gettempdir()) / "cuts-cold-search")
    options = parser.parse_args()
    processors(options.cores)
    with TemporaryDirectory() as cache:  # what one search compiles is compiled once, as on the host
        os.environ["CUTS_CACHE_DIR"] = f"{cache}/cuts"
        print(json.dumps(simulated(options.workload, options), indent=1))


if __name__ == "__main__":
    sys.exit(exit_code(main))

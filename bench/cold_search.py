"""Where the seconds of a cold search go, on a machine that is not here: the convolutions of a network are searched for
with simulated cores and GPUs (`simulated_host.py`).

    python bench/cold_search.py --network resnet50 --cores 16 --devices 1
    python bench/cold_search.py --cores 32 --devices 2

A kernel takes what the model says, times errors of the model drawn for its structure and for itself. How long a check
and a timed run take besides was measured on an H100 (`bench/results/ops.json`: 1,574 kernels were checked in 5.1 s and
timed in 3.1). What was compiled is kept in a folder, with its time, so that a further search compiles only what is new.
How much slower the processes of that host are follows from what a statement took its compiler: 0.40 ms, 0.15 here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from attrs import define, field
from cuts.backends.cuda import compile as cuda_compile
from cuts.backends.devices import find_target
from cuts.backends.source import emit
from cuts.bench.cases import all_cases
from cuts.bench.records import Row, exit_code
from cuts.bench.shapes import Case
from cuts.bench.simulated_host import (
    Clock,
    JobMemory,
    ProcessWatch,
    SimulatedGPU,
    SimulatedWorkers,
)
from cuts.bench.timelines import described, lines
from cuts.bench.tuned import tune
from cuts.ir.budget import Budget
from cuts.search.course import HERE
from cuts.search.database import Database
from cuts.search.device_pool import DevicePool
from cuts.search.resources import Resources
from cuts.search.selector import MeasuredSelector
from cuts.search.settings import Settings
from cuts.search.tuner import Tuner


@define
class SimulatedSearch:
    """A search on simulated cores and devices: what it is done with, and what of it was asked for."""

    watch: ProcessWatch
    clock: Clock
    memory: JobMemory
    options: argparse.Namespace
    workers: list[SimulatedWorkers] = field(factory=list)
    gpus: list[SimulatedGPU] = field(factory=list)

    def tuner(self, cores: int, devices: int) -> Tuner:
        """Return what searches."""

        def crew() -> SimulatedWorkers:
            assert resources.bench is not None  # the device starts beside the workers
            self.workers.append(SimulatedWorkers(self.clock, cores, self.memory, self.options.slower))
            return self.workers[-1]

        def device() -> DevicePool:
            self.gpus += [SimulatedGPU(self.clock, self.memory) for _ in range(devices)]
            return DevicePool({str(number): gpu for number, gpu in enumerate(self.gpus)})

        budget = Budget.of(self.options.budget or None, self.clock)
        resources = Resources(Database(None), crew, device, budget)
        resources.statistics.clock = self.clock
        return Tuner(resources)

    def facts(self) -> Row:
        """Return what the workers and the devices did."""
        memory = self.memory
        return {
            "workers busy": [round(crew.busy, 1) for crew in self.workers],
            "jobs": {m: [memory.counts[m], round(memory.spent[m], 1)] for m in (*memory.counts, "make")},
            "device": [dict(gpu.spent) for gpu in self.gpus],
        }


def remembered(memory: JobMemory) -> None:
    """Have this process compile nothing that a memory knows."""
    tool = cuda_compile.find_toolchain()
    cuda_compile.find_toolchain = lambda: cuda_compile.Toolchain(
        tool.name, tool.version, lambda source, arch, timeout: memory.compiled(source, arch, timeout, tool)
    )


def simulated(cases: Sequence[Case], cores: int, devices: int, options: argparse.Namespace) -> Row:
    """Return what a search takes, and of what that consists."""
    target, memory, watch = find_target(options.target), JobMemory(options.memory), ProcessWatch()
    remembered(memory)
    search = SimulatedSearch(watch, Clock(watch, options.factor), memory, options)
    with watch.running(search.clock):
        tuner = search.tuner(cores, devices)
        selector = MeasuredSelector(target, tuner, Settings(deeper=0))
        tuner.begin()
        tune(cases, target, emit, selector)
        seconds = search.clock()
    if options.log:
        options.log.write_text(json.dumps([crew.log for crew in search.workers]))
    tasks = [task for each in tuner.resources.statistics.searches for task in each.tasks]
    timeline = described(0.0, HERE, tuner.resources.budget.stages, tasks)
    print("\n".join(lines(timeline, {})), file=sys.stderr)
    statistics = tuner.resources.statistics.record()
    del statistics["rejected"]
    chosen = zip(selector.problems, selector.choices, strict=True)
    return {
        "devices": devices, "cores": cores, "operations": len(cases), "seconds": round(seconds, 2),
        "kernels us": round(1e6 * sum(p.uses * (c.seconds or 0) for p, c in chosen), 1),
        "complete": selector.complete, "statistics": statistics, **search.facts(),
        "stages": {name: round(taken, 2) for name, taken in tuner.resources.budget.spent.items()},
    }  # fmt: skip


def main() -> None:
    """Simulate one search and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--target", default="cuda:h100")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--budget", type=float, default=70.0, metavar="SECONDS")
    parser.add_argument("--factor", type=float, default=1.6, help="by what the processes that ask are slower there")
    parser.add_argument("--slower", type=float, default=2.65, help="by what workers are, all of them at work")
    parser.add_argument("--first", type=int, default=0, help="only so many operations")
    parser.add_argument("--memory", type=Path, default=Path(gettempdir()) / "cuts-cold-search")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    cases = [c for c in all_cases() if c.kind == "conv" and c.batch == 1 and options.network in c.uses]
    cases = cases[: options.first or None]
    with TemporaryDirectory() as cache:  # what one search compiles is compiled once, as on the host
        os.environ["CUTS_CACHE_DIR"] = f"{cache}/cuts"
        print(json.dumps(simulated(cases, options.cores, options.devices, options), indent=1))


if __name__ == "__main__":
    sys.exit(exit_code(main))

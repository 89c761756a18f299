"""Plan of a workload by launches: operations, times, bound and schedule.

    python -m cuts.bench launches resnet-50:1 resnet-50:64 bert-base:64 --budget 20 --out FOLDER

Tunes each workload and writes `FOLDER/launches-MODEL-BATCH.json`. A launch has its time between events, its time
`alone` (repeated in a graph, warm caches), the time that a graph without it saves (`marginal`), the estimate and bound
of the cost model with their terms, schedule, grid, registers and memory. Times are microseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cuts.bench.tools.records import exit_code
from cuts.compile import CompiledPlan
from cuts.search import export_pack, open_database

from .isolation import text_of
from .ledger import parse_workload
from .systems import ModelCase, Row, plan_by_model, tune_plan

#: Runs of one launch in a recorded graph; replays of each graph, those of runs that take long, and microseconds of one
#: that does, which is not recorded without each launch, either.
TOGETHER, REPLAYS, FEW_LAUNCHES, LONG_MICROSECONDS = 20, 30, 5, 3000.0
#: Fields of groups' records in seconds.
SECONDS = ("measured", "estimate", "bound")
FIGURES = ("ops", "nodes", "algorithms", "limit", "parameters", "why", "form", "turns")


def launches(plan: CompiledPlan) -> tuple[float, list[Row]]:
    """Return an executed plan's microseconds, and a record of each launch."""
    session = plan.session
    launched = session.first_launches()
    whole = _replay_seconds(session.device, launched, FEW_LAUNCHES)
    repeats = REPLAYS if whole < LONG_MICROSECONDS else FEW_LAUNCHES
    among = session.time_steps(repeats=repeats)
    alone: dict[int, float] = {}
    rows = []
    for number, (group, step, time) in enumerate(zip(plan.plan.groups, plan.plan.steps, among, strict=True)):
        kernel, cubin = plan.kernels[step.kernel], plan.cubins[step.kernel] if plan.cubins else None
        moved = {tensor: plan.plan.types[tensor].nbytes for tensor in step.tensors if tensor in plan.plan.types}
        row: Row = {"launch": number, "kernel": step.kernel, "time": time.median * 1e6}
        if step.kernel not in alone:
            alone[step.kernel] = _replay_seconds(session.device, TOGETHER * [launched[number]], repeats) / TOGETHER
        row |= {"alone": alone[step.kernel]}
        if whole < LONG_MICROSECONDS and len(launched) > 1:
            rest = [*launched[:number], *launched[number + 1 :]]
            row |= {"marginal": whole - _replay_seconds(session.device, rest, repeats)}
        row |= {key: value * 1e6 for key in SECONDS if isinstance(value := group.get(key), float)}
        terms = group.get("terms")
        row |= {"terms": {name: value * 1e6 for name, value in terms.items()} if isinstance(terms, dict) else {}}
        row |= {key: group.get(key) for key in FIGURES}
        row |= {"megabytes": sum(moved.values()) / 1e6, "grid": kernel.grid, "block": kernel.block}
        row |= {"shared": kernel.shared_bytes + kernel.dynamic_shared}
        row |= {"registers": cubin.registers, "spilled": cubin.spill_bytes} if cubin else {}
        rows.append(row)
    return whole, rows


def _replay_seconds(device: Any, runs: Sequence[Callable[[], None]], repeats: int) -> float:
    """Return the microseconds of launches that follow one another in a recorded graph."""

    def all_of_them() -> None:
        for run in runs:
            run()

    with device.current():
        return float(device.time(device.capture(all_of_them), warmup=2, repeats=repeats).median) * 1e6


def line(row: Row) -> str:
    """Return a launch as a line of text."""
    times = "".join(f"{row.get(name, float('nan')):>9.2f}" for name in ("time", "alone", "marginal", "bound"))
    loop = row["form"].split("\n")[0][:70] if row.get("form") else ""
    return f"{row['launch']:>4} {'+'.join(row['ops'] or ())[:24]:<24}{times}  {loop}"


def main() -> int:
    """Profile the workloads asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", metavar="MODEL:BATCH", help="with =SECONDS after it for its budget")
    parser.add_argument("--budget", type=float, default=20.0, metavar="SECONDS", help="of each search")
    parser.add_argument("--fresh", action="store_true", help="know nothing of packs and earlier searches")
    parser.add_argument("--untuned", action="store_true", help="the plan that is made without a measurement")
    parser.add_argument("--further", action="store_true", help="search on where the final plan is known")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="export the plans that were found")
    parser.add_argument("--most", type=int, default=12, help="how many launches are printed of each")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch = import_module("torch")
    for workload in map(parse_workload, arguments.workloads):
        case = ModelCase(
            workload, workload.model.make(workload.batch, False), torch, workload.budget or arguments.budget
        )
        if arguments.untuned:
            plan, search = plan_by_model(case), dict[str, object]()
        else:
            plan, search = tune_plan(case, "mixed", fresh=arguments.fresh, further=arguments.further)
        if arguments.pack:
            export_pack(open_database(), arguments.pack)
        plan.run({n: x.numpy() for n, x in zip(plan.inputs, case.made[1], strict=True)})
        whole, rows = launches(plan)
        report = {"workload": workload.label, "microseconds": whole, "search": search, "launches": rows}
        file = arguments.out / f"launches-{text_of(workload).replace(':', '-')}.json"
        file.write_text(json.dumps(report, indent=1, default=str) + "\n", "utf-8")
        alone = sum(row["alone"] for row in rows)
        print(f"{workload.label}: {whole:.1f} us in {len(rows)} launches, {alone:.1f} alone, {search}")
        print(f"{'':29}{'among':>9}{'alone':>9}{'less':>9}{'bound':>9}")
        for row in sorted(rows, key=lambda row: -row["alone"])[: arguments.most]:
            print(line(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

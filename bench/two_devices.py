"""How much faster two GPUs of one host tune than one: the convolutions of ResNet-50 at batch 1, cold, with a GPU and
half of the cores, then with both and all.

    python bench/two_devices.py --out $OUT/two_devices.json
    python bench/two_devices.py --spread

Half of the cores are whole ones, with all threads of each: what a machine of half the size has. `--spread` measures one
GPU with the first half of the processors too, which may be a thread of every core of the host.

Each search is a process of its own that knows nothing of earlier ones: no database, no pack, no compiled kernel, of
ours or in the compiler's own cache; a short one goes before, so that what they are made of is in memory. What is
compared is the time of the whole search, which ends by itself: what is left of its budget is not spent on deeper
searches. The kernels' times, which should not be worse, stand beside it, and what was busy when.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cuts.backends.devices import find_target
from cuts.backends.source import emit
from cuts.bench.cases import all_cases
from cuts.bench.processors import physical_cores, share_of
from cuts.bench.records import Row, circumstances, exit_code, write_rows
from cuts.bench.timelines import ProcessTimes, described, lines
from cuts.bench.tuned import tune
from cuts.search.course import HERE
from cuts.search.session import tuning_session
from cuts.search.settings import Settings

#: Seconds of the search that goes before.
WARM = 10.0


def measure(devices: list[str], options: argparse.Namespace) -> Row:
    """Tune with some devices; return how long it took and what came of it."""
    target = find_target(options.target)
    cases = [c for c in all_cases() if c.kind == "conv" and c.batch == 1 and options.network in c.uses]
    cases = cases[: options.first or None]
    begin = time.monotonic()
    with tuning_session(
        target,
        budget=options.budget,
        settings=Settings(deeper=0),
        fresh=True,
        devices=devices,
        notice=lambda text: print(text, file=sys.stderr),
    ) as selector:
        selector.tuner.begin()  # as a compilation does: workers take a second to start
        tune(cases, target, emit, selector)
        seconds = time.monotonic() - begin
        tasks = [task for search in selector.tuner.statistics.searches for task in search.tasks]
        timeline = described(begin, HERE, selector.budget.stages, tasks)
        kernels = sum(p.uses * (c.seconds or 0.0) for p, c in zip(selector.problems, selector.choices, strict=True))
        return {
            "devices": len(devices), "operations": len(cases),
            "seconds": round(seconds, 2), "complete": selector.complete, "kernels us": round(1e6 * kernels, 1),
            "building": selector.tuner.statistics.building, "stages": selector.budget.spent,
            "statistics": selector.tuner.statistics.record(), "timeline": timeline, **circumstances(target.name),
        }  # fmt: skip


def measured_apart(count: int, options: argparse.Namespace, spread: bool = False) -> Row:
    """Measure in a process of its own, which sees `count` devices and their share of the cores, or of the processors
    where it is `spread` over cores.
    """
    share = share_of(os.sched_getaffinity(0), count, options.most, spread)
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count))),
            "CUTS_CACHE_DIR": f"{cache}/cuts",
            # NVRTC keeps what it compiled: the second search would get a kernel in 8 ms in place of 257.
            "CUDA_CACHE_PATH": f"{cache}/cuda",
        }
        command = [sys.executable, __file__, "--measure", str(count), "--budget", str(options.budget)]
        command += ["--network", options.network, "--target", options.target, "--first", str(options.first)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        os.sched_setaffinity(process.pid, share)
        with ProcessTimes(process.pid) as processes:
            said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    row: Row = json.loads(said.splitlines()[-1])
    return row | {
        "processors": len(share), "physical cores": len(physical_cores(share)), "spread": spread,
        "processes": processes.rows(),
    }  # fmt: skip


def main() -> None:
    """Measure with one device, then with all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=2, metavar="N", help="devices of the second search")
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--first", type=int, default=0, help="only so many operations")
    parser.add_argument("--budget", type=float, default=70.0, metavar="SECONDS", help="of each search")
    parser.add_argument("--spread", action="store_true", help="one device with a thread of each of many cores too")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "two_devices.json")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure([str(n) for n in range(options.measure)], options)))
        return
    # What is on disk is read once, by a search that is not measured: the first one would pay for what the second finds.
    measured_apart(1, argparse.Namespace(**vars(options) | {"first": 1, "budget": WARM}))
    rows: list[Row] = []
    # If time runs out, what is new is known.
    for count, spread in ((options.most, False), (1, False), *([(1, True)] if options.spread else [])):
        rows.append(measured_apart(count, options, spread))
        write_rows(options.out, rows)
    for row in rows:
        print(f"{_title(row)}: how many were busy with what, by half seconds")
        print("\n".join(lines(row["timeline"], row["processes"])))
    for row in rows:
        print(f"{_title(row)}:", ", ".join(f"{n} {t:.1f}" for n, t in row["stages"].items() if t >= 0.1))
    for row in rows[1:]:
        spent, count = row["building"]
        print(f"{_title(row)}: {count} kernels were built in {spent:.0f} s of all cores together")
    print("devices  processors  cores  seconds  compiled  timed  kernels us  complete  gain")
    for row in rows:
        statistics, gain = row["statistics"], row["seconds"] / rows[0]["seconds"]
        print(f"{row['devices']:>7}{row['processors']:>12}{row['physical cores']:>7}{row['seconds']:>9.1f}"
              f"{statistics['compiled']:>10}{statistics['timed']:>7}{row['kernels us']:>12.1f}  {row['complete']!s:8}"
              f"{'' if row is rows[0] else f'{gain:6.2f}'}")  # fmt: skip


def _title(row: Row) -> str:
    return f"{row['devices']} devices, {row['processors']} processors of {row['physical cores']} cores"


if __name__ == "__main__":
    sys.exit(exit_code(main))

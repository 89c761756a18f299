"""Records schedule spaces: builds, checks and times points of thirty operations.

    python -m cuts.bench spaces --out spaces --limit 150
    python -m cuts.bench spaces --out spaces --limit 240 --points 2050 --devices 0,1,2,3,4,5,6,7
    python -m cuts.bench spaces --out spaces --plans mobilenetv2:1 --points 80
    python -m cuts.bench spaces --out audited --audited --only memory --points 1300
    python -m cuts.bench spaces --out pairs --points-of bench/results/spaces --devices 0,1

`--plans` records the kernels of untuned plans, `--audited` those of `bench/tools/audit.py` outside the thirty.
`--points-of` times the points of earlier recordings on another GPU, in a folder with its name. Each space is a file,
written every twenty seconds and marked until it is complete. A call continues an incomplete space, or one with fewer
timed points than asked for, on the same GPU with the same kernel sources; each file records its versions and the drift
of its first kernel. A space without legal points is left out. Devices share the remaining work and the cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from cuts.backends.devices import find_target
from cuts.bench.networks.ledger import parse_workload
from cuts.bench.networks.systems import ModelCase
from cuts.bench.operators.shapes import Case
from cuts.bench.operators.tuning import group_of
from cuts.bench.tools.audit import audit_cases
from cuts.bench.tools.recording import SERVICE, PoolRecorder, evaluation_points, same_kernels
from cuts.bench.tools.records import circumstances, exit_code
from cuts.bench.tools.strategy_cases import strategy_cases
from cuts.compile import compile_model, load_model, load_spec
from cuts.ir import UsageError
from cuts.ir.compiled import CompileOptions
from cuts.ir.machine import Target
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir
from cuts.passes.fusion import canonical_names
from cuts.search.building.workers import Workers
from cuts.search.database import Database
from cuts.search.learned.recorded_spaces import RecordedSpace, read_spaces, write_spaces
from cuts.search.measurement.bench import DeviceBench
from cuts.search.settings import Settings
from cuts.search.tasks.tuning_task import TuningTask, machine_of
from cuts.search.tuner.executor import SearchExecutor

#: Sources that decide which kernel a point becomes.
LOWERING = ("passes/lowering", "backends/source")
#: Points that could be timed while a space is begun.
BEGINNING = 400


def title_of(case: Case) -> str:
    """Return the name of a space."""
    return f"{case.kind} {case.name}"


def problem_of(case: Case, target: Target) -> TuningTask:
    """Return the recorded tuning task; every case is one kernel."""
    group = group_of(case)
    assert group is not None, f"{case.key} is no single kernel"
    return TuningTask(group, {}, target, machine_of(target), title_of(case))


def file_of(folder: Path, name: str) -> Path:
    """Return the file of a space."""
    return folder / f"{file_name(name)}.json.gz"


def file_name(text: str) -> str:
    """Return a text as the name of a file or folder."""
    return re.sub("[^0-9a-z]+", "-", text.lower()).strip("-")


def version_of(commit: str) -> dict[str, str]:
    """Return a recording's version: the commit, and the kernel sources' digest."""
    found = hashlib.sha256()
    for folder in LOWERING:
        for path in sorted((Path(__file__).resolve().parents[2] / folder).rglob("*.py")):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return {"commit": str(circumstances("", commit)["commit"]), "lowering": found.hexdigest()[:16]}


def problem_of_space(space: RecordedSpace, target: Target) -> TuningTask:
    """Return the problem of a recorded space on a target."""
    form = parse_ir(space.work)
    assert isinstance(form, FusedGroup), "spaces are of groups"
    problem = TuningTask(form, {}, target, machine_of(target), space.label)
    if problem.work != space.work:
        raise UsageError(f"{space.label} was recorded with tensors that lie otherwise, or by another version")
    return problem


def problems_of_plan(workload: str, target: Target) -> list[TuningTask]:
    """Return the distinct kernels of the model's plan of a workload."""
    model = parse_workload(workload)
    torch = import_module("torch")
    case = ModelCase(model, model.model.make(model.batch, False), torch, 0.0)
    spec = load_spec([])
    plan = compile_model(load_model(case.program, spec, None, ()), spec, target, CompileOptions())
    found: dict[str, TuningTask] = {}
    for number, group in enumerate(plan.groups):
        form, ops = parse_ir(str(group["form"])), group["ops"]
        assert isinstance(form, FusedGroup) and isinstance(ops, Sequence), "the record of a group"
        title = f"{workload} {number} {'+'.join(ops)}"
        problem = TuningTask(canonical_names(form)[0], {}, target, machine_of(target), title)
        found.setdefault(problem.key, problem)
    return list(found.values())


def known_of(folder: Path, name: str) -> RecordedSpace | None:
    """Return a folder's records of a space."""
    path = file_of(folder, name)
    return read_spaces(path)[0] if path.exists() else None


def missing(target: Target, options: argparse.Namespace) -> list[TuningTask]:
    """Return requested operations without a whole or sufficient recording.

    A sufficient one has enough points that ran.
    """
    if options.points_of:
        every = [problem_of_space(space, target) for space in options.given.values()]
    elif options.audited:
        known = {case.key for case in strategy_cases()}
        every = [problem_of(case, target) for case in audit_cases() if case.key not in known]
    elif options.plans:
        every = [problem for workload in options.plans for problem in problems_of_plan(workload, target)]
    else:
        every = [problem_of(case, target) for case in strategy_cases()]
    wanted = [p for p in every[options.skip :] if not options.only or any(text in p.label for text in options.only)]
    mine = part_of(wanted, options.part, options.left, BEGINNING + options.points)
    return [p for p in mine if wants(known_of(options.out, p.label), p, options)]


def wants(known: RecordedSpace | None, problem: TuningTask, options: argparse.Namespace) -> bool:
    """Return whether a tuning task has points left to record.

    A whole recording of another machine stays.
    """
    if known is None or not same_kernels(known.version, options.version):
        return True
    return left_of(known, options) > 0 and not (known.whole and known.key != problem.key)


def left_of(space: RecordedSpace, options: argparse.Namespace) -> int:
    """Return the approximate number of points left to record."""
    timed = space.timed if same_kernels(space.version, options.version) else 0
    done = space.whole and timed and options.points_of
    return 0 if done or (space.whole and timed >= options.points) else BEGINNING + max(0, int(options.points) - timed)


def part_of(problems: Sequence[TuningTask], part: str, left: Mapping[str, int], whole: int) -> list[TuningTask]:
    """Return one of the parts "k/n" of tuning tasks by remaining work.

    `left` is the work of each, or the `whole`: the longest come first, and each goes to the part with the least work.
    """
    number, count = map(int, part.split("/"))
    parts: list[list[TuningTask]] = [[] for _ in range(count)]
    work = [0] * count
    for problem in sorted(problems, key=lambda p: -left.get(p.label, whole)):
        least = work.index(min(work))
        parts[least].append(problem)
        work[least] += left.get(problem.label, whole)
    return parts[number]


def record(problems: Sequence[TuningTask], target: Target, options: argparse.Namespace) -> int:
    """Record operations within the time limit; return the exit code."""
    executor = SearchExecutor(
        Database(None),
        lambda: Workers(options.jobs, SERVICE),
        lambda: DeviceBench(target),
        budget=options.limit,
    )
    begin, timed = time.monotonic(), Counter[str]()
    try:
        recorder = PoolRecorder(
            executor, Settings(seed=options.seed), options.points, lambda p: known_of(options.out, p.label),
            lambda p: options.given.get(p.label), options.version,
        )  # fmt: skip
        for space in recorder.run(problems):
            timed[space.label] = space.timed
            write_spaces(file_of(options.out, space.label), [space])
            if space.whole or not executor.complete:
                print(line(space, timed.total(), time.monotonic() - begin), flush=True)
    finally:
        executor.close()
    for label, reason in recorder.lost.items():
        print(f"{label}: no points can be drawn: {reason}", file=sys.stderr)
    return 1 if recorder.lost else 0


def line(space: RecordedSpace, total: int, seconds: float) -> str:
    """Return a space's record in a line, with the recording's speed."""
    outcomes = Counter(p.outcome for p in space.points)
    best = f"{1e6 * space.best:8.2f} us" if space.timed else "none"
    found = f"{space.label:<34}{space.timed:>6} timed of {len(space.points):>5}{'' if space.whole else ' (cut)':<7}"
    again = f"  the first takes {space.version['first again']} again" if "first again" in space.version else ""
    return f"{seconds:6.1f} s  {found}best {best}  {total / seconds:6.1f} points/s  {dict(outcomes)}{again}"


def on_devices(devices: Sequence[str], options: argparse.Namespace) -> int:
    """Record with a process for each device, which divides the operations.

    Each process sees no other device.
    """
    again = [a for k, a in enumerate(sys.argv[1:], 1) if "--devices" not in (a.partition("=")[0], sys.argv[k - 1])]
    left = json.dumps({space.label: left_of(space, options) for space in spaces_of(options)})
    parts: list[subprocess.Popen[bytes]] = []
    try:
        for number, device in enumerate(devices):
            command = [
                sys.executable,
                "-m",
                "cuts.bench",
                "spaces",
                *again,
                "--part",
                f"{number}/{len(devices)}",
                "--left",
                left,
            ]
            parts.append(subprocess.Popen(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": device}))
        for part in parts:
            part.wait()
    finally:
        for part in parts:
            part.terminate()
    spaces = spaces_of(options)
    print(f"{len(spaces)} spaces, {sum(s.whole for s in spaces)} of them whole, {sum(s.timed for s in spaces)} points")
    return max(part.returncode for part in parts)


def spaces_of(options: argparse.Namespace) -> list[RecordedSpace]:
    """Return the spaces that the folder has."""
    return [space for path in sorted(options.out.rglob("*.json.gz")) for space in read_spaces(path)]


def keep_to(part: str) -> None:
    """Keep to one part of the cores, "k/n"."""
    number, count = map(int, part.split("/"))
    cores = sorted(os.sched_getaffinity(0))
    if count > 1 and len(cores) >= count:
        each = len(cores) // count
        os.sched_setaffinity(0, cores[number * each : (number + 1) * each])


def main() -> int:
    """Record missing spaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="spaces whose name contains one of these")
    parser.add_argument("--plans", nargs="*", default=[], metavar="MODEL:BATCH", help="kernels of plans of the model")
    parser.add_argument("--audited", action="store_true", help="the operations of `bench/tools/audit.py`")
    parser.add_argument("--points-of", type=Path, metavar="FOLDER", help="the points of the spaces recorded there")
    parser.add_argument("--commit", default="", help="what spaces say of the version, where there is no git")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N operations")
    parser.add_argument("--points", type=int, default=1300, help="points of each pool that run")
    parser.add_argument("--limit", type=float, default=150.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, help="processes that compile; as many as cores")
    parser.add_argument("--devices", metavar="0,1", help="GPUs of this host")
    parser.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--left", type=json.loads, default={}, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("spaces"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    options.version, options.given = version_of(options.commit), {}
    if options.devices:
        return on_devices(options.devices.split(","), options)
    keep_to(options.part)
    options.jobs = options.jobs or len(os.sched_getaffinity(0))
    target = find_target(options.target)
    if options.points_of:
        spaces = [space for path in sorted(options.points_of.glob("*.json.gz")) for space in read_spaces(path)]
        options.given = {space.label: evaluation_points(space, options.seed) for space in spaces}
        options.out /= file_name(target.name)
        options.out.mkdir(exist_ok=True)
    return record(missing(target, options), target, options)


if __name__ == "__main__":
    sys.exit(exit_code(main))

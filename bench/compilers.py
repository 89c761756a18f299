"""What a kernel takes its compiler where several processes compile at once, each the same kernels, and whether that is
longer where memory that is freed goes back to the system (`cuts.search.memory`).

    python bench/compilers.py --processes 1 4 16 32

A machine that serves the page faults of all processors one after another shows in the wall's time, which no process is
told of as its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from statistics import mean

from attrs import frozen
from cuts.backends.cuda.compile import find_toolchain
from cuts.backends.devices import find_target
from cuts.bench.cases import all_cases
from cuts.bench.records import Row, exit_code
from cuts.bench.tuned import group_of
from cuts.ir.target import Target
from cuts.search.build import Factory
from cuts.search.kernels import make_kernel
from cuts.search.memory import keep_freed
from cuts.search.problem import Problem, machine_of

#: Kernels of each operation, those that are compiled before, and seconds that one may take.
EACH, WARM, LIMIT = 2, 3, 60.0


@frozen
class CompilerLoad:
    """What one process took for each kernel: seconds of the wall, of its own, of the system for it, and page faults."""

    wall: float
    own: float
    system: float
    faults: float


def sources(target: Target, count: int) -> list[str]:
    """Return the model's best kernels of some convolutions of ResNet-50 at batch 1."""
    cases = [c for c in all_cases() if c.kind == "conv" and c.batch == 1 and "resnet50" in c.uses]
    groups = [group for case in cases[:count] if (group := group_of(case)) is not None]
    problems = [Problem(group, {}, target, machine_of(target)) for group in groups]
    return [
        make_kernel(p, scored.candidate.schedule).source
        for p in problems
        for scored in Factory().rank(p, "bound", EACH)
    ]


def compiled(texts: list[str], arch: str) -> CompilerLoad:
    """Compile kernels; return what that took."""
    compile_one = find_toolchain().compile
    for text in texts[:WARM]:
        compile_one(text, arch, LIMIT)
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    for text in texts:
        compile_one(text, arch, LIMIT)
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF)
    taken = wall, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, after.ru_minflt - before.ru_minflt
    return CompilerLoad(*(each / len(texts) for each in taken))


def side_by_side(texts: list[str], arch: str, processes: int, keeps: bool) -> Row:
    """Compile kernels in so many processes at once; return the mean of what they took."""
    reading, writing = os.pipe()
    children = []
    for _ in range(processes):
        if not (child := os.fork()):
            if keeps:
                keep_freed()
            load = compiled(texts, arch)
            os.write(writing, json.dumps([load.wall, load.own, load.system, load.faults]).encode() + b"\n")
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        wall, own, system, faults = (mean(each) for each in zip(*map(json.loads, lines), strict=True))
    return {"processes": processes, "keeps": keeps, "wall ms": round(1e3 * wall, 1), "own ms": round(1e3 * own, 1),
            "system ms": round(1e3 * system, 1), "faults": round(faults)}  # fmt: skip


def main() -> None:
    """Compile with each number of processes, with memory given back and kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:h100")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--operations", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # what was compiled once would be found
    target = find_target(options.target)
    texts = sources(target, options.operations)
    rows = []
    print("processes  kept  wall ms  own ms  system ms  faults, of each kernel")
    for processes in options.processes:
        for keeps in (False, True):
            rows.append(row := side_by_side(texts, target.arch, processes, keeps))
            print(f"{processes:>9}{'yes' if keeps else 'no':>6}{row['wall ms']:>9.1f}{row['own ms']:>8.1f}"
                  f"{row['system ms']:>11.1f}{row['faults']:>8}", flush=True)  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(exit_code(main))

"""What the kernels of many processes take: NVRTC opens the driver for the first one, and every GPU.

    python bench/first_kernels.py --processes 32 --out $OUT/first_kernels.json
    taskset -c 0-15 python bench/first_kernels.py --processes 16 --out $OUT/first_kernels.json

Processes are copies of one that has imported what they need, as workers are: with GPUs in sight or without, and where
that process compiled a kernel before (as a nursery does, `search/copies/`) or not. A row has the mean seconds of the
first and of the later kernels of each process, of the first what the system took, and how many later ones all processes
compile in a second: what a search that waits for its compiler may gain by more processors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import fmean
from time import perf_counter

from cuts.backends.cuda import begin_compiling, find_toolchain
from cuts.backends.devices import find_target
from cuts.backends.source import emit
from cuts.bench.cases import all_cases
from cuts.bench.records import Row, circumstances, exit_code, read_rows, write_rows
from cuts.bench.tuned import tune
from cuts.search.copies.nursery import ALONE, BLIND, LARGE_PAGES

#: Kernels that each process compiles.
EACH = 5


def kernel_source() -> str:
    """Return the text of a convolution's kernel, as the model chooses it."""
    case = next(case for case in all_cases() if case.kind == "conv" and case.batch == 1)
    return tune([case], find_target("cuda:h100"), emit, None)[0].kernels[0].source


def compiled(source: str, number: int) -> list[tuple[float, float]]:
    """Compile kernels that differ by their names; return the seconds of each, and of the system's."""
    tool, found = find_toolchain(), []
    for turn in range(EACH):
        start, before = perf_counter(), getrusage(RUSAGE_SELF).ru_stime
        tool.compile(source.replace("cuts_", f"cuts_{number}_{turn}_"), "sm_90", 60.0)
        found.append((perf_counter() - start, getrusage(RUSAGE_SELF).ru_stime - before))
    return found


def side_by_side(processes: int, begun: bool) -> Row:
    """Compile in copies of this process, which has begun to compile or not."""
    source, start = kernel_source(), perf_counter()
    if begun:
        begin_compiling()
    took, (ours, theirs) = perf_counter() - start, os.pipe()
    start = perf_counter()
    for number in range(processes):
        if not os.fork():
            os.write(theirs, (json.dumps(compiled(source, number)) + "\n").encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as told:  # until all have ended
        rows = [json.loads(line) for line in told]
    whole = perf_counter() - start
    for _ in range(processes):
        os.wait()
    first, later = fmean(row[0][0] for row in rows), fmean(seconds for row in rows for seconds, _ in row[1:])
    return {
        "processes": processes, "begun": begun, "beginning": took, "all": whole, "first": first, "later": later,
        "a second": processes / later, "system": fmean(row[0][1] for row in rows),
    }  # fmt: skip


def measured(processes: int, sighted: bool, begun: bool) -> Row:
    """Measure in a process of its own, whose compiler has kept nothing, with GPUs in sight or none."""
    with tempfile.TemporaryDirectory() as cache:
        environment = LARGE_PAGES | os.environ | ALONE | ({} if sighted else BLIND) | {"CUDA_CACHE_PATH": cache}
        command = [
            sys.executable,
            __file__,
            "--processes",
            str(processes),
            "--measure",
            *(["--begun"] if begun else []),
        ]
        said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return {**json.loads(said.splitlines()[-1]), "sighted": sighted}


def main() -> None:
    """Measure all four ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--begun", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "first_kernels.json")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(side_by_side(options.processes, options.begun)))
        return
    told, rows = circumstances(find_target("cuda").name, options.commit), read_rows(options.out)
    for sighted in (True, False):
        for begun in (False, True):
            rows.append(measured(options.processes, sighted, begun) | told)
            write_rows(options.out, rows)
    print("processes  GPUs in sight  begun  beginning  first kernel  of it the system's  later ones  in a second")
    for row in rows:
        print(f"{row['processes']:>9}{row['sighted']!s:>15}{row['begun']!s:>7}{row['beginning']:>11.2f}"
              f"{row['first']:>14.2f}{row['system']:>20.2f}{row['later']:>12.2f}{row['a second']:>13.1f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_code(main))

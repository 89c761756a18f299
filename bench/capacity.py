"""How much more work processors of a host do together than one of them: what any search may gain by more of them.

    python bench/capacity.py [--out FILE]
    python bench/capacity.py --compile [--out FILE]

A processor of a virtual machine may be a core or a thread of one, and the host may not say which. So processes that
only count are held to one processor each, alone, in pairs and all at once; what they get done in a second is compared
with what one does by itself. Sixteen processors that do 13 times as much, and 32 that do 17 times, are sixteen cores:
a search that is limited by its compiler cannot be 1.7 times as fast on 32 of them as on 16.

With `--compile` they compile a convolution's kernel again and again, as the workers of a search do, which share caches
and memory too; then a quarter of the processors is looked at as well, in three places.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TypeAlias

from cuts.backends.cuda import begin_compiling, find_toolchain
from cuts.bench.first_kernels import kernel_source
from cuts.bench.records import exit_code

#: Seconds that processes count, and steps between two looks at the clock.
SECONDS, STEPS = 1.2, 20_000
#: Seconds that they compile, behind one kernel that they begin with.
COMPILING = 4.0

#: What a process does from a moment on; how much of it in a second.
Work: TypeAlias = Callable[[float], float]


def counted(start: float) -> float:
    """Count for some seconds."""
    while time.perf_counter() < start:
        pass
    rounds, number = 0, 1
    while time.perf_counter() < start + SECONDS:
        for _ in range(STEPS):
            number = (number * 1103515245 + 12345) & 0x7FFFFFFF
        rounds += 1
    return rounds / SECONDS


def compiling() -> Work:
    """Return what compiles kernels for some seconds, each of another name; this process begins with one."""
    source = kernel_source()
    begin_compiling()
    tool = find_toolchain()

    def compiled(start: float) -> float:
        named = (source.replace("cuts_", f"cuts_{os.getpid()}_{turn}_") for turn in count(0))
        tool.compile(next(named), "sm_90", 60.0)
        begun, kernels = time.perf_counter(), 0
        while time.perf_counter() < begun + COMPILING:
            tool.compile(next(named), "sm_90", 60.0)
            kernels += 1
        return kernels / (time.perf_counter() - begun)

    return compiled


def work(processors: Sequence[int], do: Work) -> float:
    """Return what processors get done together in a second."""
    ours, theirs = os.pipe()
    start = time.perf_counter() + 0.1 + 0.02 * len(processors)  # all of them are there by then
    for processor in processors:
        if not os.fork():
            os.sched_setaffinity(0, {processor})
            os.write(theirs, f"{do(start)!r}\n".encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as told:  # until all have ended
        found = [float(line) for line in told]
    for _ in processors:
        os.wait()
    if len(found) != len(processors):
        raise SystemExit(f"{len(processors)} processes were to say what they did, {len(found)} did")
    return sum(found)


def groups_of(every: Sequence[int], quarters: bool) -> dict[str, Sequence[int]]:
    """Return groups of processors by what they are: all, halves, pairs, and quarters where these are asked for."""
    half, groups = len(every) // 2, {"all": every}
    if half:
        groups |= {"first half": every[:half], "every second": every[::2]}
        groups |= {
            "the first and the next": every[:2],
            "the first and the one of the other half": [every[0], every[half]],
        }
    if quarters and half // 2:
        groups |= {
            "first quarter": every[: half // 2],
            "every second of the first half": every[:half:2],
            "every fourth": every[::4],
        }
    return groups


def main() -> None:
    """Print what groups of processors do, in units of what one does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compile in place of counting")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    given = parser.parse_args()
    every = sorted(os.sched_getaffinity(0))
    groups = groups_of(every, given.compile)
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update({"CUDA_CACHE_PATH": cache, "CUDA_VISIBLE_DEVICES": "-1"})  # as workers are
        do = compiling() if given.compile else counted
        one = work(every[:1], do)
        figures = {name: round(work(group, do) / one, 2) for name, group in groups.items()}
    for name, figure in figures.items():
        print(f"{name:<40}{len(groups[name]):>4} processors {figure:>7.2f}")
    if given.out:
        told = {"processors": len(every), "kernels a second": round(one, 2)} if given.compile else {}
        given.out.write_text(json.dumps({"processors": len(every)} | told | figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))

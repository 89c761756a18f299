"""How much more work processors of a host do together than one of them: what any search may gain by more of them.

    python bench/capacity.py [--out FILE]

A processor of a virtual machine may be a core or a thread of one, and the host may not say which. So processes that
only count are held to one processor each, alone, in pairs and all at once; what they get done in a second is compared
with what one does by itself. Sixteen processors that do 13 times as much, and 32 that do 17 times, are sixteen cores:
a search that is limited by its compiler cannot be 1.7 times as fast on 32 of them as on 16.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

#: Seconds that processes count, and steps between two looks at the clock.
SECONDS, STEPS = 1.2, 20_000


def count(processor: int, start: float, done: multiprocessing.Queue[int]) -> None:
    """Count for some seconds from a moment on, on one processor."""
    os.sched_setaffinity(0, {processor})
    while time.perf_counter() < start:
        pass
    rounds, number = 0, 1
    while time.perf_counter() < start + SECONDS:
        for _ in range(STEPS):
            number = (number * 1103515245 + 12345) & 0x7FFFFFFF
        rounds += 1
    done.put(rounds)


def work(processors: Sequence[int]) -> int:
    """Return what processors get done together."""
    done: multiprocessing.Queue[int] = multiprocessing.Queue()
    start = time.perf_counter() + 0.1 + 0.02 * len(processors)  # all of them are there by then
    processes = [multiprocessing.Process(target=count, args=(each, start, done)) for each in processors]
    for process in processes:
        process.start()
    found = sum(done.get() for _ in processes)
    for process in processes:
        process.join()
    return found


def main() -> None:
    """Print what groups of processors do, in units of what one does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    given = parser.parse_args()
    every = sorted(os.sched_getaffinity(0))
    half = len(every) // 2
    groups = {"all": every}
    if half:
        groups |= {"first half": every[:half], "every second": every[::2]}
        groups |= {
            "the first and the next": every[:2],
            "the first and the one of the other half": [every[0], every[half]],
        }
    one = work(every[:1])
    figures = {name: round(work(group) / one, 2) for name, group in groups.items()}
    for name, figure in figures.items():
        print(f"{name:<40}{len(groups[name]):>4} processors {figure:>7.2f}")
    if given.out:
        given.out.write_text(json.dumps({"processors": len(every), **figures}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

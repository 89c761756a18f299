"""Fuzzer: random graphs, planted bugs and compilation errors.

Results are compared with the float64 reference. Planted bugs measure the fuzzer's sensitivity.

    python -m cuts.tests.fuzz --graphs 2000 --seed 1 --jobs 16 --target cuda --out bench/results/fuzz.json
    python -m cuts.tests.fuzz --graphs 20000 --seed 5 --jobs 2 --ways one --ledger fuzz-opencl.json
    python -m cuts.tests.fuzz --planted --graphs 300 --jobs 2 --out bench/results/planted.json
    python -m cuts.tests.fuzz --replay finding-17.json --seed 17
    python -m cuts.tests.fuzz --seeds 2000 --out errors.json
    python -m cuts.tests.fuzz --points 2000 --jobs 16 --target cuda --out points.json

Graph number n of a seed is the same everywhere, so a long run can be divided (`--first`). With `--ledger` the file
records the checked graphs of each seed and target; each call continues after them. Findings are written every fifty
graphs (`--part`), so a run can be interrupted at any time. With `--seeds` graphs are only compiled, for all targets,
modes and precisions in turn: any exception but a `CutsError` is a finding (`tests/fuzz/errors/`). With `--points`
sums of products run at random points of matrix instructions, exact for integers (`tests/fuzz/points.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cuts.ir.errors import CutsError
from cuts.tests.fuzz.campaign.hunting import hunt
from cuts.tests.fuzz.campaign.pointing import fuzz_points
from cuts.tests.fuzz.campaign.running import PART, fuzz, fuzz_on, replay
from cuts.tests.fuzz.errors.running import find_errors


def main(arguments: list[str] | None = None) -> int:
    """Run the command line's request; an error of ours is one line."""
    try:
        return run(arguments)
    except CutsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def run(arguments: list[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", type=int, default=200, help="graphs to check, or to try on each planted bug")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which no further graph is begun"
    )
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--ways",
        choices=("all", "one"),
        default="all",
        help="compute a graph in all ways, or in one of them on the device",
    )
    parser.add_argument("--ledger", type=Path, help="a file of what has been checked, to continue after it")
    parser.add_argument("--part", type=int, default=PART, help="graphs after which the ledger is written")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--planted", action="store_true", help="plant one bug after another and see which are found")
    parser.add_argument(
        "--bug",
        default="",
        help="with --planted: only bugs whose name has one of these texts (a|b); with --replay: a bug's name",
    )
    parser.add_argument("--replay", type=Path, help="a graph.json to check")
    parser.add_argument("--seeds", type=int, default=0, help="compile so many graphs and report exceptions")
    parser.add_argument("--points", type=int, default=0, help="check so many points of matrix instructions")
    options = parser.parse_args(arguments)
    if options.points:
        return fuzz_points(options)
    if options.seeds:
        return find_errors(options.seed, options.first, options.seeds, options.limit, options.out)
    if options.replay:
        return replay(options)
    if options.planted:
        return hunt(options)
    return fuzz_on(options) if options.ledger else fuzz(options)


if __name__ == "__main__":
    sys.exit(main())

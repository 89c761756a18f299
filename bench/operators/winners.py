"""Launches each tuned kernel once, for a memory or race checker.

    compute-sanitizer --tool memcheck --report-api-errors no python -m cuts.bench winners --class conv --batch 1
    compute-sanitizer --tool racecheck python -m cuts.bench winners --class gemm

Kernels come from the tuning database of `python -m cuts.bench ops`; nothing is searched or timed. `--untuned` launches
the first choices of the cost model instead, compiled on all cores. Results are compared with PyTorch unless
`--no-peers` is given. `--share 0/4` launches a quarter of the operations. The exit code is 1 if a result differs or an
operation is not in the database.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from cuts.backends.cuda import compile_kernels
from cuts.backends.device import Device
from cuts.backends.devices import find_target, open_device
from cuts.backends.source.emit import emit
from cuts.bench.operators.contenders import Peers, function_of, load_torch
from cuts.bench.operators.ops import add_case_options, select
from cuts.bench.operators.shapes import Case
from cuts.bench.operators.tuning import Tuned, bind, fill, parts, tune
from cuts.bench.tools.records import exit_code, parse_share
from cuts.ir.compiled import processor_count
from cuts.ir.errors import CutsError
from cuts.ir.machine import Target
from cuts.search.opening import tuning_session


def launch(tuned: Tuned, device: Device, torch: Any) -> str:
    """Run a case's kernels once; return the difference from PyTorch.

    It is nothing where they agree.
    """
    memory = fill(tuned, device)
    (run,) = bind(tuned, device, [memory])
    run()
    device.synchronize()
    assert isinstance(tuned.case, Case)
    if torch is None:
        return ""
    return Peers(tuned, device, torch, [memory], function_of(tuned.case, torch)).difference()


def known_cases(part: Sequence[Case], target: Target) -> tuple[list[Tuned], int]:
    """Return cases whose kernels the database has, and the others' number."""
    try:
        with tuning_session(target, frozen=True) as session:
            return tune(part, target, emit, session), 0
    except CutsError as error:
        if len(part) == 1:
            print(f"{part[0].key}: {error}", file=sys.stderr)
            return [], 1
    alone = [known_cases([case], target) for case in part]
    return [each for found, _ in alone for each in found], sum(count for _, count in alone)


def choose_kernels(case: Case, target: Target) -> Tuned | str:
    """Return a case with the model's compiled kernels, or an error."""
    try:
        (tuned,) = tune([case], target, emit, None)
        if target.dialect == "cuda":
            compile_kernels(tuned.kernels, target.arch)  # entries that the device's process then finds in the cache
        return tuned
    except CutsError as error:
        return f"{case.key}: {error}"


def untuned_cases(cases: Sequence[Case], target: Target, beside: int) -> Iterator[tuple[list[Tuned], int]]:
    """Yield cases with their kernels, and how many lack some.

    Processes choose and compile the kernels; `checkers` share the cores.
    """
    pool = ProcessPoolExecutor(max(1, processor_count() // beside), get_context("spawn"))
    try:
        for done in as_completed([pool.submit(choose_kernels, case, target) for case in cases]):
            found = done.result()
            if isinstance(found, str):
                print(found, file=sys.stderr)
            yield ([], 1) if isinstance(found, str) else ([found], 0)
    finally:
        pool.shutdown(cancel_futures=True)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser)
    parser.add_argument("--untuned", action="store_true", help="launch the model's first choices")
    parser.add_argument(
        "--most", type=int, default=sys.maxsize, metavar="N", help="end when as many kernels were launched"
    )
    parser.add_argument("--share", type=parse_share, default=(0, 1), metavar="K/N", help="a part of the operations")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS", help="begin no further row after this")
    parser.add_argument("--target", default="cuda:device")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Launch the winners and say how many there were."""
    options, begin = arguments(argv), time.monotonic()
    target = find_target(options.target)
    device = open_device(target)
    torch = None if options.no_peers else load_torch(options.precision)
    kernels = cases = unknown = 0
    wrong: list[str] = []
    first, step = options.share
    wanted = select(options)[first::step]
    every = (known_cases(part, target) for part in parts(wanted, options.together))
    for tuned, missing in untuned_cases(wanted, target, options.share[1]) if options.untuned else every:
        unknown += missing
        for each in tuned:
            if time.monotonic() - begin > options.limit or kernels >= options.most:
                break
            difference = launch(each, device, torch)
            cases, kernels = cases + 1, kernels + len(each.kernels)
            wrong += [f"{each.case.key}: {difference}"] if difference else []
        spent = time.monotonic() - begin
        print(f"{cases} operations so far, {spent:.0f} s", file=sys.stderr, flush=True)
        if spent > options.limit or kernels >= options.most:
            break
    total = f"{kernels} kernels of {cases} operations launched, {len(wrong)} wrong, {unknown} operations unknown"
    print("\n".join([*wrong, total]))
    return 1 if wrong or unknown else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

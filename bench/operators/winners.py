"""Launches each tuned kernel once, for a memory or race checker.

    compute-sanitizer --tool memcheck --report-api-errors no python -m cuts.bench winners --class conv --batch 1
    compute-sanitizer --tool racecheck python -m cuts.bench winners --class gemm

Kernels come from the tuning database of `python -m cuts.bench ops`; nothing is searched or timed. `--untuned` launches
the first choices of the cost model instead. Results are compared with PyTorch unless
`--no-peers` is given. `--share 0/4` launches a quarter of the operations. The exit code is 1 if a result differs or an
operation is not in the database.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from cuts.backends.compilers import compile_kernels
from cuts.backends.device import Device
from cuts.backends.devices import find_target, open_device
from cuts.backends.source.emit import emit
from cuts.bench.operators.contenders import Peers, function_of, load_torch
from cuts.bench.operators.ops import add_case_options, select
from cuts.bench.operators.shapes import Case
from cuts.bench.operators.tuning import Tuned, bind, fill, parts, tune, tune_separately
from cuts.bench.tools.records import parse_share
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


def tune_known(cases: Sequence[Case], target: Target, untuned: bool) -> Sequence[Tuned]:
    """Return cases with the database's kernels, or the cost model's.

    Raises `CutsError` where the database lacks one.
    """
    with nullcontext() if untuned else tuning_session(target, frozen=True) as session:
        tuned = tune(cases, target, emit, session)
    if target.dialect == "cuda":
        compile_kernels([kernel for each in tuned for kernel in each.kernels], target.arch)
    return tuned


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser)
    parser.add_argument("--untuned", action="store_true", help="launch the model's first choices")
    parser.add_argument("--most", type=int, default=sys.maxsize, metavar="N", help="end after as many launches")
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
    known = partial(tune_known, target=target, untuned=options.untuned)
    for part in parts(select(options)[first::step], options.together):
        for case, each in zip(part, tune_separately(part, known), strict=True):
            if time.monotonic() - begin > options.limit or kernels >= options.most:
                break
            if isinstance(each, str):
                print(f"{case.key}: {each}", file=sys.stderr)
                unknown += 1
                continue
            difference = launch(each, device, torch)
            cases, kernels = cases + 1, kernels + len(each.kernels)
            wrong += [f"{case.key}: {difference}"] if difference else []
        spent = time.monotonic() - begin
        print(f"{cases} operations so far, {spent:.0f} s", file=sys.stderr, flush=True)
        if spent > options.limit or kernels >= options.most:
            break
    total = f"{kernels} kernels of {cases} operations launched, {len(wrong)} wrong, {unknown} operations unknown"
    print("\n".join([*wrong, total]))
    return 1 if wrong or unknown else 0

"""How far loops must be unrolled for kernels to be fast: a compiler's time grows with the unrolled text. The model's
first points of a network's convolutions are built with bodies of the usual size and of a smaller one; those whose text
differs are timed in turns.

    python bench/unrolling.py --operations 512 --moves 128 --out $OUT/unrolling.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from statistics import mean, median

from cuts.backends.cuda.compile import compile_kernels
from cuts.backends.devices import find_target
from cuts.backends.source import phase, unrolled_statements
from cuts.bench.cases import all_cases
from cuts.bench.record_spaces import problem_of
from cuts.bench.records import Row, circumstances, exit_code, write_rows
from cuts.bench.tuned import group_of
from cuts.ir.launch import KernelFunction
from cuts.search.build import Factory
from cuts.search.kernels import make_kernel
from cuts.search.measure import MeasuringDevice
from cuts.search.problem import Problem

#: Turns in which two kernels are timed, and runs of each.
TURNS, RUNS = 3, 5


def built(problem: Problem, points: int, operations: int, moves: int) -> list[KernelFunction]:
    """Return the kernels of the model's first points, with bodies of some size."""
    usual = phase._UNROLLED_OPERATIONS, phase._UNROLLED_MOVES
    phase._UNROLLED_OPERATIONS, phase._UNROLLED_MOVES = operations, moves
    try:
        ranked = Factory().rank(problem, "bound", points)
        return [make_kernel(problem, each.candidate.schedule) for each in ranked]
    finally:
        phase._UNROLLED_OPERATIONS, phase._UNROLLED_MOVES = usual


def pairs(problem: Problem, options: argparse.Namespace) -> Iterator[tuple[KernelFunction, KernelFunction]]:
    """Yield kernels of one point whose text differs, those of the usual size first."""
    usual = built(problem, options.points, phase._UNROLLED_OPERATIONS, phase._UNROLLED_MOVES)
    small = built(problem, options.points, options.operations, options.moves)
    yield from ((a, b) for a, b in zip(usual, small, strict=True) if a.source != b.source)


def measured(device: MeasuringDevice, problem: Problem, kernels: tuple[KernelFunction, KernelFunction], arch: str,
             ) -> Row | None:  # fmt: skip
    """Return the times of two kernels, nothing where one does not run."""
    seconds: list[list[float]] = [[], []]
    codes = compile_kernels(kernels, arch)
    if any(code.spill_bytes for code in codes):
        return None
    for kernel, code in zip(kernels, codes, strict=True):
        if device.check(problem.key, kernel, code.code).outcome != "ok":
            return None
    for _ in range(TURNS):
        for kernel, samples in zip(kernels, seconds, strict=True):
            samples += device.sample(problem.key, kernel.name, RUNS) or ()
    usual, small = map(median, seconds)
    return {
        "case": problem.label, "usual us": round(1e6 * usual, 2), "small us": round(1e6 * small, 2),
        "ratio": round(small / usual, 4), "statements": [unrolled_statements(k.source) for k in kernels],
        "registers": [code.registers for code in codes],
    }  # fmt: skip


def main() -> None:
    """Time every pair; print a line for each, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--operations", type=int, default=512, help="accumulations of a smaller body, at most")
    parser.add_argument("--moves", type=int, default=128, help="loads and stores of a smaller body, at most")
    parser.add_argument("--points", type=int, default=8, help="of each convolution")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "unrolling.json")
    options = parser.parse_args()
    target = find_target("cuda:device")
    cases = [c for c in all_cases() if c.kind == "conv" and c.batch == 1 and options.network in c.uses]
    problems = [problem_of(case, target) for case in cases if group_of(case) is not None]
    found = [(problem, list(pairs(problem, options))) for problem in problems]
    for version in (0, 1):
        begin = time.monotonic()
        compile_kernels([pair[version] for _, some in found for pair in some], target.arch)
        print(f"{('usual', 'small')[version]} bodies: compiled in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    device, rows = MeasuringDevice(target), list[Row]()
    for problem, some in found:
        device.prepare(problem)
        rows += [row for pair in some if (row := measured(device, problem, pair, target.arch)) is not None]
    write_rows(options.out, [row | circumstances(target.name) for row in rows])
    print("usual us  small us  ratio  statements     registers")
    for row in rows:
        print(f"{row['usual us']:>8.2f}{row['small us']:>10.2f}{row['ratio']:>7.3f}  {row['statements']}  "
              f"{row['registers']}  {row['case']}")  # fmt: skip
    ratios = [row["ratio"] for row in rows]
    names = ("usual us", "small us")
    best = [[min(r[n] for r in rows if r["case"] == case) for n in names] for case in {row["case"] for row in rows}]
    print(f"{len(rows)} pairs: geometric mean {exp(mean(map(log, ratios))):.3f}, worst {max(ratios):.3f}; "
          f"best of each case {exp(mean(log(small / usual) for usual, small in best)):.3f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_code(main))

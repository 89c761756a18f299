"""Strategies live on a device: all operations of `bench/strategies.py` are tuned by each, from nothing, one strategy
after another, as `cuts tune` does it.

    python bench/live_strategies.py --count 12 --limit 60 --out bench/results/live_strategies.json
    python bench/live_strategies.py --target opencl --count 2 --trials 8

Each row is an operation by a strategy: kernels compiled for it, the time of its winner, and how much slower that is
than the best winner of all strategies. Times of one kernel in two searches scatter by about 1 %. `rank-12x6` is the
search that was the default before: twelve points of the model, then batches of six neighbours.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.bench.record_spaces import problem_of, title_of
from cuts.bench.records import Row, exit_code, read_rows, write_rows
from cuts.bench.strategy_cases import strategy_cases
from cuts.ir.target import Target
from cuts.search.bench import DeviceBench
from cuts.search.build import Workers
from cuts.search.database import Database
from cuts.search.problem import Problem
from cuts.search.resources import Resources
from cuts.search.settings import Settings
from cuts.search.tuner import Tuner

PLAIN = Settings(prove=False)
#: How each is searched by.
WAYS: Mapping[str, Settings] = {
    "rank-12x6": evolve(PLAIN, strategy="rank", batch=6),
    "rank": evolve(PLAIN, strategy="rank"),
    "bayes": evolve(PLAIN, strategy="bayes"),
    "frugal": evolve(PLAIN, strategy="frugal"),
    "genetic": evolve(PLAIN, strategy="genetic"),
}


def rows_of(
    name: str, settings: Settings, problems: Sequence[Problem], target: Target, jobs: int, limit: float
) -> list[Row]:
    """Tune all problems from nothing, and return what became of each."""
    resources = Resources(Database(None), lambda: Workers(jobs or None), lambda: DeviceBench(target), budget=limit)
    begin = time.monotonic()
    try:
        resources.start()
        ready = time.monotonic()
        choices = Tuner(resources).run(problems, settings)
        seconds = time.monotonic() - ready
    finally:
        resources.close()
    counts = {"compiled": resources.statistics.compiled, "searched s": round(seconds, 2)}
    counts |= {"started s": round(ready - begin, 2), "whole": resources.complete}
    return [
        {"operation": problem.label, "strategy": name, "target": target.name, "kernels": choice.trials,
         "us": None if choice.seconds is None else round(1e6 * choice.seconds, 3), "origin": choice.origin, **counts}
        for problem, choice in zip(problems, choices, strict=True)
    ]  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return for each strategy kernels and regret, means over operations that all strategies measured."""
    names = list(dict.fromkeys(r["strategy"] for r in rows))
    times = {(r["operation"], r["strategy"]): r for r in rows if r["us"] is not None}
    common = [o for o in dict.fromkeys(r["operation"] for r in rows) if all((o, n) in times for n in names)]
    lines = [f"{'strategy':<12}{'operations':>11}{'kernels':>9}{'median':>8}{'regret %':>10}{'worst %':>9}{'s':>8}"]
    for name in names if common else ():
        own = [times[o, name] for o in common]
        best = [min(times[o, n]["us"] for n in names) for o in common]
        regret = [100 * (r["us"] / b - 1) for r, b in zip(own, best, strict=True)]
        kernels = [r["kernels"] for r in own]
        lines.append(
            f"{name:<12}{len(own):>11}{np.mean(kernels):>9.1f}{np.median(kernels):>8.1f}{np.mean(regret):>10.2f}"
            f"{max(regret):>9.1f}{own[0]['searched s']:>8.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Tune by one strategy after another and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--strategies", nargs="+", default=["rank-12x6", "frugal", "bayes"], choices=list(WAYS))
    parser.add_argument("--count", type=int, default=12, help="operations")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for a strategy")
    parser.add_argument("--trials", type=int, default=PLAIN.most, help="kernels of an operation at most")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile; as many as cores")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "live_strategies.json")
    options = parser.parse_args()
    rows = read_rows(options.out)
    if not options.table:
        target = find_target(options.target)
        problems = [evolve(problem_of(c, target), label=title_of(c)) for c in strategy_cases()[: options.count]]
        for name in options.strategies:
            settings = evolve(WAYS[name], most=options.trials)
            rows = [r for r in rows if r["strategy"] != name]
            rows += rows_of(name, settings, problems, target, options.jobs, options.limit)
            write_rows(options.out, rows)
    for row in rows:
        print(
            f"{row['operation']:<34}{row['strategy']:<12}{row['kernels']:>4} kernels  {row['us']} us  {row['origin']}"
        )
    print(table(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))

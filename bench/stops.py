"""When a search may stop: how many kernels it tries, and by how much its best is slower than the best recorded point,
for several limits and patiences, replayed in recorded spaces without a device.

    python bench/stops.py bench/results/spaces/*.json.gz
    python bench/stops.py bench/results/spaces/*.json.gz --frugal

With `--frugal` that is said of a search that ends by itself: how many points it begins with before it asks a process,
for how many vain points it waits, and for how little gain that is expected of one more. `whole` is by how much all
kernels together are slower than the best recorded ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import TypeAlias

from attrs import frozen
from cuts.bench.record_spaces import problem_of, problem_of_space
from cuts.bench.records import exit_code
from cuts.bench.shapes import Case
from cuts.bench.strategies import BATCH, FIRST, first_of
from cuts.bench.strategy_cases import strategy_cases
from cuts.search.build import Scored
from cuts.search.learned.pool import RecordedGround, ground_of
from cuts.search.learned.recorded import RecordedSpace, read_spaces
from cuts.search.problem import Problem
from cuts.search.settings import Settings
from cuts.search.strategies import Known, Strategy, place_of, strategy_on
from cuts.search.strategies.frugal import Frugal

#: What is tried in a recorded space, beginning with some points.
Search: TypeAlias = Callable[[RecordedGround, Sequence[Scored]], list[Known]]
#: Most kernels, and the batches in a row that may better nothing, of the searches that are compared.
RULES = ((40, 2), (40, 1), (40, 0), (30, 2), (24, 2), (60, 3))
#: First points, vain points, and expected gains, of the searches that end by themselves.
FRUGAL = ((6, 3, 0.02), (5, 3, 0.02), (4, 3, 0.02), (3, 3, 0.02), (2, 3, 0.01), (2, 3, 0.02), (2, 4, 0.02),
          (1, 3, 0.02), (1, 4, 0.02), (1, 5, 0.02))  # fmt: skip


def searched(ground: RecordedGround, first: Sequence[Scored], name: str, most: int, patience: int) -> list[Known]:
    """Return what a strategy tries in recorded times until its search ends as `cuts tune` ends it, in order."""
    return tried(ground, strategy_on(ground, name, first), most, patience)


def tried(ground: RecordedGround, strategy: Strategy, most: int, patience: int) -> list[Known]:
    """Return what a search tries in recorded times until it ends as `cuts tune` ends it, in order."""
    known, stale, reached = list[Known](), 0, inf
    while True:
        best = min((k.seconds for k in known), default=inf)
        if known:
            stale = 0 if best < reached * (1 - Settings().tie) else stale + 1
            reached = min(reached, best)
        room = min(BATCH, most - len(known)) if known else FIRST
        proposed = strategy.propose(known, best, room) if room > 0 and stale <= patience else []
        if not proposed:
            return known
        points = [s.point for s in proposed if s.point is not None]
        known += [Known(p, ground.seconds[place_of(p)]) for p in points]


@frozen
class Outcome:
    """How many kernels a search tried, what its best takes, and by what part that is more than the best recorded."""

    kernels: int
    seconds: float
    regret: float


def outcome(known: Sequence[Known], ground: RecordedGround) -> Outcome:
    """Return what a search came to."""
    seconds = min((k.seconds for k in known), default=inf)
    return Outcome(len(known), seconds, seconds / ground.best - 1.0)


def by_patience(name: str) -> dict[str, Search]:
    """Return searches that end behind so many points, or so many batches in vain."""
    rules = {f"{most:>4}{patience:>10}": (most, patience) for most, patience in RULES}
    return {
        text: partial(searched, name=name, most=most, patience=patience) for text, (most, patience) in rules.items()
    }


def by_themselves() -> dict[str, Search]:
    """Return searches that end where little is expected of one more point."""

    def search(ground: RecordedGround, first: Sequence[Scored], begun: int, vain: int, worth: float) -> list[Known]:
        strategy = Frugal(ground, first, begun=begun, vain=vain, worth=worth)
        return tried(ground, strategy, Settings().most, Settings().patience)

    return {
        f"{b:>5}{vain:>6}{worth:>10.1%}": partial(search, begun=b, vain=vain, worth=worth) for b, vain, worth in FRUGAL
    }


def problem_in(space: RecordedSpace, cases: Mapping[str, Case]) -> Problem:
    """Return the problem of a space: of a case that has its label, or as it was written down."""
    case = cases.get(space.label)
    return problem_of_space(space, space.described) if case is None else problem_of(case, space.described)


def main() -> None:
    """Print a line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="+", type=Path)
    parser.add_argument("--strategy", default="rank")
    parser.add_argument("--frugal", action="store_true", help="compare when searches end by themselves")
    options = parser.parse_args()
    cases = {f"{case.kind} {case.name}": case for case in strategy_cases()}
    searches = by_themselves() if options.frugal else by_patience(options.strategy)
    found: dict[str, list[Outcome]] = {rule: [] for rule in searches}
    best = 0.0
    for space in (space for path in options.spaces for space in read_spaces(path)):
        ground = ground_of(space, problem_in(space, cases))
        first, best = first_of(ground), best + ground.best
        for rule, search in searches.items():
            found[rule].append(outcome(search(ground, first), ground))
    print(("begun  vain  expected" if options.frugal else "most  patience")
          + "  kernels  regret %  median  within 3 %  whole %")  # fmt: skip
    for rule, results in found.items():
        regrets, whole = [100 * each.regret for each in results], sum(each.seconds for each in results) / best - 1.0
        print(f"{rule}{mean(each.kernels for each in results):>9.1f}{mean(regrets):>10.2f}{median(regrets):>8.1f}"
              f"{sum(r <= 3 for r in regrets):>6} of {len(regrets):<2}{100 * whole:>9.2f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_code(main))

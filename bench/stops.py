"""When a search may stop: how many kernels it tries, and by how much its best is slower than the best recorded point,
for several limits and patiences, replayed in recorded spaces without a device.

    python bench/stops.py bench/results/spaces/*.json.gz
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import mean, median

from cuts.bench.record_spaces import problem_of
from cuts.bench.records import exit_code
from cuts.bench.strategies import BATCH, FIRST, first_of
from cuts.bench.strategy_cases import strategy_cases
from cuts.search.build import Scored
from cuts.search.learned.pool import RecordedGround, ground_of
from cuts.search.learned.recorded import read_spaces
from cuts.search.settings import Settings
from cuts.search.strategies import Known, place_of, strategy_on

#: Most kernels, and the batches in a row that may better nothing, of the searches that are compared.
RULES = ((40, 2), (40, 1), (40, 0), (30, 2), (24, 2), (60, 3))


def searched(ground: RecordedGround, first: Sequence[Scored], name: str, most: int, patience: int) -> list[Known]:
    """Return what a search tries in recorded times until it ends as `cuts tune` ends it, in order."""
    strategy, known, stale, reached = strategy_on(ground, name, first), list[Known](), 0, inf
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


def outcome(known: Sequence[Known], ground: RecordedGround) -> tuple[int, float]:
    """Return how many kernels a search tried, and its regret."""
    return len(known), min((k.seconds for k in known), default=inf) / ground.best - 1.0


def main() -> None:
    """Print a line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="+", type=Path)
    parser.add_argument("--strategy", default="rank")
    options = parser.parse_args()
    cases = {f"{case.kind} {case.name}": case for case in strategy_cases()}
    found: dict[tuple[int, int], list[tuple[int, float]]] = {rule: [] for rule in RULES}
    for space in (space for path in options.spaces for space in read_spaces(path)):
        ground = ground_of(space, problem_of(cases[space.label], space.described))
        first = first_of(ground)
        for rule, results in found.items():
            results.append(outcome(searched(ground, first, options.strategy, *rule), ground))
    print("most  patience  kernels  regret %  median  within 3 %")
    for (most, patience), results in found.items():
        regrets = [100 * regret for _, regret in results]
        print(f"{most:>4}{patience:>10}{mean(n for n, _ in results):>9.1f}{mean(regrets):>10.1f}{median(regrets):>8.1f}"
              f"{sum(r <= 3 for r in regrets):>9} of {len(regrets)}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_code(main))

"""At which place an order has the best recorded point of a space if its estimates are the recorded times but for errors
of a few percent: what of that place is the scatter of times, and how well a model must know them to reach one.

    python bench/oracle_places.py bench/results/spaces/*.json.gz
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from cuts.bench.records import exit_code
from cuts.search.learned.recorded import RecordedSpace, read_spaces

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Errors of estimates as parts of the time, and draws of each.
ERRORS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
DRAWS = 1000


def places(times: Array, error: float, draws: int = DRAWS) -> Array:
    """Return the places of the best of some times in orders that err by a part, each error drawn by itself."""
    estimates = times * np.exp(error * np.random.default_rng(0).standard_normal((draws, len(times))))
    best = estimates[:, int(np.argmin(times))]
    return np.asarray((estimates < best[:, None]).sum(axis=1) + 1)


def times_of(space: RecordedSpace) -> Array:
    """Return the times of a space's points that ran."""
    return np.asarray([p.seconds for p in space.points if p.seconds is not None])


def line(title: str, found: Sequence[float]) -> str:
    """Return a row of the table."""
    return f"{title:34}" + "".join(f"{each:8.4g}" for each in found)


def main() -> None:
    """Print a line for each space, and medians over spaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="+", type=Path)
    spaces = [space for path in parser.parse_args().spaces for space in read_spaces(path)]
    print("median place of the best recorded point, for errors of\n" + line("", [100 * e for e in ERRORS]) + " %")
    rows = [[float(np.median(places(times_of(space), error))) for error in ERRORS] for space in spaces]
    for space, row in zip(spaces, rows, strict=True):
        print(line(space.label, row))
    print(line("median over spaces", np.median(rows, axis=0).tolist()))


if __name__ == "__main__":
    sys.exit(exit_code(main))

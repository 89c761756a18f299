"""Tables of Woodpecker-DL: search strategies on the convolutions of Table 1.

Strategies search without the cost model in the recorded spaces of the five convolutions, 40 kernels each, so that no
device is needed. `ppo-printed` is section 2.4 as printed, `ppo-stepwise` the same search with the weights of `ppo`,
whose action is a whole configuration; `genetic-printed` is section 2.3.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from cuts.bench.operators.cases import listed_cases
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.recorded_domain import domain_of
from cuts.bench.tools.records import RESULTS, Row
from cuts.bench.tools.strategies import first_of, regrets, replay_search
from cuts.search.learned.recorded_spaces import read_spaces

from .registry import PaperTable, TableRequest, row_of

#: Strategies in the order of the table, seeds of each, and numbers of kernels after which regret is looked at.
SEARCHES = ("random", "genetic-printed", "ppo-printed", "ppo-stepwise", "ppo")
NUM_SEEDS, AFTER = 3, (20, 40)


def convolution_names() -> list[str]:
    """Return the names of the convolutions of Table 1."""
    return sorted(c.name.removeprefix("table 1 ") for c in listed_cases("strategies") if c.name.startswith("table 1 "))


def make_rows(request: TableRequest) -> Iterator[Row]:
    """Yield the row of each requested convolution."""
    end = time.monotonic() + request.limit
    for name in request.names:
        if time.monotonic() > end:
            return
        (space,) = read_spaces(RESULTS / "spaces" / f"conv-table-1-{name}.json.gz")
        domain = domain_of(space)
        first, found = first_of(domain), {}
        for strategy in SEARCHES:
            runs = [replay_search(domain, first, strategy, seed, False, AFTER[-1]) for seed in range(NUM_SEEDS)]
            found[strategy] = [[round(r, 4) for r in regrets(run.times, domain.best, AFTER)] for run in runs]
        fields = {"best_us": round(1e6 * domain.best, 3), "points": len(domain.points), "regret": found}
        yield row_of("1", name, space.machine["target"], fields, request.commit)


def table(rows: Sequence[Row]) -> str:
    """Return the mean regret of each strategy in percent."""
    heads = ["convolution", "best, us", *(f"{s}: 20, 40" for s in SEARCHES)]
    means = {row["name"]: [np.mean(row["regret"][s], axis=0) for s in SEARCHES] for row in rows}
    lines: list[list[object]] = [[row["name"], row["best_us"], *_cells(means[row["name"]])] for row in rows]
    overall = [np.mean([own[k] for own in means.values()], axis=0) for k in range(len(SEARCHES))]
    return markdown_table(heads, [*lines, ["mean", None, *_cells(overall)]])


def _cells(values: Sequence[Sequence[float]]) -> list[str]:
    return [", ".join(f"{100 * each:.0f} %" for each in pair) for pair in values]


TABLES = (
    PaperTable(
        "1", "regret of searches without the cost model", table, convolution_names, make_rows
    ),
)  # fmt: skip

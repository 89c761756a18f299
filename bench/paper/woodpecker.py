"""Tables of Woodpecker-DL: search strategies on recorded spaces.

Table 1 has searches without the cost model on the paper's five convolutions, 40 kernels each, so that no device is
needed. `ppo-printed` is section 2.4 as printed, `ppo-stepwise` the same search with the weights of `ppo`, whose action
is a whole configuration; `genetic-printed` is section 2.3. The other table has all strategies on all recorded spaces.
Figure 2b and section 3.4 are ResNet-18 beside cuDNN, PyTorch and its compiler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.recorded_domain import domain_of
from cuts.bench.tools.records import RESULTS, Row
from cuts.bench.tools.strategies import first_of, regrets, replay_search
from cuts.search.learned.recorded_spaces import read_spaces
from cuts.search.strategies import STRATEGIES

from .registry import PaperTable, TableRequest, row_of


@frozen
class StrategyTable:
    """Table of strategies on recorded spaces whose files begin with `prefix`.

    Each is replayed with some seeds, and regret is looked at `after` some kernels. `aided` searches have the cost
    model.
    """

    number: str
    prefix: str
    searches: tuple[str, ...]
    seeds: int
    after: tuple[int, ...]
    aided: bool

    def names(self) -> list[str]:
        """Return the names of the spaces."""
        files = sorted((RESULTS / "spaces").glob(f"{self.prefix}*.json.gz"))
        return [path.name.removeprefix(self.prefix).removesuffix(".json.gz") for path in files]

    def make_rows(self, request: TableRequest) -> Iterator[Row]:
        """Yield the row of each requested space."""
        end = time.monotonic() + request.limit
        for name in request.names:
            if time.monotonic() > end:
                return
            (space,) = read_spaces(RESULTS / "spaces" / f"{self.prefix}{name}.json.gz")
            domain = domain_of(space)
            first, found = first_of(domain), {}
            for each in self.searches:
                runs = [replay_search(domain, first, each, n, self.aided, self.after[-1]) for n in range(self.seeds)]
                found[each] = [[round(r, 4) for r in regrets(times, domain.best, self.after)] for times in runs]
            fields = {"best_us": round(1e6 * domain.best, 3), "points": len(domain.points), "regret": found}
            yield row_of(self.number, name, space.machine["target"], fields, request.commit)

    def text(self, rows: Sequence[Row]) -> str:
        """Return the mean regret of each strategy in percent."""
        counts = ", ".join(map(str, self.after))
        means = {row["name"]: [np.mean(row["regret"][s], axis=0) for s in self.searches] for row in rows}
        lines: list[list[object]] = [[row["name"], row["best_us"], *_cells(means[row["name"]])] for row in rows]
        overall = [np.mean([own[k] for own in means.values()], axis=0) for k in range(len(self.searches))]
        heads = ["convolution" if self.prefix else "kernel", "best, us", *(f"{s}: {counts}" for s in self.searches)]
        return markdown_table(heads, [*lines, ["mean", None, *_cells(overall)]])


def _cells(values: Sequence[Sequence[float]]) -> list[str]:
    return [", ".join(f"{100 * each:.0f} %" for each in pair) for pair in values]


def convolutions_text(rows: Sequence[Row]) -> str:
    """Return times of convolutions beside cuDNN and PyTorch."""
    speeds = [min(row["peers"].values()) / row["cuts_ms"] for row in rows]
    lines: list[list[object]] = [
        [row["name"], *(f"{1e3 * ms:.1f}" for ms in (row["cuts_ms"], row["peers"]["cudnn"], row["peers"]["torch"])),
         f"{speed:.2f}"] for row, speed in zip(rows, speeds, strict=True)
    ]  # fmt: skip
    if speeds:
        lines.append(["mean, greatest", None, None, None, f"{np.mean(speeds):.2f}, {max(speeds):.2f}"])
    return markdown_table(["convolution", "cuts, us", "cuDNN, us", "PyTorch, us", "speed"], lines)


def searches_text(rows: Sequence[Row]) -> str:
    """Return seconds of searches, and times of their best kernels."""
    lines: list[list[object]] = [[r["name"], f"{r['search_s']:.1f}", f"{1e3 * r['cuts_ms']:.1f}"] for r in rows]
    lines.append(["mean", f"{np.mean([row['search_s'] for row in rows]):.1f}", None])
    return markdown_table(["convolution", "search, s", "best kernel, us"], lines)


def end_to_end_text(rows: Sequence[Row]) -> str:
    """Return milliseconds of ResNet-18, the fastest first."""
    own = sorted((row for row in rows if "ms" in row), key=lambda row: row["ms"])
    lines = [[row["system"], f"{row['ms']:.3f}", row.get("launches"), f"{row['error']:.0e}"] for row in own]
    return markdown_table(["system", "ms", "launches", "error"], lines)


#: Network of section 3.4, at batch 1.
RESNET_18 = "torchvision.resnet18"
PRINTED_SEARCHES = ("random", "genetic-printed", "ppo-printed", "ppo-stepwise", "ppo")
TABLE_1 = StrategyTable("1", "conv-table-1-", PRINTED_SEARCHES, 3, (20, 40), aided=False)
EVERY = StrategyTable("strategies", "", tuple(STRATEGIES), 3, (5, 10, 20, 40, 100), aided=True)
CONVOLUTIONS = "python -m cuts.bench ops --class conv --batch 1 --only resnet18 --budget"
TABLES = (
    PaperTable(
        "1", "regret of searches without the cost model", TABLE_1.text, TABLE_1.names, TABLE_1.make_rows,
        also=("figure-3a",),
    ),
    PaperTable(
        "figure-2b", "convolutions of ResNet-18, batch 1, fp32, choices of the cost model", convolutions_text,
        command=f"{CONVOLUTIONS} 0 --out bench/results/paper/woodpecker-figure-2b.json",
    ),
    PaperTable(
        "figure-3b", "seconds of genetic searches of 40 kernels without the cost model", searches_text,
        command=f"{CONVOLUTIONS} 90 --strategy genetic-printed --together 1 --no-peers "
        "--out bench/results/paper/woodpecker-figure-3b.json",
    ),
    PaperTable(
        "3.4", "ResNet-18 end to end, batch 1, fp32", end_to_end_text, file="evaluation.json",
        command=f"python -m cuts.bench networks --only {RESNET_18}:1", shows=lambda row: row["model"] == RESNET_18,
    ),
    PaperTable("strategies", "regret of all strategies on all spaces", EVERY.text, EVERY.names, EVERY.make_rows),
)  # fmt: skip

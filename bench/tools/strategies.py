"""Replays search strategies on recorded spaces with equal budgets and starts.

    python -m cuts.bench strategies spaces/*.json.gz --seeds 10 --out strategies.json
    python -m cuts.bench strategies --table --out strategies.json

A space is a file of `bench/tools/record_spaces.py`. A strategy proposes points as in a live search; each proposal
becomes the nearest untried recorded point, with its recorded time. Regret is the slow-down of the best point so far
against the best of the recording, after 5, 10, 20, 40 and 100 kernels; seconds are the time of the proposals. `ended`
is the state at which `cuts tune` stops. `unaided` rows are searches without the cost model. All spaces have one weight.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
from attrs import frozen
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.recorded_domain import RecordedDomain, domain_of
from cuts.bench.tools.records import RESULTS, Row, read_rows, write_rows
from cuts.passes.schedule import best_points
from cuts.search.building.factory import ScoredCandidate
from cuts.search.learned.recorded_spaces import RecordedSpace, read_spaces
from cuts.search.processes.threads import one_thread
from cuts.search.settings import Settings
from cuts.search.strategies import STRATEGIES, Observation, place_of, strategy_on

#: Kernels after which regret is looked at.
AFTER = (5, 10, 20, 40, 100)
#: Points that are proposed at first, at most, and in each further batch, as `cuts tune` does.
FIRST_POINTS, BATCH = Settings().first, Settings().batch
#: Proposals that may fail to bring a new point before a search is over.
VAIN = 3


def first_of(ground: RecordedDomain) -> list[ScoredCandidate]:
    """Return a live search's first points, each as its nearest recorded one.

    They are the model's varied choice.
    """
    chosen = best_points(ground.space.group, ground.space.target, ground.pruning, FIRST_POINTS)
    near = {place_of(p): p for p in (ground.nearest(point) for point in chosen)}
    return [ground.candidate_at(p) for p in near.values()]


@frozen
class ReplayedSearch:
    """Ordered times of a search's points, and costs of its proposals.

    Costs are the counts after each proposal, and the seconds of proposals.
    """

    times: list[float]
    ends: list[int]
    seconds: float

    def stopping_count(self, settings: Settings) -> int:
        """Return after how many kernels `cuts tune` would have ended it."""
        reached, stale = inf, 0
        for before, end in pairwise([0, *self.ends]):
            stale = 0 if min(self.times[:end]) < (1 - settings.tie) * reached or not before else stale + 1
            reached = min(self.times[:end])
            if stale > settings.patience or end >= settings.most:
                return min(end, settings.most)
        return len(self.times)


def replay_search(
    ground: RecordedDomain, first: Sequence[ScoredCandidate], name: str, seed: int, aided: bool, most: int
) -> ReplayedSearch:
    """Return a search's measurements."""
    begin = time.process_time()
    strategy = strategy_on(ground, name, first, seed, aided)
    known: list[Observation] = []
    ends: list[int] = []
    vain = 0
    while len(known) < most and vain < VAIN:
        best = min((k.seconds for k in known), default=inf)
        count = min(BATCH if known else FIRST_POINTS, most - len(known))
        with one_thread():  # as live
            proposed = [s.point for s in strategy.propose(known, best, count) if s.point is not None]
        known += [Observation(p, ground.seconds[place_of(p)]) for p in proposed]
        ends += [len(known)] if proposed else []
        vain = 0 if proposed else vain + 1
    return ReplayedSearch([k.seconds for k in known], ends, time.process_time() - begin)


def regrets(times: Sequence[float], best: float, after: Sequence[int] = AFTER) -> list[float]:
    """Return the regret after each number of kernels.

    An ended search keeps its best; without a run the regret is ten times.
    """
    found = np.minimum.accumulate([min(t, 10 * best) for t in times] or [10 * best])
    return [float(found[min(n, len(found)) - 1] / best - 1.0) for n in after]


def until(times: Sequence[float], best: float, close: float = 0.03) -> int | None:
    """Return the number of kernels until 3 % of the best."""
    return next((n for n, t in enumerate(times, 1) if t <= (1 + close) * best), None)


def row_of(
    space: RecordedSpace, ground: RecordedDomain, first: Sequence[ScoredCandidate], name: str, aided: bool, seeds: int
) -> Row:
    """Return a strategy's outcome in a space."""
    runs = [replay_search(ground, first, name, seed, aided, AFTER[-1]) for seed in range(seeds)]
    seconds = float(np.mean([run.seconds for run in runs]))
    if all(run.times == runs[0].times for run in runs):
        runs = runs[:1]  # nothing in it is left to chance
    ended = [run.stopping_count(Settings()) for run in runs]
    return {
        "space": space.label, "machine": space.machine.get("target", ""), "strategy": name, "aided": aided,
        "points": len(ground.points), "recorded": len(space.points), "whole": space.whole,
        "timed": sum(t < inf for t in ground.seconds.values()), "best us": round(1e6 * ground.best, 3),
        "regret": [[round(r, 4) for r in regrets(run.times, ground.best)] for run in runs],
        "until": [until(run.times, ground.best) for run in runs], "tried": [len(run.times) for run in runs],
        "ended": [[n, *(round(r, 4) for r in regrets(run.times, ground.best, (n,)))]
                  for n, run in zip(ended, runs, strict=True)],
        "seeds": seeds, "seconds": round(seconds, 3),
    }  # fmt: skip


def rows_of(paths: Sequence[Path], options: argparse.Namespace, known: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows that are missing, until time is over."""
    end = time.monotonic() + options.limit
    have = {row_identity(row) for row in known}
    for space in (space for path in paths for space in read_spaces(path)):
        ground: RecordedDomain | None = None
        first: list[ScoredCandidate] = []
        wanted = [(name, aided) for aided in (True, False) for name in options.strategies]
        for name, aided in wanted:
            if (space.label, name, aided, len(space.points)) in have or time.monotonic() > end:
                continue
            if ground is None:
                ground = domain_of(space)
                first = first_of(ground)
            yield row_of(space, ground, first, name, aided, options.seeds)


def row_identity(row: Row) -> tuple[object, ...]:
    """Return a row's identity, which changes when its recording continues."""
    return row["space"], row["strategy"], row["aided"], row["recorded"]


def table(rows: Sequence[Row]) -> str:
    """Return mean regret in percent by strategy.

    It has kernels until within 3 %, and the outcome where `cuts tune` ends it.
    """
    heads = ["strategy", "spaces", *(f"after {n}" for n in AFTER), "kernels until 3 %, median", "reached"]
    names = [(name, aided) for aided in (True, False) for name in STRATEGIES]
    found = {(r["strategy"], r["aided"]) for r in rows}
    lines = [_line([r for r in rows if (r["strategy"], r["aided"]) == key]) for key in names if key in found]
    return markdown_table([*heads, "ends after", "with regret", "s a search"], lines)


def _line(own: Sequence[Row]) -> list[object]:
    """Return the line of a strategy's rows."""
    title = f"{own[0]['strategy']}{'' if own[0]['aided'] else ', unaided'}"
    means = (np.mean([np.mean([run[column] for run in r["regret"]]) for r in own]) for column in range(len(AFTER)))
    counts = [n for r in own for n in r["until"]]
    reached = sum(n is not None for n in counts) / len(counts)
    middle = float(np.median([np.median([inf if n is None else n for n in r["until"]]) for r in own]))
    kernels, regret = (np.mean([np.mean([each[k] for each in r["ended"]]) for r in own]) for k in (0, 1))
    cells = [*(f"{100 * mean:.1f}" for mean in means), f"{middle:g}" if middle < inf else "over 100", f"{reached:.0%}"]
    return [
        title,
        len(own),
        *cells,
        f"{kernels:.1f}",
        f"{100 * regret:.1f}",
        f"{np.mean([r['seconds'] for r in own]):.2f}",
    ]


def main() -> None:
    """Replay missing rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="recorded spaces")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--limit", type=float, default=inf, metavar="SECONDS", help="begin no row after that")
    parser.add_argument("--table", action="store_true", help="replay nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "strategies.json")
    options = parser.parse_args()
    rows = read_rows(options.out)
    for row in () if options.table else rows_of(options.files, options, rows):
        rows = [*(r for r in rows if row_identity(r)[:3] != row_identity(row)[:3]), row]
        write_rows(options.out, rows)
        print(row["space"], *_line([row]), flush=True)
    print(table(rows))

"""How well the points of an operation are ordered on a GPU that is new, by what was seen on another one: nothing, other
operations, this operation by a search, this operation at all points that were recorded.

    python bench/transfer_places.py bench/results/spaces_h100 bench/results/pairs/nvidia-h200 [--json FILE]
    python bench/transfer_places.py bench/results/spaces_h100 --made-up

The folders are of a GPU each, with the same spaces at the same points (`bench/record_spaces.py --points-of`); spaces
that both have of one GPU are left out, unless `--same` asks for them, which tells what the scatter of times does.
Places are those among the points that ran on both. A search is replayed in the recorded times of the other GPU, as
`cuts tune` has it (`frugal`), and as one that goes on to 30 and to 60 kernels (`bayes`). `kernels` are what a search on
the new GPU tries, replayed in its times and begun in the order, until one is within 3 % of the best.
`--made-up` takes a GPU that is not there in place of the other: what depends on memory takes 0.7 of the recorded time,
and every time errs by 1.5 %. `a search's winner` is tried before the plain order: what a hint is good for by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, evolve, frozen
from cuts.bench.record_spaces import problem_of_space
from cuts.bench.records import exit_code
from cuts.bench.stops import searched
from cuts.bench.strategies import FIRST, until
from cuts.passes.model import bound
from cuts.search.build import Scored
from cuts.search.learned import LearnedOrder, rescored
from cuts.search.learned.elsewhere import Elsewhere, ordered_seconds, times_of
from cuts.search.learned.judgement import PLAIN, Judged, Standing, learn, standing_of
from cuts.search.learned.pool import RecordedGround, ground_of
from cuts.search.learned.rank_points import MeasuredOperation, of_spaces
from cuts.search.learned.recorded import RecordedSpace, read_spaces
from cuts.search.problem import schedule_text
from cuts.search.settings import Settings
from cuts.search.strategies import CorrectedSpace

#: Searches on the other GPU: a title, a strategy, the kernels at which it is stopped, and how many proposals in a row
#: may better nothing.
SEARCHES = (
    ("a search", Settings().strategy, Settings().most, Settings().patience),
    ("30 kernels", "bayes", 30, 30),
    ("60 kernels", "bayes", 60, 60),
)
#: Kernels after which a replayed search on the new GPU is given up.
MOST = 100


@frozen(eq=False)
class Side:
    """One operation on one GPU: its points as the orders see them and as searches do, and which points each of the
    searches tried.
    """

    operation: MeasuredOperation
    ground: RecordedGround
    tried: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, space: RecordedSpace, operation: MeasuredOperation) -> Side:
        """Return a recorded space with the searches that are replayed in it."""
        target = evolve(space.described, name=space.machine["target"])
        ground = ground_of(space, problem_of_space(space, target))
        tried = {title: searched(ground, begun(ground), name, most, vain) for title, name, most, vain in SEARCHES}
        texts = {title: frozenset(schedule_text(ground.scored(k.point).candidate.schedule) for k in known)
                 for title, known in tried.items()}  # fmt: skip
        return cls(operation, ground, texts)

    def ordered_by(self, order: LearnedOrder) -> RecordedGround:
        """Return the recorded points in another order."""
        space = self.ground.full.space
        points = rescored(space, self.ground.points, order)
        return self.ground.ordered_by(CorrectedSpace(space, correction=order), [p.score for p in points])


def sides_of(spaces: Sequence[RecordedSpace]) -> list[Side]:
    """Return the spaces of a GPU with what orders need."""
    return [Side.of(space, operation) for space in spaces for operation in of_spaces([space])]


def common(one: RecordedSpace, other: RecordedSpace) -> tuple[RecordedSpace, RecordedSpace]:
    """Return both with the points that ran on both."""
    ran = [{p.schedule for p in space.points if p.seconds is not None} for space in (one, other)]
    both = ran[0] & ran[1]
    kept = [tuple(p for p in space.points if p.schedule in both) for space in (one, other)]
    return evolve(one, points=kept[0]), evolve(other, points=kept[1])


def made_up(space: RecordedSpace) -> RecordedSpace:
    """Return a space as another GPU might have recorded it."""
    (operation,) = of_spaces([space])
    found = bound(operation.points.features, operation.target)
    memory = np.maximum(found.terms["dram"], found.terms["l2"]) / np.asarray(found.time)
    errs = np.exp(0.015 * np.random.default_rng(len(space.points)).standard_normal(len(memory)))
    times = dict(zip(operation.schedules, operation.points.seconds * 0.7 ** np.clip(memory, 0, 1) * errs, strict=True))
    points = tuple(evolve(p, seconds=float(times[p.schedule])) for p in space.points if p.schedule in times)
    return evolve(space, points=points, machine={**space.machine, "target": "made up"})


def begun(ground: RecordedGround) -> list[Scored]:
    """Return the first of the recorded points in the order of their scores."""
    return [ground.scored(p) for p in sorted(ground.points)[:FIRST]]


def kernels(ground: RecordedGround, first: Sequence[Scored]) -> float:
    """Return how many kernels a search on the new GPU tries until one is within 3 % of the best."""
    found = until([k.seconds for k in searched(ground, first, "bayes", MOST, MOST)], ground.best)
    return MOST if found is None else found


@frozen
class SeenRow:
    """What one thing that was seen makes of the order of one operation on the new GPU."""

    new: str
    seen: str
    standing: Standing
    kernels: float
    points: float


def rows_of(here: Sequence[Side], there: Sequence[Side], foreign: bool) -> Iterator[SeenRow]:
    """Yield a row for each operation of the new GPU and each thing seen on the other. Estimates of what was measured
    there are those of this GPU's figures, or, where `foreign`, of that GPU's.
    """
    by_work = {side.operation.work: side for side in there}
    for new in here:
        known = by_work[new.operation.work]
        others = [side.operation for side in there if side is not known]
        measured = known.operation if foreign else evolve(known.operation, target=new.operation.target)
        trees = learn(others, "trees")
        yield _row(new, "nothing", PLAIN, None, 0)
        yield _row(new, "other operations", trees, None, sum(len(o.points.seconds) for o in others))
        yield _winner(new, measured, known.tried[SEARCHES[0][0]])
        for title, tried in known.tried.items():
            yield _recalled(new, title, measured.where(np.asarray([text in tried for text in measured.schedules])))
        yield _recalled(new, "all points", measured)


def _recalled(new: Side, title: str, measured: MeasuredOperation) -> SeenRow:
    order = evolve(PLAIN, recalled=times_of(measured))
    return _row(new, title, order, Elsewhere.of(measured, PLAIN), len(measured.schedules))


def _winner(new: Side, measured: MeasuredOperation, tried: frozenset[str]) -> SeenRow:
    """Return what the fastest point of a search makes of the plain order, tried first as a hint."""
    times = dict(times_of(measured))
    winner = min((text for text in tried if text in times), key=lambda text: times[text])
    expected = ordered_seconds(new.operation, PLAIN, None)
    expected[new.operation.schedules.index(winner)] = 0.0
    first = [s for s in map(new.ground.scored, new.ground.points) if schedule_text(s.candidate.schedule) == winner]
    found = kernels(new.ground, [*first, *begun(new.ground)])
    return SeenRow(new.operation.machine, "a search's winner", standing_of(new.operation, expected), found, 1)


def _row(new: Side, title: str, order: LearnedOrder, elsewhere: Elsewhere | None, points: int) -> SeenRow:
    standing = standing_of(new.operation, ordered_seconds(new.operation, order, elsewhere))
    ground = new.ordered_by(order)
    return SeenRow(new.operation.machine, title, standing, kernels(ground, begun(ground)), points)


def table(rows: Sequence[SeenRow]) -> str:
    """Return medians and geometric means over operations, for each GPU that is new."""
    lines = ["| new GPU | seen on the other | points | best point | first within 5 % | among the first 16 | kernels |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for new in dict.fromkeys(row.new for row in rows):
        for seen in dict.fromkeys(row.seen for row in rows):
            own = [row for row in rows if (row.new, row.seen) == (new, seen)]
            judged = Judged(seen, tuple(row.standing for row in own))
            (best, close), (best_mean, close_mean) = judged.medians, judged.means
            count = sum(row.standing.best <= 16 for row in own)
            middle = float(np.median([row.kernels for row in own]))
            lines.append(
                f"| {new} | {seen} | {np.median([row.points for row in own]):g} | {best:g}, {best_mean:.1f} "
                f"| {close:g}, {close_mean:.1f} | {count} of {len(own)} | {middle:g} |"
            )
    return "\n".join(lines)


def pairs_of(folders: Sequence[Path], same: bool, only: Sequence[str]) -> list[list[RecordedSpace]]:
    """Return the spaces of two GPUs, those that both have in the same order, with the points that ran on both; the
    other GPU is made up where there is one folder.
    """

    def wanted(space: RecordedSpace) -> bool:
        return not only or any(text in space.label for text in only)

    if len(folders) == 1:
        spaces = [s for path in sorted(folders[0].glob("*.json.gz")) for s in read_spaces(path) if wanted(s)]
        each = [(evolve(s, machine={**s.machine, "target": "recorded"}), made_up(s)) for s in spaces]
    else:
        one, other = (
            {s.work: s for path in sorted(place.glob("*.json.gz")) for s in read_spaces(path) if wanted(s)}
            for place in folders
        )
        each = [(one[work], other[work]) for work in one if work in other]
        each = [(a, b) for a, b in each if same or a.machine["target"] != b.machine["target"]]
        if same:
            each = [(a, evolve(b, machine={**b.machine, "target": f"{b.machine['target']} again"})) for a, b in each]
    return [list(side) for side in zip(*(common(a, b) for a, b in each), strict=True)]


def scatter(one: Sequence[Side], other: Sequence[Side]) -> str:
    """Return how alike the GPUs are: the median deviation of the points' ratios from their operation's middle."""
    found = []
    for a, b in zip(one, other, strict=True):
        times = [dict(times_of(side.operation)) for side in (a, b)]
        ratios = np.log([times[1][text] / times[0][text] for text in times[0]])
        fast = np.argsort([times[0][text] for text in times[0]])[:50]
        found.append((float(np.exp(np.median(ratios))), float(ratios.std()), float(ratios[fast].std())))
    ratio, spread, fastest = np.median(found, axis=0)
    names = one[0].operation.machine, other[0].operation.machine
    return (f"{names[1]} takes {ratio:.3f} of the time of {names[0]} (median over operations); points scatter about "
            f"their operation's ratio by {100 * spread:.1f} %, the fastest fifty by {100 * fastest:.1f} %")  # fmt: skip


def main() -> None:
    """Print the table for both directions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="one for each of two GPUs")
    parser.add_argument("--same", action="store_true", help="the other recording is of the same GPU")
    parser.add_argument("--made-up", action="store_true", help="one folder: the other GPU is imagined")
    parser.add_argument("--foreign", action="store_true", help="estimates of the other GPU by its own figures")
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="spaces whose name contains one of these")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    if len(options.folders) != 2 - options.made_up:
        parser.error("two folders are needed, or one with --made-up")
    pairs = pairs_of(options.folders, options.same, options.only)
    one, other = map(sides_of, pairs)
    print(scatter(one, other), flush=True)
    rows = []
    for here, there in ((one, other), (other, one)):
        for row in rows_of(here, there, options.foreign):
            rows.append(row)
            place = row.standing
            print(f"{row.new:24} {place.label:30} {row.seen:18}{row.points:6g} points: best {place.best:4}, within 5 % "
                  f"{place.close:4} of {place.points}; kernels {row.kernels:g}", flush=True)  # fmt: skip
    print(table(rows))
    if options.json:
        versions: Mapping[str, Any] = {s.machine["target"]: dict(s.version) for s in (pairs[0][0], pairs[1][0])}
        document = {"versions": versions, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))

"""Test of the claim that pruning by PUL loses no best point.

It is made in DeepCuts, section 4.3, for the top 1 % of more than 100,000 points. Each recorded space
(`bench/results/spaces`) has about 2,000 timed points, which later versions have too. A model orders them; regret is the
best time among its top share over the best time of all. `kept` counts recorded points within the top 1 % of the *whole*
space by PUL. The spaces of a second table have every legal point of the paper's parameters, so that no choice of points
favours a model (`bench/results/spaces/whole`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf
from statistics import geometric_mean
from typing import Any

import numpy as np
from attrs import frozen
from cuts.bench.operators.cases import listed_cases
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.recorded_domain import RecordedDomain, domain_of
from cuts.bench.tools.records import RESULTS, Row
from cuts.ir import Pruning
from cuts.passes.schedule import columns_of, evaluate, least_pul, pul_values
from cuts.search.learned.recorded_spaces import RecordedSpace, read_spaces
from cuts.search.strategies import place_of

from .registry import TableRequest, row_of

#: Models in the order of the table. PUL is a share of peak, the others are seconds.
MODELS = ("pul-printed", "pul", "bound", "cost model")
#: Shares of the recorded points whose regret is looked at.
SHARES = (1.0, 5.0)
Array = np.ndarray[Any, Any]


def model_scores(domain: RecordedDomain) -> dict[str, Array]:
    """Return each model's score of the recorded points, smaller for better."""
    points = domain.points
    found = {name: np.empty(len(points)) for name in ("pul-printed", "pul")}
    for position in sorted({p.structure for p in points}):
        rows = [k for k, p in enumerate(points) if p.structure == position]
        structure = domain.space.templates[position]
        table = np.asarray([points[k].places for k in rows], np.int64).reshape(len(rows), len(structure.shape))
        batch = evaluate(domain.space, structure, columns_of(structure, table), 0)
        for name, values in found.items():
            values[rows] = np.broadcast_to(-pul_values(batch, domain.space, name == "pul-printed"), (len(rows),))
    return found | {"bound": domain.bounds(points), "cost model": np.asarray([p.score for p in points])}


def regret_of_top(scores: Array, seconds: Array, share: float) -> float:
    """Return the best time of the top share over the best.

    Points with equal scores at the edge of the share count by their mean place: the best time is that of the expected
    number of points, drawn at random among them.
    """
    count = max(1, ceil(len(scores) * share / 100.0))
    edge = np.sort(scores)[count - 1]
    inside, tied = seconds[scores < edge], np.sort(seconds[scores == edge])
    drawn = count - len(inside)
    best = inside.min() if len(inside) else inf
    return float(_expected_least(np.minimum(tied, best), drawn) / seconds.min())


def _expected_least(ordered: Array, drawn: int) -> float:
    """Return the expected minimum of some values drawn without replacement."""
    total, left, chance = 0.0, len(ordered), 1.0
    for value in ordered:
        if left < drawn or chance <= 0.0:
            break
        total += chance * (drawn / left) * value
        chance *= 1.0 - drawn / left
        left -= 1
    return float(total)


def rank_correlation(scores: Array, seconds: Array) -> float:
    """Return Spearman's correlation of scores and times, with mean ranks of ties."""
    first, second = _ranks(scores), _ranks(seconds)
    return float(np.corrcoef(first, second)[0, 1]) if first.std() and second.std() else 0.0


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])


def claim_fields(space: RecordedSpace, cases: str) -> dict[str, Any]:
    """Return the fields of a space's row.

    `cases` is the list of `cases.toml` that has its case.
    """
    case = next(c for c in listed_cases(cases) if f"{c.kind} {c.name}" == space.label)
    domain = domain_of(space)
    seconds = np.asarray([domain.seconds[place_of(p)] for p in domain.points])
    ran = np.isfinite(seconds)
    times, models = seconds[ran], {name: values[ran] for name, values in model_scores(domain).items()}
    best, group, target = int(times.argmin()), domain.space.group, domain.space.target
    limits = {name: least_pul(group, target, Pruning(name, 1.0)) for name in ("pul-printed", "pul")}
    if cases == "whole":  # the recorded points are the space
        limits = {name: -np.sort(models[name])[ceil(len(times) / 100) - 1] for name in limits}
    whole = {name: -models[name] >= least for name, least in limits.items()}
    return {
        "precision": case.precision, "space": float(domain.space.size), "points": int(ran.sum()),
        "best_us": round(1e6 * float(times.min()), 3), "recorder": space.version,
        "regret": {n: [round(regret_of_top(v, times, s), 4) for s in SHARES] for n, v in models.items()},
        "spearman": {n: round(rank_correlation(v, times), 4) for n, v in models.items()},
        "whole": {n: {"kept": int(k.sum()), "has_best": bool(k[best]),
                      "regret": round(float(times[k].min() / times.min()), 4) if k.any() else None}
                  for n, k in whole.items()},
    }  # fmt: skip


@frozen
class SpaceTable:
    """Table of the recorded spaces in a folder of `bench/results`.

    A list of `cases.toml` names their cases.
    """

    number: str
    folder: str
    cases: str

    def names(self) -> tuple[str, ...]:
        """Return the names of the rows: those of the files."""
        return tuple(sorted(path.name.removesuffix(".json.gz") for path in (RESULTS / self.folder).glob("*.json.gz")))

    def make_rows(self, request: TableRequest) -> Iterator[Row]:
        """Yield the row of each requested space."""
        for name in request.names:
            (space,) = read_spaces(RESULTS / self.folder / f"{name}.json.gz")
            yield row_of(self.number, name, space.machine["target"], claim_fields(space, self.cases), request.commit)


RECORDED_SPACES, WHOLE_SPACES = (
    SpaceTable("claim", "spaces", "strategies"),
    SpaceTable("whole", "spaces/whole", "whole"),
)


def table(rows: Sequence[Row]) -> str:
    """Return regret, correlation and pruned best points of each model."""
    heads = ["space", "points", *(f"{m}: 1 %, 5 %, rank corr." for m in MODELS), "best in the space's top 1 %"]
    lines: list[list[object]] = [[row["name"], row["points"], *_cells(row)] for row in rows]
    kept = ", ".join(f"{m} {sum(r['whole'][m]['has_best'] for r in rows)} of {len(rows)}" for m in MODELS[:2])
    lines.append(["geometric mean, mean correlation", None, *(_mean_cell(rows, model) for model in MODELS), kept])
    return markdown_table(heads, lines)


def _cells(row: Row) -> Iterator[str]:
    for m in MODELS:
        yield f"{row['regret'][m][0]:.2f}, {row['regret'][m][1]:.2f}, {row['spearman'][m]:.2f}"
    whole = (row["whole"][m] for m in MODELS[:2])
    yield ", ".join(f"{'yes' if each['has_best'] else 'no'} ({each['kept']})" for each in whole)


def _mean_cell(rows: Sequence[Row], model: str) -> str:
    means = (geometric_mean(row["regret"][model][k] for row in rows) for k in range(len(SHARES)))
    return f"{', '.join(f'{m:.2f}' for m in means)}, {np.mean([row['spearman'][model] for row in rows]):.2f}"

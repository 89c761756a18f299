"""Ranking of all ways to use a cluster by one closed form.

Infeasible ways are rejected with their reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from attrs import evolve, field, frozen

from ...ir import UsageError
from ..plans import (
    ACTIVATIONS,
    MAX_GPUS,
    POLICIES,
    RESIDENT,
    Column,
    Machine,
    Terms,
    Transformer,
    Way,
    Ways,
    all_ways,
    time_source,
)
from ..prediction import Feasibility, corrected_terms, fit, infeasibility_reasons
from .thesis import AS_PRINTED, TABLE_5_6, thesis_terms

FORMS = ("corrected", "as-printed", "table-5.6")
#: Nodes up to which a sufficient cluster is searched for.
MAX_NODES = 4096


@frozen
class RankedWay:
    """Feasible way with its predicted time.

    It has the parts of the time in seconds, memory and storage of a GPU in bytes, and the binding resource.
    """

    way: Way
    seconds: float
    terms: Mapping[str, float]
    binding: str
    memory: float
    storage: float
    times: str

    def split(self) -> dict[str, float]:
        """Return the busy seconds of the parts that a table shows."""
        names = ("compute", "storage", "wp", "dp", "pipeline", "optimiser", "bubble")
        return {name: self.terms[name] for name in names}


@frozen(eq=False)
class Ranking:
    """All ways of a cluster, the best first.

    `ranked` has the requested ones, `rejected` counts reasons, with an example each.
    """

    model: Transformer
    machine: Machine
    form: str
    training: bool
    ranked: tuple[RankedWay, ...]
    considered: int
    feasible: int
    rejected: tuple[tuple[str, int, str], ...]
    ways: Ways = field(repr=False)
    seconds: Column = field(repr=False)
    fits: Column = field(repr=False)


def score(ways: Ways, model: Transformer, machine: Machine, form: str, *, training: bool) -> Terms:
    """Score ways by a form.

    Raises `UsageError` for an unknown form, or for a way that it does not cover.
    """
    if form == "corrected":
        return corrected_terms(ways, model, machine, training=training)
    readings = {"as-printed": AS_PRINTED, "table-5.6": TABLE_5_6}
    if form not in readings:
        raise UsageError(f"unknown form '{form}'", hint=f"forms are: {', '.join(FORMS)}")
    return thesis_terms(ways, model, machine, readings[form], training=training)


def rank(
    model: Transformer,
    machine: Machine,
    *,
    form: str = "corrected",
    training: bool = True,
    limit: int = 10,
    only: Mapping[str, int | str] | None = None,
) -> Ranking:
    """Rank all ways of a cluster.

    `only` fixes some choices by name. Raises `UsageError` where none fits, naming a sufficient cluster.
    """
    found = _rank(model, machine, form, training, limit, dict(only or {}))
    if not found.feasible:
        why = "; ".join(f"{example} ({count} ways)" for _, count, example in found.rejected[:3])
        raise UsageError(
            f"{model.name} fits {machine.name} in none of {found.considered} ways: {why}",
            hint=_suggest_cluster(found, only or {}),
        )
    return found


def _rank(
    model: Transformer, machine: Machine, form: str, training: bool, limit: int, only: dict[str, int | str]
) -> Ranking:
    ways = _select(all_ways(machine.count, model.batch, training=training), machine, model, only)
    if form != "corrected":
        ways = ways.rows(_distinct(ways))  # the thesis knows neither micro-batches nor residency
    terms = score(ways, model, machine, form, training=training)
    fits = fit(ways, model, machine, training=training)
    feasible = fits.feasible if form == "corrected" else np.full(len(ways), True)
    # Of equal times the one that moves least, then the one that needs least memory.
    order = np.lexsort((fits.memory, terms.read + terms.write, np.where(feasible, terms.total, np.inf)))
    best = [
        _ranked_way(int(row), ways, terms, fits, model, machine) for row in order[: min(limit, int(feasible.sum()))]
    ]
    rejected = () if form != "corrected" else _count_reasons(ways, fits, model, machine)
    return Ranking(
        model,
        machine,
        form,
        training,
        tuple(best),
        len(ways),
        int(feasible.sum()),
        rejected,
        ways,
        terms.total,
        feasible,
    )


def _ranked_way(
    row: int, ways: Ways, terms: Terms, fits: Feasibility, model: Transformer, machine: Machine
) -> RankedWay:
    way = ways.way(row)
    source = time_source(model, machine, way.micro, way.wp)
    values = terms.row(row)
    return RankedWay(
        way, values["total"], values, terms.binding(row), float(fits.memory[row]), float(fits.storage[row]), source
    )


def _select(ways: Ways, machine: Machine, model: Transformer, only: Mapping[str, int | str]) -> Ways:
    keep = np.full(len(ways), True)
    for name, value in only.items():
        if name in ("dp", "wp", "p"):
            _divides(name, int(value), machine, model)
            keep &= getattr(ways, name) == value
        elif name == "micro":
            if not (ways.micro == value).any():
                some = ", ".join(map(str, np.unique(ways.micro)))
                raise UsageError(f"micro {value}: expected a micro-batch that divides a group's share: {some}")
            keep &= ways.micro == value
        else:
            column, names = {
                "policy": (1 - ways.pr.astype(int), POLICIES),
                "resident": (ways.level, RESIDENT),
                "activations": (ways.activations, ACTIVATIONS),
            }[name]
            keep &= column == names.index(str(value))
    if not keep.any():
        asked = ", ".join(f"{name} {value}" for name, value in only.items())
        raise UsageError(
            f"{machine.name}: no way to use {machine.count} GPUs has {asked}",
            hint="dp x wp x p must be the number of GPUs",
        )
    return ways.rows(keep)


def _divides(name: str, value: int, machine: Machine, model: Transformer) -> None:
    if value < 1 or machine.count % value:
        raise UsageError(f"{name} {value}: expected a number that divides the {machine.count} GPUs of {machine.name}")
    if name == "p" and model.layers % value:
        raise UsageError(f"p {value}: {model.layers} layers of {model.name} do not divide into {value} stages")
    if name == "wp" and model.groups % value:
        raise UsageError(f"wp {value}: {model.groups} heads of {model.name} do not divide among {value} GPUs")


def _distinct(ways: Ways) -> Column:
    table = np.stack([ways.dp, ways.wp, ways.p, ways.pr.astype(int)])
    _, rows = np.unique(table, axis=1, return_index=True)
    return rows


def _count_reasons(
    ways: Ways, fits: Feasibility, model: Transformer, machine: Machine
) -> tuple[tuple[str, int, str], ...]:
    """Count reasons, the most frequent first; each with the reason of the way that misses by least as example."""
    counts: Counter[str] = Counter()
    kinds = {
        "its numbers do not divide": ~fits.divides,
        "too little GPU memory": fits.divides & ~fits.fits_memory,
        "too little storage": fits.divides & ~fits.fits_storage,
    }
    found = []
    for kind, mask in kinds.items():
        counts[kind] = int(mask.sum())
        if counts[kind]:
            nearest = int(np.argmin(np.where(mask, fits.storage if "storage" in kind else fits.memory, np.inf)))
            example = "; ".join(infeasibility_reasons(ways, fits, nearest, model, machine))
            found.append((kind, counts[kind], f"{ways.way(nearest).text}: {example}"))
    return tuple(sorted(found, key=lambda each: -each[1]))


def _suggest_cluster(found: Ranking, only: Mapping[str, int | str]) -> str:
    """Name the smallest cluster of the same nodes on which some way fits; where this one would do but for fixed
    choices, these.
    """
    nodes = 1
    rest = {name: value for name, value in only.items() if name not in ("dp", "wp", "p")}
    if rest != only and has_feasible_way(found.model, found.machine, found.training, rest):
        fixed = ", ".join(f"{name} {value}" for name, value in only.items() if name not in rest)
        return f"this cluster would do without {fixed}"
    while nodes <= MAX_NODES and nodes * found.machine.gpus <= MAX_GPUS:
        machine = evolve(found.machine, nodes=nodes)
        if nodes != found.machine.nodes and has_feasible_way(found.model, machine, found.training, rest):
            gpus = f"{machine.count} GPUs" if machine.count > 1 else "1 GPU"
            return f"the smallest cluster of such nodes that would do has {nodes} nodes ({gpus})"
        nodes *= 2
    return f"no cluster of up to {nodes // 2} such nodes would do: use GPUs with more memory, or more storage"


def has_feasible_way(model: Transformer, machine: Machine, training: bool, only: Mapping[str, int | str]) -> bool:
    """Return whether any way fits."""
    try:
        ways = _select(all_ways(machine.count, model.batch, training=training), machine, model, only)
    except UsageError:
        return False
    return bool(fit(ways, model, machine, training=training).feasible.any())

"""Contraction recompute: contractions computed again for each group of readers.

A contraction is recomputed where kernels are faster with it by the cost model, and where memory has no room for its
results. Both programs of a family, with stored results and with recomputed ones, are partitioned like any graph.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from attrs import evolve, frozen

from ..ir import CutsError, Statement, TensorType, naming_faults, rename_statement
from .context import CompileContext
from .costs import AnalyticCost
from .fusion import (
    CachedEvaluator,
    Family,
    Partitioner,
    Programs,
    RecomputeChoice,
    defer_normalisation,
    find_views,
    partition,
    recompute_contractions,
)
from .results import Statements

_LOG = logging.getLogger("cuts.passes")
#: Largest share of the time with stored results that recomputing kernels may take by the cost model.
MAX_MODELLED_SHARE = 0.9


def choose_recomputed_contractions(previous: Statements, context: CompileContext) -> Statements:
    """Return statements with some contractions recomputed."""
    programs = previous.programs
    if not context.target.lockstep or context.target.invariant or context.options.mode == "no-fusion":
        return previous
    chosen = _Choices(programs, context)
    found = recompute_contractions(programs, chosen.way)
    if (room := context.memory_limit) is None or peak_bytes(found, chosen.passing(found)) <= room:
        if found is programs:
            return previous
        return evolve(previous, programs=found, recomputed=previous.recomputed | chosen.passing(found))
    for size in sorted({_largest(family, programs) for family in chosen.asked}, reverse=True):
        chosen.least = size
        found = recompute_contractions(programs, chosen.way)
        if peak_bytes(found, chosen.passing(found)) <= room:
            break
    _LOG.info("cuts: products whose results take %.4g MB or more are computed again", chosen.least / 2**20)
    passing = chosen.passing(found)
    return evolve(
        previous, programs=found, on_chip=previous.on_chip | passing, recomputed=previous.recomputed | passing
    )


@frozen
class _Key:
    """Computation of a family's units, independent of tensor names."""

    units: tuple[tuple[Statement, ...], ...]
    types: tuple[TensorType, ...]


class _Choices:
    """Decisions about families; all with results of at least `least` bytes are recomputed."""

    def __init__(self, programs: Programs, context: CompileContext) -> None:
        self.programs, self.context, self.least = programs, context, float("inf")
        self.asked: dict[Family, RecomputeChoice] = {}
        self.known: dict[Hashable, RecomputeChoice] = {}
        self.able: dict[Family, bool] = {}
        self.evaluator = CachedEvaluator(AnalyticCost(context.target))

    def way(self, family: Family) -> RecomputeChoice:
        """Return the treatment of a family."""
        size = _largest(family, self.programs)
        if family not in self.asked:
            self.asked[family] = self._fastest(family)
        return "each" if size >= self.least and self._is_able(family) else self.asked[family]

    def _is_able(self, family: Family) -> bool:
        """Return whether the units that recompute a family for each side have normal forms."""
        if family not in self.able:
            kept = family_programs(self.programs, family)
            self.able[family] = recompute_contractions(kept) is not kept
        return self.able[family]

    def passing(self, programs: Programs) -> frozenset[str]:
        """Return the tensors that pass between contractions in shared memory.

        They are results of families that are recomputed for each side, and their replacements.
        """
        before = self.programs.types
        made = {t for family in self.asked if self.way(family) == "each" for t in family.recomputed}
        types = {before[t] for t in made}
        return frozenset(made | {t for t, kind in programs.types.items() if t not in before and kind in types})

    def _fastest(self, family: Family) -> RecomputeChoice:
        """Return the way with the fastest kernels, by more than the error of the model."""
        kept = family_programs(self.programs, family)
        key = _key(kept)
        if key not in self.known:
            seconds: dict[RecomputeChoice, float] = {"keep": MAX_MODELLED_SHARE * self._seconds(kept)}
            seconds["once"] = self._seconds(recompute_contractions(kept, lambda _: "once"))
            seconds["each"] = self._seconds(recompute_contractions(kept))
            _LOG.debug("cuts: products again, us: %s", {way: round(s * 1e6, 1) for way, s in seconds.items()})
            self.known[key] = min(seconds, key=lambda way: seconds[way])
        return self.known[key]

    def _seconds(self, programs: Programs) -> float:
        evaluator = self.evaluator
        try:
            with naming_faults("products that are computed again"):
                builder = self.context.builder(find_views(defer_normalisation(programs)))
                return sum(evaluator.cost(group.form) for group in partition(Partitioner(builder, evaluator), "mixed"))
        except CutsError as error:
            _LOG.info("cuts: a way to compute products again is left out: %s", error)
            return float("inf")


def family_programs(programs: Programs, family: Family) -> Programs:
    """Return the units of a family and its stored results."""
    own = {r.statement.target for r in (*family.consumers, *family.sums)} | family.recomputed
    units = tuple(u for u in programs.units if any(s.target in own for s in u.statements))
    made = {s.target for u in units for s in u.statements}
    needed = {t for u in programs.units if u not in units for t in u.reads} | {*programs.graph.outputs}
    inputs = dict.fromkeys(t for u in units for t in u.reads if t not in made)
    outputs = tuple(t for u in units for t in u.writes if t in needed)
    graph = evolve(programs.graph, inputs=tuple(inputs), outputs=outputs, nodes=(), constants={})
    return evolve(programs, graph=graph, units=units)


def _key(programs: Programs) -> Hashable:
    """Return a key that is equal for equal computations."""
    names: dict[str, str] = {}
    for unit in programs.units:
        for tensor in unit.tensors:
            names.setdefault(tensor, f"t{len(names)}")
    statements = tuple(tuple(rename_statement(s, names) for s in u.statements) for u in programs.units)
    outputs = tuple(names[t] for t in programs.graph.outputs)
    return _Key(statements, tuple(programs.types[t] for t in names)), outputs


def _largest(family: Family, programs: Programs) -> int:
    """Return the bytes of the largest result that a family would store."""
    return max(programs.types[t].nbytes for t in family.recomputed)


def peak_bytes(programs: Programs, on_chip: frozenset[str]) -> int:
    """Return the peak bytes of live tensors between units.

    Those that are `on_chip` are excluded.
    """
    views = find_views(programs)
    alive: dict[str, list[int]] = {}
    for place, unit in enumerate(views.programs.units):
        for tensor in (*unit.reads, *unit.writes):
            while tensor in views.sources:
                tensor = views.sources[tensor]
            alive.setdefault(tensor, []).append(place)
    last = len(views.programs.units)
    changes = [0] * (last + 2)
    for tensor, places in alive.items():
        if tensor in on_chip:
            continue
        kept = tensor in programs.graph.outputs or tensor in programs.graph.inputs
        first = 0 if tensor in programs.graph.inputs else min(places)
        changes[first] += programs.types[tensor].nbytes
        changes[(last if kept else max(places)) + 1] -= programs.types[tensor].nbytes
    total = most = 0
    for change in changes:
        total += change
        most = max(most, total)
    return most

"""Evaluation of a graph in several ways against the float64 reference."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from attrs import evolve, field, frozen
from cuts.backends.device import Device
from cuts.backends.devices import find_target, open_device
from cuts.compile.driver import build_graph, compile_unmeasured
from cuts.compile.loading import Spec
from cuts.compile.plan import CompiledPlan
from cuts.ir.compiled import FULL_SHARE, CompileOptions, Mode
from cuts.ir.errors import GraphError
from cuts.ir.graph import Graph
from cuts.ir.machine import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.numerics.comparison import Comparison, compare
from cuts.numerics.reference import accumulations
from cuts.numerics.tolerance import tolerance
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.passes.costs.executor import Workload
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule.selection.choose import Candidate
from cuts.passes.schedule.space import make_space
from cuts.runtime.arrays import random_inputs
from cuts.runtime.session import Session

from ..kernels.cases import legal_points
from .chance import Chance
from .element_types import numbers
from .interpreting import interpret
from .rounding import roundings

#: The ways that a graph is computed in. The first needs no device: normal forms are interpreted, over the memory that
#: views lay out.
WAYS = ("interpreted", "by chance", "fused", "unfused")
#: Largest work groups on the CPU, by graph.
THREADS = (32, 64, 32, 32, 128)
#: How often inputs are moved to see how much of a difference rounding explains.
MOVES = 4
#: Further points of each kernel in which races are looked for.
MAX_SEARCHED_POINTS = 8
_MODES: dict[str, Mode] = {"fused": "mixed", "unfused": "no-fusion", "by chance": "mixed"}


@frozen
class Outcome:
    """Outcome of one way: groups by level, kernels, and wrong tensors.

    A kernel with a race is wrong for any result. `ill` says that the declarations themselves, evaluated in single
    precision, are about as inaccurate.
    """

    way: str
    levels: Mapping[str, int]
    kernels: int = 0
    wrong: tuple[str, ...] = ()
    ill: bool = False


@frozen
class Watched(Chance):
    """Random decisions with a search for races in lowered kernels.

    Chosen kernels and some at other points are searched: on a device they may go well by luck.
    """

    races: dict[str, None] = field(factory=dict, eq=False, repr=False)

    def schedule(
        self, workloads: Mapping[Hashable, Workload], share: float = FULL_SHARE
    ) -> Mapping[Hashable, Candidate]:
        """Return a legal point of each kernel, and record lowered forms' races."""
        chosen = super().schedule(workloads, share)
        for key, work in workloads.items():
            for schedule in (chosen[key].schedule, *self._staged_points(work.form)):
                self.races.update(dict.fromkeys(check_barriers(lower(work.form, schedule, work.storages, self.target))))
        return chosen

    def _staged_points(self, form: FusedGroup) -> list[Schedule]:
        """Return legal points of a structure that stages something, for small tensors seldom do."""
        space = make_space(form, self.target)
        staging = [s for s in space.templates if any(part.stages_any for part in s.segments)]
        number = self.number(form)
        return legal_points(space, staging[number % len(staging)], number, MAX_SEARCHED_POINTS) if staging else []


@frozen
class Bench:
    """Vocabulary and device of many graphs; `target` is the model's target."""

    target: str
    registry: Registry = field(factory=Registry.builtin)
    devices: dict[str, Device] = field(factory=dict)

    @property
    def machines(self) -> tuple[Mapping[str, object], ...]:
        """Return the descriptions of the opened devices."""
        return tuple(device.describe() for device in self.devices.values())

    def wide(self, seed: int) -> Target:
        """Return the machine over whose space chance decides: a large GPU.

        Where kernels run on the CPU its work groups are small, because PoCL takes seconds to compile large ones with
        barriers.
        """
        machine = find_target(self.target)
        if not machine.on_host:
            return machine
        return evolve(
            find_target("cuda:sm_90"),
            dialect=machine.dialect,
            MAX_thread=THREADS[seed % len(THREADS)],
            MAX_shared=16384,
        )

    def check(self, graph: Graph, seed: int = 0, ways: Sequence[str] = WAYS) -> tuple[Outcome, ...]:
        """Compute a graph in some ways and compare; raise the compiler's errors."""
        inputs, expected = self.draw_inputs(graph, seed)
        return tuple(
            (self._interpret if w == WAYS[0] else self._launch)(w, graph, seed, inputs, expected) for w in ways
        )

    def draw_inputs(self, graph: Graph, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return inputs and the graph's results.

        Integers are arbitrary, or valid indices where they index.
        """
        rng = np.random.default_rng(seed)
        inputs = {name: numbers(rng, graph.types[name].dtype, graph.types[name].shape) for name in graph.inputs}
        try:
            return inputs, evaluate_graph(graph, self.registry, inputs)
        except GraphError:
            inputs = random_inputs(graph.types, graph.inputs, seed)
            return inputs, evaluate_graph(graph, self.registry, inputs)

    def _interpret(
        self, way: str, graph: Graph, seed: int, inputs: Mapping[str, Any], expected: Mapping[str, Any]
    ) -> Outcome:
        groups, found = interpret(graph, self.registry, Chance(self.wide(seed), seed=seed, launched=False), inputs)
        # Folded constants are rounded once more, and conversions to an operand's own type never.
        narrowest = {name: a.narrowest for name, a in accumulations(graph, self.registry).items()}
        allowed = {n: tolerance(graph.types[n].dtype, 1, narrowest=narrowest.get(n)) for n in graph.outputs}
        return self._outcome(way, [g.level for g in groups], 0, graph, inputs, expected, found, allowed)

    def _launch(
        self, way: str, graph: Graph, seed: int, inputs: Mapping[str, Any], expected: Mapping[str, Any]
    ) -> Outcome:
        chance = Watched(self.wide(seed), seed=seed) if way == "by chance" else None
        plan = self.compile(graph, way, chance, seed)
        levels = [str(g.get("level", "single")) for g in plan.plan.groups]
        if chance is not None and chance.races:
            return Outcome(way, _count_groups(levels), len(plan.kernels), tuple(chance.races))
        found, allowed = self._run(plan, inputs), plan.tolerances()
        return self._outcome(way, levels, len(plan.kernels), graph, inputs, expected, found, allowed)

    def compile(self, graph: Graph, way: str, chance: Chance | None, seed: int = 0) -> CompiledPlan:
        """Compile a graph in one way, with random decisions where requested.

        Every other CPU stands for a GPU, for which launches are reordered and shared.
        """
        target = find_target(self.target) if chance is None else chance.target
        if chance is None and target.on_host and seed % 2:
            target = evolve(target, lockstep=True, NUM_SM=132, MAX_thread=32, MAX_shared=16384)
        run = compile_unmeasured if chance is None else chance.compile
        return build_graph(graph, Spec(self.registry), target, CompileOptions(mode=_MODES[way], verify=True), run)

    def _run(self, plan: CompiledPlan, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run a plan twice, with other inputs first, and return the second results: unwritten elements would be those
        of the first run.
        """
        dialect = plan.target.dialect
        if dialect not in self.devices:
            self.devices[dialect] = open_device(plan.target)
        session = Session(plan.plan, self.devices[dialect])
        session.run(random_inputs(plan.plan.types, plan.plan.inputs, 1 << 30))
        return session.run(inputs)

    def _outcome(
        self,
        way: str,
        levels: Sequence[str],
        kernels: int,
        graph: Graph,
        inputs: Mapping[str, Any],
        expected: Mapping[str, Any],
        found: Mapping[str, Any],
        allowed: Mapping[str, float],
    ) -> Outcome:
        wrong = [
            r for r in (compare(name, found[name], expected[name], allowed[name]) for name in graph.outputs) if not r.ok
        ]
        ill = bool(wrong) and self.ill_conditioned(graph, inputs, expected, wrong)
        return Outcome(way, _count_groups(levels), kernels, tuple(r.text for r in wrong), ill)

    def ill_conditioned(
        self, graph: Graph, inputs: Mapping[str, Any], expected: Mapping[str, Any], wrong: Sequence[Comparison]
    ) -> bool:
        """Return whether rounding changes the declarations' results as much.

        An exact 0 may be luck, so the inputs of each step are also moved by a rounding error.
        """
        own = dict.fromkeys([r.tensor for r in wrong], 0.0)
        for narrow in roundings(graph, self.registry, inputs, MOVES):
            for r in wrong:
                own[r.tensor] = max(
                    own[r.tensor], compare(r.tensor, narrow[r.tensor], expected[r.tensor], r.tolerance).error
                )
        return all(r.error <= 8 * own[r.tensor] < inf for r in wrong)


def _count_groups(levels: Sequence[str]) -> dict[str, int]:
    return {level: levels.count(level) for level in dict.fromkeys(levels)}

"""Memory of a session: results of workers that are used again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from attrs import define, field

from ...ir import BOUND_PRUNING, KernelFunction, Pruning
from ...passes.fusion import form_key
from ...passes.schedule import RANKED_POINTS, Point
from ..building import BuildResult, ScoredCandidate
from ..learned import LearnedOrder
from ..tasks import TuningTask
from ..trace import Statistics


@define(eq=False)
class SearchMemory:
    """Results of workers by task, kept until the session ends.

    `ranked` has the best candidates of ranked spaces, `hill_climbed` those that a hill climb found for the cost of a
    group, `trusted` the tasks whose simple kernel was checked. `kernels` has built kernels, by task and schedule or by
    the name of a launch; `ready` has speculatively built ones in the device's form. `searched_ahead` are the tasks of
    speculative searches, `searched` those of all others, `quickly_searched` those whose first candidates a short search
    has measured.
    """

    statistics: Statistics
    ranked: dict[Hashable, list[ScoredCandidate]] = field(factory=dict)
    hill_climbed: dict[Hashable, Sequence[Point]] = field(factory=dict)
    trusted: set[str] = field(factory=set)
    kernels: dict[tuple[str, str], KernelFunction] = field(factory=dict)
    ready: dict[tuple[str, str], BuildResult] = field(factory=dict)
    searched_ahead: set[str] = field(factory=set)
    searched: set[str] = field(factory=set)
    quickly_searched: set[str] = field(factory=set)

    def ranking(
        self, problem: TuningTask, pruning: Pruning, count: int, correction: LearnedOrder | None
    ) -> tuple[Any, ...]:
        """Return the arguments of a worker's ranking of a task.

        They include the candidates of the hill climb for its cost, where the settings are the same.
        """
        same = (pruning, count, correction) == (BOUND_PRUNING, RANKED_POINTS, None)
        return problem, pruning, count, correction, self.hill_climbed.get(form_key(problem.form), ()) if same else ()

    def keep_built(self, place: tuple[str, str], built: BuildResult, seconds: float, ahead: bool = False) -> None:
        """Store a kernel and its build time, with `ahead` for the device."""
        self.statistics.note_built(seconds)
        if built.kernel is not None:
            self.kernels[place] = built.kernel
        if ahead:
            self.ready[place] = built

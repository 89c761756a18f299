"""Genetic search of Woodpecker-DL as section 2.3 prints it.

A configuration is a vector of numbers: the structure, and the index of each parameter's value. The first population is
random; illegal individuals are drawn again. The fitness of a configuration is the reciprocal of its time, and its
probability as a parent its share of all fitness (Equation 1). The fittest pass into the next generation unchanged; each
of the others is a crossover of two parents from a roulette wheel (Equation 2), and may mutate. The search converges
when the times of all individuals of a generation are close.

The paper leaves some parameters open, which are chosen here: population sizes, the number of elites, the crossover (one
point), the mutation rate, and the convergence tolerance. Parents of different structures have no crossover: a copy of
the fitter one mutates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ..building import ScoredCandidate
from .proposer import Observation, Proposer
from .search_domain import Place, place_of

#: Share of a generation that passes on, mutation rate, and relative difference of converged times.
ELITE_SHARE, MUTATION_RATE, CONVERGENCE_TOLERANCE = 0.5, 0.1, 0.02
#: Children that are made for each requested one, as most vectors may be illegal.
CHILDREN_PER_PROPOSAL = 32


@define
class PrintedGenetic(Proposer):
    """Generations of configurations; `population` are the points of the current one."""

    population: list[Place] = field(factory=list)

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return new individuals of the next generation, none after convergence."""
        if not self.population:
            return self._next_generation([], self.take(self.new_candidates(self.random_order()), best, count))
        seconds = {place_of(k.point): k.seconds for k in known}
        fit = sorted((seconds[p], p) for p in self.population if np.isfinite(seconds.get(p, np.inf)))
        if len(fit) < 2:
            return self._next_generation(
                [p for _, p in fit], self.take(self.new_candidates(self.random_order()), best, count)
            )
        times, ordered = np.asarray([s for s, _ in fit]), [p for _, p in fit]
        if len(fit) >= 4 and times[-1] <= (1.0 + CONVERGENCE_TOLERANCE) * times[0]:
            return []
        generator = np.random.default_rng((self.seed, len(known)))
        wheel = np.cumsum(selection(times))
        children = [self._child(ordered, wheel, generator) for _ in range(CHILDREN_PER_PROPOSAL * count)]
        wanted = self.domain.legal(list(dict.fromkeys(children)))
        elites = ordered[: max(1, round(ELITE_SHARE * len(ordered)))]
        return self._next_generation(elites, self.take(self.new_candidates(wanted), best, count))

    def _next_generation(self, elites: Sequence[Place], added: list[ScoredCandidate]) -> list[ScoredCandidate]:
        """Store the next generation of elites and new individuals, and return the latter."""
        self.population = [*elites, *(place_of(s.point) for s in added if s.point is not None)]
        return added

    def _child(self, ordered: Sequence[Place], wheel: np.ndarray, generator: np.random.Generator) -> Place:
        (first, mother), (second, father) = (
            ordered[min(int(np.searchsorted(wheel, generator.random())), len(ordered) - 1)] for _ in range(2)
        )
        shape = self.domain.shapes[first]
        places = list(mother)
        if first == second and len(shape) > 1:
            cut = int(generator.integers(1, len(shape)))
            places = [*mother[:cut], *father[cut:]]
        moved = generator.random(len(shape)) < MUTATION_RATE
        if first != second and len(shape):
            moved[generator.integers(len(shape))] = True
        return first, tuple(
            int(generator.integers(n)) if m else p for p, n, m in zip(places, shape, moved, strict=True)
        )


def selection(times: np.ndarray) -> np.ndarray:
    """Return the selection probability of each individual, Equation 1."""
    fitness = times.min() / times
    return np.asarray(fitness / fitness.sum())

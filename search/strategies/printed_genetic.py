"""The genetic search of Woodpecker-DL as section 2.3 prints it.

A configuration is the vector of its numbers: which structure, and the place of each knob's value. The first population
is drawn at random; what is not legal is drawn again. A configuration's fitness is the reciprocal of its time, and its
chance to be a parent its share of all fitness (Equation 1). The fittest pass into the next generation as they are; each
of the others is crossed from two parents that a roulette wheel picks (Equation 2), and may mutate. The search converges
when the times of all individuals of a generation are close.

What the paper leaves open is chosen here: sizes of populations, how many pass on, where vectors are cut (one point),
how often a number mutates, and what is close. Parents of different structures cannot be crossed: the fitter one's copy
mutates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ..build import Scored
from .ground import Place, place_of
from .proposer import Known, Proposer

#: The part of a generation that passes on; how often a number mutates; times that are so close have converged.
ELITES, MUTATION, CLOSE = 0.5, 0.1, 0.02
#: Children that are made for each that is wanted, as most vectors may be illegal.
TRIES = 32


@define
class PrintedGenetic(Proposer):
    """Generations of configurations, the first at random. `population` are the places of the current one."""

    population: list[Place] = field(factory=list)

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the new individuals of the next generation; nothing once all times are close."""
        if not self.population:
            return self._joined([], self.take(self.scored(self.drawn()), best, count))
        seconds = {place_of(k.point): k.seconds for k in known}
        fit = sorted((seconds[p], p) for p in self.population if np.isfinite(seconds.get(p, np.inf)))
        if len(fit) < 2:
            return self._joined([p for _, p in fit], self.take(self.scored(self.drawn()), best, count))
        times, ordered = np.asarray([s for s, _ in fit]), [p for _, p in fit]
        if len(fit) >= 4 and times[-1] <= (1.0 + CLOSE) * times[0]:
            return []
        generator = np.random.default_rng((self.seed, len(known)))
        wheel = np.cumsum(selection(times))
        children = [self._child(ordered, wheel, generator) for _ in range(TRIES * count)]
        wanted = self.ground.legal(list(dict.fromkeys(children)))
        elites = ordered[: max(1, round(ELITES * len(ordered)))]
        return self._joined(elites, self.take(self.scored(wanted), best, count))

    def _joined(self, elites: Sequence[Place], added: list[Scored]) -> list[Scored]:
        """Make the next generation of elites and new individuals, and return the latter."""
        self.population = [*elites, *(place_of(s.point) for s in added if s.point is not None)]
        return added

    def _child(self, ordered: Sequence[Place], wheel: np.ndarray, generator: np.random.Generator) -> Place:
        (first, mother), (second, father) = (
            ordered[min(int(np.searchsorted(wheel, generator.random())), len(ordered) - 1)] for _ in range(2)
        )
        shape = self.ground.shapes[first]
        places = list(mother)
        if first == second and len(shape) > 1:
            cut = int(generator.integers(1, len(shape)))
            places = [*mother[:cut], *father[cut:]]
        moved = generator.random(len(shape)) < MUTATION
        if first != second and len(shape):
            moved[generator.integers(len(shape))] = True
        return first, tuple(
            int(generator.integers(n)) if m else p for p, n, m in zip(places, shape, moved, strict=True)
        )


def selection(times: np.ndarray) -> np.ndarray:
    """Return the probability of each individual to be selected, Equation 1."""
    fitness = times.min() / times
    return np.asarray(fitness / fitness.sum())
